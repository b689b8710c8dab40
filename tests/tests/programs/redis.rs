//! redis: the server with its own client, benchmark, snapshots under load, and a replica.

use crate::both;
use sanshim_tests::programs::status::{expect_tcp, PEER_NATIVE};
use sanshim_tests::programs::{eventually, port, Mode, Running, Sandbox};
use std::fs;

/// Commands that bring a client to the SAN.
const PINGS: usize = 12;

/// A redis server and its clients.
struct Redis<'a> {
    sandbox: &'a Sandbox,
    /// How its clients are run.
    mode: Mode,
    port: String,
    server: Running,
}

impl<'a> Redis<'a> {
    /// A server whose snapshot is `dump` in the sandbox, loaded when it is there.
    fn start(sandbox: &'a Sandbox, mode: Mode, dump: &str, more: &[&str]) -> Redis<'a> {
        let number = port::reserve();
        let port = number.to_string();
        let fixed = [
            ["--port", &port],
            ["--bind", "127.0.0.1"],
            ["--save", ""],
            ["--dbfilename", dump],
            ["--enable-debug-command", "yes"],
            ["--repl-diskless-sync-delay", "0"],
        ];
        let arguments = fixed.iter().flatten().chain(more).copied();
        let mut server = sandbox.start(mode, "redis-server", arguments);
        port::wait_listening(number, &mut server);
        Redis { sandbox, mode, port, server }
    }

    fn client(&self, arguments: &[&str]) -> Running {
        let where_to = ["-p", &self.port, "-e"];
        self.sandbox.start(self.mode, "redis-cli", where_to.iter().chain(arguments).copied())
    }

    /// A client that has come to the SAN by so many commands that it did not wait for, before `last`.
    fn busy_client(&self, last: &str) -> Running {
        let mut client = self.client(&[]);
        client.write(&format!("{}{last}\n", "ping\n".repeat(PINGS)));
        client
    }

    fn cli(&self, arguments: &[&str]) -> String {
        self.client(arguments).finish().trim_end().to_owned()
    }

    fn info(&self, field: &str) -> String {
        let info = self.cli(&["info", "everything"]);
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("no {field} in INFO:\n{info}")).trim().to_owned()
    }

    fn wait_info(&self, field: &str, value: &str) {
        eventually(
            || (self.info(field) == value).then_some(()),
            || format!("{field} never became {value}\n{}", self.server.output()),
        );
    }

    /// redis-benchmark without an end.
    fn load(&self, arguments: &[&str]) -> Running {
        let fixed = ["-p", &self.port, "-q", "-l"];
        let arguments = fixed.iter().chain(arguments).copied();
        self.sandbox.start(self.mode, "redis-benchmark", arguments)
    }

    fn shutdown(self) {
        self.server.terminate();
    }
}

fn commands(mode: Mode) {
    let sandbox = Sandbox::new();
    let redis = Redis::start(&sandbox, mode, "dump.rdb", &[]);
    assert_eq!(redis.cli(&["ping"]), "PONG");
    assert_eq!(redis.cli(&["set", "key", "value"]), "OK");
    assert_eq!(redis.cli(&["get", "key"]), "value");
    assert_eq!(redis.cli(&["-r", "500", "incr", "n"]).lines().last(), Some("500"));
    let big: String = (0..3_000_000u32).map(|i| char::from(b'a' + (i * 7 % 26) as u8)).collect();
    let set = ["-p", &redis.port, "-x", "set", "big"];
    assert_eq!(sandbox.run_on(mode, "redis-cli", set, &big).trim_end(), "OK");
    assert_eq!(redis.cli(&["get", "big"]), big);
    // Mass insertion: one long pipeline, whose answers come while it is still sent.
    let lines: String = (0..20_000).map(|i| format!("SET p{i} {i}\r\n")).collect();
    let answer = sandbox.run_on(mode, "redis-cli", ["-p", &redis.port, "--pipe"], &lines);
    assert!(answer.contains("errors: 0, replies: 20000"), "{answer}");
    assert_eq!(redis.cli(&["dbsize"]), "20003");
    redis.shutdown();
}

fn blocked_client(mode: Mode) {
    let sandbox = Sandbox::new();
    let redis = Redis::start(&sandbox, mode, "dump.rdb", &[]);
    let blocked = redis.busy_client("blpop queue 0");
    redis.wait_info("blocked_clients", "1");
    mode.expect_shm(&blocked, 1);
    mode.expect_shm(&redis.server, 1);
    let subscriber = redis.busy_client("subscribe channel");
    subscriber.wait_for_line("subscribe");
    mode.expect_shm(&redis.server, 2);
    assert_eq!(redis.cli(&["publish", "channel", "hello"]), "1");
    subscriber.wait_for_line("hello");
    assert_eq!(redis.cli(&["rpush", "queue", "task"]), "1");
    let answers = blocked.finish();
    assert_eq!(answers, "PONG\n".repeat(PINGS) + "queue\ntask\n");
    redis.shutdown();
}

fn benchmark(mode: Mode) {
    let sandbox = Sandbox::new();
    let redis = Redis::start(&sandbox, mode, "dump.rdb", &[]);
    let common = ["-p", &redis.port, "--csv", "-t", "set,get,incr,lpush,lrange_100,mset"];
    for more in [["-n", "2000", "-c", "50", "-P", "1"], ["-n", "4000", "-c", "50", "-P", "16"]] {
        let arguments = common.iter().chain(&more).copied();
        let report = sandbox.run(mode, "redis-benchmark", arguments);
        // A heading, then a line for each test: LPUSH twice, since LRANGE fills its list first.
        assert_eq!(report.lines().count(), 1 + 7, "{report}");
        assert!(!report.contains("rror"), "{report}");
    }
    // The counter counts what arrived: nothing was lost or doubled.
    assert_eq!(redis.cli(&["get", "counter:__rand_int__"]), "6000");
    let load = redis.load(&["-t", "get", "-c", "50"]);
    mode.expect_shm(&redis.server, 50);
    mode.expect_shm(&load, 50);
    drop(load);
    assert_eq!(redis.cli(&["ping"]), "PONG");
    redis.shutdown();
}

