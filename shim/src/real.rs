//! libc's own functions behind the hooks. The library looks all of them up when it is loaded, and not when the program
//! first calls them: that may be in a signal handler, or in each of a server's children anew. dlsym is hooked too, so
//! dlvsym, which is not, finds libc's own.

use sanshim_core::sys::errno;
use std::ffi::{c_char, CStr};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The function that a program gets in the place of libc's, whatever its arguments are.
pub(crate) type Hook = unsafe extern "C-unwind" fn();

/// A function that is looked up once.
pub(crate) struct Symbol {
    name: &'static CStr,
    /// A library in which it is looked for as well, because the program may have loaded that with RTLD_LOCAL.
    library: Option<&'static CStr>,
    hook: Option<Hook>,
    address: AtomicPtr<libc::c_void>,
}

impl Symbol {
    pub(crate) const fn new(name: &'static CStr, hook: Option<Hook>) -> Self {
        let address = AtomicPtr::new(std::ptr::null_mut());
        Self { name, library: None, hook, address }
    }

    /// Its hook, if it has one.
    pub(crate) fn hook(&self) -> Option<Hook> {
        self.hook
    }

    /// The same function, which is looked for in `library` as well, if that is loaded.
    pub(crate) const fn or_of(self, library: &'static CStr) -> Self {
        Self { library: Some(library), ..self }
    }

    /// The next definition after ours. Null if there is none.
    #[inline]
    pub(crate) fn address(&self) -> *mut libc::c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() {
            return self.look_up();
        }
        known
    }

    #[cold]
    fn look_up(&self) -> *mut libc::c_void {
        let Some(dlsym) = own_dlsym() else { return std::ptr::null_mut() };
        // SAFETY: a terminated name.
        let mut found = unsafe { dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if let Some(library) = self.library.filter(|_| found.is_null()) {
            // SAFETY: terminated names; nothing is loaded that was not.
            unsafe {
                let loaded = libc::dlopen(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
                if !loaded.is_null() {
                    found = dlsym(loaded, self.name.as_ptr());
                }
            }
        }
        if found.is_null() {
            // The program asks for the reasons of its own look-ups.
            // SAFETY: no arguments.
            unsafe { libc::dlerror() };
        }
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// libc's dlsym, past every hook of it.
type DlSym = unsafe extern "C" fn(*mut libc::c_void, *const c_char) -> *mut libc::c_void;

fn own_dlsym() -> Option<DlSym> {
    static OWN: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
    extern "C" {
        fn dlvsym(
            handle: *mut libc::c_void,
            name: *const c_char,
            version: *const c_char,
        ) -> *mut libc::c_void;
    }
    let mut own = OWN.load(Ordering::Relaxed);
    // The version that is libc's, and the one from before libdl became a part of libc. Hooks have none. No lock is held: what
    // this calls may call it.
    for version in [c"GLIBC_2.34", c"GLIBC_2.2.5"] {
        if own.is_null() {
            // SAFETY: terminated names.
            own = unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
            OWN.store(own, Ordering::Relaxed);
        }
    }
    // SAFETY: null, or libc's function of that name, which has this signature.
    unsafe { std::mem::transmute::<*mut libc::c_void, Option<DlSym>>(own) }
}

/// An address in libc.
pub(crate) fn in_libc() -> Option<*const libc::c_void> {
    own_dlsym().map(|dlsym| dlsym as *const libc::c_void)
}

// The linker makes these two. Nobody else has them.
std::arch::global_asm!(".hidden __start_sanshim_symbols", ".hidden __stop_sanshim_symbols");

/// All that [`libc_symbol`] has declared.
fn all() -> &'static [Symbol] {
    #[allow(improper_ctypes, reason = "it is Rust's on both sides")]
    extern "C" {
        #[link_name = "__start_sanshim_symbols"]
        static START: [Symbol; 0];
        #[link_name = "__stop_sanshim_symbols"]
        static STOP: [Symbol; 0];
    }
    // SAFETY: the linker puts these round the section. In it are only symbols, side by side: each has the alignment of its
    // type, and a size that is a multiple of that.
    unsafe {
        let start = (&raw const START).cast::<Symbol>();
        let stop = (&raw const STOP).cast::<Symbol>();
        std::slice::from_raw_parts(start, stop.offset_from_unsigned(start))
    }
}

/// Looks up all of them.
pub(crate) fn look_up_all() {
    // The others come with a library that most programs do not have.
    for symbol in all().iter().filter(|symbol| symbol.library.is_none()) {
        symbol.address();
    }
}

/// The hooked function of that name.
pub(crate) fn hooked(name: &CStr) -> Option<&'static Symbol> {
    all().iter().find(|symbol| symbol.name == name && symbol.hook.is_some())
}

/// Declares the static [`Symbol`] of a function of libc's, which is looked up at the start. `hooked by` the hook of its
/// name, which a program gets if it looks the function up itself.
macro_rules! libc_symbol {
    ($symbol:ident = $name:ident) => {
        $crate::real::libc_symbol!(@ $symbol, $crate::real::symbol!($name));
    };
    ($symbol:ident = $name:ident hooked by $hook:path as $type:ty) => {
        $crate::real::libc_symbol!(@ $symbol, $crate::real::symbol!($name hooked by $hook as $type));
    };
    (@ $symbol:ident, $made:expr) => {
        // Without `used` the optimizer would leave only a part of it in the section.
        #[used]
        #[link_section = "sanshim_symbols"]
        static $symbol: $crate::real::Symbol = $made;
    };
}
pub(crate) use libc_symbol;

/// Makes the [`Symbol`] of that name.
macro_rules! symbol {
    ($name:ident) => {
        $crate::real::Symbol::new($crate::real::symbol!(@ $name), None)
    };
    ($name:ident hooked by $hook:path as $type:ty) => {
        $crate::real::Symbol::new(
            $crate::real::symbol!(@ $name),
            // SAFETY: a caller that gets it calls it with the type that the function of that name has.
            Some(unsafe { ::std::mem::transmute::<$type, $crate::real::Hook>($hook) }),
        )
    };
    (@ $name:ident) => {
        match ::std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => unreachable!(),
        }
    };
}
pub(crate) use symbol;

