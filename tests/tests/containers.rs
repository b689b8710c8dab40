//! `sanctl` on a host that has containers: namespaces as a container manager makes them, by unshare. Needs root.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use sanshim_tests::programs::{eventually, locate, Mode};
use serde_json::Value;

/// What a container has of its own.
const OWN_SHARED_MEMORY: &str = "mount -t tmpfs none /dev/shm && ip link set lo up && exec \"$@\"";
const HOSTS_SHARED_MEMORY: &str = "ip link set lo up && exec \"$@\"";

fn may_make_namespaces() -> bool {
    let tried =
        Command::new("unshare").args(["--mount", "--pid", "--fork", "--net", "true"]).status();
    let may = tried.is_ok_and(|status| status.success());
    if !may {
        eprintln!("not run: this user may not make namespaces");
    }
    may
}

/// A command in namespaces of its own, as process 1 there.
fn contained(set_up: &str, inner: &Command) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--net", "--mount-proc", "--"]);
    command.args(["sh", "-c", set_up, "sh"]).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// tests/programs/stream.py in a container: both ends of a connection.
struct Container {
    unshare: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Its number here.
    pid: u32,
    sender: u64,
    receiver: u64,
}

impl Container {
    fn start(set_up: &str) -> Container {
        let mut inner = Mode::Shim.command("python3");
        inner.arg(locate::helper("stream.py"));
        let mut command = contained(set_up, &inner);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut unshare = command.spawn().expect("unshare runs");
        let input = unshare.stdin.take();
        let mut output = BufReader::new(unshare.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("its descriptors");
        let numbers: Vec<u64> =
            line.split_whitespace().map(|number| number.parse().expect("a number")).collect();
        let [own_pid, sender, receiver] = numbers[..] else { panic!("three numbers: {line:?}") };
        assert_eq!(own_pid, 1);
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let children = fs::read_to_string(children).expect("its child");
        let pid = children.trim().parse().expect("one child");
        Container { unshare, input, output, pid, sender, receiver }
    }

    fn send(&mut self) {
        self.input.as_mut().expect("a pipe").write_all(b"go\n").expect("it reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        assert_eq!(line, "done\n");
    }

    fn number(&self) -> String {
        self.pid.to_string()
    }

    /// What sanctl says here of its process.
    fn shown(&self) -> Value {
        let output = sanctl(&["status", "--json", "--pid", &self.number()]);
        let status: Value = serde_json::from_str(&output).expect("JSON");
        status["processes"][0].clone()
    }

    /// The provider of both ends.
    fn providers(&self) -> [String; 2] {
        let process = self.shown();
        let connections = process["connections"].as_array();
        let connections =
            connections.unwrap_or_else(|| panic!("nothing of {}: {process}", self.pid));
        [self.sender, self.receiver].map(|fd| {
            let end = connections.iter().find(|connection| connection["fd"] == fd);
            let end = end.unwrap_or_else(|| panic!("no descriptor {fd} in {process}"));
            end["provider"].as_str().expect("text").to_owned()
        })
    }

    /// The output of sanctl in its namespaces.
    fn inside(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.number(), "--mount", "--pid", "--net", "--"]);
        command.arg(locate::sanctl()).args(arguments).output().expect("nsenter runs")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

fn output_of(arguments: &[&str]) -> Output {
    Command::new(locate::sanctl()).args(arguments).output().expect("sanctl runs")
}

fn sanctl(arguments: &[&str]) -> String {
    let output = output_of(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn the_host_shows_the_processes_of_containers_and_each_container_its_own() {
    if !may_make_namespaces() {
        return;
    }
    for set_up in [OWN_SHARED_MEMORY, HOSTS_SHARED_MEMORY] {
        let containers = [Container::start(set_up), Container::start(set_up)];
        for one in &containers {
            let process = one.shown();
            assert_eq!((&process["pid"], &process["own_pid"]), (&one.pid.into(), &1.into()));
            assert_eq!(one.providers(), ["shm", "shm"]);
            let table = sanctl(&["status", "--pid", &one.number()]);
            let named = format!("python3 (pid {}, 1 in its own PID namespace): ", one.pid);
            assert!(table.starts_with(&named), "{table}");
            let why = sanctl(&["why", &one.number(), &one.sender.to_string()]);
            let other = format!(
                "Other end: python3 (pid {}, 1 in its own PID namespace), descriptor {}, under the shim. Its own account: is on the SAN.",
                one.pid, one.receiver
            );
            assert!(why.contains(&other) && why.contains("What happened:\n"), "{why}");
            let output = one.inside(&["status", "--json"]);
            let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let processes = status["processes"].as_array().expect("an array");
            assert_eq!(processes.len(), 1, "{status}");
            assert_eq!((&processes[0]["pid"], &processes[0]["own_pid"]), (&1.into(), &Value::Null));
            assert_eq!(processes[0]["connections"], process["connections"]);
        }
    }
}

#[test]
fn every_command_reaches_into_a_container() {
    if !may_make_namespaces() {
        return;
    }
    let mut container = Container::start(OWN_SHARED_MEMORY);
    let pid = container.number();
    container.send();
    assert_eq!(container.providers(), ["shm", "shm"]);
    let labels = format!("pid=\"{pid}\",program=\"python3\"");
    let metrics = sanctl(&["export", "--once", "--pid", &pid]);
    assert!(metrics.contains(&format!("sanshim_sent_bytes_total{{{labels}}}")), "{metrics}");
    let top = sanctl(&["top", "--once", "--json", "--interval", "0.1", "--pid", &pid]);
    let top: Value = serde_json::from_str(&top).expect("JSON");
    assert_eq!(top["connections"].as_array().map(Vec::len), Some(2), "{top}");
    let past = sanctl(&["trace", "--past", "--once", &pid]);
    assert!(past.contains("is on the SAN"), "{past}");
    // The process looks for requests when it next uses its connections.
    let asked = sanctl(&["detach", "--wait", "0", &pid, "all"]);
    assert!(asked.starts_with("0 of 2 went back to TCP"), "{asked}");
    eventually(
        || {
            container.send();
            (container.providers() == ["tcp", "tcp"]).then_some(())
        },
        || "never went back to TCP".to_owned(),
    );
    container.send();
}

/// A client in a container, and a server in another, with a bridge between them.
struct Bridged {
    _children: [Killed; 2],
    /// The number of each process here, and the descriptor of its end of their connection.
    client: (u32, u32),
    server: (u32, u32),
}

/// In the client's container: the server's address and the client's port are others at the server.
const TRANSLATED: &str = "table ip nat {
  chain own { type nat hook output priority -100; ip daddr 10.99.0.9 tcp dport 80 dnat to 10.99.0.1:7000; }
  chain out { type nat hook postrouting priority 100; oifname eth9 masquerade fully-random; }
}";

impl Bridged {
    /// `folder` is one that both have. The client dials an address that is `translated`, or the server's own.
    fn new(server_mode: Mode, folder: Option<&Path>, translated: bool) -> Bridged {
        let program = r#"
import signal, socket, sys
signal.alarm(120)
sys.stdin.readline()
if sys.argv[1] == "serve":
    with socket.create_server(("10.99.0.1", 7000)) as listener:
        print("listens", flush=True)
        end, _ = listener.accept()
    print(end.fileno(), flush=True)
else:
    end = socket.create_connection((sys.argv[2], int(sys.argv[3])))
    for _ in range(3000):
        end.sendall(b"?"), end.recv(1)
    print(end.fileno(), flush=True)
while data := end.recv(1):
    end.sendall(data)
"#;
        let dialled = if translated { ["10.99.0.9", "80"] } else { ["10.99.0.1", "7000"] };
        let start = |mode: Mode, role: &str| {
            let mut inner = mode.command("python3");
            inner.args(["-c", program, role]).args(dialled);
            if let Some(folder) = folder {
                inner.env("SANSHIM_FOLDER", folder);
            }
            let mut command = contained(OWN_SHARED_MEMORY, &inner);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().expect("runs");
            let output = BufReader::new(child.stdout.take().expect("a pipe"));
            // Its network is its own once the program runs.
            let pid = eventually(
                || {
                    let children =
                        fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()));
                    let pid: u32 = children.ok()?.trim().parse().ok()?;
                    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
                    (name.trim() == "python3").then_some(pid)
                },
                || "python3 never ran".to_owned(),
            );
            (Killed(child), output, pid)
        };
        let (mut server, mut server_says, server_pid) = start(server_mode, "serve");
        let (mut client, mut client_says, client_pid) = start(Mode::Shim, "connect");
        let run = |command: &mut Command| {
            let status = command.status();
            assert!(status.expect("see scripts/install").success(), "{command:?}");
        };
        let link = format!("link add eth9 netns {server_pid} type veth peer name eth9 netns");
        run(Command::new("ip").args(link.split(' ')).arg(client_pid.to_string()));
        let inside = |pid: u32, program: &str| {
            let mut inside = Command::new("nsenter");
            inside.args(["-t", &pid.to_string(), "--net", program]);
            inside
        };
        for (pid, address) in [(server_pid, "10.99.0.1/24"), (client_pid, "10.99.0.2/24")] {
            run(inside(pid, "ip").args(["address", "add", address, "dev", "eth9"]));
            run(inside(pid, "ip").args(["link", "set", "eth9", "up"]));
        }
        if translated {
            run(inside(client_pid, "nft").arg(TRANSLATED));
        }
        let number = |says: &mut BufReader<ChildStdout>| {
            let mut line = String::new();
            says.read_line(&mut line).expect("it says its descriptor");
            line.trim().parse().expect("a number")
        };
        server.0.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("it reads");
        server_says.read_line(&mut String::new()).expect("it listens");
        client.0.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("it reads");
        let [server_end, client_end] = [&mut server_says, &mut client_says].map(number);
        Bridged {
            _children: [server, client],
            client: (client_pid, client_end),
            server: (server_pid, server_end),
        }
    }

    /// What `sanctl why` says of an end.
    fn why((pid, fd): (u32, u32)) -> String {
        sanctl(&["why", &pid.to_string(), &fd.to_string()])
    }
}

/// True if the kernel translates addresses in a network namespace of its own.
fn may_translate() -> bool {
    let tried = Command::new("unshare").args(["--net", "nft", TRANSLATED]).output();
    let may = tried.is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("not run: addresses are not translated here (nft, nf_tables)");
    }
    may
}

