//! The command line. Both processes of a pair get the same options.

use crate::error::BenchError;
use std::time::Duration;

pub(crate) const USAGE: &str = "\
usage: sanbench floor  CASE [OPTIONS]    two processes over bare shared memory
       sanbench socket CASE [OPTIONS]    two processes over a TCP connection, perhaps shimmed

cases
  round-trip   a message there and back, both ends waiting for it
  one-way      messages in one direction, one call each; the receiver acknowledges the last
  stream       as one-way, for large writes; the floor cuts them into chunks
  one-copy     floor only: the receiver reads the sender's memory with process_vm_readv
  setup        connect, --size bytes there and back, close; --connections of them at once; as a floor, of
               a mapping that both make
  shared       socket only: round-trip, while another process has the client's connection and leaves it alone
  turns        socket only: sends of two processes in turns on one connection; the time of a turn
  paced        --rate requests a second, one at a time, going round --connections connections; as a floor,
               to a process that a futex wakes, or with --wait epoll an eventfd
  idle         socket only: CPU time and memory of --connections connections that do nothing

options
  --size BYTES           message, write or request size (default 64)
  --wait blocking|epoll  how the ends wait for data (default blocking)
  --placement two-cores|one-core|free    (default two-cores)
  --seconds S            length of the measurement (default 0.3)
  --count N              this many messages or connections instead of a length of time
  --connections N        for idle, paced and setup (default 1)
  --rate N               requests a second, for paced (default 1000)
  --warm-up N            round trips on a connection before the clock starts (default 1000; at least one;
                         none in setup, one for each connection in paced)
  --chunk BYTES          largest piece of the floor's ring (default 16384)
  --ring BYTES           size of the floor's ring (default 4194304 on two cores, where a ring
                         larger than a core's cache is fastest, else 262144)
  --library FILE         run the ends with this library in LD_PRELOAD
  --shimmed both|client|server           which of them (default both)";

/// What this process is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchRole {
    /// Measure bare shared memory.
    Floor,
    /// Start a server and a client. The client reports.
    Socket,
    /// Be the end that measures. Started by `Socket`.
    Client,
    /// Be the other end. Started by `Socket`.
    Server,
}

impl BenchRole {
    pub(crate) fn parse(text: &str) -> Result<BenchRole, BenchError> {
        match text {
            "floor" => Ok(BenchRole::Floor),
            "socket" => Ok(BenchRole::Socket),
            "client" => Ok(BenchRole::Client),
            "server" => Ok(BenchRole::Server),
            _ => Err(BenchError::Usage(format!("unknown command {text:?}: floor or socket"))),
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    RoundTrip,
    OneWay,
    Stream,
    OneCopy,
    Setup,
    Idle,
    Paced,
    Shared,
    Turns,
}

impl Case {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Case::RoundTrip => "round-trip",
            Case::OneWay => "one-way",
            Case::Stream => "stream",
            Case::OneCopy => "one-copy",
            Case::Setup => "setup",
            Case::Idle => "idle",
            Case::Paced => "paced",
            Case::Shared => "shared",
            Case::Turns => "turns",
        }
    }

    fn parse(text: &str) -> Result<Case, BenchError> {
        let mixed =
            [Case::OneCopy, Case::Setup, Case::Idle, Case::Paced, Case::Shared, Case::Turns];
        [Case::RoundTrip, Case::OneWay, Case::Stream]
            .into_iter()
            .chain(mixed)
            .find(|case| case.name() == text)
            .ok_or_else(|| BenchError::Usage(format!("unknown case {text:?}")))
    }
}

/// How an end waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// In a blocking call.
    Blocking,
    /// In `epoll_wait`, on a non-blocking socket, level-triggered.
    Epoll,
}

/// Where the two ends run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Each end pinned to a core of its own.
    TwoCores,
    /// Both ends pinned to the same core.
    OneCore,
    /// Wherever the scheduler likes.
    Free,
}

impl Placement {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Placement::TwoCores => "two-cores",
            Placement::OneCore => "one-core",
            Placement::Free => "free",
        }
    }
}

/// Which ends run under the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shimmed {
    Both,
    Client,
    Server,
}

/// One measurement.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) case: Case,
    pub(crate) size: usize,
    pub(crate) wait: WaitKind,
    pub(crate) placement: Placement,
    pub(crate) length: Duration,
    pub(crate) count: Option<u64>,
    pub(crate) connections: usize,
    /// Requests a second.
    pub(crate) rate: u32,
    /// Round trips on a connection before the clock starts.
    pub(crate) warm_up: u32,
    pub(crate) chunk: usize,
    /// Bytes of the ring that `floor` uses.
    pub(crate) ring: usize,
    pub(crate) library: Option<String>,
    pub(crate) shimmed: Shimmed,
    /// The port that the client connects to.
    pub(crate) port: u16,
    /// The process whose idle CPU time and memory the client reads.
    pub(crate) server_pid: u32,
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, BenchError> {
    value
        .parse()
        .map_err(|_| BenchError::Usage(format!("{key} {value:?} is not a number it can use")))
}

