//! Runs one case in a process group of its own, with a hang guard, and judges it.

use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::Program;

/// Longer than any case takes, and than its own waits (`HANG_MS` in `bt.h`).
const HANG: Duration = Duration::from_secs(60);
/// How a program says that this machine cannot run the case.
const SKIPPED: i32 = 77;

/// What the log says where the kernel lets no process access another's memory: RDMA was not tested.
const RDMA_FORBIDDEN: &str = "the kernel does not allow it";

/// What the log says of a process that took control over by a suspended session.
const SUSPENDED: &str = "control came by a suspended session";

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
        /// The rules say that every swap of control suspends the session.
        suspends: bool,
    },
}

/// One case of one program.
#[derive(Debug, Clone)]
pub struct Case {
    /// The program that has it.
    pub program: Program,
    /// Its name within the program.
    pub name: String,
    /// Both ends of its connections are in the program, so the shim must move them to the SAN.
    pub on_san: bool,
    /// Its processes take turns on them all the time.
    pub swaps: bool,
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
    /// Why it failed: its own words, its status, or that it hung or never used the SAN.
    pub fn run(&self, mode: &Mode) -> Result<Option<String>, String> {
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
        if let Mode::Shim { library, rules, .. } = mode {
            command.env("LD_PRELOAD", library);
            command.env("SANSHIM_LOG", "info").env("SANSHIM_LOG_FILE", &log);
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
            (Some(SKIPPED), _) => return Ok(Some(said)),
            (Some(0), _) if said.is_empty() => {}
            (Some(0), _) => return Err(format!("passed, but wrote to stderr: {said}")),
            (_, Some(signal)) => return Err(format!("killed by signal {signal}\n{said}")),
            (code, _) => return Err(format!("exit status {code:?}\n{said}")),
        }
        if self.on_san && matches!(mode, Mode::Shim { .. }) {
            let log = fs::read_to_string(&log).unwrap_or_default();
            if !log.contains("provider=shm") {
                return Err(format!("no connection used the SAN; the log says:\n{log}"));
            }
            let suspends = matches!(mode, Mode::Shim { suspends: true, .. });
            if suspends && self.swaps && !log.contains(SUSPENDED) {
                return Err(format!(
                    "no swap of control suspended the session; the log says:\n{log}"
                ));
            }
            if let Some(refused) = log.lines().find(|line| line.contains(RDMA_FORBIDDEN)) {
                return Ok(Some(refused.to_owned()));
            }
        }
        Ok(None)
    }
}

/// Waits for the case, then ends what is left of its process group.
fn guard(child: &mut Child) -> Result<ExitStatus, String> {
    let group = i32::try_from(child.id()).expect("a process id fits pid_t");
    let deadline = Instant::now() + HANG;
    let mut pause = Duration::from_millis(1);
    let ended = loop {
        match exited(group) {
            Ok(true) => break Ok(()),
            Ok(false) if Instant::now() < deadline => std::thread::sleep(pause),
            Ok(false) => break Err(format!("hung: no end after {} s", HANG.as_secs())),
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
