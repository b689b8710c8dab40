//! Starting programs in process groups of their own, and ending them, whatever happens.

use super::{eventually, Mode};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of one test's own, removed with it.
pub struct Sandbox {
    folder: tempfile::TempDir,
    started: AtomicU32,
}

impl Sandbox {
    /// A folder with nothing but an empty log.
    pub fn new() -> Sandbox {
        let folder = tempfile::Builder::new().prefix("sanshim-test-").tempdir();
        let folder = folder.expect("a temporary folder");
        let sandbox = Sandbox { folder, started: AtomicU32::new(0) };
        // Programs that become another user's open it again.
        let everybody = fs::Permissions::from_mode(0o666);
        let log = File::create(sandbox.log()).expect("the log");
        log.set_permissions(everybody).expect("set the log's mode");
        sandbox
    }

    /// The shim's log of what was started here.
    pub fn log(&self) -> PathBuf {
        self.file("sanshim.log")
    }

    /// Has the shim log connections, unless the command or whoever runs the tests says where to and what.
    pub fn log_to(&self, command: &mut Command) {
        let settings: [(&str, PathBuf); 2] =
            [("SANSHIM_LOG", "info".into()), ("SANSHIM_LOG_FILE", self.log())];
        for (name, value) in settings {
            let said = command.get_envs().any(|(known, _)| known == name);
            if !said && std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Lets every user read it: it is its owner's alone otherwise.
    pub fn open_to_everybody(&self) {
        let everybody = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.path(), everybody).expect("set the folder's mode");
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Starts a program in the background.
    pub fn start<'a>(
        &self,
        mode: Mode,
        program: &str,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Running {
        let mut command = mode.command(program);
        command.args(arguments).current_dir(self.path());
        self.launch(program, command)
    }

    /// Runs a program to its end and gives its standard output.
    ///
    /// # Panics
    /// When it fails or hangs.
    pub fn run<'a>(
        &self,
        mode: Mode,
        program: &str,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> String {
        self.start(mode, program, arguments).finish()
    }

    /// Starts a prepared command in the background; its standard input is what
    /// [`Running::write`] gives it.
    pub fn launch(&self, name: &str, command: Command) -> Running {
        self.spawn(name, command, Stdio::piped())
    }

    /// Runs a program to its end on a large input, and gives its standard output. A file, unlike a
    /// pipe, cannot block this test when the program does not read.
    pub fn run_on<'a>(
        &self,
        mode: Mode,
        program: &str,
        arguments: impl IntoIterator<Item = &'a str>,
        input: &str,
    ) -> String {
        let file = self.file("input");
        fs::write(&file, input).expect("the input file");
        let mut command = mode.command(program);
        command.args(arguments).current_dir(self.path());
        let stdin = Stdio::from(File::open(&file).expect("the input file"));
        self.spawn(program, command, stdin).finish()
    }

    fn spawn(&self, name: &str, mut command: Command, stdin: Stdio) -> Running {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let stem = Path::new(name).file_name().expect("a program name").to_string_lossy();
        let out = self.file(&format!("{number}-{stem}.out"));
        let err = self.file(&format!("{number}-{stem}.err"));
        self.log_to(&mut command);
        let child = command
            .process_group(0)
            .stdin(stdin)
            .stdout(File::create(&out).expect("its output file"))
            .stderr(File::create(&err).expect("its error file"))
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Running { name: stem.into_owned(), child: Some(child), out, err }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        const SHOWN: usize = 100;
        if std::thread::panicking() {
            let log = fs::read(self.log()).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(SHOWN)..];
            eprintln!(
                "--- the shim's log, last of {} lines\n{}\n---",
                lines.len(),
                tail.join("\n")
            );
        }
    }
}

impl Default for Sandbox {
    fn default() -> Self {
        Sandbox::new()
    }
}

/// A program in the background. Dropping it ends its whole process group.
pub struct Running {
    name: String,
    /// None once it was reaped.
    child: Option<Child>,
    out: PathBuf,
    err: PathBuf,
}

