//! `sanctl check --with`: whether two processes would share memory, and the line that changes it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use sanshim_tests::programs::{eventually, locate};

/// Users without an account.
const ONE: u32 = 112_345;
const OTHER: u32 = 112_346;

fn is_root() -> bool {
    // SAFETY: no memory is involved.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        eprintln!("not run: programs of other users need root");
    }
    is_root
}

/// sanctl and the library where every user may read them, and rules.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        // A folder's path has to be short.
        let place = Place(tempfile::tempdir_in("/tmp").expect("a folder"));
        fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let sanctl = locate::sanctl();
        let library = sanctl.with_file_name("libsanshim.so");
        let library = std::env::var_os("SANSHIM_LIBRARY").map_or(library, PathBuf::from);
        for (from, name) in [(sanctl, "sanctl"), (library, "libsanshim.so")] {
            let copied = Command::new("cp").arg(from).arg(place.path(name)).status().expect("cp");
            assert!(copied.success());
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn rules(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).expect("rules");
        self.path(name)
    }

    fn sanctl(&self, rules: &Path) -> Command {
        let mut command = Command::new(self.path("sanctl"));
        for name in [
            "SANSHIM",
            "SANSHIM_FOLDER",
            "SANSHIM_ALLOW_USERS",
            "SANSHIM_ALLOW_GROUPS",
            "SANSHIM_LIBRARY",
        ] {
            command.env_remove(name);
        }
        command.env("SANSHIM_CONFIG", rules);
        command
    }

    fn start(&self, user: u32, rules: &Path) -> Running {
        let mut command = self.sanctl(rules);
        command.args(["run", "sleep", "1000"]).uid(user).gid(user);
        Running(command.stdin(Stdio::null()).spawn().expect("sanctl runs"))
    }

    /// By root, in a network namespace of its own.
    fn start_apart(&self, rules: &Path) -> Running {
        let inner = self.sanctl(rules);
        let mut command = Command::new("unshare");
        command.arg("--net").arg(inner.get_program()).args(["run", "sleep", "1000"]);
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Running(command.stdin(Stdio::null()).spawn().expect("unshare runs"))
    }

    /// Its exit status, and the line about sharing.
    fn check(&self, rules: &Path, with: &[&str]) -> (bool, String) {
        let mut command = self.sanctl(rules);
        let output: Output = command.args(["check", "--with"]).args(with).output().expect("runs");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let line = text.lines().find(|line| line.contains(" sharing "));
        let line = line.unwrap_or_else(|| panic!("{text}")).to_owned();
        assert_eq!(line.starts_with("ok "), output.status.success(), "{text}");
        (output.status.success(), line)
    }
}

/// A program that sleeps under the shim.
struct Running(Child);

impl Running {
    /// Its process id, once it publishes.
    fn pid(&self) -> String {
        let pid = self.0.id().to_string();
        let shown = || {
            let mut status = Command::new(locate::sanctl());
            let output = status.args(["status", "--json", "--pid", &pid]).output().expect("runs");
            String::from_utf8_lossy(&output.stdout).contains("\"program\": \"sleep\"").then_some(())
        };
        eventually(shown, || format!("process {pid} never published"));
        pid
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_user_is_allowed_or_the_line_is_said() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let (none, some) = (place.rules("none", ""), place.rules("some", "allow_users = [\"nobody\"]"));
    let (fine, line) = place.check(&none, &["nobody"]);
    let expected = format!("write allow_users = [\"nobody\"] in {}", none.display());
    assert!(!fine && line.ends_with(&expected), "{line}");
    assert!(place.check(&some, &["nobody"]).0);
    let group = place.rules("group", "allow_groups = [\"nogroup\"]");
    assert!(place.check(&group, &["nobody"]).0, "by its group");
    let (fine, line) = place.check(&some, &["uid:112345"]);
    let expected = "write allow_users = [112345], beside those that it names, in ";
    assert!(!fine && line.contains(expected), "{line}");
    assert!(place.check(&none, &["root"]).0, "with one's own user");
    assert!(place.check(&none, &["no-such-user"]).1.contains("no user \"no-such-user\""));
    let (fine, line) = place.check(&none, &["2147483647"]);
    assert!(!fine && line.contains("process 2147483647 does not run under the shim"), "{line}");
}

#[test]
fn two_processes_share_memory_if_each_allows_the_other() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let none = place.rules("none", "");
    let one_rules = place.rules("one", "allow_users = [112346]");
    let other_rules = place.rules("other", "allow_users = [112345]");
    let (closed, open) = (place.start(ONE, &none), place.start(ONE, &one_rules));
    let (other, other_open) = (place.start(OTHER, &none), place.start(OTHER, &other_rules));
    let pids = [&closed, &open, &other, &other_open].map(Running::pid);
    let [closed, open, other, other_open] = pids.each_ref().map(String::as_str);
    assert!(place.check(&none, &[open, other_open]).0);
    // Two of one user, of which neither allows anybody; and root.
    assert!(place.check(&none, &[closed, open]).0);
    assert!(place.check(&other_rules, &[open, "root"]).0);
    let (fine, line) = place.check(&none, &[closed, other]);
    let expected =
        format!("write allow_users = [112345, 112346] in {}, and restart sleep", none.display());
    assert!(!fine && line.contains(&expected), "{line}");
    let (fine, line) = place.check(&none, &[open, other]);
    let expected = format!(
        "write allow_users = [112345] in {}, and restart sleep (pid {other})",
        none.display()
    );
    assert!(!fine && line.contains(&expected), "{line}");
    // Not by the caller's rules, but by those that the process read.
    assert!(!place.check(&one_rules, &["uid:112346", closed]).0);
}

