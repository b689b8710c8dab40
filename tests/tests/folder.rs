//! `sanctl check`: whether programs can meet in the folder that the configuration names.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sanshim_tests::programs::locate;

/// A user without an account.
const SOMEBODY: u32 = 112_347;

/// sanctl where every user may run it, and folders. Its path is short, as that of a folder has to be.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place =
            Place(tempfile::Builder::new().prefix("f").tempdir_in("/tmp").expect("a folder"));
        fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        locate::copy_program(&locate::sanctl(), &place.path("sanctl"));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn folder(&self, name: &str, mode: u32) -> PathBuf {
        fs::create_dir(self.path(name)).expect("mkdir");
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).expect("chmod");
        self.path(name)
    }

    /// sanctl, behind what else a shell does first.
    fn command(&self, folder: &Path, before: &str) -> Command {
        let mut command = Command::new("unshare");
        let script = format!("{before} exec timeout 60 {} check", self.path("sanctl").display());
        command.args(["--mount", "sh", "-ec", &script, "sh"]).arg(folder).stdin(Stdio::null());
        command.env("SANSHIM_CONFIG", "/dev/null").env("SANSHIM_FOLDER", folder);
        command
    }
}

/// The line about the folder.
fn line(mut command: Command) -> String {
    let output = command.output().expect("runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let line = text.lines().find(|line| line.split(' ').any(|word| word == "folder"));
    let line = line.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    assert!(line.starts_with("ok ") || output.status.code() == Some(1), "{text}");
    line.to_owned()
}

fn check(folder: &Path) -> String {
    let mut command = Command::new(locate::sanctl());
    command.arg("check").env("SANSHIM_CONFIG", "/dev/null").env("SANSHIM_FOLDER", folder);
    line(command)
}

fn is_root() -> bool {
    // SAFETY: no memory is involved.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        eprintln!("not run: other users and mounts need root");
    }
    is_root
}

#[test]
fn a_folder_is_usable_or_what_to_do_is_said() {
    let place = Place::new();
    let fine = place.folder("fine", 0o1777);
    assert!(check(&fine).ends_with(&format!("{} is usable", fine.display())));
    assert_eq!(fs::read_dir(&fine).expect("a folder").count(), 0, "sanctl leaves nothing there");
    let none = place.path("none");
    let expected = format!("is missing; mkdir -m 1777 {}", none.display());
    let said = check(&none);
    assert!(said.starts_with("FAIL") && said.contains(&expected), "{said}");
    let said = check(&place.path("sanctl"));
    assert!(said.starts_with("FAIL") && said.contains("is no folder"), "{said}");
    for (name, mode, who) in
        [("open", 0o777, "every user"), ("group", 0o775, "each member of its group")]
    {
        let open = place.folder(name, mode);
        let said = check(&open);
        let expected =
            format!("but {who} may rename what others have in it; chmod +t {}", open.display());
        assert!(said.starts_with("ok ") && said.ends_with(&expected), "{said}");
    }
    for (name, mode) in [("closed", 0o755), ("sticky", 0o1775)] {
        let said = check(&place.folder(name, mode));
        assert!(said.starts_with("ok ") && said.ends_with("is usable"), "{said}");
    }
    // SAFETY: no memory is involved.
    let taken = fine.join(format!("sanshim-user-{}", unsafe { libc::geteuid() }));
    fs::write(&taken, "squatted").expect("write");
    let said = check(&fine);
    assert!(said.starts_with("ok ") && said.contains("so another name is used"), "{said}");
}

#[test]
fn no_line_is_said_where_no_folder_is_named() {
    let mut command = Command::new(locate::sanctl());
    command.arg("check").env("SANSHIM_CONFIG", "/dev/null").env_remove("SANSHIM_FOLDER");
    let output = command.output().expect("runs");
    assert!(!String::from_utf8_lossy(&output.stdout).contains(" folder "), "{output:?}");
}

#[test]
fn a_folder_is_judged_for_the_user() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let (closed, fine) = (place.folder("closed", 0o755), place.folder("fine", 0o1777));
    let said = |folder: &Path| {
        let mut command = Command::new(place.path("sanctl"));
        command.arg("check").uid(SOMEBODY).gid(SOMEBODY);
        command.env("SANSHIM_CONFIG", "/dev/null").env("SANSHIM_FOLDER", folder);
        line(command)
    };
    assert!(said(&fine).starts_with("ok "));
    let refused = said(&closed);
    let expected = format!("user {SOMEBODY} may make no names in {}", closed.display());
    assert!(refused.starts_with("FAIL") && refused.contains(&expected), "{refused}");
    // One in which the user has a folder already.
    let own = closed.join(format!("sanshim-user-{SOMEBODY}"));
    fs::create_dir(&own).expect("mkdir");
    std::os::unix::fs::chown(&own, Some(SOMEBODY), Some(SOMEBODY)).expect("chown");
    assert!(said(&closed).starts_with("ok "));
}

#[test]
fn file_systems_that_take_no_names_are_told() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let folder = place.folder("m", 0o1777);
    let said = |before: &str| line(place.command(&folder, before));
    let refused = said("mount -t tmpfs -o ro none $1;");
    assert!(refused.starts_with("FAIL") && refused.contains("is read-only"), "{refused}");
    for full in [
        "mount -t tmpfs -o size=4k none $1; head -c 4096 /dev/zero > $1/x;",
        "mount -t tmpfs -o nr_inodes=2 none $1; touch $1/x;",
    ] {
        let refused = said(full);
        assert!(refused.starts_with("FAIL") && refused.contains("is full"), "{refused}");
    }
    // Without a limit there is none left either.
    assert!(said("mount -t tmpfs -o size=0,nr_inodes=0,mode=1777 none $1;").starts_with("ok "));
    if !Path::new("/dev/fuse").exists() {
        eprintln!("not run: this kernel has no FUSE");
        return;
    }
    // Nobody answers there: who looks waits for ever.
    let refused = said(
        "exec 3<>/dev/fuse; mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 x $1;",
    );
    assert!(refused.starts_with("FAIL") && refused.contains("is on fuse"), "{refused}");
}
