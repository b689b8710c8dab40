//! What connections between hosts use, between the processes of this host: over the objects of shared memory instead of
//! RDMA devices, with the programs of tests/between.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sanshim_tests::behaviour::shim_library;
use sanshim_tests::programs::{locate, Mode, Sandbox};

/// The program, built once.
fn between() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("between");
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("between");
        let sources = ["between.c", "common.c", "forks.c", "handing.c", "many.c", "modes.c"];
        let sources = sources.map(|name| folder.join(name));
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let built = Command::new(compiler)
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(&program)
            .args(sources)
            .status();
        assert!(built.expect("a C compiler").success(), "tests/between does not compile");
        program
    })
}

/// Runs cases; what the log says under the shim.
fn run(mode: Mode, address: &str, cases: &[&str]) -> String {
    run_with(mode, None, address, cases)
}

/// The same with a rules file.
fn run_with(mode: Mode, rules: Option<&str>, address: &str, cases: &[&str]) -> String {
    let sandbox = Sandbox::new();
    let mut command = mode.command(between());
    if let Some(rules) = rules {
        let path = sandbox.file("rules.toml");
        std::fs::write(&path, rules).expect("a file");
        command.env("SANSHIM_CONFIG", path);
    }
    command.arg(address).args(cases);
    command.env("SANSHIM_PROVIDERS", "shm-objects").env("SANSHIM_MOVE_AFTER", "0");
    command.env("SANSHIM_LOG", "info").env("SANSHIM_LOG_FILE", sandbox.log());
    let ended = command.output().expect("the program");
    let log = std::fs::read_to_string(sandbox.log()).unwrap_or_default();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{said}{wrong}{log}");
    log
}

/// True if a connection is on TCP that was on the SAN, or does not come there.
fn is_back(log: &str) -> bool {
    const BEFORE: [&str; 4] =
        ["reason=quiet", "reason=shared", "reason=pending", "reason=peer-native"];
    let is_back = |line: &str| {
        line.contains("provider=tcp") && !BEFORE.iter().any(|reason| line.contains(reason))
    };
    log.lines().any(is_back)
}

/// Runs cases with every connection on the fabric, to its end; what the log says. Where an end got no processor in time
/// a connection stays on TCP, as it should: then once more.
fn run_on_fabric(address: &str, cases: &[&str]) -> String {
    run_on_fabric_with(None, address, cases)
}

/// The same with a rules file.
fn run_on_fabric_with(rules: Option<&str>, address: &str, cases: &[&str]) -> String {
    let on_fabric = |log: &str| log.contains("provider=shm") && !is_back(log);
    for attempt in 1..=3 {
        let log = run_with(Mode::Shim, rules, address, cases);
        if on_fabric(&log) {
            return log;
        }
        eprintln!("attempt {attempt}: a connection was on TCP\n{log}");
    }
    panic!("every time a connection was on TCP");
}

#[test]
fn the_cases_natively() {
    run(Mode::Native, "127.0.0.1", &[]);
}

#[test]
fn the_cases_over_the_fabric() {
    run_on_fabric("127.0.0.1", &[]);
}

#[test]
fn the_cases_over_the_fabric_by_ipv6() {
    run_on_fabric("::1", &[]);
}

/// Reads and writes from program to program, as the links of both ends counted them.
fn accesses(log: &str) -> [u64; 2] {
    const SAID: &str = "from program to program by RDMA: ";
    let counts = log.lines().filter_map(|line| {
        let numbers = line.split_once(SAID)?.1.split(' ').filter_map(|word| word.parse().ok());
        let numbers: Vec<u64> = numbers.collect();
        Some([numbers[0], numbers[2]])
    });
    counts.fold([0, 0], |[reads, writes], [r, w]| [reads + r, writes + w])
}

/// Runs a case in which programs send much, with these operations alone; what the log says, and how often each was used.
fn by_rdma(operations: &str, case: &str) -> (String, [u64; 2]) {
    let rules = format!("[shm]\nrdma_threshold = 16384\nrdma_operations = \"{operations}\"\n");
    let log = run_on_fabric_with(Some(&rules), "127.0.0.1", &[case]);
    assert!(!log.contains("broke"), "{log}");
    let used = accesses(&log);
    (log, used)
}