impl Running {
    /// Its process number, which is its group's too.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("not reaped yet").id()
    }

    /// What it wrote to standard output so far.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    /// What it wrote to standard error so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.err).unwrap_or_default()).into_owned()
    }

    /// Both its outputs, for a message.
    pub fn output(&self) -> String {
        format!("--- {} stdout\n{}--- stderr\n{}---", self.name, self.stdout(), self.stderr())
    }

    /// Panics when it has ended.
    pub fn assert_alive(&self) {
        if let Some(how) = ended(self.pid()) {
            panic!("{} ended early with {how}\n{}", self.name, self.output());
        }
    }

    /// Waits for a line that begins with `start` and gives the rest of it.
    pub fn wait_for_line(&self, start: &str) -> String {
        eventually(
            || {
                let text = self.stdout();
                let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
                let found = whole.map(str::trim).find_map(|line| line.strip_prefix(start));
                if found.is_none() {
                    self.assert_alive();
                }
                found.map(|rest| rest.trim().to_owned())
            },
            || format!("{} never wrote '{start}'\n{}", self.name, self.output()),
        )
    }

    /// Writes a line or two to its standard input: less than a pipe holds, so never blocking.
    pub fn write(&mut self, text: &str) {
        let stdin = self.child.as_mut().and_then(|child| child.stdin.as_mut());
        let written = stdin.expect("its standard input").write_all(text.as_bytes());
        if let Err(error) = written {
            panic!("{} does not read its input: {error}\n{}", self.name, self.output());
        }
    }

    /// Waits until it ends by itself with success, and gives its standard output.
    pub fn finish(self) -> String {
        self.finish_both().0
    }

    /// The same with its standard error.
    pub fn finish_both(mut self) -> (String, String) {
        let status = self.wait();
        assert!(status.success(), "{} ended with {status}\n{}", self.name, self.output());
        (self.stdout(), self.stderr())
    }

    /// Waits until it ends by itself with a failure, and gives both its outputs.
    pub fn fail(mut self) -> String {
        let status = self.wait();
        assert!(!status.success(), "{} ended with success\n{}", self.name, self.output());
        self.output()
    }

    /// Asks it to end and waits: it must end with success, or by the very signal.
    pub fn terminate(mut self) {
        signal(self.pid() as i32, libc::SIGTERM);
        let status = self.wait();
        assert!(
            status.success()
                || status.signal() == Some(libc::SIGTERM)
                || status.code() == Some(128 + libc::SIGTERM),
            "{} ended with {status} when asked to end\n{}",
            self.name,
            self.output()
        );
    }

    /// Sends it a signal.
    pub fn signal(&self, number: i32) {
        signal(self.pid() as i32, number);
    }

    /// Interrupts its main thread, which may be the one that waits for an interrupt (wrk); it must end with success.
    /// Gives its standard output.
    pub fn interrupt(self) -> String {
        let pid = self.pid() as libc::pid_t;
        // SAFETY: no memory is involved; the process is a child, not reaped yet.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, pid, libc::SIGINT) };
        self.finish()
    }

    fn wait(&mut self) -> ExitStatus {
        // End of input for those that wait for it.
        drop(self.child.as_mut().and_then(|child| child.stdin.take()));
        let pid = self.pid();
        eventually(|| ended(pid), || format!("{} does not end\n{}", self.name, self.output()));
        self.reap()
    }

    /// Ends what is left of the group, then frees its number.
    fn reap(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("reaped once");
        // The leader is not reaped yet, so the number cannot be anybody else's.
        signal(-(child.id() as i32), libc::SIGKILL);
        child.wait().expect("wait for a child")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.is_some() {
            if std::thread::panicking() {
                eprintln!("{}", self.output());
            }
            self.reap();
        }
    }
}

/// How a child ended, if it has, without reaping it.
fn ended(pid: u32) -> Option<String> {
    // SAFETY: siginfo_t is plain data for which all zeros is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: info is a valid place for the answer and outlives the call.
    let result = unsafe { libc::waitid(libc::P_PID, pid, &mut info, flags) };
    assert_eq!(result, 0, "waitid({pid}): {}", std::io::Error::last_os_error());
    // SAFETY: after a successful waitid for children these fields are set, to zero when none ended.
    let (child, status) = unsafe { (info.si_pid(), info.si_status()) };
    let what = if info.si_code == libc::CLD_EXITED { "status" } else { "signal" };
    (child != 0).then(|| format!("{what} {status}"))
}

fn signal(pid: i32, number: i32) {
    // SAFETY: kill has no memory effects; the number is a child's or its group's, not reaped yet.
    unsafe { libc::kill(pid, number) };
}