#[test]
fn the_other_end_over_a_bridge_is_known_and_the_reason_says_what_parts_them() {
    if !may_make_namespaces() {
        return;
    }
    let both = Bridged::new(Mode::Shim, None, false);
    let (why, (server, _)) = (Bridged::why(both.client), both.server);
    let other =
        format!("Other end: python3 (pid {server}, 1 in its own PID namespace), descriptor");
    assert!(why.contains(&other), "{why}");
    assert!(why.contains("tcp: the other end has another /dev/shm or network namespace"), "{why}");
    assert!(why.contains("What to do: mount one folder into both containers"), "{why}");
    drop(both);
    let both = Bridged::new(Mode::Native, None, false);
    let (why, (server, _)) = (Bridged::why(both.client), both.server);
    let other = format!("Other end: python3 (pid {server}), descriptor ");
    assert!(why.contains(&other) && why.contains(", without the shim.\n"), "{why}");
    assert!(why.contains("tcp: the peer's address is not this host's"), "{why}");
}

#[test]
fn the_other_end_is_known_where_addresses_are_translated() {
    if !may_make_namespaces() || !may_translate() {
        return;
    }
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o1777)).expect("chmod");
    let is_told = |folder: Option<&Path>, account: &str| {
        let both = Bridged::new(Mode::Shim, folder, true);
        for (this, (other, fd)) in [(both.client, both.server), (both.server, both.client)] {
            let why = Bridged::why(this);
            let expected = format!(
                "Other end: python3 (pid {other}, 1 in its own PID namespace), descriptor {fd}, under the shim. Its own account: {account}"
            );
            assert!(why.contains(&expected), "{why}");
        }
    };
    is_told(Some(folder.path()), "is on the SAN.");
    // On TCP nothing but the kernel's table tells.
    if Path::new("/proc/net/nf_conntrack").exists() {
        is_told(None, "");
    }
}