/// Runs cases with one operation alone. Asserts that each case used the operation so often at least, and no other one.
fn by_one_operation(operation: &str, cases: [(&str, u64); 5]) {
    for (case, least) in cases {
        let (_, [reads, writes]) = by_rdma(operation, case);
        let (used, other) = if operation == "read" { (reads, writes) } else { (writes, reads) };
        assert!(used >= least && other == 0, "{case}: {reads} reads, {writes} writes");
    }
}

/// In the mode that fits what the receiver does (A7), and back where it changes (A8, A11). Where a processor is missed some
/// sends go in messages, so these are fewer than the sends (8 in each turn).
#[test]
fn programs_with_much_data_read_each_others_memory() {
    let cases =
        [("large", 3), ("small-large", 3), ("changing", 6), ("crossing", 6), ("gives-up", 3)];
    by_one_operation("read", cases);
}

#[test]
fn programs_with_much_data_write_into_posted_receives() {
    let cases =
        [("large", 3), ("small-large", 2), ("changing", 6), ("crossing", 6), ("gives-up", 3)];
    by_one_operation("write", cases);
}

/// A receive that waits has lent its memory over the queue pair that is to move.
#[test]
fn control_moves_while_a_receive_has_lent_its_memory() {
    let (log, [_, writes]) = by_rdma("write", "moved");
    assert!(log.contains("this process has control"), "{log}");
    assert!(writes >= 3, "{log}");
}

/// What one end announces and what the other advertises cross (A12).
#[test]
fn programs_with_much_data_use_both_operations() {
    for case in ["changing", "crossing", "gives-up"] {
        let (_, [reads, writes]) = by_rdma("both", case);
        assert!(reads + writes >= 4, "{case}: {reads} reads, {writes} writes");
    }
}

/// Whatever could be done by RDMA, small receives have it in messages, and so has everything without a threshold.
#[test]
fn programs_whose_receives_are_small_use_no_rdma() {
    for operations in ["read", "write", "both"] {
        assert_eq!(by_rdma(operations, "small").1, [0, 0], "{operations}");
    }
    let log = run_on_fabric("127.0.0.1", &["large", "crossing"]);
    assert_eq!(accesses(&log), [0, 0], "{log}");
}

#[test]
fn control_goes_to_who_uses_a_connection() {
    let cases = ["heir", "prefork", "orphan", "lent", "turns", "quits"];
    let log = run_on_fabric("127.0.0.1", &cases);
    assert!(log.matches("this process has control").count() >= 6, "{log}");
}

/// Nothing rings when the process with control is killed: its relatives look from time to time.
#[test]
fn a_relative_asleep_in_a_set_hears_that_the_process_with_control_died() {
    let log = run_on_fabric("127.0.0.1", &["widowed"]);
    assert!(log.contains("its link is broken"), "{log}");
}

/// What goes to a program without the library goes on over TCP.
#[test]
fn a_program_without_the_library_goes_on_over_tcp() {
    let cases = ["handed", "passed", "computes"];
    run(Mode::Native, "127.0.0.1", &cases);
    for attempt in 1..=3 {
        let log = run(Mode::Shim, "127.0.0.1", &cases);
        // By exec or in a message, or before, when it becomes a standard stream.
        let returned: usize = ["handed-over", "unseen-use"]
            .map(|reason| log.matches(&format!("provider=tcp reason={reason}")).count())
            .iter()
            .sum();
        if log.matches("provider=shm").count() == 2 * cases.len() && returned >= cases.len() {
            return;
        }
        eprintln!("attempt {attempt}: a connection was on TCP before\n{log}");
    }
    panic!("every time a connection was on TCP before");
}

/// The system calls of a short request, from its connect to its close; under the shim with such providers. `None`: there is no strace.
fn calls_of_a_request(providers: Option<&str>) -> Option<Vec<String>> {
    let sandbox = Sandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("its address").port().to_string();
    let answers = std::thread::spawn(move || {
        let (mut one, _) = listener.accept().expect("a connection");
        let mut byte = [0];
        one.read_exact(&mut byte).and_then(|()| one.write_all(&byte)).expect("a byte");
    });
    let traced = sandbox.log().with_extension("calls");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o"]).arg(&traced);
    if let Some(providers) = providers {
        let library = shim_library().expect("the library");
        command.arg("-E").arg(format!("LD_PRELOAD={}", library.display()));
        command.arg("-E").arg(format!("SANSHIM_PROVIDERS={providers}"));
    }
    command.arg(between()).args(["127.0.0.1", "ask", &port]);
    let ended = command.output().ok()?;
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    answers.join().expect("the answer");
    let text = std::fs::read_to_string(&traced).expect("what strace wrote");
    let calls = text.lines().filter_map(|line| {
        let (_, call) = line.split_once(' ')?;
        Some(call.trim_start().split_once('(')?.0.to_owned())
    });
    let mut request: Vec<String> = calls.skip_while(|call| call != "connect").collect();
    let end = request.iter().position(|call| call == "close").expect("it closes");
    request.truncate(end + 1);
    Some(request)
}

