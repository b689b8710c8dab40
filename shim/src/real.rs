//! libc's own functions behind the hooks. All are looked up when the library is loaded, not when they are first called: that
//! may be in a signal handler, or in each of a server's children anew.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that is looked up once.
pub(crate) struct Symbol {
    name: &'static CStr,
    /// A library in which it is looked for as well, because the program may have loaded that with RTLD_LOCAL.
    library: Option<&'static CStr>,
    address: AtomicPtr<libc::c_void>,
}

impl Symbol {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, library: None, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The same function, which is looked for in `library` as well, if that is loaded.
    pub(crate) const fn or_of(self, library: &'static CStr) -> Self {
        Self { library: Some(library), ..self }
    }

    /// The next definition after ours. Null if there is none.
    #[inline]
    pub(crate) fn address(&self) -> *mut libc::c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: a terminated name.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if let Some(library) = self.library.filter(|_| found.is_null()) {
            // SAFETY: terminated names; nothing is loaded that was not.
            unsafe {
                let loaded = libc::dlopen(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
                if !loaded.is_null() {
                    found = libc::dlsym(loaded, self.name.as_ptr());
                }
            }
        }
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Looks up libc's functions behind all hooks.
pub(crate) fn look_up_all() {
    extern "C" {
        #[link_name = "__start_sanshim_symbols"]
        static START: u8;
        #[link_name = "__stop_sanshim_symbols"]
        static STOP: u8;
    }
    // SAFETY: the linker puts these round the section, in which there is nothing but `hooks!`' symbols side by side.
    let all = unsafe {
        let start = (&raw const START).cast::<Symbol>();
        let stop = (&raw const STOP).cast::<Symbol>();
        std::slice::from_raw_parts(start, stop.offset_from_unsigned(start))
    };
    for symbol in all {
        symbol.address();
    }
}

/// Makes the [`Symbol`] of that name.
macro_rules! symbol {
    ($name:ident) => {
        $crate::real::Symbol::new({
            match ::std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes())
            {
                Ok(name) => name,
                Err(_) => unreachable!(),
            }
        })
    };
}
pub(crate) use symbol;

/// Defines hooks. In the body `real(..)` is libc's own function of that name. If this libc has none, a call of it fails
/// with `ENOSYS`.
macro_rules! hooks {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty = |$real:ident| $body:block
    )*) => {$(
        $(#[$attribute])*
        #[no_mangle]
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
            // Without `used` the optimizer would leave of it what this function needs.
            #[used]
            #[link_section = "sanshim_symbols"]
            static SYMBOL: $crate::real::Symbol = $crate::real::symbol!($name);
            #[allow(unused_variables)]
            let $real = |$($arg: $type),*| -> $result {
                let address = SYMBOL.address();
                if address.is_null() {
                    return $crate::real::missing();
                }
                // SAFETY: libc's function of that name has this signature; the arguments are the
                // program's own.
                unsafe {
                    let function: unsafe extern "C-unwind" fn($($type),*) -> $result =
                        ::std::mem::transmute(address);
                    function($($arg),*)
                }
            };
            $body
        }
    )*};
}
pub(crate) use hooks;

/// How a function says that it failed.
pub(crate) trait Failure {
    /// The value that goes with errno.
    const FAILED: Self;
}

impl Failure for i32 {
    const FAILED: Self = -1;
}

impl Failure for i64 {
    const FAILED: Self = -1;
}

impl Failure for isize {
    const FAILED: Self = -1;
}

/// For functions that return a signal's handler: `SIG_ERR`.
impl Failure for usize {
    const FAILED: Self = libc::SIG_ERR;
}

impl<T> Failure for *mut T {
    const FAILED: Self = std::ptr::null_mut();
}

impl Failure for () {
    const FAILED: Self = ();
}

/// The result of a function that this libc does not have.
#[cold]
pub(crate) fn missing<T: Failure>() -> T {
    set_errno(libc::ENOSYS);
    T::FAILED
}

/// Sets errno.
pub(crate) fn set_errno(value: i32) {
    // SAFETY: errno is always there.
    unsafe { *libc::__errno_location() = value }
}

/// errno.
pub(crate) fn errno() -> i32 {
    // SAFETY: errno is always there.
    unsafe { *libc::__errno_location() }
}
