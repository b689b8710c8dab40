//! nginx, master and workers, with curl and wrk.

use crate::both;
use sanshim_tests::programs::{eventually, port, status, Mode, Running, Sandbox, HANG};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// File names and sizes, in bytes.
const FILES: [(&str, usize); 4] = [("0", 0), ("1", 1), ("100k", 100_000), ("20m", 20_000_000)];

/// A file that takes longer than any look at it at [`RATE`], in bytes.
const HELD: (&str, u64) = ("400m", 400_000_000);

/// A curl of this rate is busy all the time.
const RATE: &str = "10M";

/// How long it is loaded beyond what it takes to look at it.
const LOAD: Duration = Duration::from_millis(200);

/// A master with two workers that serves a folder in several ways.
struct Nginx {
    port: String,
    server: Running,
    content: PathBuf,
}

impl Nginx {
    fn start(sandbox: &Sandbox, mode: Mode, user: &str) -> Nginx {
        let content = sandbox.file("content");
        fs::create_dir(&content).expect("the folder of the files");
        for (name, size) in FILES {
            let bytes: Vec<u8> = (0..size).map(|i| (i * 31 % 251) as u8).collect();
            fs::write(content.join(name), bytes).expect("a file");
        }
        hold_ready(&content);
        let number = port::reserve();
        fs::write(sandbox.file("nginx.conf"), configuration(number, user)).expect("the settings");
        let prefix = sandbox.path().to_str().expect("a path in UTF-8").to_owned();
        let arguments = ["-p", &prefix, "-c", "nginx.conf", "-e", "error.log"];
        let mut server = sandbox.start(mode, "nginx", arguments);
        port::wait_listening(number, &mut server);
        Nginx { port: number.to_string(), server, content }
    }