/// Whatever becomes of it over RDMA, if there is a device, or somebody there: connect does what TCP's does.
#[test]
fn a_short_connection_makes_the_system_calls_of_tcp() {
    let Some(native) = calls_of_a_request(None) else {
        return eprintln!("there is no strace");
    };
    assert_eq!(native, ["connect", "sendto", "recvfrom", "close"]);
    let mut calls = calls_of_a_request(Some("shm")).expect("strace");
    // Where the kernel tracks connections, it is asked about this one.
    calls.retain(|call| call != "getsockopt");
    assert_eq!(calls, native);
    // Where a peer may be on another host, the first send shows the connection's number.
    let mut calls = calls_of_a_request(Some("shm-objects")).expect("strace");
    calls.retain(|call| {
        !["getsockopt", "fcntl", "recvmsg", "sigaltstack", "getpid", "ppoll"]
            .contains(&call.as_str())
    });
    calls.iter_mut().filter(|call| *call == "sendmsg").for_each(|call| *call = "sendto".into());
    assert_eq!(calls, native);
}

/// A program under the shim that echoes what one connection brings, and its peer without the library.
struct Echo {
    sandbox: Sandbox,
    server: Child,
    peer: TcpStream,
}

impl Echo {
    fn start() -> Self {
        let sandbox = Sandbox::new();
        let mut command = Mode::Shim.command(between());
        command.args(["127.0.0.1", "echo-once"]).stdout(Stdio::piped());
        command.env("SANSHIM_PROVIDERS", "shm-objects").env("SANSHIM_MOVE_AFTER", "0");
        command.env("SANSHIM_LOG", "info").env("SANSHIM_LOG_FILE", sandbox.log());
        let mut server = command.spawn().expect("the program");
        let mut port = String::new();
        BufReader::new(server.stdout.take().expect("a pipe")).read_line(&mut port).expect("a port");
        let at = ("127.0.0.1", port.trim().parse().expect("a number"));
        let peer = TcpStream::connect(at).expect("a connection");
        Echo { sandbox, server, peer }
    }

    fn exchange(&mut self) {
        for byte in 0..100 {
            let mut back = [0];
            let echoed =
                self.peer.write_all(&[byte]).and_then(|()| self.peer.read_exact(&mut back));
            echoed.expect("an echo");
            assert_eq!(back, [byte]);
        }
    }

    /// How often the server looked for its other end.
    fn looks(&self) -> usize {
        let mut command = Command::new(locate::sanctl());
        command.args(["trace", "--past", "--once", "--json", &self.server.id().to_string()]);
        let said = command.output().expect("sanctl");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8_lossy(&said.stdout).matches("\"looks\"").count()
    }

    /// Ends it; what its log says.
    fn end(mut self) -> String {
        drop(self.peer);
        assert!(self.server.wait().expect("its end").success());
        std::fs::read_to_string(self.sandbox.log()).unwrap_or_default()
    }
}

/// A peer without the library is looked for eight times, and then no more. (The first are not noted.)
#[test]
fn a_connection_with_a_native_peer_stays_on_tcp() {
    const MOST: usize = 8;
    // Six times as long as an attempt.
    const QUIET: Duration = Duration::from_millis(1500);
    const HANG: Duration = Duration::from_secs(60);
    let (mut echo, began) = (Echo::start(), Instant::now());
    let mut looks = 0;
    loop {
        let since = Instant::now();
        while since.elapsed() < QUIET {
            echo.exchange();
        }
        let before = std::mem::replace(&mut looks, echo.looks());
        if looks > 0 && looks == before {
            break;
        }
        assert!(began.elapsed() < HANG, "it is looked for again and again: {looks} times");
    }
    assert!(looks <= MOST, "it was looked for {looks} times");
    let log = echo.end();
    assert!(log.contains("reason=peer-native") && !log.contains("provider=shm"), "{log}");
}
