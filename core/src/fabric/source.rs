//! Where the fabric's provider comes from, and whether there may be one. This module opens nothing of it.

use crate::provider::interface::catalogue::Catalogue;
use crate::provider::interface::library::Library;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// Where the kernel lists RDMA devices: without one no provider is loaded.
const DEVICES: &str = "/sys/class/infiniband";
/// The provider's library, beside this one.
const LIBRARY: &str = "libsanshim_verbs.so";

/// What the configuration allows, if there may be something to use ([`Source`]).
static SOURCE: AtomicU32 = AtomicU32::new(0);

/// Where the fabric's provider comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The library for RDMA, beside this one.
    Library = 1,
    /// The objects of shared memory, which lead to this host: so that all of this runs without a device.
    SharedMemory = 2,
}

impl Source {
    /// False on a host without RDMA devices, or without the library.
    pub(super) fn may_be_there(self) -> bool {
        let is_there = || {
            std::fs::read_dir(DEVICES).is_ok_and(|mut devices| devices.next().is_some())
                && own_folder().is_some_and(|folder| folder.join(LIBRARY).exists())
        };
        self == Source::SharedMemory || is_there()
    }

    /// It is used from now on.
    pub(super) fn allow(self) {
        SOURCE.store(self as u32, Ordering::Relaxed);
    }
}

/// True if the provider is that of shared memory.
pub(crate) fn is_of_this_host() -> bool {
    SOURCE.load(Ordering::Relaxed) == Source::SharedMemory as u32
}

/// True if a provider may be there: cheap.
#[inline]
pub(crate) fn may_exist() -> bool {
    SOURCE.load(Ordering::Relaxed) != 0
}

/// The provider of the source.
pub(super) fn load() -> Result<Arc<Library>, String> {
    let (name, folder) = match is_of_this_host() {
        true => ("shm", None),
        false => ("verbs", Some(own_folder().ok_or("the folder of libsanshim.so is not known")?)),
    };
    let catalogue = Catalogue::of(crate::provider::BUILT_IN, folder.as_deref());
    let entry = catalogue.find(name).ok_or_else(|| format!("{LIBRARY} is not there any more"))?;
    entry.library().map_err(|why| why.to_string())
}

/// Where the library is that this code is part of.
fn own_folder() -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about; the place is valid.
    if unsafe { libc::dladdr(own_folder as *const libc::c_void, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: zeroed and then filled in.
    let name = unsafe { found.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: a string of the loader's, there as long as the library.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    Some(std::fs::canonicalize(path).ok()?.parent()?.to_owned())
}
