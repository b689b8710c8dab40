//! Runs one case in a process group of its own, with a hang guard, and judges it.

use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::fabric::{self, HANDED_ON};
use super::Program;

/// Longer than any case takes, and than its own waits (`HANG_MS` in `bt.h`), unless `BT_HANG_S` says otherwise.
const HANG: Duration = Duration::from_secs(60);
/// The area whose connections come to the SAN when the library thinks so.
const OF_THEMSELVES: &str = "quiet";
/// How a program says that this machine cannot run the case.
const SKIPPED: i32 = 77;

/// How often a case may find that [`TIMED`] limits passed.
const ATTEMPTS: u32 = 3;
/// Why connections may be on TCP only because an end did not get a processor in time: a receiver that did not ask for
/// a message, and its peer.
const TIMED: [&str; 2] = HANDED_ON;
/// Why they may be there before they come to the SAN.
const BEFORE: [&str; 4] = ["reason=quiet", "reason=shared", "reason=pending", "reason=peer-native"];

/// What the log says where the kernel lets no process access another's memory: RDMA was not tested.
const RDMA_FORBIDDEN: &str = "the kernel does not allow it";

/// What the log says of a process that took control over by a suspended session.
const SUSPENDED: &str = "control came by a suspended session";

/// What the log says of a connection that data went over by RDMA.
const BY_RDMA: &str = "the first data by RDMA";
/// The cases that are void where none did: their receives are posted all the time, and it takes a starved end to send
/// all in messages.
const BY_RDMA_ALONE: (&str, &str) = ("interrupted", "receive_");
/// The cases that forbid it themselves: where everything goes by RDMA it must have been tried.
const FORBIDDING: &str = "copies_forbidden";

/// How a case is run.
#[derive(Debug, Clone)]
pub enum Mode {
    /// On the kernel's TCP: proves the expectation itself.
    Native,
    /// Under the shim.
    Shim {
        /// The library to preload.
        library: PathBuf,
        /// The text of the rules file, if there is to be one.
        rules: Option<String>,
        /// What they are there for.
        exercise: Exercise,
    },
}

/// What a rules file makes happen in cases that would not come to it, and which must be seen then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exercise {
    /// Nothing.
    Nothing,
    /// Nearly everything goes by RDMA.
    Rdma,
    /// Every swap of control suspends the session.
    Suspensions,
    /// Connections use what those between hosts use.
    Fabric,
}

/// One case of one program.
#[derive(Debug, Clone)]
pub struct Case {
    /// The program that has it.
    pub program: Program,
    /// Its name within the program.
    pub name: String,
    /// What must carry its connections under the shim.
    pub carrier: Carrier,
}

/// What carries a case's connections under the shim (`bt.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// Whatever does.
    Any,
    /// The SAN carries every one, from its beginning to its end.
    San,
    /// The same, and control of them moves between processes all the time.
    Swaps,
    /// The SAN carries at least one; others are on TCP or go back to it.
    Mixed,
}

/// What became of a run that its program found right.
enum Verdict {
    Passed,
    /// This machine cannot run the case.
    Skipped(String),
    /// Connections did not come to the SAN or went back to TCP, or data went in messages. This happens where an end gets
    /// no processor for long.
    Starved(String),
}

/// The library under test: `SANSHIM_LIBRARY`, or the one in the folder above the test executable.
///
/// # Errors
/// There is none, with how to build it.
pub fn shim_library() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("SANSHIM_LIBRARY") {
        let path = PathBuf::from(path);
        return fs::canonicalize(&path)
            .map_err(|e| format!("SANSHIM_LIBRARY={}: {e}", path.display()));
    }
    let executable = std::env::current_exe().map_err(|e| format!("no current executable: {e}"))?;
    let profile = executable.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST");
    let library = profile.join("libsanshim.so");
    if library.exists() {
        return Ok(library);
    }
    let release = if profile.ends_with("release") { " --release" } else { "" };
    Err(format!(
        "{} is missing: build it with `cargo build{release} -p sanshim-shim`, or set \
         SANSHIM_LIBRARY",
        library.display()
    ))
}

impl Case {
    /// Runs the case; says why when this machine cannot. Whatever it leaves behind in its process group is killed.
    ///
    /// # Errors
    /// Why it failed: its own words, its status, that it hung, or that it was not on the SAN.
    pub fn run(&self, mode: &Mode) -> Result<Option<String>, String> {
        let mut starved = String::new();
        for _ in 0..ATTEMPTS {
            match self.attempt(mode)? {
                Verdict::Passed => return Ok(None),
                Verdict::Skipped(why) => return Ok(Some(why)),
                Verdict::Starved(log) => starved = log,
            }
        }
        Err(format!(
            "{ATTEMPTS} times a connection was on TCP, or not by RDMA; the log says:\n{starved}"
        ))
    }

