//! The environment variables as a user meets them: a mistake is one line on standard error and plain TCP,
//! everything else is silent.

use std::fs;
use std::process::Command;

use sanshim_tests::behaviour::shim_library;
use sanshim_tests::programs::status::{connections, expect_native_peer};
use sanshim_tests::programs::{locate, Mode, Running, Sandbox};

const VARIABLES: [&str; 3] = ["SANSHIM_LOG", "SANSHIM_LOG_FILE", "SANSHIM_PROVIDERS"];

type Variables = &'static [(&'static str, &'static str)];

/// tests/programs/one_connection.py under the shim with these variables and none else. `HERE` in a value is the
/// sandbox.
fn start(sandbox: &Sandbox, arguments: &[&str], variables: &[(&str, &str)]) -> Running {
    let mut command = Mode::Shim.command(locate::python());
    command.arg("-u").arg(locate::helper("one_connection.py")).args(arguments);
    command.current_dir(sandbox.path());
    for name in VARIABLES {
        command.env_remove(name);
    }
    let here = sandbox.path().to_str().expect("a path in UTF-8");
    for (name, value) in variables {
        command.env(name, value.replace("HERE", here));
    }
    sandbox.launch("python3", command)
}

/// Runs a program that connects to itself; gives the providers of both ends and its standard error.
fn run(sandbox: &Sandbox, variables: &[(&str, &str)]) -> (Vec<String>, String) {
    let program = start(sandbox, &["both"], variables);
    program.wait_for_line("ok");
    let providers = connections(&[program.pid()]).into_iter().map(|end| end.provider).collect();
    (providers, program.finish_both().1)
}

#[test]
fn a_mistake_is_one_line_and_plain_tcp() {
    // Variables, the contents of HERE/rules.toml, and what the line says.
    let cases: [(Variables, &str, &str); 10] = [
        (&[("SANSHIM", "maybe")], "", "SANSHIM=maybe: must be on or off"),
        (&[("SANSHIM_LOG", "loud")], "", "SANSHIM_LOG=loud: \"loud\" is no level; use one of off, "),
        (&[("SANSHIM_MOVE_AFTER", "-1")], "", "SANSHIM_MOVE_AFTER=-1: must be 0 to 65536"),
        (&[("SANSHIM_PROVIDERS", "rdma")], "", "SANSHIM_PROVIDERS=rdma: must be of shm and verbs"),
        (
            &[("SANSHIM_CONFIG", "HERE/none.toml")],
            "",
            "cannot read HERE/none.toml: No such file or directory (os error 2); ",
        ),
        (&[("SANSHIM_CONFIG", "HERE")], "", "cannot read HERE: Is a directory (os error 21); "),
        (
            &[("SANSHIM_CONFIG", "HERE/rules.toml")],
            "enabled = true\n[shm\n",
            "HERE/rules.toml, line 2: [shm: ",
        ),
        (
            &[("SANSHIM_CONFIG", "HERE/rules.toml")],
            "[shm]\nspeed = 9\n",
            "HERE/rules.toml, line 2: speed = 9: ",
        ),
        (
            &[("SANSHIM_LOG", "info"), ("SANSHIM_LOG_FILE", "HERE/none/log")],
            "",
            "cannot open the log HERE/none/log: No such file or directory (os error 2); set SANSHIM_LOG_FILE ",
        ),
        (
            &[("SANSHIM_LOG", "info"), ("SANSHIM_LOG_FILE", "HERE")],
            "",
            "cannot open the log HERE: Is a directory (os error 21); set SANSHIM_LOG_FILE ",
        ),
    ];
    for (variables, rules, expected) in cases {
        let sandbox = Sandbox::new();
        fs::write(sandbox.file("rules.toml"), rules).expect("the rules");
        let (providers, said) = run(&sandbox, variables);
        let here = sandbox.path().to_str().expect("a path in UTF-8");
        let start = format!("sanshim: {}", expected.replace("HERE", here));
        assert!(said.starts_with(&start), "{variables:?}: {said}");
        assert!(said.ends_with("; running on plain TCP\n"), "{variables:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{variables:?}: {said}");
        assert_eq!(providers, [""; 0], "{variables:?}");
    }
}

