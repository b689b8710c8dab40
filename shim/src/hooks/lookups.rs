//! dlsym, by which a program finds functions in libc itself (Python's ctypes, JNA). It gets the hook of a function that
//! has one.
//!
//! There is an exception: another preloaded library has that function between ours and libc. That library may have
//! asked for libc's own to call it, and the hook would call the library again. Any other caller may mean to pass by
//! that library, and passes by the hook too. So all connections are on TCP from then on.

use crate::real::{self, libc_symbol};
use libc::{c_char, c_void};
use sanshim_core::switch::bring_back::expect_unhooked_calls;
use sanshim_core::sys::errno;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

type LookUp = unsafe extern "C-unwind" fn(*mut c_void, *const c_char) -> *mut c_void;

libc_symbol!(DLSYM = dlsym hooked by dlsym as LookUp);

/// False where all stays on TCP: then a program gets what it would get without us.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// From now on a program that looks a function up in libc gets its hook.
pub(crate) fn prepare() {
    ACTIVE.store(true, Ordering::Relaxed);
}

/// Gives what dlsym is to go on with: libc's own, or [`in_library`].
///
/// # Safety
/// The program's arguments.
unsafe extern "C" fn before_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    errno::kept(|| {
        // The next symbol, or the first, depends on the caller. That symbol is the hook wherever this library comes before libc.
        let in_library = handle != libc::RTLD_NEXT && handle != libc::RTLD_DEFAULT;
        // SAFETY: libc reads the name too.
        let concerns = || unsafe { real::hooked(CStr::from_ptr(name)) }.is_some();
        if in_library && ACTIVE.load(Ordering::Relaxed) && concerns() {
            return self::in_library as *mut c_void;
        }
        DLSYM.address()
    })
}

/// dlsym of a function that has a hook, in some library, for a caller at that address.
#[link_section = ".text.unlikely.sanshim_lookups"]
unsafe extern "C-unwind" fn in_library(
    handle: *mut c_void,
    name: *const c_char,
    caller: *const c_void,
) -> *mut c_void {
    let address = DLSYM.address();
    if address.is_null() {
        return address;
    }
    // SAFETY: the function of that name has this type; the arguments are the program's own.
    let (found, symbol) = unsafe {
        let look_up: LookUp = std::mem::transmute(address);
        (look_up(handle, name), real::hooked(CStr::from_ptr(name)))
    };
    errno::kept(|| match symbol {
        Some(symbol) if !found.is_null() => {
            let behind = symbol.address();
            match symbol.hook() {
                Some(hook) if behind == found => return hook as *mut c_void,
                _ if is_libcs(found) && library_of(caller) != library_of(behind) => {
                    expect_unhooked_calls();
                }
                _ => {}
            }
            found
        }
        _ => found,
    })
}

/// True for a function of the libc that the program is linked to.
fn is_libcs(function: *const c_void) -> bool {
    let libc = real::in_libc().and_then(library_of);
    libc.is_some() && library_of(function) == libc
}

/// Where the library begins that has this address. `None` if none has.
fn library_of(address: *const c_void) -> Option<usize> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for; there is room for the answer, of which zeros are a valid one.
    unsafe {
        (libc::dladdr(address, found.as_mut_ptr()) != 0)
            .then(|| found.assume_init().dli_fbase as usize)
    }
}

/// Jumps on, because what RTLD_NEXT and RTLD_DEFAULT mean is known by the return address.
///
/// # Safety
/// As dlsym.
#[cfg(target_arch = "x86_64")]
#[no_mangle]
#[unsafe(naked)]
unsafe extern "C-unwind" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        // The return address, for `in_library`.
        "mov rdx, [rsp]",
        "jmp rax",
        before = sym before_dlsym,
    )
}