/// Defines hooks. In the body `real(..)` is libc's own function of that name. If this libc has none, a call of it fails
/// with `ENOSYS`. If the body succeeds, errno is as before.
///
/// With each comes a type of the same name. Its `by` runs the same body with another function for `real`.
macro_rules! hooks {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty = |$real:ident| $body:block
    )*) => {$(
        $(#[$attribute])*
        #[no_mangle]
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
            $crate::real::libc_symbol!(
                SYMBOL = $name hooked by $name
                    as unsafe extern "C-unwind" fn($($type),*) -> $result
            );
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
            let _call = ::sanshim_core::sys::lock_order::HookCall::begin();
            let succeeded = |result: &$result| !$crate::real::Failure::is_failure(result);
            ::sanshim_core::sys::errno::kept_if(succeeded, || {
                // SAFETY: the same contract.
                unsafe { $name::by($($arg,)* $real) }
            })
        }

        #[allow(non_camel_case_types, dead_code)]
        pub(crate) enum $name {}

        impl $name {
            #[inline(always)]
            #[allow(dead_code, unused_variables)]
            #[allow(clippy::unused_unit, clippy::too_many_arguments, reason = "as in libc")]
            pub(crate) unsafe fn by($($arg: $type,)* $real: impl Fn($($type),*) -> $result) -> $result {
                $body
            }
        }
    )*};
}
pub(crate) use hooks;

/// How a function says that it failed. A function that returns an error number leaves errno alone, and does not fail here.
pub(crate) trait Failure: Copy + PartialEq {
    /// The value that goes with errno.
    const FAILED: Self;

    /// True if errno tells what failed.
    #[inline(always)]
    fn is_failure(&self) -> bool {
        *self == Self::FAILED
    }
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

/// For functions that say nothing.
impl Failure for () {
    const FAILED: Self = ();

    fn is_failure(&self) -> bool {
        false
    }
}

/// The result of a function that this libc does not have.
#[cold]
pub(crate) fn missing<T: Failure>() -> T {
    errno::set(libc::ENOSYS);
    T::FAILED
}
