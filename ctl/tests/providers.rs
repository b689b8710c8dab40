//! `sanctl providers` (N2): what is beside libsanshim.so, usable or not.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn folder(name: &str) -> Folder {
    let path = std::env::temp_dir().join(format!("sanctl-{name}-{}", std::process::id()));
    fs::create_dir(&path).unwrap();
    fs::write(path.join("libsanshim.so"), "").unwrap();
    Folder(path)
}

fn providers(folder: &Folder, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sanctl"))
        .arg("providers")
        .args(arguments)
        .env("SANSHIM_LIBRARY", folder.0.join("libsanshim.so"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn without_libraries_there_is_shared_memory() {
    let folder = folder("no-providers");
    let listing: Value = serde_json::from_str(&providers(&folder, &["--json"])).unwrap();
    let list = listing["providers"].as_array().unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!(list[0]["kind"], "shm");
    assert_eq!(list[0]["state"], "usable");
    assert_eq!(list[0]["families"], serde_json::json!(["IPv4", "IPv6"]));
    assert!(list[0]["file"].is_null());
    let addresses = list[0]["addresses"].as_array().unwrap();
    assert!(addresses.contains(&"127.0.0.1".into()), "{addresses:?}");
}

#[test]
fn a_library_that_is_no_provider_is_listed_with_the_reason() {
    let folder = folder("bad-provider");
    let file = folder.0.join("libsanshim_broken.so");
    fs::write(&file, "not a library").unwrap();
    let listing: Value = serde_json::from_str(&providers(&folder, &["--json"])).unwrap();
    let broken = &listing["providers"][1];
    assert_eq!(broken["name"], "broken");
    assert_eq!(broken["state"], "unusable");
    assert_eq!(broken["file"], file.to_str().unwrap());
    assert!(broken["reason"].as_str().unwrap().contains("libsanshim_broken.so"));
    assert!(broken["kind"].is_null());

    let text = providers(&folder, &[]);
    assert!(
        text.contains("broken") && text.contains("unusable") && text.contains("why not"),
        "{text}"
    );
}