#[test]
fn without_a_mistake_nothing_is_said() {
    let good: [(Variables, &[&str]); 6] = [
        (&[], &["shm", "shm"]),
        (&[("SANSHIM", "on"), ("SANSHIM_LOG", "off")], &["shm", "shm"]),
        (&[("SANSHIM", ""), ("SANSHIM_LOG", ""), ("SANSHIM_CONFIG", "")], &["shm", "shm"]),
        (&[("SANSHIM_CONFIG", "HERE/rules.toml")], &["shm", "shm"]),
        (&[("SANSHIM_LOG_FILE", "HERE/none/unused")], &["shm", "shm"]),
        (&[("SANSHIM", "off")], &[]),
    ];
    for (variables, wanted) in good {
        let sandbox = Sandbox::new();
        fs::write(sandbox.file("rules.toml"), "[shm]\nmessage_buffers = 8\n").expect("the rules");
        assert_eq!(
            run(&sandbox, variables),
            (wanted.iter().map(|&p| p.to_owned()).collect(), String::new()),
            "{variables:?}"
        );
    }
}

#[test]
fn the_log_goes_where_it_is_wanted() {
    let sandbox = Sandbox::new();
    let pid_of = |line: &str| line.strip_prefix("sanshim[")?.split(']').next()?.parse::<u32>().ok();
    let check = |log: &str| {
        for role in ["connector", "acceptor"] {
            let line = format!("provider=shm reason=on-san role={role}\n");
            assert_eq!(log.matches(&line).count(), 1, "{log}");
        }
        assert!(
            log.lines().all(|line| pid_of(line).is_some() && line.contains("] info: ")),
            "{log}"
        );
    };
    // A relative name is one in the working folder.
    for file in ["HERE/a.log", "b.log"] {
        let name = file.rsplit('/').next().expect("a name");
        fs::write(sandbox.file(name), "before\n").expect("an older log");
        let (_, said) = run(&sandbox, &[("SANSHIM_LOG", "info"), ("SANSHIM_LOG_FILE", file)]);
        assert_eq!(said, "");
        let log = fs::read_to_string(sandbox.file(name)).expect("the log");
        check(log.strip_prefix("before\n").expect("what was there before"));
    }
    let (_, said) = run(&sandbox, &[("SANSHIM_LOG", "info")]);
    check(&said);
}

/// Switched off at one end, the other says what it says of every program without the shim.
fn one_end_off(server_variables: &[(&str, &str)], client_variables: &[(&str, &str)]) {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &["server"], server_variables);
    let port = server.wait_for_line("port ");
    let client = start(&sandbox, &["client", &port], client_variables);
    for (end, variables) in [(&server, server_variables), (&client, client_variables)] {
        end.wait_for_line("ok");
        if variables.is_empty() {
            expect_native_peer(end, 1);
        } else {
            assert_eq!(connections(&[end.pid()]), []);
        }
    }
    for end in [client, server] {
        assert_eq!(end.finish_both().1, "");
    }
}

#[test]
fn off_for_a_server_alone() {
    one_end_off(&[("SANSHIM", "off")], &[]);
}

#[test]
fn off_for_a_client_alone() {
    one_end_off(&[], &[("SANSHIM", "off")]);
}

/// The loader leaves LD_PRELOAD out there, and heeds the system's own list.
#[test]
fn a_program_with_more_rights_than_its_caller_heeds_no_variable() {
    use std::os::unix::fs::PermissionsExt;
    // SAFETY: no memory is involved.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not run: a setuid program and its list of libraries need root");
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.open_to_everybody();
    let library = sandbox.file("libsanshim.so");
    fs::copy(shim_library().expect("the library"), &library).expect("a copy");
    let mode = |file: &str, mode| {
        fs::set_permissions(sandbox.file(file), fs::Permissions::from_mode(mode)).expect("chmod");
    };
    for folder in ["etc", "logs"] {
        fs::create_dir(sandbox.file(folder)).expect("mkdir");
    }
    mode("logs", 0o777);
    fs::copy("/etc/ld.so.cache", sandbox.file("etc/ld.so.cache")).expect("the loader's cache");
    fs::write(sandbox.file("etc/ld.so.preload"), format!("{}\n", library.display()))
        .expect("write");
    for (name, rights) in [("plain", 0o755), ("privileged", 0o4755)] {
        locate::copy_program(&locate::program("true"), &sandbox.file(name));
        mode(name, rights);
        let mut command = Command::new("unshare");
        let script =
            "mount --bind \"$1/etc\" /etc; exec setpriv --reuid=7 --regid=7 --clear-groups env \
                      SANSHIM_LOG=debug SANSHIM_LOG_FILE=\"$1/logs/$2\" \"$1/$2\"";
        command.args(["--mount", "sh", "-ec", script, "sh"]).arg(sandbox.path()).arg(name);
        let output = command.output().expect("unshare runs");
        assert!(output.status.success(), "{name}: {output:?}");
        assert_eq!(sandbox.file("logs").join(name).exists(), name == "plain", "{name}: {output:?}");
    }
}
