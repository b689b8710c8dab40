//! Connections between network namespaces, through address translation, and through programs that pass bytes on.

use sanshim_tests::plans::preload;
use sanshim_tests::programs::locate;
use std::path::Path;
use std::process::Command;

/// `scripts/cross --short`: each byte is right, and those come to the SAN that may.
#[test]
fn connections_between_namespaces_move_where_both_ends_are_one_connections() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(root.join("scripts/cross"))
        .arg("--short")
        .env("SANSHIM_LIBRARY", preload())
        .env("SANCTL", locate::sanctl())
        .output()
        .expect("scripts/cross");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}{wrong}");
    assert!(said.contains("transparent-spin"), "{said}{wrong}");
    // What docs/containers.md says.
    assert!(said.contains("the manifest") || wrong.contains("left out: podman"), "{said}{wrong}");
}
