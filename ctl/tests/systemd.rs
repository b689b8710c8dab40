//! `sanctl systemd`: the drop-in, and what it says of a unit's sandbox. That what it says is so, scripts/package_check
//! shows under a real systemd.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SANCTL: &str = env!("CARGO_BIN_EXE_sanctl");
const DROP_IN: &str = "etc/systemd/system/probe.service.d/zz-sanshim.conf";

/// A system with one unit, removed at the end. Below /tmp, which PrivateTmp hides.
struct System(PathBuf);

impl System {
    fn new(name: &str, unit: &str) -> System {
        let root = Path::new("/tmp").join(format!("sanshim-systemd-{}-{name}", std::process::id()));
        let system = System(root);
        system.write("lib/systemd/system/probe.service", unit);
        system
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("make it");
        fs::write(path, text).expect("write");
    }

    fn sanctl(&self, arguments: &[&str]) -> Output {
        self.sanctl_with(&sanshim_library(), arguments)
    }

    /// With a copy of the library that every user may read, below the system's temporary folder.
    fn sanctl_with_public_library(&self, arguments: &[&str]) -> Output {
        let library = self.0.join("libsanshim.so");
        fs::copy(sanshim_library(), &library).expect("copy it");
        fs::set_permissions(&self.0, fs::Permissions::from_mode(0o755)).expect("open it");
        self.sanctl_with(&library, arguments)
    }

    fn sanctl_with(&self, library: &Path, arguments: &[&str]) -> Output {
        let root = self.0.to_str().expect("text");
        let command = ["systemd", "--root", root];
        let mut sanctl = Command::new(SANCTL);
        sanctl
            .env("SANSHIM_LIBRARY", library)
            .args(command)
            .args(arguments)
            .output()
            .expect("sanctl runs")
    }