    fn address(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The processes of the workers that take new connections.
    fn workers(&self) -> Vec<u32> {
        let mut workers = status::family(self.server.pid());
        workers.retain(|&pid| pid != self.server.pid());
        workers.sort_unstable();
        workers
    }
}

/// `user` matters only to a master that root started. /proxy/ makes workers connect to each other
/// and to themselves.
fn configuration(port: u16, user: &str) -> String {
    format!(
        "user {user};
daemon off;
worker_processes 2;
pid nginx.pid;
error_log error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    keepalive_requests 100000000;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    client_max_body_size 1000m;
    server {{
        listen 127.0.0.1:{port};
        root content;
        location /plain/ {{ alias content/; sendfile off; }}
        location /sendfile/ {{ alias content/; sendfile on; tcp_nopush on; }}
        location /upload/ {{ alias content/; dav_methods PUT; }}
        location /proxy/ {{ proxy_pass http://127.0.0.1:{port}/sendfile/; }}
    }}
}}
"
    )
}

fn curl(sandbox: &Sandbox, mode: Mode, arguments: &[&str]) -> String {
    let fixed = ["-q", "--noproxy", "*", "--fail", "--silent", "--show-error", "--max-time", "50"];
    sandbox.run(mode, "curl", fixed.iter().chain(arguments).copied())
}

/// Downloads every file from one location over one connection, and compares.
fn fetch_all(sandbox: &Sandbox, mode: Mode, nginx: &Nginx, location: &str) {
    let got = sandbox.file("got");
    fs::create_dir_all(&got).expect("the folder of the downloads");
    let mut arguments = Vec::new();
    for (name, _) in FILES {
        let place = got.join(name).to_str().expect("a path in UTF-8").to_owned();
        arguments.extend(["-o".into(), place, nginx.address(&format!("/{location}/{name}"))]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    curl(sandbox, mode, &arguments);
    for (name, size) in FILES {
        let bytes = fs::read(got.join(name)).expect("a download");
        assert_eq!(bytes.len(), size, "/{location}/{name}");
        let same = bytes == fs::read(nginx.content.join(name)).expect("a file");
        assert!(same, "/{location}/{name} arrived with other bytes");
    }
    fs::remove_dir_all(&got).expect("remove the downloads");
}

/// The file that is transferred while somebody looks.
fn hold_ready(content: &Path) {
    let file = File::create(content.join(HELD.0)).expect("a file");
    file.set_len(HELD.1).expect("its size");
}

/// A transfer that is busy, and so long that somebody can look where it is.
fn start_held(sandbox: &Sandbox, mode: Mode, arguments: &[&str]) -> Running {
    let steadily = ["-q", "--noproxy", "*", "--silent", "--limit-rate", RATE];
    sandbox.start(mode, "curl", steadily.iter().chain(arguments).copied())
}

fn hold(sandbox: &Sandbox, mode: Mode, nginx: &Nginx, arguments: &[&str]) {
    let held = start_held(sandbox, mode, arguments);
    mode.expect_shm(&held, 1);
    mode.expect_shm(&nginx.server, 1);
    drop(held);
}

fn downloads(mode: Mode) {
    let sandbox = Sandbox::new();
    let nginx = Nginx::start(&sandbox, mode, "root");
    for location in ["plain", "sendfile", "proxy"] {
        fetch_all(&sandbox, mode, &nginx, location);
        let large = nginx.address(&format!("/{location}/{}", HELD.0));
        hold(&sandbox, mode, &nginx, &["-o", "held", &large]);
    }
    let part =
        curl(&sandbox, mode, &["-r", "10-19", &nginx.address("/sendfile/100k"), "-o", "part"]);
    assert_eq!(part, "");
    let whole = fs::read(nginx.content.join("100k")).expect("a file");
    assert_eq!(fs::read(sandbox.file("part")).expect("the part"), &whole[10..20]);
    let head = curl(&sandbox, mode, &["-I", &nginx.address("/plain/100k")]);
    assert!(head.contains("Content-Length: 100000\r\n"), "{head}");
    nginx.server.terminate();
}

fn uploads(mode: Mode) {
    let sandbox = Sandbox::new();
    let nginx = Nginx::start(&sandbox, mode, "root");
    for (name, _) in FILES {
        let file = nginx.content.join(name).to_str().expect("a path in UTF-8").to_owned();
        let there = nginx.address(&format!("/upload/new-{name}"));
        curl(&sandbox, mode, &["-T", &file, &there]);
        let stored = fs::read(nginx.content.join(format!("new-{name}"))).expect("what was stored");
        assert!(stored == fs::read(&file).expect("a file"), "{name} was stored with other bytes");
    }
    let large = nginx.content.join(HELD.0).to_str().expect("a path in UTF-8").to_owned();
    hold(&sandbox, mode, &nginx, &["-T", &large, &nginx.address("/upload/held")]);
    nginx.server.terminate();
}

/// wrk's own count of requests, all answered.
fn requests(report: &str) -> u64 {
    assert!(!report.contains("Socket errors") && !report.contains("Non-2xx"), "{report}");
    let line = report.lines().find(|line| line.contains(" requests in "));
    let count = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    count.unwrap_or_else(|| panic!("no count of requests: {report}"))
}

fn keep_alive(mode: Mode) {
    let sandbox = Sandbox::new();
    let nginx = Nginx::start(&sandbox, mode, "root");
    for (name, at_least) in [("1", 100), ("100k", 20)] {
        let address = nginx.address(&format!("/sendfile/{name}"));
        // Longer than any look at it takes; it is interrupted before.
        let load = sandbox.start(mode, "wrk", ["-t2", "-c16", "-d600s", &address]);
        mode.expect_shm(&load, 16);
        mode.expect_shm(&nginx.server, 16);
        sleep(LOAD);
        let report = load.interrupt();
        assert!(requests(&report) > at_least, "{report}");
    }
    nginx.server.terminate();
}

/// New settings bring new workers, without a failed request.
fn reload(mode: Mode) {
    let sandbox = Sandbox::new();
    let nginx = Nginx::start(&sandbox, mode, "root");
    let workers = || eventually(|| Some(nginx.workers()).filter(|w| w.len() == 2), String::new);
    let before = workers();
    let prefix = sandbox.path().to_str().expect("a path in UTF-8").to_owned();
    let again = ["-p", &prefix, "-c", "nginx.conf", "-e", "error.log", "-s", "reload"];
    sandbox.run(mode, "nginx", again);
    eventually(
        || {
            fetch_all(&sandbox, mode, &nginx, "sendfile");
            let now = nginx.workers();
            (now.len() == 2 && now.iter().all(|pid| !before.contains(pid))).then_some(())
        },
        || format!("still the workers {:?}", nginx.workers()),
    );
    fetch_all(&sandbox, mode, &nginx, "plain");
    nginx.server.terminate();
}

/// Workers of another user than root still share memory with root's clients.
fn workers_of_another_user(mode: Mode) {
    let sandbox = Sandbox::new();
    let nginx = Nginx::start(&sandbox, mode, "nobody nogroup");
    sandbox.open_to_everybody();
    fetch_all(&sandbox, mode, &nginx, "sendfile");
    let large = nginx.address(&format!("/sendfile/{}", HELD.0));
    hold(&sandbox, mode, &nginx, &["-o", "held", &large]);
    nginx.server.terminate();
}

/// USR2 and QUIT: the master executes its new self, which inherits the listener, without a failed
/// request, and its workers serve over the SAN.
fn upgrade(mode: Mode) {
    let sandbox = Sandbox::new();
    let (number, old) = start_daemon(&sandbox, mode);
    let address = format!("http://127.0.0.1:{number}/sendfile/100k");
    let large = format!("http://127.0.0.1:{number}/sendfile/{}", HELD.0);
    old.serves(&sandbox, mode, &large);
    // A connection for each request: a worker that ends closes idle ones, whatever is on its way to it. Longer
    // than everything else here; it is interrupted before.
    let patience = format!("{}s", HANG.as_secs());
    let each =
        ["-t1", "-c4", "-d600s", "--timeout", &patience, "-H", "Connection: close", &address];
    let load = sandbox.start(mode, "wrk", each);
    let fetch = || {
        curl(&sandbox, mode, &["-o", "got", &address]);
        assert_eq!(fs::read(sandbox.file("got")).expect("a download"), vec![b'x'; 100_000]);
    };
    // A signal before it waits for them is heard with the next one only.
    old.await_workers();
    old.signal(libc::SIGUSR2);
    let new = eventually(
        || {
            fetch();
            master(&sandbox).filter(|&pid| pid != old.0)
        },
        || "no new master".to_owned(),
    );
    let new = Daemon(new);
    new.await_workers();
    old.signal(libc::SIGQUIT);
    eventually(
        || {
            fetch();
            (!old.is_alive()).then_some(())
        },
        || "the old master does not end".to_owned(),
    );
    let report = load.interrupt();
    assert!(requests(&report) > 0, "{report}");
    fetch();
    new.serves(&sandbox, mode, &large);
}

/// Starts one that puts itself in the background, since only such a one upgrades itself; with its port.
fn start_daemon(sandbox: &Sandbox, mode: Mode) -> (u16, Daemon) {
    let content = sandbox.file("content");
    fs::create_dir(&content).expect("the folder of the files");
    fs::write(content.join("100k"), vec![b'x'; 100_000]).expect("a file");
    hold_ready(&content);
    let number = port::reserve();
    let settings = configuration(number, "root").replace("daemon off;", "daemon on;");
    // It gives its new self no other variables than these.
    let names = ["LD_PRELOAD", "SANSHIM_MOVE_AFTER", "SANSHIM_LOG", "SANSHIM_LOG_FILE"];
    let variables: String = names.iter().map(|name| format!("env {name};\n")).collect();
    let settings = variables + &settings;
    fs::write(sandbox.file("nginx.conf"), settings).expect("the settings");
    let prefix = sandbox.path().to_str().expect("a path in UTF-8").to_owned();
    // Not in the sandbox's process group, which ends with the process that starts the daemon.
    let mut starter = mode.command("nginx");
    starter.args(["-p", &prefix, "-c", "nginx.conf", "-e", "error.log"]);
    sandbox.log_to(&mut starter);
    assert!(starter.status().expect("nginx runs").success());
    (number, Daemon(eventually(|| master(sandbox), || "no master".to_owned())))
}

/// The master's process, as its file says; `None`: there is none yet.
fn master(sandbox: &Sandbox) -> Option<i32> {
    let text = fs::read_to_string(sandbox.file("nginx.pid")).unwrap_or_default();
    text.trim().parse().ok()
}

/// A process that is not this test's child; ends with the value.
struct Daemon(i32);

impl Daemon {
    fn await_workers(&self) {
        let are_there = || (status::family(self.0 as u32).len() >= 3).then_some(());
        eventually(are_there, || format!("no workers of {}", self.0));
    }

    /// A download takes its time, over the SAN where there is one.
    fn serves(&self, sandbox: &Sandbox, mode: Mode, large: &str) {
        let held = start_held(sandbox, mode, &["-o", "held", large]);
        mode.expect_shm(&held, 1);
        if mode == Mode::Shim {
            let on_shm = || {
                let now = status::connections(&status::family(self.0 as u32));
                now.iter().any(|c| c.provider == "shm").then_some(())
            };
            eventually(on_shm, || format!("no worker of {} serves over the SAN", self.0));
        }
    }

    fn signal(&self, number: i32) {
        // SAFETY: no memory is involved.
        unsafe { libc::kill(self.0, number) };
    }

    fn is_alive(&self) -> bool {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.0)).unwrap_or_default();
        name.trim() == "nginx"
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.is_alive() {
            self.signal(libc::SIGTERM);
        }
    }
}

both! {
    downloads: nginx_downloads_native, nginx_downloads_shim;
    uploads: nginx_uploads_native, nginx_uploads_shim;
    keep_alive: nginx_keep_alive_native, nginx_keep_alive_shim;
    upgrade: nginx_upgrade_native, nginx_upgrade_shim;
    reload: nginx_reload_native, nginx_reload_shim;
    workers_of_another_user: nginx_workers_of_another_user_native,
        nginx_workers_of_another_user_shim;
}
