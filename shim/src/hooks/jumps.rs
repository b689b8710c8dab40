//! longjmp in all its forms. Signal handlers leave calls that sleep by it.

use crate::real::{libc_symbol, Symbol};
use libc::{c_int, c_void};
use sanshim_core::switch;
use sanshim_core::sys::jump::{self, LongJump};
use std::ops::Range;

macro_rules! jumps {
    ($($name:ident)*) => {$(
        #[no_mangle]
        pub(crate) unsafe extern "C-unwind" fn $name(to: *mut c_void, value: c_int) -> ! {
            libc_symbol!(
                SYMBOL = $name hooked by $name
                    as unsafe extern "C-unwind" fn(*mut c_void, c_int) -> !
            );
            // SAFETY: the program's own arguments.
            unsafe { leave(&SYMBOL, to, value) }
        }
    )*};
}

jumps! { longjmp _longjmp siglongjmp __longjmp_chk }

/// From now on a jump ends the calls of ours that it leaves.
pub(crate) fn prepare() {
    if let Some(code) = own_code() {
        jump::install(code, switch::before_jump);
    }
}

/// # Safety
/// The function of that name may be called with these arguments.
unsafe fn leave(function: &Symbol, to: *mut c_void, value: c_int) -> ! {
    let address = function.address();
    if address.is_null() {
        std::process::abort();
    }
    // SAFETY: libc's function of that name has this signature; the caller's promise.
    unsafe { jump::jump(std::mem::transmute::<*mut c_void, LongJump>(address), to, value) }
}

/// Where the code of this library lies.
fn own_code() -> Option<Range<usize>> {
    unsafe extern "C" fn look(
        library: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the dynamic loader's, with so many headers; and our own.
        let (base, headers, found) = unsafe {
            let (headers, count) = ((*library).dlpi_phdr, (*library).dlpi_phnum);
            let headers = std::slice::from_raw_parts(headers, usize::from(count));
            ((*library).dlpi_addr, headers, &mut *found.cast::<Option<Range<usize>>>())
        };
        let code =
            headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0);
        *found = code
            .map(|h| (base + h.p_vaddr) as usize..(base + h.p_vaddr + h.p_memsz) as usize)
            .find(|code| code.contains(&(own_code as fn() -> _ as usize)));
        c_int::from(found.is_some())
    }
    let mut found = None;
    // SAFETY: the function is given what it expects.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}
