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
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", MOUNT, "sh", mounted, others]);
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