    fn drop_in(&self) -> Option<String> {
        fs::read_to_string(self.0.join(DROP_IN)).ok()
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The library that is tested, or else the one that was built beside sanctl.
fn sanshim_library() -> PathBuf {
    let named = std::env::var_os("SANSHIM_LIBRARY").map(PathBuf::from);
    named.unwrap_or_else(|| PathBuf::from(SANCTL).with_file_name("libsanshim.so"))
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn a_drop_in_is_written_beside_what_is_preloaded_already_and_removed() {
    let unit = "[Service]\nExecStart=/usr/bin/probe\nEnvironment=\"LD_PRELOAD=/other.so\" B=1\n";
    let system = System::new("write", unit);
    let done = system.sanctl(&["probe"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(text(&done).contains("systemctl daemon-reload && systemctl restart probe.service"));
    let preload = format!("Environment=\"LD_PRELOAD={}:/other.so\"", sanshim_library().display());
    assert!(system.drop_in().expect("a drop-in").contains(&preload));
    // Again it is the same: its own drop-in does not count.
    system.sanctl(&["probe.service"]);
    assert!(system.drop_in().expect("a drop-in").contains(&preload));
    for said in ["Removed", "is not there"] {
        let removed = system.sanctl(&["--remove", "probe"]);
        assert_eq!(removed.status.code(), Some(0));
        assert!(text(&removed).contains(said), "{removed:?}");
    }
    assert_eq!(system.drop_in(), None);
    assert!(!system.0.join("etc/systemd/system/probe.service.d").exists());
}

#[test]
fn what_hinders_is_named_with_its_line_and_nothing_is_written_unless_forced() {
    let unit = "[Service]\nExecStart=/usr/bin/probe\nRestrictAddressFamilies=AF_INET\n";
    let system = System::new("hinders", unit);
    let refused = system.sanctl(&["probe"]);
    assert_eq!((refused.status.code(), system.drop_in()), (Some(1), None));
    let said = text(&refused);
    assert!(said.contains("hinders: RestrictAddressFamilies=AF_INET"), "{said}");
    assert!(said.contains("lib/systemd/system/probe.service:3"), "{said}");
    assert!(said.contains("add AF_UNIX"), "{said}");
    assert_eq!(system.sanctl(&["--force", "probe"]).status.code(), Some(0));
    assert!(system.drop_in().is_some());
}

#[test]
fn settings_of_drop_ins_add_to_and_take_back_the_units() {
    let system = System::new("drop-ins", "[Service]\nInaccessiblePaths=/dev/shm\n");
    let code = || system.sanctl(&["--check", "probe"]).status.code();
    assert_eq!(code(), Some(1));
    system.write("etc/systemd/system/probe.service.d/10.conf", "[Service]\nInaccessiblePaths=\n");
    assert_eq!(code(), Some(0));
    system.write("run/systemd/system/probe.service.d/20.conf", "[Service]\nReadOnlyPaths=/dev\n");
    assert_eq!(code(), Some(1));
}

#[test]
fn sandboxes_are_judged() {
    let library = sanshim_library();
    let folder = library.parent().expect("a folder").display().to_string();
    // The tests may run in a clone there.
    let is_temporary = ["/tmp", "/var/tmp"].iter().any(|hidden| library.starts_with(hidden));
    let private_tmp = if is_temporary { "hinders" } else { "" };
    let cases = [
        ("ProtectSystem=strict\nMemoryDenyWriteExecute=yes\nNoNewPrivileges=yes", ""),
        ("PrivateTmp=yes", private_tmp),
        ("RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX", ""),
        ("RestrictAddressFamilies=~AF_UNIX", "hinders"),
        ("RestrictAddressFamilies=~AF_NETLINK", ""),
        ("TemporaryFileSystem=/dev:ro", "hinders"),
        ("User=root", ""),
        ("ReadOnlyPaths=/", "hinders"),
        ("ReadOnlyPaths=/\nReadWritePaths=/dev/shm", ""),
        ("PrivateDevices=yes", "limits"),
        ("PrivateDevices=no", ""),
        ("PrivateNetwork=yes", "limits"),
        ("NoExecPaths=/\nExecPaths=/usr", "hinders"),
        ("UnsetEnvironment=A LD_PRELOAD", "hinders"),
        ("SystemCallFilter=~memfd_create\nSystemCallErrorNumber=EPERM", "hinders"),
        ("SystemCallFilter=~memfd_create ptrace", "breaks"),
        ("SystemCallFilter=~process_vm_readv\nSystemCallErrorNumber=EPERM", "limits"),
        ("SystemCallFilter=~ptrace", ""),
    ];
    for (lines, expected) in cases {
        let system = System::new("judged", &format!("[Service]\n{lines}\n"));
        let said = text(&system.sanctl(&["--check", "probe"]));
        let words: Vec<_> = said.lines().filter_map(|line| line.split_once(": ")).collect();
        let first = words.first().map_or("", |(word, _)| word);
        assert_eq!(first, expected, "{lines}: {said}");
    }
    // Of a library's own place.
    for (lines, expected) in
        [("DynamicUser=yes", "limits"), ("User=4000", "limits"), ("PrivateTmp=yes", "hinders")]
    {
        let system = System::new("judged", &format!("[Service]\n{lines}\n"));
        let said = text(&system.sanctl_with_public_library(&["--check", "probe"]));
        assert!(said.starts_with(&format!("{expected}: ")), "{lines}: {said}");
        fs::set_permissions(&system.0, fs::Permissions::from_mode(0o700)).expect("close it");
        let said =
            text(&system.sanctl_with(&system.0.join("libsanshim.so"), &["--check", "probe"]));
        assert!(said.starts_with("hinders: "), "{lines}: {said}");
    }
    let allowed = format!("[Service]\nNoExecPaths=/\nExecPaths=-{folder}\n");
    let system = System::new("allowed", &allowed);
    assert_eq!(system.sanctl(&["--check", "probe"]).status.code(), Some(0));
}

#[test]
fn what_others_set_later_by_name_stays_behind_the_library() {
    let system = System::new("later", "[Service]\n");
    system.write(
        "etc/systemd/system/probe.service.d/override.conf",
        "[Service]\nEnvironment=LD_PRELOAD=/later.so\n",
    );
    assert_eq!(system.sanctl(&["probe"]).status.code(), Some(0));
    let folder = system.0.join("etc/systemd/system/probe.service.d");
    let mut names: Vec<_> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("a file").file_name())
        .collect();
    names.sort();
    assert_eq!(names.last().expect("a file"), Path::new(DROP_IN).file_name().expect("a name"));
    assert!(system.drop_in().expect("a drop-in").contains("libsanshim.so:/later.so\""));
}

#[test]
fn what_is_no_service_is_refused() {
    let system = System::new("refused", "[Service]\n");
    system.write("etc/systemd/system/masked.service", "");
    let elsewhere = system.0.join("lib/systemd/system/probe.service");
    let cases = [
        (elsewhere.to_str().expect("text"), "is a path: give the unit's name"),
        ("probe.socket", "probe.socket is no service"),
        ("masked", "masked.service is masked"),
    ];
    for (unit, why) in cases {
        let refused = system.sanctl(&[unit]);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    let system = System::new("missing", "[Service]\n");
    let missing = system.sanctl(&["other"]);
    assert_eq!(missing.status.code(), Some(1));
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(said.contains("there is no unit other.service in /etc/systemd/system"), "{said}");
    system.write("etc/systemd/system/probe.service.d", "a file in the folder's place");
    let hindered = system.sanctl(&["probe"]);
    assert_eq!(hindered.status.code(), Some(1), "{hindered:?}");
    assert!(String::from_utf8_lossy(&hindered.stderr).contains("zz-sanshim.conf"));
}

/// Else each start of the service would be told that the library is missing.
#[test]
fn removal_of_the_package_takes_the_drop_ins_away_and_leaves_others() {
    let system = System::new("removal", "[Service]\n");
    system.write("lib/systemd/system/other.service", "[Service]\n");
    for unit in ["probe", "other"] {
        assert_eq!(system.sanctl(&[unit]).status.code(), Some(0));
    }
    let own = "etc/systemd/system/other.service.d/override.conf";
    system.write(own, "[Service]\n");
    system.write("etc/systemd/system/mine.service.d/zz-sanshim.conf", "[Service]\n");
    let prerm = |what: &str| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("debian/prerm");
        let done = Command::new("sh").arg(script).arg(what).env("DPKG_ROOT", &system.0).output();
        let done = done.expect("sh runs");
        assert!(done.status.success(), "{done:?}");
        text(&done)
    };
    prerm("upgrade");
    assert!(system.drop_in().is_some(), "an upgrade keeps it");
    assert!(prerm("remove").contains("restart probe.service"));
    let folder = system.0.join("etc/systemd/system");
    assert!(!folder.join("probe.service.d").exists());
    assert!(
        !folder.join("other.service.d/zz-sanshim.conf").exists() && system.0.join(own).exists()
    );
    assert!(folder.join("mine.service.d/zz-sanshim.conf").exists(), "nobody but its author");
}
