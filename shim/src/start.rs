//! Loading and unloading of the library.

use crate::hooks;
use crate::real::{self, libc_symbol};
use sanshim_core::config::Config;
use sanshim_core::logging;
use sanshim_core::switch::{self, fork};
use sanshim_core::sys::blocking::{self, Blocking, EpollPwait, Ppoll, Pselect, Recv};
use sanshim_core::sys::errno;
use sanshim_core::sys::thread;
use std::cell::UnsafeCell;

#[used]
#[link_section = ".init_array"]
static START: extern "C" fn() = start;

#[used]
#[link_section = ".fini_array"]
static END: extern "C" fn() = end;

extern "C" fn start() {
    errno::prepare();
    errno::kept(begin);
}

fn begin() {
    libc_symbol!(RECV = recv);
    libc_symbol!(PPOLL = ppoll);
    libc_symbol!(PSELECT = pselect);
    libc_symbol!(EPOLL_PWAIT = epoll_pwait);
    real::look_up_all();
    let config = Config::load().and_then(|config| logging::initialize(&config).map(|()| config));
    let config = config.unwrap_or_else(|e| {
        logging::say(&format!("{e}; running on plain TCP"));
        let mut off = Config::default();
        off.enabled = false;
        off
    });
    if !config.enabled {
        return;
    }
    let needed = [RECV.address(), PPOLL.address(), PSELECT.address(), EPOLL_PWAIT.address()];
    if needed.iter().any(|address| address.is_null()) {
        logging::say("libc is loaded before this library: put libsanshim.so first in LD_PRELOAD; running on plain TCP");
        return;
    }
    // SAFETY: libc's functions of these names have these signatures.
    blocking::install(unsafe {
        Blocking {
            recv: std::mem::transmute::<*mut libc::c_void, Recv>(RECV.address()),
            ppoll: std::mem::transmute::<*mut libc::c_void, Ppoll>(PPOLL.address()),
            pselect: std::mem::transmute::<*mut libc::c_void, Pselect>(PSELECT.address()),
            epoll_pwait: std::mem::transmute::<*mut libc::c_void, EpollPwait>(
                EPOLL_PWAIT.address(),
            ),
        }
    });
    thread::note_thread_locals();
    if let Err(e) = switch::initialize(config) {
        logging::say(&format!("no memory for the descriptor table ({e}); running on plain TCP"));
        return;
    }
    hooks::jumps::prepare();
    hooks::lookups::prepare();
    std::panic::set_hook(Box::new(|panic| log::error!("a defect of the shim: {panic}")));
    // SAFETY: called once, before any handler of ours that may allocate.
    unsafe { dlmalloc::enable_alloc_after_fork() };
    // These run also for a fork inside libc (daemon, forkpty), which no hook sees.
    // SAFETY: the handlers are plain functions.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}

extern "C" fn end() {
    errno::kept(fork::exiting);
}

/// The fork under way. The structure lock is held while it is `Some`.
struct UnderWay(UnsafeCell<Option<fork::Fork>>);

// SAFETY: only touched between the lock's taking and its release by the forking thread.
unsafe impl Sync for UnderWay {}

static FORK: UnderWay = UnderWay(UnsafeCell::new(None));

unsafe extern "C" fn before_fork() {
    let fork = errno::kept(fork::before_fork);
    // SAFETY: the structure lock is held.
    unsafe { *FORK.0.get() = Some(fork) };
}

unsafe extern "C" fn in_parent() {
    // SAFETY: the structure lock is held.
    if let Some(fork) = unsafe { (*FORK.0.get()).take() } {
        errno::kept(|| fork.in_parent());
    }
}

unsafe extern "C" fn in_child() {
    // SAFETY: the structure lock is held.
    if let Some(fork) = unsafe { (*FORK.0.get()).take() } {
        errno::kept(|| fork.in_child());
    }
}