/// A child that is killed in the end.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a container may put where others look.
#[test]
fn what_a_hostile_container_leaves_is_one_line_and_hides_nobody() {
    if !may_make_namespaces() {
        return;
    }
    let container = Container::start(OWN_SHARED_MEMORY);
    let victim = Container::start(OWN_SHARED_MEMORY);
    let victims = fs::read_dir(format!("/proc/{}/root/dev/shm/sanshim-user-0", victim.pid));
    let file = victims
        .expect("its folder")
        .flatten()
        .find(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("1.")));
    let file = file.expect("its file");
    let shared = format!("/proc/{}/root/dev/shm", container.pid);
    let folder = format!("{shared}/sanshim-user-0");
    // As the victim's process, as a pipe that nobody writes to, as a link out, and as a folder that is a link.
    let claimed = format!("{folder}/{}", file.file_name().to_str().expect("text"));
    fs::copy(file.path(), &claimed).expect("a copy");
    let fifo = Command::new("mkfifo").arg(format!("{folder}/77")).status().expect("mkfifo");
    assert!(fifo.success());
    std::os::unix::fs::symlink("/etc/passwd", format!("{folder}/78")).expect("a link");
    std::os::unix::fs::symlink("/", format!("{shared}/sanshim-user-1")).expect("a link");
    fs::write(format!("{folder}/79"), vec![0xa5; 8192]).expect("a file");
    // Held as its process would hold it.
    let holder = "import fcntl, struct, sys; file = open(sys.argv[1], 'r+b'); \
                  fcntl.fcntl(file, 37, struct.pack('hhqqi4x', 1, 0, 0, 0, 0)); print('held', flush=True); sys.stdin.read()";
    let mut holder = Command::new("python3")
        .args(["-c", holder, &claimed])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map(Killed)
        .expect("python3 runs");
    let mut line = String::new();
    let said = holder.0.stdout.take().expect("a pipe");
    BufReader::new(said).read_line(&mut line).expect("it holds the file");
    assert_eq!(line, "held\n");

    let output = output_of(&["status", "--json"]);
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    let about: Vec<_> = complaints.lines().filter(|line| line.contains("/root/dev/shm/")).collect();
    assert_eq!(about.len(), 1, "{complaints}");
    assert!(about[0].contains("other files there are skipped too (1)"), "{complaints}");
    let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let processes = status["processes"].as_array().expect("an array");
    for one in [&container, &victim] {
        let shown = processes.iter().filter(|process| process["pid"] == one.pid).count();
        assert_eq!(shown, 1, "{status}");
    }
    assert_eq!(victim.providers(), ["shm", "shm"]);
}
