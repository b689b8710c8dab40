//! liburing, whose operations reach the kernel past the hooks. Once a program has a ring, all its connections are on
//! TCP. If one of them cannot go back to TCP, the program gets no ring. A program that asks for a ring by the number of
//! the system call is told that the kernel has none. Such programs have another way. liburing's functions leave errno alone.

use crate::real::{symbol, Symbol};
use libc::{c_int, c_uint, c_void, size_t};
use sanshim_core::switch::bring_back::before_unhooked_calls;
use sanshim_core::sys::{errno, file};

/// Defines hooks of functions that make a ring and report errors as negative values. With each stands the function that
/// ends that ring.
macro_rules! makers {
    ($(fn $name:ident($($arg:ident: $type:ty),*) ended by $end:expr;)*) => {$(
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
                // SAFETY: liburing's function of that name has this signature; the arguments are the program's own.
                let made = unsafe {
                    let function: unsafe extern "C-unwind" fn($($type),*) -> c_int =
                        std::mem::transmute(address);
                    function($($arg),*)
                };
                if made >= 0 && !before_unhooked_calls() {
                    $end(made, $($arg),*);
                    return -libc::ENOSYS;
                }
                made
            })
        }
    )*};
}

fn exit(ring: *mut c_void) {
    static SYMBOL: Symbol = symbol!(io_uring_queue_exit).or_of(c"liburing.so.2");
    // SAFETY: liburing's function of that name, if there is one, for a ring that was made just now.
    unsafe {
        let function: Option<unsafe extern "C" fn(*mut c_void)> =
            std::mem::transmute(SYMBOL.address());
        if let Some(function) = function {
            function(ring);
        }
    }
}

makers! {
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint)
        ended by |_, _, ring, _| exit(ring);
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void)
        ended by |_, _, ring, _| exit(ring);
    fn io_uring_queue_init_mem(
        entries: c_uint,
        ring: *mut c_void,
        parameters: *mut c_void,
        memory: *mut c_void,
        size: size_t
    ) ended by |_, _, ring, _, _, _| exit(ring);
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void)
        ended by |fd: c_int, _, _| file::close(fd);
}