fn choice<T: Copy>(key: &str, value: &str, choices: &[(&str, T)]) -> Result<T, BenchError> {
    choices.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        BenchError::Usage(format!("{key} {value:?} is none of {}", names.join(", ")))
    })
}

impl Options {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, BenchError> {
        let case = args.next().ok_or_else(|| BenchError::Usage("a case is missing".into()))?;
        let mut options = Options {
            case: Case::parse(&case)?,
            size: 64,
            wait: WaitKind::Blocking,
            placement: Placement::TwoCores,
            length: Duration::from_millis(300),
            count: None,
            connections: 1,
            rate: 1000,
            warm_up: 1000,
            chunk: 16 << 10,
            ring: 0,
            library: None,
            shimmed: Shimmed::Both,
            port: 0,
            server_pid: 0,
        };
        while let Some(key) = args.next() {
            let value =
                args.next().ok_or_else(|| BenchError::Usage(format!("{key} needs a value")))?;
            options.set(&key, &value)?;
        }
        if options.ring == 0 {
            options.ring =
                if options.placement == Placement::TwoCores { 4 << 20 } else { 256 << 10 };
        }
        options.check()?;
        Ok(options)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), BenchError> {
        match key {
            "--size" => self.size = number(key, value)?,
            "--wait" => {
                let choices = [("blocking", WaitKind::Blocking), ("epoll", WaitKind::Epoll)];
                self.wait = choice(key, value, &choices)?;
            }
            "--placement" => {
                let all = [Placement::TwoCores, Placement::OneCore, Placement::Free];
                self.placement = choice(key, value, &all.map(|p| (p.name(), p)))?;
            }
            "--seconds" => {
                let seconds: f64 = number(key, value)?;
                if !(0.001..=600.0).contains(&seconds) {
                    return Err(BenchError::Usage(format!("{key} {value} is not in 0.001 to 600")));
                }
                self.length = Duration::from_secs_f64(seconds);
            }
            "--count" => self.count = Some(number(key, value)?),
            "--connections" => self.connections = number(key, value)?,
            "--rate" => self.rate = number(key, value)?,
            "--warm-up" => self.warm_up = number(key, value)?,
            "--chunk" => self.chunk = number(key, value)?,
            "--ring" => self.ring = number(key, value)?,
            "--library" => self.library = Some(value.to_string()),
            "--shimmed" => {
                let choices = [
                    ("both", Shimmed::Both),
                    ("client", Shimmed::Client),
                    ("server", Shimmed::Server),
                ];
                self.shimmed = choice(key, value, &choices)?;
            }
            "--port" => self.port = number(key, value)?,
            "--server-pid" => self.server_pid = number(key, value)?,
            _ => return Err(BenchError::Usage(format!("unknown option {key}"))),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), BenchError> {
        let refuse = |text: &str| Err(BenchError::Usage(text.into()));
        if !(1..=64 << 20).contains(&self.size) {
            return refuse("--size must be 1 to 67108864");
        }
        if !(64..=1 << 20).contains(&self.chunk) {
            return refuse("--chunk must be 64 to 1048576");
        }
        if !(4 << 10..=64 << 20).contains(&self.ring) {
            return refuse("--ring must be 4096 to 67108864");
        }
        if self.count == Some(0) || !(1..=100_000).contains(&self.connections) {
            return refuse("--count must be above 0, --connections 1 to 100000");
        }
        if self.warm_up == 0 || !(1..=1_000_000).contains(&self.rate) {
            return refuse("--warm-up must be above 0, --rate 1 to 1000000");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, BenchError> {
        Options::parse(text.split_whitespace().map(String::from))
    }

    #[test]
    fn options_are_read() {
        let options = parse("stream --size 4096 --wait epoll --placement one-core").unwrap();
        assert_eq!(options.case, Case::Stream);
        assert_eq!(options.size, 4096);
        assert_eq!(options.wait, WaitKind::Epoll);
        assert_eq!(options.placement, Placement::OneCore);
        assert_eq!(options.count, None);
    }

    #[test]
    fn bad_options_are_usage_errors() {
        for text in
            ["", "nothing", "setup --size", "setup --size x", "setup --size 0", "idle --z 1"]
        {
            assert!(matches!(parse(text), Err(BenchError::Usage(_))), "{text:?}");
        }
    }
}
