//! `sanctl export`: what a process publishes, as Prometheus reads it, and the dashboard that shows it.

mod publishing;

use publishing::with_publishing_child;
use sanshim_core::reason::Reason;
use sanshim_core::registry::{self, count_return, Identity, Provider, Registry, State};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

const SANCTL: &str = env!("CARGO_BIN_EXE_sanctl");

fn publish() {
    let registry = Registry::open(b"odd \"name\"").expect("a registry");
    for (fd, reason) in [(7, Reason::OnSan), (8, Reason::PeerNative), (9, Reason::OnSan)] {
        let slot = registry.allocate().expect("a slot");
        let (local, peer) = (6379, 40000 + fd as u16);
        let provider = if reason == Reason::OnSan { Provider::Shm } else { Provider::Tcp };
        let identity = Identity {
            fd,
            local: SocketAddr::from(([127, 0, 0, 1], local)),
            peer: SocketAddr::from(([127, 0, 0, 1], peer)),
            provider,
            reason,
            state: State::Established,
        };
        registry::publish(slot, &identity);
        slot.sent.bytes.add(1000);
        slot.wakeups_avoided.add(7);
        if fd == 9 {
            registry.release(slot);
        }
    }
    count_return(Reason::Detached);
}

fn once(arguments: &[&str]) -> Output {
    Command::new(SANCTL).args(["export", "--once"]).args(arguments).output().expect("sanctl runs")
}

/// A socket of its own, removed at the end.
struct Socket(PathBuf);

impl Socket {
    fn new(name: &str) -> Socket {
        Socket(std::env::temp_dir().join(format!("sanshim-export-{}-{name}", std::process::id())))
    }

    fn export(&self) -> Child {
        let place = format!("unix:{}", self.0.display());
        Command::new(SANCTL).args(["export", "--listen", &place]).spawn().expect("sanctl runs")
    }

    /// The answer to a request, once somebody listens.
    fn ask(&self, request: &str) -> String {
        let started = Instant::now();
        let mut stream = loop {
            match UnixStream::connect(&self.0) {
                Ok(stream) => break stream,
                Err(error) => assert!(started.elapsed() < Duration::from_secs(60), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        write!(stream, "{request} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            .expect("send");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn what_a_process_publishes_is_exported() {
    with_publishing_child(publish, |pid| {
        let pid = pid.to_string();
        let output = once(&["--pid", &pid]);
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).expect("text");
        let labels = format!("pid=\"{pid}\",program=\"odd \\\"name\\\"\"");
        for line in [
            // One that is closed counts on.
            format!("sanshim_sent_bytes_total{{{labels}}} 3000"),
            format!("sanshim_wakeups_avoided_total{{{labels}}} 21"),
            format!("sanshim_connections_total{{{labels}}} 3"),
            format!("sanshim_connections_moved_total{{{labels}}} 2"),
            format!("sanshim_connections_returned_total{{{labels},reason=\"detached\"}} 1"),
            format!("sanshim_sockets{{{labels},provider=\"shm\",reason=\"on-san\"}} 1"),
            format!("sanshim_sockets{{{labels},provider=\"tcp\",reason=\"peer-native\"}} 1"),
            "sanshim_processes 1".to_owned(),
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in\n{text}");
        }
        // As the samples are named: the node exporter's textfile collector wants it so.
        assert!(text.contains("\n# TYPE sanshim_sent_bytes_total counter\n"), "{text}");
        assert!(!text.contains("# EOF"), "{text}");
    });
}

#[test]
fn prometheus_asks_over_a_socket_that_the_next_exporter_takes_over() {
    let socket = Socket::new("ask");
    let mut killed = socket.export();
    assert!(socket.ask("GET /metrics").contains("sanshim_processes"));
    killed.kill().and_then(|()| killed.wait()).expect("its end");
    assert!(socket.0.exists(), "it had no time to remove it");

    let mut next = socket.export();
    let answer = socket.ask("GET /metrics?x=1");
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("text/plain; version=0.0.4"),
        "{answer}"
    );
    assert!(socket.ask("GET /else").starts_with("HTTP/1.1 404"));
    assert!(socket.ask("POST /metrics").starts_with("HTTP/1.1 405"));
    let second = socket.export().wait().expect("its end");
    assert_eq!(second.code(), Some(1), "somebody listens there");
    // SAFETY: our own child.
    unsafe { libc::kill(next.id() as i32, libc::SIGTERM) };
    assert_eq!(next.wait().expect("its end").code(), Some(0));
    assert!(!socket.0.exists(), "it removes it at its end");
}

/// A child that does not outlive a failure.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// This process may have as many as there can be.
fn allow_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a whole structure, for the kernel to write and read.
    let done = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit)
    };
    assert_eq!(done, 0);
}

/// At an address any user of the host may come.
#[test]
fn who_reads_nothing_and_who_comes_often_keep_nobody_else_from_an_answer() {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr()).expect("a port");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 128; exec \"$0\" \"$@\"", SANCTL, "export", "--listen"]);
    let mut exporter = Ended(command.arg(free.to_string()).spawn().expect("sanctl runs"));
    let connect = || {
        let started = Instant::now();
        loop {
            match TcpStream::connect(free) {
                Ok(stream) => return stream,
                Err(error) => assert!(started.elapsed() < Duration::from_secs(60), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // At the first try: whoever came before is hung up on in its stead.
    let answered = || {
        let mut stream = connect();
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains("sanshim_processes"), "{answer}");
    };
    // Asks as often as there is room to ask, and reads none of it.
    let deaf = connect();
    deaf.set_nonblocking(true).expect("a socket");
    let asks = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n".repeat(1000);
    for _ in 0..400 {
        let _ = (&deaf).write(&asks);
        std::thread::sleep(Duration::from_millis(5));
    }
    answered();
    // A thousand, far more than there are descriptors.
    allow_descriptors();
    let silent: Vec<TcpStream> = (0..1000).map(|_| connect()).collect();
    answered();
    // As many as are served at once and more, which say a byte now and then all the time that they are served.
    let slow: Vec<TcpStream> = (0..64).map(|_| connect()).collect();
    for byte in b"GET /metrics" {
        // Some are hung up on.
        slow.iter().for_each(|mut one| drop(one.write(&[*byte])));
        answered();
    }
    drop((deaf, silent, slow));
    assert!(exporter.0.try_wait().expect("a child").is_none(), "it goes on");
    // SAFETY: our own child.
    unsafe { libc::kill(exporter.0.id() as i32, libc::SIGTERM) };
    assert_eq!(exporter.0.wait().expect("its end").code(), Some(0));
}

#[test]
fn a_file_in_the_sockets_place_stays_as_it_is() {
    let socket = Socket::new("file");
    fs::write(&socket.0, "precious").expect("write");
    assert_eq!(socket.export().wait().expect("its end").code(), Some(1));
    assert_eq!(fs::read_to_string(&socket.0).expect("read"), "precious");
}

#[test]
fn the_dashboard_shows_what_is_exported_and_all_of_it() {
    let dashboard = fs::read_to_string("../docs/grafana/sanshim.json").expect("the dashboard");
    let _: serde_json::Value = serde_json::from_str(&dashboard).expect("JSON");
    with_publishing_child(publish, |_| {
        let text = String::from_utf8(once(&[]).stdout).expect("text");
        let families: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
            .collect();
        assert!(families.len() > 15, "{text}");
        for family in &families {
            assert!(dashboard.contains(family) || *family == "sanshim_sanctl", "{family}");
        }
        for word in dashboard.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
            assert!(!word.starts_with("sanshim_") || families.contains(&word), "{word}");
        }
    });
}
