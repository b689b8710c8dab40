//! Servers whose processes share a listener (D10) or inherit a connection: apache2, gunicorn, PostgreSQL.

use crate::both;
use sanshim_tests::programs::{eventually, locate, port, Mode, Running, Sandbox};
use std::fs::{self, File};
use std::os::unix::fs::{chown, PermissionsExt};
use std::path::PathBuf;

/// The bytes that the web servers serve.
const SIZE: usize = 3_000_000;

/// What they serve while somebody looks: longer than any look takes.
const HELD: u64 = 400_000_000;

fn content() -> Vec<u8> {
    (0..SIZE).map(|i| (i * 31 % 251) as u8).collect()
}

/// Several downloads over a connection each, then several over one.
fn download(sandbox: &Sandbox, mode: Mode, address: &str) {
    let common = ["-q", "--noproxy", "*", "--fail", "--silent", "--show-error", "--max-time", "50"];
    for _ in 0..4 {
        sandbox.run(mode, "curl", common.iter().chain(&["-o", "got", address]).copied());
        assert!(fs::read(sandbox.file("got")).expect("a download") == content());
    }
    let more = ["-o", "got", address, "-o", "again", address, "-o", "third", address];
    sandbox.run(mode, "curl", common.iter().chain(&more).copied());
    for name in ["got", "again", "third"] {
        assert!(fs::read(sandbox.file(name)).expect("a download") == content(), "{name}");
    }
}

/// A request of [`HELD`] bytes that is busy until somebody looked where it is.
fn hold(sandbox: &Sandbox, mode: Mode, address: &str) {
    let steadily =
        ["-q", "--noproxy", "*", "--silent", "--limit-rate", "10M", "-o", "held", address];
    let held = sandbox.start(mode, "curl", steadily);
    mode.expect_shm(&held, 1);
    drop(held);
}

fn apache(mode: Mode) {
    let sandbox = Sandbox::new();
    sandbox.open_to_everybody();
    fs::create_dir(sandbox.file("content")).expect("the folder of the files");
    fs::write(sandbox.file("content/file"), content()).expect("a file");
    let held = File::create(sandbox.file("content/held")).expect("a file");
    held.set_len(HELD).expect("its size");
    let number = port::reserve();
    let here = sandbox.path().display();
    let modules = "/usr/lib/apache2/modules";
    let settings = format!(
        "ServerRoot {here}\nServerName localhost\nListen 127.0.0.1:{number}\nPidFile {here}/pid\n\
         ErrorLog {here}/error.log\nMutex pthread\nUser nobody\nGroup nogroup\n\
         LoadModule mpm_prefork_module {modules}/mod_mpm_prefork.so\n\
         LoadModule authz_core_module {modules}/mod_authz_core.so\n\
         StartServers 3\nMinSpareServers 2\nMaxSpareServers 4\nDocumentRoot {here}/content\n"
    );
    fs::write(sandbox.file("settings"), settings).expect("the settings");
    let file = sandbox.file("settings");
    let arguments = ["-f", file.to_str().expect("a path in UTF-8"), "-DFOREGROUND"];
    let mut server = sandbox.start(mode, "apache2", arguments);
    port::wait_listening(number, &mut server);
    let address = |name: &str| format!("http://127.0.0.1:{number}/{name}");
    download(&sandbox, mode, &address("file"));
    hold(&sandbox, mode, &address("held"));
    server.terminate();
}

fn gunicorn(mode: Mode) {
    let sandbox = Sandbox::new();
    const PART: u64 = 50_000;
    let program = format!(
        "body = bytes(i * 31 % 251 for i in range({SIZE}))\ndef app(environ, start):\n    \
         parts = [bytes({PART})] * {} if environ['PATH_INFO'] == '/held' else [body]\n    \
         start('200 OK', [('Content-Length', str(sum(map(len, parts))))])\n    return parts\n",
        HELD / PART
    );
    fs::write(sandbox.file("served.py"), program).expect("the program");
    let number = port::reserve();
    let bind = format!("127.0.0.1:{number}");
    let mut server = sandbox.start(mode, "gunicorn", ["-w", "3", "-b", &bind, "served:app"]);
    port::wait_listening(number, &mut server);
    let address = format!("http://{bind}/");
    download(&sandbox, mode, &address);
    hold(&sandbox, mode, &format!("{address}held"));
    server.terminate();
}

/// A folder of PostgreSQL's programs.
fn postgres_programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|version| version.path().join("bin")).max();
    newest.unwrap_or_else(|| panic!("PostgreSQL is not installed: run scripts/install"))
}

/// PostgreSQL refuses to run as root: the words that make a command another user's.
fn as_other_user() -> Vec<String> {
    // SAFETY: no memory is involved.
    if unsafe { libc::geteuid() } != 0 {
        return Vec::new();
    }
    let words = ["--reuid", "postgres", "--regid", "postgres", "--clear-groups"];
    let setpriv = locate::program("setpriv").to_str().expect("a path in UTF-8").to_owned();
    std::iter::once(setpriv).chain(words.map(str::to_owned)).collect()
}

