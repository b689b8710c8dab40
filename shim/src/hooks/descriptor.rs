//! close, dup, fcntl, ioctl.

use crate::real::hooks;
use libc::{c_int, c_uint, c_ulong};
use sanshim_core::logging;
use sanshim_core::switch::{self, bring_back, lifecycle, options, table};
use sanshim_core::sys::actions::done;
use sanshim_core::sys::{errno, file, hidden, user};

fn closing(fd: c_int) {
    if table::is_known(fd) {
        lifecycle::before_close(fd);
    } else if fd == libc::STDERR_FILENO {
        logging::standard_error_goes();
    }
}

fn duplicated(from: c_int, to: c_int) {
    if to >= 0 && table::is_known(from) && !switch::is_borrowed() {
        lifecycle::duplicated(from, to);
        // stdin, stdout and stderr, which libc reads and writes past the hooks, as it does a stream from fdopen.
        if from != to && to <= libc::STDERR_FILENO && !options::listens(to) {
            bring_back::before_unhooked_use(to);
        }
    }
}

/// Called before dup2 and dup3. The library forgets what is at the target only if the kernel will accept the arguments.
fn replacing(from: c_int, to: c_int, flags: c_int) {
    let is_standard_error = to == libc::STDERR_FILENO;
    let concerns = table::is_known(to) || hidden::is_hidden(to) || is_standard_error;
    if from == to || !concerns || flags & !libc::O_CLOEXEC != 0 || switch::is_borrowed() {
        return;
    }
    if file::check_open(from).is_ok() && file::may_be_number(to) {
        lifecycle::replacing(to);
        if is_standard_error {
            logging::standard_error_goes();
        }
    }
}

/// Calls `close` on the stretches of `first..=last` between descriptors of ours.
fn around_hidden(
    first: c_uint,
    last: c_uint,
    mut close: impl FnMut(c_uint, c_uint) -> c_int,
) -> c_int {
    let number = |fd: c_uint| fd.min(c_int::MAX as c_uint - 1) as c_int;
    let mut start = first;
    let mut result = 0;
    while let Some(ours) = hidden::next(number(start), number(last)) {
        let ours = ours as c_uint;
        if ours > start {
            result = close(start, ours - 1);
        }
        start = ours + 1;
    }
    if start <= last {
        result = close(start, last);
    }
    result
}

hooks! {
    fn close(fd: c_int) -> c_int = |real| {
        if hidden::is_hidden(fd) {
            errno::set(libc::EBADF);
            return -1;
        }
        closing(fd);
        done(real(fd))
    }

    fn __close(fd: c_int) -> c_int = |real| {
        // SAFETY: the same contract.
        unsafe { close(fd) }
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = |real| {
        const UNSHARE: c_int = 2;
        if first > last || flags & !UNSHARE != 0 || !file::can_close_ranges() {
            // It fails, or sets close-on-exec, which our descriptors are anyway.
            return real(first, last, flags);
        }
        if !switch::is_borrowed() {
            let end = last.min(i32::MAX as c_uint - 1) as c_int;
            table::each_known(first.min(i32::MAX as c_uint) as c_int, end, lifecycle::closing);
            if (first..=last).contains(&(libc::STDERR_FILENO as c_uint)) {
                logging::standard_error_goes();
            }
        }
        done(around_hidden(first, last, |a, b| real(a, b, flags)))
    }

    fn closefrom(first: c_int) -> () = |real| {
        let first = first.max(0);
        // SAFETY: the same contract.
        if unsafe { close_range(first as c_uint, c_uint::MAX, 0) } == 0 {
            return;
        }
        // As libc where the kernel cannot do it (before 5.9). If none can be listed, none is closed.
        let _ = file::each_open(|fd| {
            if fd >= first {
                // SAFETY: the program wants it closed.
                unsafe { close(fd) };
            }
        });
    }

    fn dup(fd: c_int) -> c_int = |real| {
        let made = real(fd);
        duplicated(fd, made);
        made
    }

    fn dup2(from: c_int, to: c_int) -> c_int = |real| {
        replacing(from, to, 0);
        let made = done(real(from, to));
        duplicated(from, made);
        made
    }

    fn __dup2(from: c_int, to: c_int) -> c_int = |real| {
        // SAFETY: the same contract.
        unsafe { dup2(from, to) }
    }

    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int = |real| {
        replacing(from, to, flags);
        let made = done(real(from, to, flags));
        duplicated(from, made);
        made
    }

    // Variadic in libc. To pass the third argument on does no harm where there is none.
    fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int = |real| {
        let result = real(fd, command, argument);
        after_fcntl(fd, command, argument, result);
        result
    }

    fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int = |real| {
        let result = real(fd, command, argument);
        after_fcntl(fd, command, argument, result);
        result
    }

    fn __fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int = |real| {
        let result = real(fd, command, argument);
        after_fcntl(fd, command, argument, result);
        result
    }

    // libc's own function asks the kernel past the hook of ioctl.
    fn sockatmark(fd: c_int) -> c_int = |real| {
        let mut at_mark: c_int = 0;
        // SAFETY: the answer has a place.
        match unsafe { ioctl(fd, options::SIOCATMARK, (&raw mut at_mark) as c_ulong) } {
            0 => at_mark,
            failed => failed,
        }
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int = |real| {
        if !table::is_known(fd) {
            return real(fd, request, argument);
        }
        // The kernel takes 32 bits of it.
        let known = c_ulong::from(request as c_uint);
        if let Some(value) = options::ioctl(fd, known) {
            return match user::write(argument as *mut c_int, value) {
                Ok(()) => 0,
                Err(e) => {
                    errno::set(e.0);
                    -1
                }
            };
        }
        let result = real(fd, request, argument);
        if result == 0 && matches!(known, libc::FIONBIO | libc::FIOASYNC) {
            // SAFETY: the kernel has just read an int there.
            let on = Some(unsafe { (argument as *const c_int).read_unaligned() } != 0);
            match known {
                libc::FIONBIO => options::status_flags_changed(fd, on, None),
                _ => options::status_flags_changed(fd, None, on),
            }
        }
        result
    }
}

pub(super) fn after_fcntl(fd: c_int, command: c_int, argument: c_ulong, result: c_int) {
    if result < 0 || !table::is_known(fd) {
        return;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, result),
        libc::F_SETFL => {
            let flags = argument as c_int;
            options::status_flags_changed(
                fd,
                Some(flags & libc::O_NONBLOCK != 0),
                Some(flags & libc::O_ASYNC != 0),
            );
        }
        _ => {}
    }
}
