//! `scripts/compare` measures over the SAN, or says loudly that it did not; and a browser shows its page.

use sanshim_tests::programs::{eventually, locate, Mode, Running, Sandbox};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by a test while it runs: beside another's programs a measurement finds connections that pause.
fn alone() -> MutexGuard<'static, ()> {
    static MEASURING: Mutex<()> = Mutex::new(());
    MEASURING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A quick comparison of nginx that writes its files into the sandbox, without building anything.
fn compare(sandbox: &Sandbox, settings: &Path) -> Running {
    sandbox.launch("compare", command(sandbox, settings, &["--quick"]))
}

fn command(sandbox: &Sandbox, settings: &Path, length: &[&str]) -> Command {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts");
    let temporary = temporary(sandbox);
    fs::create_dir(&temporary).expect("the folder for temporary files");
    let mut command = Mode::Native.command("python3");
    command
        .arg(scripts.join("comparison"))
        .args(length)
        .args(["--only", "nginx", "--output"])
        .arg(sandbox.file("figures"))
        .env("SANCTL", locate::sanctl())
        .env("SANSHIM_ROOT", sandbox.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TMPDIR", temporary)
        .env("XDG_CONFIG_HOME", settings);
    command
}

fn temporary(sandbox: &Sandbox) -> PathBuf {
    sandbox.file("temporary")
}

/// The names of programs that run in the folder for temporary files, be it removed.
fn running(sandbox: &Sandbox) -> Vec<String> {
    let folder = temporary(sandbox);
    let processes = fs::read_dir("/proc").expect("/proc").filter_map(|entry| {
        let process = entry.ok()?.path();
        let works_in = fs::read_link(process.join("cwd")).ok()?;
        let name = fs::read_to_string(process.join("comm")).ok()?;
        works_in.starts_with(&folder).then(|| name.trim().to_owned())
    });
    processes.collect()
}

fn assert_nothing_is_left(sandbox: &Sandbox, when: &str) {
    assert_eq!(running(sandbox), [""; 0], "{when}");
    let files = fs::read_dir(temporary(sandbox)).expect("the folder for temporary files");
    let files: Vec<_> = files.map(|file| file.expect("an entry").file_name()).collect();
    assert_eq!(files, [""; 0], "{when}");
}

#[test]
fn writes_a_table_and_a_plot() {
    let _alone = alone();
    let sandbox = Sandbox::new();
    let table = compare(&sandbox, sandbox.path()).finish();
    let rows = table.lines().filter(|line| line.starts_with("nginx")).count();
    assert_eq!(rows, 2 * 5 + 2, "throughput, what it took, and what two cost: {table}");
    let written = fs::read_to_string(sandbox.file("figures/compare.md")).expect("the table");
    assert_eq!(
        written.matches("| nginx | 600-byte file, 32 connections |").count(),
        2,
        "{written}"
    );
    let plot = fs::read_to_string(sandbox.file("figures/compare.svg")).expect("the plot");
    assert!(plot.starts_with("<svg ") && plot.trim_end().ends_with("</svg>"), "{plot}");
    assert!(plot.matches("<rect ").count() >= 5, "{plot}");
    let page = fs::read_to_string(sandbox.file("figures/compare.html")).expect("the page");
    assert!(page.contains("<svg ") && page.trim_end().ends_with("</html>"), "{page}");
    assert_nothing_is_left(&sandbox, "after a run");
}

/// With a rules file that turns the shim off there is nothing to compare.
#[test]
fn fails_when_the_san_is_not_used() {
    let _alone = alone();
    let sandbox = Sandbox::new();
    let settings = sandbox.file("settings");
    fs::create_dir(&settings).expect("the settings folder");
    fs::write(settings.join("sanshim.toml"), "enabled = false\n").expect("the rules file");
    let message = compare(&sandbox, &settings).fail();
    assert!(message.contains("the SAN was not used:"), "{message}");
    assert!(!sandbox.file("figures").exists());
    assert_nothing_is_left(&sandbox, "after a failure");
}

/// A connection that was on the SAN when it was looked at, and then left it.
#[test]
fn fails_when_a_connection_leaves_the_san() {
    let _alone = alone();
    let sandbox = Sandbox::new();
    // A quick one may be over before the connection is detached.
    let mut command = command(&sandbox, sandbox.path(), &["--rounds", "1"]);
    command
        .env("SANCTL", locate::helper("detaching.py"))
        .env("SANCTL_BEHIND", locate::sanctl())
        // Or one that paused before it could be detached went back for that, which is no failure.
        .env("SANSHIM_MOVE_AFTER", "0");
    let message = sandbox.launch("compare", command).fail();
    assert!(message.contains("the SAN was not used to the end:"), "{message}");
    assert!(message.contains("{'detached': 1}"), "{message}");
    assert!(!sandbox.file("figures").exists());
}

#[test]
fn leaves_nothing_when_it_is_ended() {
    let _alone = alone();
    for last in ["nginx", "wrk"] {
        let sandbox = Sandbox::new();
        let program = compare(&sandbox, sandbox.path());
        eventually(
            || running(&sandbox).iter().any(|name| name == last).then_some(()),
            || format!("{last} never ran\n{}", program.output()),
        );
        program.terminate();
        assert!(!sandbox.file("figures").exists());
        assert_nothing_is_left(&sandbox, last);
    }
}

/// Asks the page itself what is seen of it, once it is laid out.
const MEASURE: &str = "<script>addEventListener('load', () => { \
    const seen = [...document.querySelectorAll('.plots svg')].filter(plot => { \
        const box = plot.getBoundingClientRect(); \
        const drawn = plot.querySelector('rect, polyline'); \
        return box.width > 200 && box.height > 20 && drawn.getBoundingClientRect().width > 0; }); \
    const cut = [...document.querySelectorAll('.plots text')].filter(text => { \
        const [box, plot] = [text, text.ownerSVGElement].map(one => one.getBoundingClientRect()); \
        return box.left < plot.left - 1 || box.right > plot.right + 1 || box.bottom > plot.bottom + 1; }); \
    document.title = `plots: ${seen.length}, cut: ${cut.map(one => one.textContent)}, ` + \
        `too wide: ${document.documentElement.scrollWidth > innerWidth}`; \
});</script>";

/// What headless Chromium makes of a page: the document as it is then, and what it logs.
fn browse(sandbox: &Sandbox, page: &Path, width: u32) -> (String, String) {
    let output = Mode::Native
        .command("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--dump-dom",
        ])
        .arg(format!("--window-size={width},900"))
        .arg(format!("--user-data-dir={}", sandbox.file("browser").display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("chromium");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// What a comparison writes, with invented figures: the folder.
fn invented(sandbox: &Sandbox) -> PathBuf {
    let folder = sandbox.file("figures");
    let made = Command::new("python3").arg(locate::helper("compare_page.py")).arg(&folder).status();
    assert!(made.expect("python3").success());
    folder
}

#[test]
fn what_a_reader_would_ask_stands_beside_the_figures() {
    let sandbox = Sandbox::new();
    let folder = invented(&sandbox);
    let written = |name: &str| fs::read_to_string(folder.join(name)).expect("the file");
    let plot = written("compare.svg");
    assert!(plot.contains("s own rate") && plot.contains("from the lowest round to the"));
    // A headline each, and the legend's.
    assert!(plot.matches("class=\"spread\"").count() > 12, "{plot}");
    let page = written("compare.html");
    for explained in ["of the rounds to the highest", "Latency distribution", "against load"] {
        assert!(page.contains(explained), "{explained}");
    }
    let (table, readme) = (written("compare.md"), written("README.md"));
    for (text, notes) in [(&table, 2), (&page, 2), (&readme, 1)] {
        let haproxy = text.contains("gives its processor away every 100 µs");
        assert!(haproxy && text.contains("ENOMEM") == (notes == 2));
    }
    assert!(table.contains("in front of nginx, 8 connections<sup>1</sup> |"), "{table}");
    assert!(table.contains("both directions at once<sup>2</sup> |"), "{table}");
    for text in [&table, &page] {
        assert_eq!(text.matches("The adverse rows are").count(), 1, "{text}");
    }
    assert!(readme.contains(" s for a million requests |") && readme.contains(" s for a GiB |"));
}

#[test]
fn a_browser_shows_every_plot_of_the_page() {
    if Command::new("chromium").arg("--version").output().is_err() {
        eprintln!(
            "skipped: there is no chromium here, and scripts/install --optional could not get it"
        );
        return;
    }
    let sandbox = Sandbox::new();
    let page = invented(&sandbox).join("compare.html");
    let text = fs::read_to_string(&page).expect("the page");
    assert!(
        !text.contains("src=") && !text.contains("@import"),
        "it needs something from elsewhere"
    );
    let plots = text.matches("<svg ").count();
    // Fifteen programs, three plots each but latency's of three that copy; a distribution of each of their 44 cases that
    // has latencies; and the load over one connection and over 500.
    assert_eq!(plots, 42 + 44 + 4);
    fs::write(&page, text.replace("</head>", &format!("{MEASURE}</head>")))
        .expect("the page that is measured");
    // A phone's width, which headless Chromium makes 500 at least, and a screen's.
    for width in [500, 1200] {
        let (document, log) = browse(&sandbox, &page, width);
        let expected = format!("<title>plots: {plots}, cut: , too wide: false</title>");
        assert!(document.contains(&expected), "{width}: {document}\n{log}");
        assert!(!log.contains("CONSOLE"), "{width}: {log}");
    }
}