struct Postgres {
    server: Running,
    port: String,
    /// The words that make a command the server's user's.
    user: Vec<String>,
}

impl Postgres {
    fn start(sandbox: &Sandbox, mode: Mode) -> Postgres {
        sandbox.open_to_everybody();
        let own = sandbox.file("own");
        fs::create_dir(&own).expect("its folder");
        let user = as_other_user();
        if !user.is_empty() {
            let passwords = fs::read_to_string("/etc/passwd").expect("/etc/passwd");
            let line = passwords.lines().find(|line| line.starts_with("postgres:"));
            let number = line.and_then(|line| line.split(':').nth(2)?.parse().ok());
            chown(&own, number, None).expect("give it its folder");
        }
        fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).expect("close its folder");
        let own = own.to_str().expect("a path in UTF-8");
        let data = format!("{own}/data");
        let programs = postgres_programs();
        let program = |name: &str| programs.join(name).to_str().expect("UTF-8").to_owned();
        let command = |words: &[&str]| {
            let all = user.iter().cloned().chain(words.iter().map(|&word| word.to_owned()));
            all.collect::<Vec<String>>()
        };
        let make = [program("initdb"), "-D".into(), data.clone(), "-A".into(), "trust".into()];
        let make = command(
            &[make.each_ref().map(String::as_str).as_slice(), &["-U", "me", "--no-sync"]].concat(),
        );
        sandbox.run(Mode::Native, &make[0], make[1..].iter().map(String::as_str));
        let number = port::reserve();
        let port = number.to_string();
        let server = program("postgres");
        let serve = command(&[
            &server,
            "-D",
            &data,
            "-p",
            &port,
            "-k",
            own,
            "-c",
            "fsync=off",
            "-c",
            "listen_addresses=127.0.0.1",
        ]);
        let mut server = sandbox.start(mode, &serve[0], serve[1..].iter().map(String::as_str));
        port::wait_listening(number, &mut server);
        let ready = || server.output().contains("ready to accept connections").then_some(());
        eventually(ready, || format!("never ready\n{}", server.output()));
        Postgres { server, port, user }
    }

    /// Starts one of PostgreSQL's clients.
    fn start_client(&self, sandbox: &Sandbox, mode: Mode, name: &str, more: &[&str]) -> Running {
        let path = postgres_programs().join(name);
        let fixed =
            [path.to_str().expect("UTF-8"), "-h", "127.0.0.1", "-p", &self.port, "-U", "me"];
        let mut all = self.user.iter().map(String::as_str).chain(fixed).chain(more.iter().copied());
        let program = all.next().expect("a program").to_owned();
        sandbox.start(mode, &program, all)
    }

    fn ask(&self, sandbox: &Sandbox, mode: Mode, name: &str, more: &[&str]) -> String {
        self.start_client(sandbox, mode, name, more).finish()
    }
}

/// The postmaster forks a process for each connection; 100 MB out, in and out again.
fn postgres(mode: Mode) {
    let sandbox = Sandbox::new();
    let postgres = Postgres::start(&sandbox, mode);
    let psql = |sql: &[&str]| {
        let options = sql.iter().flat_map(|one| ["-c", one]);
        let all: Vec<&str> = ["-qAt", "-v", "ON_ERROR_STOP=1"].into_iter().chain(options).collect();
        postgres.ask(&sandbox, mode, "psql", &[&all[..], &["postgres"]].concat())
    };
    postgres.ask(&sandbox, mode, "pgbench", &["-i", "-q", "-s", "1", "postgres"]);
    let report = postgres.ask(
        &sandbox,
        mode,
        "pgbench",
        &["-n", "-c", "4", "-j", "2", "-t", "250", "postgres"],
    );
    assert!(report.contains("number of transactions actually processed: 1000/1000"), "{report}");
    psql(&["CREATE TABLE a AS SELECT i, repeat(md5(i::text), 10) AS t FROM generate_series(1, 310000) i",
        "CREATE TABLE b (LIKE a)"]);
    psql(&["\\copy a TO 'own/first'"]);
    psql(&["\\copy b FROM 'own/first'"]);
    psql(&["\\copy b TO 'own/second'"]);
    let first = fs::read(sandbox.file("own/first")).expect("what was copied out");
    assert!(first.len() > 100_000_000, "{}", first.len());
    let second = fs::read(sandbox.file("own/second")).expect("what was copied out");
    assert!(first == second, "it came back with other bytes");
    let wait = ["-qAt", "-c", "SELECT pg_sleep(600)", "postgres"];
    let waiting = postgres.start_client(&sandbox, mode, "psql", &wait);
    mode.expect_shm(&waiting, 1);
    drop(waiting);
    drop(postgres.server);
}

both! {
    apache: apache_prefork_native, apache_prefork_shim;
    gunicorn: gunicorn_workers_native, gunicorn_workers_shim;
    postgres: postgres_native, postgres_shim;
}
