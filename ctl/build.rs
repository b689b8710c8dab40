//! Names the version that `sanctl --version` shows, with the commit that it was built from.

use std::process::Command;

fn main() {
    let version = env!("CARGO_PKG_VERSION");
    println!("cargo::rerun-if-env-changed=SANSHIM_COMMIT");
    let commit = std::env::var("SANSHIM_COMMIT").ok().or_else(|| git(&["rev-parse", "HEAD"]));
    let short: String = commit.unwrap_or_default().chars().take(12).collect();
    match short.as_str() {
        // From a tarball.
        "" => println!("cargo::rustc-env=SANSHIM_VERSION={version}"),
        commit => println!("cargo::rustc-env=SANSHIM_VERSION={version} ({commit})"),
    }
    // What names the commit: HEAD and the branch that it is on.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

/// What git says here, if it does.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
