//! sanctl through its command line: `run` changes nothing about a program but LD_PRELOAD.

use sanshim_tests::programs::locate::copy_program;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The folder of the binaries under test: `target/<profile>`.
fn binaries() -> PathBuf {
    let test = std::env::current_exe().expect("the test's path");
    test.ancestors().nth(2).expect("target/<profile>/deps/test").to_owned()
}

fn library() -> PathBuf {
    std::env::var_os("SANSHIM_LIBRARY")
        .map_or_else(|| binaries().join("libsanshim.so"), PathBuf::from)
}

fn sanctl_path() -> PathBuf {
    let path = std::env::var_os("SANCTL").map_or_else(|| binaries().join("sanctl"), PathBuf::from);
    for file in [&path, &library()] {
        assert!(
            file.exists(),
            "no {}: build the workspace first, as scripts/test does",
            file.display()
        );
    }
    path
}

/// sanctl with none of the variables that the test itself may run under.
fn sanctl(arguments: &[&str]) -> Command {
    let mut command = Command::new(sanctl_path());
    command.args(arguments).stdin(Stdio::null()).env("SANSHIM_LIBRARY", library());
    for name in ["SANSHIM", "SANSHIM_LOG", "SANSHIM_LOG_FILE", "SANSHIM_CONFIG", "LD_PRELOAD"] {
        command.env_remove(name);
    }
    command
}

fn run(arguments: &[&str]) -> Output {
    sanctl(&[&["run"], arguments].concat()).output().expect("sanctl runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// Runs a shell script under the shim and returns what it writes.
fn shell(script: &str) -> String {
    let output = run(&["--", "sh", "-c", script]);
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).trim_end().to_owned()
}

#[test]
fn the_exit_status_is_the_programs() {
    for status in [0, 1, 7, 125, 255] {
        let output = run(&["--", "sh", "-c", &format!("exit {status}")]);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
    }
}

#[test]
fn a_signal_ends_the_program_as_without_sanctl() {
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGUSR1] {
        let mut child = sanctl(&["run", "sleep", "600"]).spawn().expect("sanctl runs");
        // SAFETY: our own child, not yet waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        let status = child.wait().expect("it ends");
        assert_eq!(status.signal(), Some(signal));
    }
}

#[test]
fn the_program_takes_sanctls_place() {
    let child = sanctl(&["run", "sh", "-c", "echo $$"]).stdout(Stdio::piped()).spawn();
    let child = child.expect("sanctl runs");
    let pid = child.id().to_string();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(text(&output.stdout).trim_end(), pid);
}

#[test]
fn what_does_not_exist_or_cannot_run_has_the_shells_status() {
    let folder = tempfile::tempdir().expect("a folder");
    let no_program = folder.path().join("plain-file");
    fs::write(&no_program, "").expect("write");
    let no_interpreter = folder.path().join("script");
    write_script(&no_interpreter, "#!/no/such/interpreter\n");

    let path = |path: &Path| path.to_str().expect("text").to_owned();
    let cases = [
        ("no-such-program-anywhere".to_owned(), 127, "No such file"),
        ("/no/such/program".to_owned(), 127, "No such file"),
        (String::new(), 127, "No such file"),
        (path(&no_interpreter), 127, "No such file"),
        (path(&no_program), 126, "Permission denied"),
        (path(folder.path()), 126, "Permission denied"),
    ];
    for (program, status, message) in cases {
        let output = run(&["--", &program]);
        assert_eq!(output.status.code(), Some(status), "{program:?}: {output:?}");
        let expected = format!("sanctl: cannot run {program}: {message}");
        assert!(text(&output.stderr).starts_with(&expected), "{output:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
    }
}

#[test]
fn the_library_is_loaded_and_an_existing_preload_is_kept() {
    assert_ne!(shell("grep -c libsanshim.so /proc/$$/maps"), "0");
    let library = fs::canonicalize(library()).expect("the library");
    let library = library.to_str().expect("text");
    assert_eq!(shell("printenv LD_PRELOAD"), library);

    let output = sanctl(&["run", "printenv", "LD_PRELOAD"])
        .env("LD_PRELOAD", format!("libc.so.6 {library}:libm.so.6"))
        .output()
        .expect("sanctl runs");
    assert_eq!(text(&output.stdout).trim_end(), format!("{library}:libc.so.6:libm.so.6"));
}

#[test]
fn arguments_and_options_reach_the_program() {
    let output = run(&["printf", "%s|", "--log", "-x", "--", "", "a b"]);
    assert_eq!(text(&output.stdout), "--log|-x|--||a b|");
}

#[test]
fn options_set_the_variables() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("rules.toml");
    fs::write(&rules, "").expect("write");
    let script = "echo $SANSHIM_LOG; echo $SANSHIM_LOG_FILE; echo $SANSHIM_CONFIG";
    let output =
        sanctl(&["run", "--log", "error", "--log-file", "x.log", "--config", "rules.toml"])
            .args(["sh", "-c", script])
            .current_dir(&folder)
            .output()
            .expect("sanctl runs");
    let here = fs::canonicalize(folder.path()).expect("the folder");
    let expected = format!("error\n{0}/x.log\n{0}/rules.toml\n", here.display());
    assert_eq!(text(&output.stdout), expected, "{output:?}");
}