    fn attempt(&self, mode: &Mode) -> Result<Verdict, String> {
        let over_fabric = matches!(mode, Mode::Shim { exercise: Exercise::Fabric, .. });
        if let (true, Some(why)) = (over_fabric, self.is_otherwise_over_fabric()) {
            return Ok(Verdict::Skipped(why.to_owned()));
        }
        let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
        let log = folder.path().join("sanshim.log");
        let words = folder.path().join("stderr");
        let stderr = fs::File::create(&words).map_err(|e| format!("{}: {e}", words.display()))?;

        let mut command = Command::new(&self.program.path);
        command.arg(&self.name).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        command.process_group(0).current_dir(folder.path());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SANSHIM") || name == "LD_PRELOAD" {
                command.env_remove(name);
            }
        }
        if matches!(mode, Mode::Shim { rules: Some(_), .. }) {
            crate::without_access_to_all(&mut command);
        }
        if let Mode::Shim { library, rules, .. } = mode {
            command.env("LD_PRELOAD", library);
            if self.program.area != OF_THEMSELVES {
                // A case does not last until a connection has shown that it is busy.
                command.env("SANSHIM_MOVE_AFTER", "0");
            }
            command.env("SANSHIM_LOG", "info").env("SANSHIM_LOG_FILE", &log);
            if over_fabric {
                command.env("SANSHIM_PROVIDERS", fabric::provider());
            }
            if let Some(rules) = rules {
                let path = folder.path().join("sanshim.toml");
                fs::write(&path, rules).map_err(|e| format!("{}: {e}", path.display()))?;
                command.env("SANSHIM_CONFIG", path);
            }
        }
        let mut child =
            command.spawn().map_err(|e| format!("{}: {e}", self.program.path.display()))?;
        let status = guard(&mut child);

        let mut said = String::new();
        if let Ok(mut file) = fs::File::open(&words) {
            // A torn last line is no reason to lose the others.
            let mut bytes = Vec::new();
            let _ = file.read_to_end(&mut bytes);
            said = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        }
        let status = status.map_err(|e| format!("{e}\n{said}"))?;
        match (status.code(), status.signal()) {
            (Some(SKIPPED), _) => return Ok(Verdict::Skipped(said)),
            (Some(0), _) if said.is_empty() => {}
            (Some(0), _) => return Err(format!("passed, but wrote to stderr: {said}")),
            (_, Some(signal)) => return Err(format!("killed by signal {signal}\n{said}")),
            (code, _) => return Err(format!("exit status {code:?}\n{said}")),
        }
        match mode {
            Mode::Native => Ok(Verdict::Passed),
            Mode::Shim { exercise, .. } => {
                self.judge(&fs::read_to_string(&log).unwrap_or_default(), *exercise)
            }
        }
    }
}

impl Case {
    fn needs_rdma(&self) -> bool {
        self.program.area == BY_RDMA_ALONE.0 && self.name.starts_with(BY_RDMA_ALONE.1)
    }

    /// Whether the log has what must happen in this case.
    fn judge(&self, log: &str, exercise: Exercise) -> Result<Verdict, String> {
        let refused = log.lines().find(|line| line.contains(RDMA_FORBIDDEN));
        let forbids = self.name.starts_with(FORBIDDING);
        let met = match exercise {
            Exercise::Rdma if forbids => refused.is_some(),
            Exercise::Rdma if self.needs_rdma() => refused.is_some() || log.contains(BY_RDMA),
            _ => true,
        };
        if !met {
            return Ok(Verdict::Starved(log.to_owned()));
        }
        let suspends = exercise == Exercise::Suspensions && self.carrier == Carrier::Swaps;
        if suspends && !log.contains(SUSPENDED) {
            return Err(format!("no swap of control suspended the session; the log says:\n{log}"));
        }
        match refused {
            Some(line) if !forbids => Ok(Verdict::Skipped(line.to_owned())),
            _ if exercise == Exercise::Fabric => {
                judge(self.carrier_over_fabric(), &self.on_fabric(log))
            }
            _ => judge(self.carrier, log),
        }
    }
}

