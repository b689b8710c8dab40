//! The two processes of a measurement. For the floor they are forked, and for sockets they are started anew.
//!
//! The ends of a socket are pinned and get their LD_PRELOAD before exec. So a library sees the same when it loads as it
//! would under `taskset`.

use crate::error::BenchError;
use crate::options::{BenchRole, Options, Shimmed};
use crate::sys;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Forks, pins both halves, runs `child` in the new process and `parent` in this one.
///
/// The parent's half is the client. The child is ended if the parent's half fails.
pub(crate) fn fork_pair<T>(
    options: &Options,
    parent: impl FnOnce() -> Result<T, BenchError>,
    child: impl FnOnce(),
) -> Result<T, BenchError> {
    let client_cpu = sys::cpu_for(BenchRole::Client, options.placement)?;
    let server_cpu = sys::cpu_for(BenchRole::Server, options.placement)?;
    let pin = |cpu: Option<usize>| cpu.map_or(Ok(()), sys::pin);
    // SAFETY: this process has one thread, so the child may go on as it likes.
    let pid = sys::check("fork", unsafe { libc::fork() })?;
    if pid == 0 {
        let ready = sys::die_with_parent().and_then(|()| pin(server_cpu));
        if ready.is_ok() {
            child();
        }
        // SAFETY: _exit has no preconditions; the parent's buffers must not be flushed twice.
        unsafe { libc::_exit(i32::from(ready.is_err())) };
    }
    let result = pin(client_cpu)
        .map_err(|source| BenchError::System { call: "sched_setaffinity", source })
        .and_then(|()| parent());
    // SAFETY: pid is our own child and has not been waited for.
    unsafe {
        if result.is_err() {
            libc::kill(pid, libc::SIGKILL);
        }
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    result
}

/// An end that was started. It is ended when this is dropped, so that a failed run leaves nothing behind.
struct End(Child);

impl Drop for End {
    fn drop(&mut self) {
        // Both fail only if the process is already gone and waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(role: BenchRole, options: &Options) -> Result<Command, BenchError> {
    let program = std::env::current_exe()
        .map_err(|source| BenchError::System { call: "readlink", source })?;
    let mut command = Command::new(program);
    command.arg(if role == BenchRole::Server { "server" } else { "client" });
    command.args(std::env::args().skip(2));
    let shimmed = match options.shimmed {
        Shimmed::Both => true,
        Shimmed::Client => role == BenchRole::Client,
        Shimmed::Server => role == BenchRole::Server,
    };
    if let Some(library) = options.library.as_deref().filter(|_| shimmed) {
        command.env("LD_PRELOAD", library);
    }
    let cpu = sys::cpu_for(role, options.placement)?;
    // SAFETY: only system calls between fork and exec, no allocation, no lock.
    unsafe {
        command.pre_exec(move || {
            sys::die_with_parent()?;
            sys::raise_descriptor_limit()?;
            cpu.map_or(Ok(()), sys::pin)
        });
    }
    Ok(command)
}

fn spawn(command: &mut Command) -> Result<End, BenchError> {
    command.spawn().map(End).map_err(|source| BenchError::System { call: "spawn", source })
}

/// Runs the server and the client. The client prints the result.
pub(crate) fn run_pair(options: &Options) -> Result<(), BenchError> {
    if let Some(library) = &options.library {
        if !std::path::Path::new(library).is_file() {
            return Err(BenchError::Usage(format!(
                "--library {library} is not a file: build it first"
            )));
        }
    }
    let mut server = spawn(command(BenchRole::Server, options)?.stdout(Stdio::piped()))?;
    let mut port = String::new();
    if let Some(output) = server.0.stdout.take() {
        BufReader::new(output)
            .read_line(&mut port)
            .map_err(|source| BenchError::System { call: "read", source })?;
    }
    if port.trim().parse::<u16>().is_err() {
        return Err(BenchError::Peer("the server ended before it listened".into()));
    }
    let mut command = command(BenchRole::Client, options)?;
    command.args(["--port", port.trim(), "--server-pid", &server.0.id().to_string()]);
    let mut client = spawn(&mut command)?;
    let status = client.0.wait().map_err(|source| BenchError::System { call: "wait", source })?;
    match status.code() {
        Some(0) => Ok(()),
        Some(75) => Err(BenchError::Unavailable("see above".into())),
        _ => Err(BenchError::Peer(format!("the client ended with {status}"))),
    }
}
