//! A provider's table and the library it is in, loaded as long as anything of it is in use (N2).

use super::abi::{EntryPoint, ProviderTable, ENTRY};
use super::export;
use super::implement::ProviderObject;
use super::types::{Info, VERSION};
use std::ffi::{c_void, CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

/// Why a library is no provider for this client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The dynamic loader refused it.
    #[error("cannot load {}: {reason}{}", .path.display(), remedy(.reason))]
    Load {
        /// The file.
        path: PathBuf,
        /// The loader's words.
        reason: String,
    },
    /// It is not a provider, or one for another version of the interface.
    #[error("{} {reason}; install the one of this sanshim", .path.display())]
    Interface {
        /// The file.
        path: PathBuf,
        /// What is amiss.
        reason: &'static str,
    },
}

/// What to do when the loader found no libraries of RDMA.
fn remedy(reason: &str) -> &'static str {
    match reason.contains("libibverbs") || reason.contains("librdmacm") {
        true => "; install libibverbs1, librdmacm1 and ibverbs-providers",
        false => "",
    }
}

/// A provider's table, usable as long as this lives.
pub struct Library {
    table: NonNull<ProviderTable>,
    /// From dlopen; `None`: built in.
    loaded: Option<NonNull<c_void>>,
}

// SAFETY: the table is immutable, and its functions may be called on any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// A provider that is part of this library.
    pub fn built_in<P: ProviderObject>() -> Arc<Library> {
        Arc::new(Library { table: NonNull::from(export::table::<P>()), loaded: None })
    }

    /// Loads a provider's library.
    pub fn load(path: &Path) -> Result<Arc<Library>, LibraryError> {
        let load_error = |reason: String| LibraryError::Load { path: path.into(), reason };
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| load_error("a zero in its name".into()))?;
        // SAFETY: a valid name. Loading runs the library's constructors: it is a file beside our
        // own, with the same trust.
        let loaded = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let Some(loaded) = NonNull::new(loaded) else { return Err(load_error(loader_message())) };
        match table_of(loaded) {
            Ok(table) => Ok(Arc::new(Library { table, loaded: Some(loaded) })),
            Err(reason) => {
                // SAFETY: loaded above, and nothing of it is in use.
                unsafe { libc::dlclose(loaded.as_ptr()) };
                Err(LibraryError::Interface { path: path.into(), reason })
            }
        }
    }

    /// The table.
    pub fn table(&self) -> &ProviderTable {
        // SAFETY: checked when it was loaded; there as long as the library, which `self` holds.
        unsafe { self.table.as_ref() }
    }

    /// Kind, version, families.
    pub fn query(&self) -> Info {
        let mut info = Info::new("", "", 0);
        // SAFETY: a valid place.
        unsafe { (self.table().query)(&mut info) };
        info
    }

    /// Why it is not usable here, if it is not.
    pub fn unusable(&self) -> Option<String> {
        let mut text = [0u8; 512];
        // SAFETY: the text has that many bytes.
        let status =
            unsafe { (self.table().unusable)(text.as_mut_ptr().cast(), text.len() as u32) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        (status != 0).then(|| text.to_string_lossy().into_owned())
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let Some(loaded) = self.loaded else { return };
        // SAFETY: nothing of the library is in use: whatever is, holds this object.
        unsafe {
            if (self.table().can_unload)() == 1 {
                libc::dlclose(loaded.as_ptr());
            }
        }
    }
}

fn table_of(loaded: NonNull<c_void>) -> Result<NonNull<ProviderTable>, &'static str> {
    // SAFETY: a loaded library and a valid name.
    let entry = unsafe { libc::dlsym(loaded.as_ptr(), ENTRY.as_ptr()) };
    if entry.is_null() {
        return Err("is not a provider of sanshim");
    }
    // SAFETY: the name belongs to the interface, and so does its type.
    let entry = unsafe { std::mem::transmute::<*mut c_void, EntryPoint>(entry) };
    // SAFETY: the interface's entry may be called with any version.
    let table = unsafe { entry(VERSION) }.cast_mut();
    let table =
        NonNull::new(table).ok_or("does not speak this version of the provider interface")?;
    // SAFETY: two words that every version's table begins with.
    let (size, version) = unsafe {
        ((&raw const (*table.as_ptr()).size).read(), (&raw const (*table.as_ptr()).version).read())
    };
    if version != VERSION || (size as usize) < size_of::<ProviderTable>() {
        return Err("gave a table of another version of the provider interface");
    }
    // After the two words come pointers only, and Rust's function pointers are never null.
    let words = size_of::<ProviderTable>() / size_of::<usize>();
    // SAFETY: the table has at least that many words.
    if (1..words).any(|i| unsafe { table.cast::<usize>().add(i).read() } == 0) {
        return Err("leaves functions of the provider interface out");
    }
    Ok(table)
}

fn loader_message() -> String {
    // SAFETY: the string is the loader's, valid until its next call on this thread.
    unsafe {
        let message = libc::dlerror();
        if message.is_null() {
            return "for no reason given".into();
        }
        CStr::from_ptr(message).to_string_lossy().into_owned()
    }
}
