//! File systems that a program serves, mounted where processes of a user would meet. Nobody answers there: who asks waits for
//! ever. Needs root.

use std::path::Path;
use std::process::{Command, Output};

use sanshim_tests::programs::{locate, Mode};

/// Mounts one at the first argument, in a shared memory of its own, where the second name is somebody else's folder. All that
/// follows is a command.
const MOUNT: &str = "mount -t tmpfs -o mode=1777 none /dev/shm; mkdir /dev/shm/$1; \
    mkdir -p /dev/shm/$2; chown 7 /dev/shm/$2; exec 3<>/dev/fuse; \
    mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0,allow_other x /dev/shm/$1; \
    shift 2; exec timeout -s KILL 30 \"$@\"";

fn is_possible() -> bool {
    // SAFETY: no memory is involved.
    let is_possible = unsafe { libc::geteuid() } == 0 && Path::new("/dev/fuse").exists();
    if !is_possible {
        eprintln!("not run: mounts need root, and a kernel with FUSE");
    }
    is_possible
}

fn behind(mounted: &str, others: &str, inner: &Command) -> Output {
    with_mounts(&[MOUNT, "sh", mounted, others], inner)
}

/// With a shared memory of its own, and a folder there.
fn behind_nothing(inner: &Command) -> Output {
    const SCRIPT: &str = "mount -t tmpfs none /dev/shm; mkdir /dev/shm/other; exec \"$@\"";
    with_mounts(&[SCRIPT, "sh"], inner)
}

fn with_mounts(script: &[&str], inner: &Command) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec"]).args(script);
    command.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.output().expect("unshare runs")
}

#[test]
fn a_folder_that_a_program_serves_is_nobodys() {
    if !is_possible() {
        return;
    }
    // In the place of the user's folder, and among the other names of that folder.
    for (mounted, others) in [("sanshim-user-0", "other"), ("sanshim-user-0.zzz", "sanshim-user-0")]
    {
        let mut program = Mode::Shim.command(locate::python());
        program.arg("-u").arg(locate::helper("one_connection.py")).arg("both");
        program.env("SANSHIM_LOG", "info");
        let output = behind(mounted, others, &program);
        let [said, log] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(said.ends_with("ok\n"), "{mounted}: {:?} {said}{log}", output.status);
        assert_eq!(log.matches("provider=shm reason=on-san").count(), 2, "{mounted}: {log}");
    }
}

/// The program's lines on a folder of the configuration that nobody answers for.
fn with_folder(folder: &str, inner: &mut Command) -> String {
    inner.env("SANSHIM_FOLDER", folder).env("SANSHIM_LOG", "warn");
    let output = behind("served", "other", inner);
    let [said, log] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(said.ends_with("ok\n"), "{folder}: {:?} {said}{log}", output.status);
    log
}

#[test]
fn a_folder_of_the_configuration_that_a_program_serves_is_left_alone() {
    if !is_possible() {
        return;
    }
    let link = format!("/tmp/sanshim-mounted-{}", std::process::id());
    std::os::unix::fs::symlink("/dev/shm/served", &link).expect("a link");
    for folder in ["/dev/shm/served", "/dev/shm/served/below", &link] {
        let mut program = Mode::Shim.command(locate::python());
        program.arg("-u").arg(locate::helper("one_connection.py")).arg("both");
        let log = with_folder(folder, &mut program);
        assert!(log.contains("is on fuse, a file system of the network"), "{folder}: {log}");
        // It would have its offer socket opened while it is root.
        let changes = "import os, socket; one = socket.create_server(('127.0.0.1', 0)); os.setuid(7); print('ok')";
        let mut program = Mode::Shim.command(locate::python());
        with_folder(folder, program.args(["-c", changes]));
    }
    std::fs::remove_file(link).expect("the link");
}

#[test]
fn sanctl_waits_for_no_program_whose_file_is_not_served() {
    if !is_possible() {
        return;
    }
    let mut helper = Mode::Shim.command("python3");
    helper.arg(locate::helper("served_program.py")).arg("/bin/sleep").arg("/dev/shm/other");
    let output = behind_nothing(helper.args(["timeout", "-s", "KILL", "30"]).arg(locate::sanctl()));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("program (pid "), "{output:?}");
}

#[test]
fn sanctl_waits_for_no_folder_that_a_program_serves() {
    if !is_possible() {
        return;
    }
    for mounted in ["sanshim-user-0", "sanshim-user-7.zzz"] {
        let mut status = Command::new(locate::sanctl());
        let output = behind(mounted, "other", status.args(["status", "--json"]));
        assert!(output.status.success(), "{mounted}: {output:?}");
    }
}
