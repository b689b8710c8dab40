//! `scripts/compare` measures over the SAN, or says loudly that it did not.

use sanshim_tests::programs::{locate, Mode, Running, Sandbox};
use std::fs;
use std::path::Path;

/// A quick comparison of nginx that writes its files into the sandbox, without building anything.
fn compare(sandbox: &Sandbox, settings: &Path) -> Running {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts");
    let mut command = Mode::Native.command("python3");
    command
        .arg(scripts.join("comparison"))
        .args(["--quick", "--only", "nginx", "--output"])
        .arg(sandbox.file("figures"))
        .env("SANCTL", locate::sanctl())
        .env("SANSHIM_ROOT", sandbox.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("XDG_CONFIG_HOME", settings);
    sandbox.launch("compare", command)
}

#[test]
fn writes_a_table_and_a_plot() {
    let sandbox = Sandbox::new();
    let table = compare(&sandbox, sandbox.path()).finish();
    assert_eq!(table.lines().filter(|line| line.starts_with("nginx")).count(), 2, "{table}");
    let written = fs::read_to_string(sandbox.file("figures/compare.md")).expect("the table");
    assert!(written.contains("| nginx | 600-byte file, 32 connections |"), "{written}");
    let plot = fs::read_to_string(sandbox.file("figures/compare.svg")).expect("the plot");
    assert!(plot.starts_with("<svg ") && plot.trim_end().ends_with("</svg>"), "{plot}");
    assert_eq!(plot.matches("<rect ").count(), 2, "{plot}");
}

/// With a rules file that turns the shim off there is nothing to compare.
#[test]
fn fails_when_the_san_is_not_used() {
    let sandbox = Sandbox::new();
    let settings = sandbox.file("settings");
    fs::create_dir(&settings).expect("the settings folder");
    fs::write(settings.join("sanshim.toml"), "enabled = false\n").expect("the rules file");
    let message = compare(&sandbox, &settings).fail();
    assert!(message.contains("the SAN was not used"), "{message}");
    assert!(!sandbox.file("figures").exists());
}