#[test]
fn processes_meet_where_both_name_one_folder() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let folders = ["a", "b", "none"].map(|name| place.path(name));
    for folder in &folders[..2] {
        fs::create_dir(folder).expect("mkdir");
        fs::set_permissions(folder, fs::Permissions::from_mode(0o1777)).expect("chmod");
    }
    let [a, b, none] = folders.each_ref().map(|folder| folder.to_str().expect("text"));
    // By the rules file, and without one.
    let rules = |name: &str, folder: &str| place.rules(name, &format!("folder = \"{folder}\""));
    let files =
        [rules("r1", a), rules("r2", a), rules("r3", b), place.rules("r4", ""), rules("r5", none)];
    let running = files.each_ref().map(|file| place.start(ONE, file));
    let pids = running.each_ref().map(Running::pid);
    let [one, same, elsewhere, plain, missing] = pids.each_ref().map(String::as_str);
    let check = |with: &[&str]| place.check(&files[3], with);
    assert!(check(&[one, same]).0);
    let (fine, line) = check(&[one, elsewhere]);
    let expected = format!("set SANSHIM_FOLDER={a} for sleep (pid {elsewhere}) of user {ONE}, and restart sleep (pid {elsewhere})");
    assert!(!fine && line.contains(&expected), "{line}");
    for with in [[one, plain], [plain, one]] {
        let (fine, line) = check(&with);
        let expected = format!("set SANSHIM_FOLDER={a} for sleep (pid {plain})");
        assert!(!fine && line.contains(&expected), "{line}");
        assert!(line.contains(&format!("(pid {one}) of user {ONE} ")) && line.contains("/dev/shm"));
    }
    let (fine, line) = check(&[one, missing]);
    assert!(!fine && line.contains(&format!("the folder {none} of sleep")), "{line}");
    // The caller's program, which names none, and one that would name it.
    let said = check(&[one]).1;
    assert!(said.contains(&format!("set SANSHIM_FOLDER={a} for a program of")), "{said}");
    let own = place.rules("own", &format!("allow_users = [{ONE}]\nfolder = \"{a}\""));
    assert!(place.check(&own, &[one]).0);
}

#[test]
fn processes_of_two_network_namespaces_need_a_folder() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let folder = place.path("a");
    fs::create_dir(&folder).expect("mkdir");
    let (none, named) =
        (place.rules("none", ""), place.rules("named", &format!("folder = {folder:?}")));
    let (near, far) = (place.start(0, &none), place.start_apart(&none));
    let (near_named, far_named) = (place.start(0, &named), place.start_apart(&named));
    let pids = [&near, &far, &near_named, &far_named].map(Running::pid);
    let [near, far, near_named, far_named] = pids.each_ref().map(String::as_str);
    let check = |with: &[&str]| place.check(&none, with);
    let apart = "they are in different network namespaces; mount one folder into both, and set SANSHIM_FOLDER=";
    let (fine, line) = check(&[near, far]);
    let expected = format!("{apart}/run/sanshim for sleep (pid {near})");
    assert!(!fine && line.contains(&expected), "{line}");
    // One that names a folder, and another.
    let (fine, line) = check(&[near_named, far]);
    let expected = format!("{apart}{} for sleep (pid {far})", folder.display());
    assert!(!fine && line.contains(&expected), "{line}");
    let (fine, line) = check(&[near_named, far_named]);
    assert!(fine && line.ends_with("share memory"), "{line}");
}

#[test]
fn where_a_link_leads_in_anothers_root_cannot_be_told() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let (folder, link) = (place.path("a"), place.path("l"));
    fs::create_dir(&folder).expect("mkdir");
    std::os::unix::fs::symlink(&folder, &link).expect("a link");
    let named = place.rules("named", &format!("folder = {folder:?}"));
    let linked = place.rules("linked", &format!("folder = {link:?}"));
    let (one, other) = (place.start(ONE, &named), place.start(ONE, &linked));
    let (one, other) = (one.pid(), other.pid());
    let (fine, line) = place.check(&named, &[&one, &other]);
    let expected =
        format!(" meet cannot be told: the folder {} of sleep (pid {other})", link.display());
    assert!(!fine && line.contains(&expected), "{line}");
    assert!(line.ends_with("is reached by a symbolic link; name the folder itself"), "{line}");
}
