//! Providers in libraries of their own: the C header, the loader, the catalogue (N2).

mod header;

use sanshim_core::provider::interface::catalogue::Catalogue;
use sanshim_core::provider::interface::client::Provider;
use sanshim_core::provider::interface::library::{Library, LibraryError};
use sanshim_core::provider::interface::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sanshim-provider-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compiles the C provider that is `what` into `folder`.
fn compile(folder: &Folder, name: &str, what: &str) -> PathBuf {
    let library = folder.0.join(format!("libsanshim_{name}.so"));
    let status = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(format!("-DWHAT={what}"))
        .arg("-I")
        .arg(tree("../include"))
        .arg(tree("tests/provider_library/sample.c"))
        .status()
        .unwrap();
    assert!(status.success());
    library
}

#[test]
fn n2_a_provider_in_c_is_found_loaded_and_unloaded() {
    let folder = Folder::new();
    let path = compile(&folder, "sample", "GOOD");
    std::fs::write(folder.0.join("libother.so"), "").unwrap();
    let catalogue = Catalogue::of(&[], Some(&folder.0));
    let names: Vec<_> = catalogue.entries().iter().map(|entry| entry.name()).collect();
    assert_eq!(names, ["sample"]);
    let entry = catalogue.find("sample").unwrap();
    assert!(!entry.is_loaded() && !is_mapped(&path), "listing loads nothing");

    let library = entry.library().unwrap();
    assert!(entry.is_loaded() && is_mapped(&path));
    let info = library.query();
    assert_eq!((info.kind(), info.version(), info.families), ("sample".into(), "7.0".into(), 2));
    assert_eq!(library.unusable().unwrap(), "there is no sample device; plug one in");

    let provider = Provider::open(&library).unwrap();
    drop(library);
    assert_eq!(provider.addresses().unwrap().len(), 100);
    let adapter = provider.open_adapter("[::1]:0".parse().unwrap());
    assert_eq!(adapter.err(), Some(Error::AddressNotAvailable));
    assert!(is_mapped(&path), "an object keeps its library");
    drop(provider);
    assert!(!entry.is_loaded() && !is_mapped(&path), "unloaded when unused");

    // And again.
    assert_eq!(entry.library().unwrap().query().kind(), "sample");
}

fn is_mapped(path: &Path) -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains(path.to_str().unwrap())
}

#[test]
fn n2_what_is_no_provider_of_this_version_is_refused() {
    let folder = Folder::new();
    let refused = |path: &Path| Library::load(path).err().unwrap();
    for what in ["OLD_VERSION", "INCOMPLETE", "SPEAKS_NOTHING"] {
        let path = compile(&folder, &what.to_lowercase(), what);
        let error = refused(&path);
        assert!(matches!(error, LibraryError::Interface { .. }), "{what}: {error}");
        assert!(!is_mapped(&path), "{what}");
    }
    let text = folder.0.join("libsanshim_text.so");
    std::fs::write(&text, "no library").unwrap();
    assert!(matches!(refused(&text), LibraryError::Load { .. }));
    let missing = refused(&folder.0.join("libsanshim_missing.so")).to_string();
    assert!(missing.contains("libsanshim_missing.so"), "{missing}");
}