/// Whether the log has the connections where they must be.
fn judge(carrier: Carrier, log: &str) -> Result<Verdict, String> {
    if carrier == Carrier::Any {
        return Ok(Verdict::Passed);
    }
    let is_back = |line: &&str| {
        line.contains("provider=tcp") && !BEFORE.iter().any(|reason| line.contains(reason))
    };
    let on_tcp: Vec<&str> = log.lines().filter(is_back).collect();
    if matches!(carrier, Carrier::San | Carrier::Swaps) && !on_tcp.is_empty() {
        let count = |reason: &str| on_tcp.iter().filter(|line| line.contains(reason)).count();
        let starved = TIMED.iter().map(|reason| count(reason)).sum::<usize>();
        if starved == on_tcp.len() {
            return Ok(Verdict::Starved(log.to_owned()));
        }
        return Err(format!("a connection was on TCP; the log says:\n{log}"));
    }
    let is_san = |line: &str| line.contains("provider=shm") || line.contains("provider=verbs");
    let is_taken = |line: &str| is_san(line) && line.contains("role=acceptor");
    if !log.lines().any(is_taken) {
        if on_tcp.is_empty() && !log.is_empty() {
            return Ok(Verdict::Starved(log.to_owned()));
        }
        return Err(format!("no acceptor used the SAN; the log says:\n{log}"));
    }
    Ok(Verdict::Passed)
}

/// How long a case may take.
fn limit() -> Duration {
    let seconds = std::env::var("BT_HANG_S").ok().and_then(|text| text.parse().ok());
    seconds.map_or(HANG, Duration::from_secs)
}

/// Waits for the case, then ends what is left of its process group.
fn guard(child: &mut Child) -> Result<ExitStatus, String> {
    let group = i32::try_from(child.id()).expect("a process id fits pid_t");
    let deadline = Instant::now() + limit();
    let mut pause = Duration::from_millis(1);
    let ended = loop {
        match exited(group) {
            Ok(true) => break Ok(()),
            Ok(false) if Instant::now() < deadline => std::thread::sleep(pause),
            Ok(false) => break Err(format!("hung: no end after {} s", limit().as_secs())),
            Err(e) => break Err(format!("waiting for process {group}: {e}")),
        }
        pause = (pause * 2).min(Duration::from_millis(10));
    };
    // SAFETY: no memory is involved; the group is the child's own, and because the child has not
    // been reaped yet its number cannot belong to anybody else.
    unsafe { libc::kill(-group, libc::SIGKILL) };
    let status = child.wait().map_err(|e| format!("waiting for process {group}: {e}"))?;
    ended.map(|()| status)
}

/// Whether the process has ended; it is left to be reaped.
fn exited(pid: i32) -> std::io::Result<bool> {
    let id = libc::id_t::try_from(pid).expect("a process id is positive");
    // SAFETY: all zeroes is a valid siginfo_t, and waitid writes only into it.
    let (result, info) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        (libc::waitid(libc::P_PID, id, &mut info, options), info)
    };
    if result != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: waitid filled the structure in or left it zero.
    Ok(unsafe { info.si_pid() } == pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTERED: &str = "fd 5: provider=shm role=connector\n";
    const TAKEN: &str = "fd 4: A B provider=shm reason=on-san role=acceptor\n";
    const QUIET: &str = "fd 4: A B provider=tcp reason=quiet role=acceptor\n";
    const DETACHED: &str = "fd 5: provider=tcp reason=detached\n";
    const RETURNED: &str = "fd 6: A B provider=tcp reason=peer-returned\n";

    fn is_passed(carrier: Carrier, log: &[&str]) -> bool {
        matches!(judge(carrier, &log.concat()), Ok(Verdict::Passed))
    }

    #[test]
    fn every_connection_of_a_san_case_must_stay_on_the_san() {
        assert!(is_passed(Carrier::San, &[ENTERED, TAKEN]));
        assert!(!is_passed(Carrier::San, &[]));
        assert!(!is_passed(Carrier::San, &[ENTERED]));
        assert!(is_passed(Carrier::San, &[QUIET, ENTERED, TAKEN]));
        assert!(!is_passed(Carrier::San, &[QUIET]));
        assert!(judge(Carrier::San, &[ENTERED, TAKEN, DETACHED].concat()).is_err());
        let starved = judge(Carrier::San, &[ENTERED, TAKEN, RETURNED].concat());
        assert!(matches!(starved, Ok(Verdict::Starved(_))));
        assert!(judge(Carrier::San, &[TAKEN, DETACHED, RETURNED].concat()).is_err());
    }

    #[test]
    fn one_connection_of_a_mixed_case_must_be_taken() {
        assert!(is_passed(Carrier::Mixed, &[ENTERED, TAKEN, DETACHED]));
        assert!(judge(Carrier::Mixed, &[ENTERED, DETACHED].concat()).is_err());
        assert!(matches!(judge(Carrier::Mixed, QUIET), Ok(Verdict::Starved(_))));
        assert!(judge(Carrier::Mixed, "").is_err());
    }
}