fn bgsave_under_load(mode: Mode) {
    let sandbox = Sandbox::new();
    let redis = Redis::start(&sandbox, mode, "dump.rdb", &[]);
    redis.cli(&["debug", "populate", "100000", "before", "64"]);
    let digest_before = redis.cli(&["debug", "digest-value", "before:1", "before:99999"]);
    let load = redis.load(&["-t", "set", "-r", "100000", "-d", "100", "-c", "20"]);
    mode.expect_shm(&redis.server, 20);
    assert_eq!(redis.cli(&["bgsave"]), "Background saving started");
    redis.wait_info("rdb_bgsave_in_progress", "0");
    assert_eq!(redis.info("rdb_last_bgsave_status"), "ok");
    assert_eq!(redis.info("rdb_saves"), "1");
    // The same connections go on after the child has come and gone.
    let commands = || redis.info("total_commands_processed").parse::<u64>().expect("a number");
    let then = commands();
    eventually(|| (commands() > then + 5000).then_some(()), || load.output());
    load.assert_alive();
    mode.expect_shm(&redis.server, 20);
    drop(load);
    fs::copy(sandbox.file("dump.rdb"), sandbox.file("during.rdb")).expect("copy the snapshot");

    // A quiet snapshot now holds exactly what the server holds.
    assert_eq!(redis.cli(&["bgsave"]), "Background saving started");
    redis.wait_info("rdb_bgsave_in_progress", "0");
    assert_eq!(redis.info("rdb_last_bgsave_status"), "ok");
    let (digest, size) = (redis.cli(&["debug", "digest"]), redis.cli(&["dbsize"]));
    redis.shutdown();
    let again = Redis::start(&sandbox, mode, "dump.rdb", &[]);
    again.wait_info("loading", "0");
    assert_eq!((again.cli(&["debug", "digest"]), again.cli(&["dbsize"])), (digest, size));
    again.shutdown();

    // The one made under load is whole too.
    let during = Redis::start(&sandbox, mode, "during.rdb", &[]);
    during.wait_info("loading", "0");
    let keys = during.cli(&["debug", "digest-value", "before:1", "before:99999"]);
    assert_eq!(keys, digest_before);
    assert!(during.cli(&["dbsize"]).parse::<u64>().expect("a number") >= 100_000);
    during.shutdown();
}

fn replica(mode: Mode) {
    let sandbox = Sandbox::new();
    let master = Redis::start(&sandbox, mode, "master.rdb", &[]);
    master.cli(&["debug", "populate", "100000"]);
    let replica_of = format!("127.0.0.1 {}", master.port);
    let replica = Redis::start(&sandbox, mode, "replica.rdb", &["--replicaof", &replica_of]);
    replica.wait_info("master_link_status", "up");
    mode.expect_shm(&replica.server, 1);
    mode.expect_shm(&master.server, 1);
    master.cli(&["-r", "200", "incr", "n"]);
    assert_eq!(master.cli(&["set", "last", "key"]), "OK");
    // WAIT would know of its own connection's writes alone, and each command has its own.
    let last = || (replica.cli(&["get", "last"]) == "key").then_some(());
    eventually(last, || replica.info("master_repl_offset"));
    assert_eq!(replica.cli(&["get", "n"]), "200");
    assert_eq!(replica.cli(&["debug", "digest"]), master.cli(&["debug", "digest"]));
    replica.shutdown();
    master.shutdown();
}

/// Ends of different modes: the shimmed one serves, or is served, on TCP and says why.
fn mixed(server: Mode, client: Mode) {
    let sandbox = Sandbox::new();
    let redis = Redis { mode: client, ..Redis::start(&sandbox, server, "dump.rdb", &[]) };
    let load = redis.load(&["-t", "set", "-c", "10"]);
    match server {
        Mode::Shim => expect_tcp(&redis.server, 10, PEER_NATIVE),
        Mode::Native => expect_tcp(&load, 10, PEER_NATIVE),
    }
    drop(load);
    // A multiple of the pipeline's length: redis-benchmark sends whole pipelines only.
    for pipeline in ["1", "16"] {
        let arguments = ["-p", &redis.port, "-q", "-t", "incr", "-n", "3200", "-P", pipeline];
        sandbox.run(client, "redis-benchmark", arguments);
    }
    assert_eq!(redis.cli(&["get", "counter:__rand_int__"]), "6400");
    redis.shutdown();
}

#[test]
fn redis_shimmed_server_native_client() {
    mixed(Mode::Shim, Mode::Native);
}

#[test]
fn redis_native_server_shimmed_client() {
    mixed(Mode::Native, Mode::Shim);
}

both! {
    commands: redis_commands_native, redis_commands_shim;
    blocked_client: redis_blocked_client_native, redis_blocked_client_shim;
    benchmark: redis_benchmark_native, redis_benchmark_shim;
    bgsave_under_load: redis_bgsave_under_load_native, redis_bgsave_under_load_shim;
    replica: redis_replica_native, redis_replica_shim;
}
