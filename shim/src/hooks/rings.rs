//! liburing, whose operations reach the kernel past the hooks. Operations on files concern no connection, so each ring is looked
//! at before liburing submits what lies in it. Before the first operation of another kind all connections go back to TCP, and stay
//! there. While one of them cannot go back, the submission fails with EAGAIN, and the program submits again. A program that lays out
//! a ring itself could submit past every hook. So that program gets a ring only once its connections are on TCP, and is told that
//! the kernel has none if it asks by the number of the system call. liburing's functions leave errno alone.

use super::submitted::{registers_sockets, submits_beyond_files, Layout, Ring};
use crate::real::{symbol, Symbol};
use libc::{c_int, c_uint, c_void};
use sanshim_core::switch::bring_back::{before_unhooked_calls, has_unhooked_calls};
use sanshim_core::sys::{errno, file};

/// Defines hooks of functions that report errors as negative values. `before` says whether a call may be for sockets. `after` gets the
/// result, and gives another one.
macro_rules! of_liburing {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(before $before:expr;)? $(after $after:expr;)?)*) => {$(
        #[no_mangle]
        unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            #[used]
            #[link_section = "sanshim_symbols"]
            static SYMBOL: Symbol = symbol!(
                $name hooked by $name as unsafe extern "C-unwind" fn($($type),*) -> c_int
            )
            .or_of(c"liburing.so.2");
            errno::kept(|| {
                let address = SYMBOL.address();
                if address.is_null() {
                    return -libc::ENOSYS;
                }
                $({
                    static LAYOUT: Layout = Layout::new();
                    let is_for_sockets = !has_unhooked_calls() && $before(&LAYOUT, address);
                    if is_for_sockets && !before_unhooked_calls() {
                        return -libc::EAGAIN;
                    }
                })?
                // SAFETY: liburing's function of that name has this signature; the arguments are the program's own.
                let result = unsafe {
                    let function: unsafe extern "C-unwind" fn($($type),*) -> c_int =
                        std::mem::transmute(address);
                    function($($arg),*)
                };
                $(let result = $after(result);)?
                result
            })
        }
    )*};
}

/// Tells whether what a call submits may be for sockets.
fn looks_at(ring: *const Ring) -> impl Fn(&Layout, *mut c_void) -> bool {
    move |layout, function| {
        // SAFETY: null, or a ring of a liburing with this layout, which reads the same words next.
        !layout.is_known(function) || unsafe { ring.as_ref() }.is_some_and(submits_beyond_files)
    }
}

fn looks_for_sockets(files: *const c_int, count: c_uint) -> impl Fn(&Layout, *mut c_void) -> bool {
    move |_, _| registers_sockets(files, count)
}

/// True for the numbers of `io_uring_register` by which files are registered.
fn is_of_files(operation: c_uint) -> bool {
    matches!(operation, 2 | 6 | 13 | 14)
}

of_liburing! {
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void)
        after |made: c_int| {
            if made >= 0 && !before_unhooked_calls() {
                file::close(made);
                return -libc::ENOSYS;
            }
            made
        };
    fn io_uring_submit(ring: *mut Ring)
        before looks_at(ring);
    fn io_uring_submit_and_wait(ring: *mut Ring, least: c_uint)
        before looks_at(ring);
    fn io_uring_submit_and_wait_timeout(
        ring: *mut Ring, done: *mut c_void, least: c_uint, time: *mut c_void, mask: *mut c_void
    ) before looks_at(ring);
    fn io_uring_submit_and_wait_min_timeout(
        ring: *mut Ring, done: *mut c_void, least: c_uint, time: *mut c_void, first: c_uint, mask: *mut c_void
    ) before looks_at(ring);
    fn io_uring_submit_and_wait_reg(ring: *mut Ring, done: *mut c_void, least: c_uint, number: c_int)
        before looks_at(ring);
    fn io_uring_submit_and_get_events(ring: *mut Ring)
        before looks_at(ring);
    // Where the kernel has no time-outs of its own, these functions submit one, and all else that lies in the ring.
    fn io_uring_wait_cqes(
        ring: *mut Ring, done: *mut c_void, least: c_uint, time: *mut c_void, mask: *mut c_void
    ) before looks_at(ring);
    fn io_uring_wait_cqe_timeout(ring: *mut Ring, done: *mut c_void, time: *mut c_void)
        before looks_at(ring);
    fn io_uring_register_files(ring: *mut Ring, files: *const c_int, count: c_uint)
        before looks_for_sockets(files, count);
    fn io_uring_register_files_tags(
        ring: *mut Ring, files: *const c_int, tags: *const u64, count: c_uint
    ) before looks_for_sockets(files, count);
    fn io_uring_register_files_update(
        ring: *mut Ring, first: c_uint, files: *const c_int, count: c_uint
    ) before looks_for_sockets(files, count);
    fn io_uring_register_files_update_tag(
        ring: *mut Ring, first: c_uint, files: *const c_int, tags: *const u64, count: c_uint
    ) before looks_for_sockets(files, count);
    fn io_uring_register(ring: c_uint, operation: c_uint, what: *const c_void, count: c_uint)
        before |_: &Layout, _| is_of_files(operation);
}
