//! Java: NIO selectors and plain java.net, with the dual-stack sockets that Java makes by default.

use crate::{both, echo, Helper};
use sanshim_tests::programs::{locate, Mode, Sandbox};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The folder of the compiled classes, in the target folder and named by what the sources hold, so
/// that only the first run after a change compiles.
fn classes() -> &'static str {
    static FOLDER: OnceLock<String> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let sources = sources();
        let mut hasher = DefaultHasher::new();
        for source in &sources {
            fs::read(source).expect("a source file").hash(&mut hasher);
        }
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = target.join(format!("java-{:016x}", hasher.finish()));
        if !folder.is_dir() {
            compile(&sources, target, &folder);
        }
        folder.to_str().expect("a path in UTF-8").to_owned()
    })
}

fn sources() -> Vec<PathBuf> {
    let entries = fs::read_dir(locate::helper("")).expect("tests/programs");
    let mut sources: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry of tests/programs").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "java"))
        .collect();
    sources.sort();
    sources
}

/// Compiles aside and moves the whole folder into place: another run may be doing the same, and the
/// first one wins.
fn compile(sources: &[PathBuf], target: &Path, folder: &Path) {
    let fresh = tempfile::tempdir_in(target).expect("a temporary folder");
    let mut command = Mode::Native.command("javac");
    command.arg("-d").arg(fresh.path()).args(sources);
    Sandbox::new().launch("javac", command).finish();
    let fresh = fresh.keep();
    if fs::rename(&fresh, folder).is_err() {
        assert!(folder.is_dir(), "cannot move {} to {}", fresh.display(), folder.display());
        fs::remove_dir_all(&fresh).expect("remove the folder that came second");
    }
}

fn java(class: &str) -> Helper {
    Helper::new("java", &["-Xmx256m", "-cp", classes(), class])
}

fn nio(mode: Mode) {
    echo(mode, &java("NioEchoServer"), &java("NioEchoClient"), "127.0.0.1");
}

fn plain(mode: Mode) {
    echo(mode, &java("EchoServer"), &java("EchoClient"), "127.0.0.1");
}

fn plain_ipv6(mode: Mode) {
    echo(mode, &java("EchoServer"), &java("NioEchoClient"), "::1");
}

fn against_others(mode: Mode) {
    echo(mode, &java("NioEchoServer"), &crate::node::script("echo_client.js"), "127.0.0.1");
    echo(mode, &crate::python::server("blocking"), &java("EchoClient"), "127.0.0.1");
}

both! {
    nio: java_nio_native, java_nio_shim;
    plain: java_plain_native, java_plain_shim;
    plain_ipv6: java_plain_ipv6_native, java_plain_ipv6_shim;
    against_others: java_against_others_native, java_against_others_shim;
}