#[test]
fn the_signal_state_is_inherited_untouched() {
    let show = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    let state = |mut command: Command| {
        // SAFETY: async-signal-safe calls on a set of its own.
        unsafe {
            command.pre_exec(|| {
                let mut set = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, libc::SIGUSR2);
                libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                libc::signal(libc::SIGHUP, libc::SIG_IGN);
                Ok(())
            });
        }
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).to_owned()
    };
    let mut plain = Command::new(show[0]);
    plain.args(&show[1..]);
    let expected = state(plain);
    assert!(expected.contains("SigBlk:\t0000000000000800"), "{expected}");
    let ignored = expected.trim_end().rsplit('\t').next().expect("SigIgn");
    let ignored = u64::from_str_radix(ignored, 16).expect("hexadecimal");
    // SIGHUP and SIGPIPE, beside what whoever runs the tests ignores.
    assert_eq!(ignored & 0x1001, 0x1001, "{expected}");
    assert_eq!(state(sanctl(&[&["run"][..], &show].concat())), expected);
}

#[test]
fn closed_standard_descriptors_stay_closed() {
    let mut command = sanctl(&["run", "sh", "-c", "test ! -e /proc/self/fd/0"]);
    // SAFETY: close is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::close(0);
            Ok(())
        });
    }
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_program_that_cannot_be_preloaded_runs_after_a_warning() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("program.c");
    fs::write(&source, "int main(void) { return 42; }").expect("write");
    let program = folder.path().join("static-program");
    let compiled = Command::new("cc").arg("-static").arg("-o").args([&program, &source]).status();
    assert!(compiled.expect("cc; see scripts/install").success());
    let output = run(&[program.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(42), "{output:?}");
    assert!(text(&output.stderr).contains("statically linked"), "{output:?}");

    // A script is judged by its interpreter.
    let script = folder.path().join("script");
    write_script(&script, &format!("#!{}\n", program.display()));
    let output = run(&[script.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(42), "{output:?}");
    assert!(text(&output.stderr).contains("statically linked"), "{output:?}");
}

/// Its runtime ends a program in which it is not the first library.
#[test]
fn a_program_with_address_sanitizer_runs_under_the_shim() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("program.c");
    let program = folder.path().join("checked-program");
    let text_of_it = "#include <stdlib.h>\nint main(void) { return !getenv(\"LD_PRELOAD\"); }";
    fs::write(&source, text_of_it).expect("write");
    let mut cc = Command::new("cc");
    cc.arg("-fsanitize=address").arg("-o").args([&program, &source]);
    assert!(cc.status().expect("cc; see scripts/install").success());
    let output = run(&[program.to_str().expect("text")]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_setuid_program_runs_after_a_warning() {
    // SAFETY: no memory is involved.
    if unsafe { libc::getuid() } != 0 {
        // Only root can make a program of another user's.
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("setuid-program");
    copy_program(Path::new("/bin/true"), &program);
    std::os::unix::fs::chown(&program, Some(65534), None).expect("chown");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("chmod");
    let output = run(&[program.to_str().expect("text")]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("setuid"), "{output:?}");
}

#[test]
fn a_dynamic_program_gets_no_warning() {
    for program in [&["true"][..], &["sh", "-c", "true"], &["env", "true"]] {
        let output = run(program);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

/// Writes a script that is executed afterwards, by another process too.
fn write_script(script: &Path, text: &str) {
    let source = script.with_extension("text");
    fs::write(&source, text).expect("write");
    copy_program(&source, script);
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).expect("chmod");
}

#[test]
fn the_library_is_found_near_sanctl() {
    let folder = tempfile::tempdir().expect("a folder");
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("mkdir");
    let copy = bin.join("sanctl");
    copy_program(&sanctl_path(), &copy);
    let preload = || {
        let output = Command::new(&copy)
            .args(["run", "printenv", "LD_PRELOAD"])
            .env_remove("SANSHIM_LIBRARY")
            .env_remove("LD_PRELOAD")
            .output();
        output.expect("sanctl runs")
    };
    let missing = preload();
    assert_eq!(missing.status.code(), Some(125), "{missing:?}");
    assert!(text(&missing.stderr).contains("install it there or set SANSHIM_LIBRARY"));

    // Each place is preferred to those before it.
    for place in ["lib/sanshim", "lib", "bin"] {
        let place = folder.path().join(place);
        fs::create_dir_all(&place).expect("mkdir");
        fs::copy(library(), place.join("libsanshim.so")).expect("copy");
        let found = fs::canonicalize(place.join("libsanshim.so")).expect("the copy");
        let output = preload();
        assert_eq!(text(&output.stdout).trim_end(), found.to_str().expect("text"), "{output:?}");
    }
}

#[test]
fn a_library_that_cannot_be_named_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let spaced = folder.path().join("with space");
    fs::create_dir(&spaced).expect("mkdir");
    fs::copy(library(), spaced.join("libsanshim.so")).expect("copy");
    let missing = folder.path().join("missing.so");
    for (library, expected) in
        [(spaced.join("libsanshim.so"), "spaces or colons"), (missing, "No such file")]
    {
        let output = sanctl(&["run", "true"]).env("SANSHIM_LIBRARY", &library).output();
        let output = output.expect("sanctl runs");
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(text(&output.stderr).contains(expected), "{output:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
    }
    // A link without a space will do... unless what it points to has one.
    let link = folder.path().join("link.so");
    symlink(library(), &link).expect("link");
    assert!(sanctl(&["run", "true"])
        .env("SANSHIM_LIBRARY", &link)
        .status()
        .expect("runs")
        .success());
}

/// What programs publish under it this sanctl could not read.
#[test]
fn a_library_of_another_version_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = folder.path().join("libsanshim.so");
    let mut bytes = fs::read(library()).expect("the library");
    let is_label = |bytes: &[u8]| {
        bytes.starts_with(b"sanshim\0")
            && bytes[12..].starts_with(env!("CARGO_PKG_VERSION").as_bytes())
    };
    let label: Vec<usize> = (0..bytes.len() - 32).filter(|&at| is_label(&bytes[at..])).collect();
    assert_eq!(label.len(), 1, "one label");
    bytes[label[0] + 8] += 1;
    fs::write(&other, &bytes).expect("write");
    let output =
        sanctl(&["run", "true"]).env("SANSHIM_LIBRARY", &other).output().expect("sanctl runs");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(text(&output.stderr).contains("use those that were installed together"), "{output:?}");
    let output = sanctl(&["run", "true"])
        .env("SANSHIM_LIBRARY", sanctl_path())
        .output()
        .expect("sanctl runs");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(text(&output.stderr).contains("is not sanshim's"), "{output:?}");
}

#[test]
fn the_version_names_the_commit() {
    let output = sanctl(&["--version"]).output().expect("sanctl runs");
    let version = text(&output.stdout).trim_end();
    let commit = version.split_once('(').map(|(_, rest)| rest.trim_end_matches(')'));
    let is_commit =
        |commit: &str| commit.len() >= 7 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(version.starts_with(concat!("sanctl ", env!("CARGO_PKG_VERSION"))), "{version}");
    assert!(commit.is_none_or(is_commit), "{version}");
}

#[test]
fn check_accepts_this_machine_and_names_a_bad_configuration() {
    let output = sanctl(&["check"]).env("XDG_CONFIG_HOME", "/nonexistent").output();
    let output = output.expect("sanctl runs");
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).lines().filter(|line| line.starts_with("ok ")).count() >= 6);

    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("rules.toml");
    fs::write(&rules, "[shm]\nmessage_buffers = 17\n").expect("write");
    let output = sanctl(&["check", "--config"]).arg(&rules).output().expect("sanctl runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = text(&output.stdout);
    assert!(report.contains("FAIL configuration") && report.contains("line 2"), "{report}");
    assert!(report.contains("power of two, 8 to 64"), "{report}");

    let output = sanctl(&["check"]).env("SANSHIM", "off").output().expect("sanctl runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).contains("switched off"), "{output:?}");

    // A log that another user's program is to open must not be made here.
    let (log, nowhere) = (folder.path().join("log"), folder.path().join("none/log"));
    for (log, status) in [(&log, 0), (&nowhere, 1)] {
        let mut command = sanctl(&["check"]);
        command.env("XDG_CONFIG_HOME", "/nonexistent").env("SANSHIM_LOG", "info");
        let output = command.env("SANSHIM_LOG_FILE", log).output().expect("sanctl runs");
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let report = text(&output.stdout);
        assert!(status == 0 || report.contains("none/log: No such file or directory"), "{report}");
        assert!(!log.exists());
    }

    let no_library = folder.path().join("libsanshim.so");
    fs::write(&no_library, "no library").expect("write");
    let output = sanctl(&["check"]).env("SANSHIM_LIBRARY", &no_library).output();
    let output = output.expect("sanctl runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).contains("cannot be preloaded"), "{output:?}");
}

#[test]
fn a_wrong_command_line_is_explained() {
    for arguments in
        [&["run"][..], &["status", "--pid", "x"], &["status", "-v", "--json"], &["frobnicate"], &[]]
    {
        let output = sanctl(arguments).output().expect("sanctl runs");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(text(&output.stderr).contains("--help"), "{output:?}");
    }
    for arguments in [&["--help"][..], &["run", "--help"], &["status", "--help"], &["check", "-h"]]
    {
        let output = sanctl(arguments).output().expect("sanctl runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

/// Else a mistyped option would be the program's name.
#[test]
fn an_unknown_option_is_no_program() {
    let output = run(&["--loglevel", "info", "true"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("unexpected argument '--loglevel'"), "{said}");
    assert!(said.contains("'-- --loglevel'"), "{said}");
    let output = run(&["--", "--loglevel"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(text(&output.stderr).contains("cannot run --loglevel"), "{output:?}");
}

#[test]
fn a_rules_file_that_the_command_line_names_is_blamed_on_it() {
    for arguments in
        [&["run", "--config", "/none.toml", "true"][..], &["check", "--config", "/none.toml"]]
    {
        let output = sanctl(arguments).output().expect("sanctl runs");
        let said = [text(&output.stdout), text(&output.stderr)].concat();
        let expected = "cannot read /none.toml: No such file or directory; give --config a rules";
        assert!(!output.status.success() && said.contains(expected), "{said}");
        assert!(!said.contains("SANSHIM_CONFIG"), "{said}");
    }
}

#[test]
fn help_fits_the_terminal_word_by_word() {
    for command in [
        "",
        "run",
        "status",
        "top",
        "why",
        "trace",
        "export",
        "detach",
        "systemd",
        "check",
        "providers",
    ] {
        let script =
            format!("stty rows 50 cols 80; exec {} {command} --help", sanctl_path().display());
        let mut shown = Command::new("script");
        shown.args(["-q", "-c", &script, "/dev/null"]).stdin(Stdio::null()).env("TERM", "dumb");
        let output = shown.env_remove("COLUMNS").output().expect("script of bsdutils");
        let help = text(&output.stdout);
        let visible = |line: &str| {
            let parts = line.split('\x1b').enumerate();
            let of = |(at, part): (usize, &str)| match at {
                0 => part.chars().count(),
                _ => part.split_once('m').map_or(0, |(_, rest)| rest.chars().count()),
            };
            parts.map(of).sum::<usize>()
        };
        assert!(help.contains("Usage:"), "{help}");
        // The help of sanctl itself explains the two words that the others use.
        let explains = help.contains("either of them the SAN") && help.contains("the shim.");
        assert!(!command.is_empty() || explains, "{help}");
        let wide: Vec<_> =
            help.lines().map(str::trim_end).filter(|line| visible(line) > 80).collect();
        assert!(wide.is_empty(), "{command}: {wide:#?}");
    }
}

#[test]
fn check_says_where_a_name_belongs_and_what_a_switch_may_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("rules.toml");
    for (content, expected) in [
        ("enabled = yes\n", "must be true or false"),
        (
            "[[rule]]\nsan = true\nallow_users = [\"nobody\"]\n",
            "move allow_users above the first [...] line",
        ),
        ("[shm]\nmove_after = 8\n", "move move_after above the first [...] line"),
        ("[shm]\nspin_microseconds = 8\n", "move spin_microseconds above the first [...] line"),
    ] {
        fs::write(&rules, content).expect("write");
        let output = sanctl(&["check", "--config"]).arg(&rules).output().expect("sanctl runs");
        let said = text(&output.stdout);
        assert!(output.status.code() == Some(1) && said.contains(expected), "{said}");
    }
}
