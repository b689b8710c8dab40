//! The providers installed here (N2): those built in, and libraries beside `libsanshim.so`.
//!
//! To list them loads nothing. The first request for a provider loads its library. The library is unloaded when nothing
//! of it is in use any more.

use super::library::{Library, LibraryError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// How the files of provider libraries are called: `libsanshim_NAME.so`.
const PREFIX: &str = "libsanshim_";
const SUFFIX: &str = ".so";

/// A provider that is built in: its name, and how its table is had.
pub type BuiltIn = (&'static str, fn() -> Arc<Library>);

/// Where a provider comes from.
enum Source {
    BuiltIn(fn() -> Arc<Library>),
    File(PathBuf),
}

/// One provider.
pub struct CatalogueEntry {
    name: String,
    source: Source,
    loaded: Mutex<Weak<Library>>,
}

impl CatalogueEntry {
    /// Its name: its file's, or the kind of one that is built in.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file; `None` if it is built in.
    pub fn file(&self) -> Option<&Path> {
        match &self.source {
            Source::BuiltIn(_) => None,
            Source::File(path) => Some(path),
        }
    }

    /// Whether it is in use at the moment.
    pub fn is_loaded(&self) -> bool {
        self.lock().strong_count() > 0
    }

    /// The library, loaded now if it is not yet. It is unloaded with the last object made of it.
    pub fn library(&self) -> Result<Arc<Library>, LibraryError> {
        let mut loaded = self.lock();
        if let Some(library) = loaded.upgrade() {
            return Ok(library);
        }
        let library = match &self.source {
            Source::BuiltIn(make) => make(),
            Source::File(path) => Library::load(path)?,
        };
        *loaded = Arc::downgrade(&library);
        Ok(library)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Weak<Library>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All providers, in the order of preference for a peer that several can reach.
pub struct Catalogue {
    entries: Vec<CatalogueEntry>,
}

impl Catalogue {
    /// The providers that are built in and those in `folder`, in the order of names. A folder that cannot be read holds
    /// nothing.
    pub fn of(built_in: &[BuiltIn], folder: Option<&Path>) -> Self {
        let entry = |name: &str, source| CatalogueEntry {
            name: name.into(),
            source,
            loaded: Mutex::new(Weak::new()),
        };
        let mut entries: Vec<CatalogueEntry> =
            built_in.iter().map(|&(name, make)| entry(name, Source::BuiltIn(make))).collect();
        let mut files: Vec<PathBuf> = folder
            .and_then(|folder| std::fs::read_dir(folder).ok())
            .into_iter()
            .flatten()
            .filter_map(|file| Some(file.ok()?.path()))
            .collect();
        files.sort();
        for path in files {
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.and_then(|n| n.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
            if let Some(name) = name {
                entries.push(entry(name, Source::File(path.clone())));
            }
        }
        Catalogue { entries }
    }

    /// The providers.
    pub fn entries(&self) -> &[CatalogueEntry] {
        &self.entries
    }

    /// A provider by name.
    pub fn find(&self, name: &str) -> Option<&CatalogueEntry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}
