//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::export::ListenPlace;
use crate::filter::Filter;
use crate::top::Order;

/// Runs programs under sanshim and shows what happens inside
///
/// sanshim moves TCP connections to shared memory, or to RDMA between hosts. This help calls either of them the SAN, and it calls
/// libsanshim.so, which sanctl puts in front of a program, the shim.
#[derive(Parser)]
#[command(name = "sanctl", version = env!("SANSHIM_VERSION"), max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Run(RunArguments),
    Status(StatusArguments),
    Top(TopArguments),
    Why(WhyArguments),
    Trace(TraceArguments),
    Export(ExportArguments),
    Detach(DetachArguments),
    Systemd(SystemdArguments),
    Check(CheckArguments),
    Providers(ProvidersArguments),
    #[command(hide = true)]
    Generate(GenerateArguments),
}

/// Run a program under the shim
///
/// The program takes sanctl's place: its process id, exit status and signals are the program's
/// own. Its children run under the shim too, as long as they keep LD_PRELOAD.
#[derive(Args)]
#[command(after_help = "Exit status: the program's; 127 when it is not found, 126 when it cannot \
                        be run, 125 when the shim cannot be used.")]
pub(crate) struct RunArguments {
    /// Log at this level: off, error, warn, info, debug, trace (sets SANSHIM_LOG; info if only a file is named)
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log: Option<OsString>,

    /// Append the log to this file instead of standard error (sets SANSHIM_LOG_FILE)
    #[arg(long, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,

    /// Use this rules file (sets SANSHIM_CONFIG)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// The program and its arguments; "--" before a program whose name begins with a dash
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// Show the connections of the programs that run under the shim
///
/// sanctl reads what each process publishes. That neither stops the process nor slows it. You see your own processes, and root
/// sees everybody's. sanctl names on standard error what it cannot read.
#[derive(Args)]
pub(crate) struct StatusArguments {
    /// Print JSON for programs instead of a table for people
    #[arg(long)]
    pub(crate) json: bool,

    /// Add lines about RDMA, its modes and the sizes of buffers to the table
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) verbose: bool,

    #[command(flatten)]
    pub(crate) filter: Filter,

    /// Read this folder instead of /dev/shm/sanshim-user-UID
    #[arg(long, value_name = "FOLDER")]
    pub(crate) registry: Option<PathBuf>,
}

/// Show what connections do now, second after second
///
/// Each line is a connection, or a process. It shows bytes and messages a second, the calls that woke a peer (WAKE), and the
/// events that needed no such call (AVOID). Keys: q ends top, < and > change the order, p turns to processes or to connections, n
/// shows only what is on TCP, the space bar pauses, arrows scroll.
#[derive(Args)]
pub(crate) struct TopArguments {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: f64,

    /// The column whose largest value comes first
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: Order,

    /// What a line is
    #[arg(long, value_enum, default_value_t)]
    pub(crate) by: TopLine,

    /// Print one interval's rates and end
    #[arg(long)]
    pub(crate) once: bool,

    /// Print JSON for programs instead of a table for people
    #[arg(long, requires = "once")]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) filter: Filter,
}

/// What a line of `sanctl top` is.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopLine {
    /// A connection
    #[default]
    Connection,
    /// A process
    Process,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    let is_fine = (0.1..=3600.0).contains(&seconds);
    is_fine.then_some(seconds).ok_or_else(|| "not from 0.1 to 3600".to_owned())
}

/// Say why a connection is, or is not, on the SAN
///
/// sanctl shows what happened to the connection, in order, which process has its other end, and what would have to change. Without
/// FD it shows all connections of the process, by reason. If the process does not run under the shim, sanctl says why not.
#[derive(Args)]
#[command(after_help = "Exit status: 0, or 1 when there is no such process or connection.")]
pub(crate) struct WhyArguments {
    /// The process
    #[arg(value_name = "PID")]
    pub(crate) pid: u32,

    /// The connection's descriptor in that process
    #[arg(value_name = "FD")]
    pub(crate) fd: Option<i32>,
}

/// Show what happens to the connections of a process, as it happens
///
/// sanctl shows offers, moves to the SAN, modes, sizes, swaps between processes, and returns to TCP. It costs the process nothing
/// while nobody looks. It ends with the process, or with Ctrl-C.
#[derive(Args)]
#[command(after_help = "Exit status: 0 when the process has ended, 1 when it cannot be followed.")]
pub(crate) struct TraceArguments {
    /// The process
    #[arg(value_name = "PID")]
    pub(crate) pid: u32,

    /// Begin with the events that the process still keeps
    #[arg(long)]
    pub(crate) past: bool,

    /// End once these events are shown
    #[arg(long, requires = "past")]
    pub(crate) once: bool,

    /// Print one JSON object in each line, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Serve counts of all programs under the shim to Prometheus
///
/// sanctl answers GET /metrics over HTTP, at an address or at a Unix socket, until SIGINT or SIGTERM. With --once it prints the
/// same text on standard output, for the textfile collector of Prometheus' node exporter.
#[derive(Args)]
#[command(after_help = "Exit status: 0, or 1 when sanctl cannot listen there or write.")]
pub(crate) struct ExportArguments {
    /// Serve at HOST:PORT or unix:PATH
    #[arg(long, value_name = "PLACE", required_unless_present = "once")]
    pub(crate) listen: Option<ListenPlace>,

    /// Print once and end
    #[arg(long, conflicts_with = "listen")]
    pub(crate) once: bool,

    #[command(flatten)]
    pub(crate) filter: Filter,
}

/// Move connections back to TCP
///
/// No byte is lost or doubled, and the programs at both ends notice nothing. The shim sees the request when the process next uses
/// one of its connections, or is about to wait for one. A process that sleeps does so once it wakes and uses them. Between hosts
/// the shim's helper thread acts at once.
#[derive(Args)]
#[command(
    after_help = "Exit status: 0 when the request was made, or there was nothing to ask for; 1 when it could not be made."
)]
pub(crate) struct DetachArguments {
    /// The process
    #[arg(value_name = "PID")]
    pub(crate) pid: u32,

    /// The connection's descriptor in that process, or "all"
    #[arg(value_name = "FD|all")]
    pub(crate) connection: String,

    /// Wait at most so many milliseconds until the connections are on TCP
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub(crate) wait: u64,
}

/// Put the shim in front of a systemd service, or take it away
///
/// sanctl writes a drop-in that sets LD_PRELOAD, and prints what to do next. It does not touch the service itself. If the unit's
/// sandbox hinders the shim, sanctl writes nothing, and says which line forbids what.
#[derive(Args)]
#[command(
    after_help = "Exit status: 0, or 1 when the unit hinders the shim, or something could not be done."
)]
pub(crate) struct SystemdArguments {
    /// The service: nginx, or nginx.service
    #[arg(value_name = "UNIT")]
    pub(crate) unit: String,

    /// Remove the drop-in
    #[arg(long, conflicts_with_all = ["check", "force"])]
    pub(crate) remove: bool,

    /// Only say what hinders the shim
    #[arg(long)]
    pub(crate) check: bool,

    /// Write the drop-in although something hinders the shim
    #[arg(long, conflicts_with = "check")]
    pub(crate) force: bool,

    /// Where the system's files are
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    pub(crate) root: PathBuf,
}

/// Check the configuration and this machine, and say what to do
#[derive(Args)]
#[command(after_help = "Exit status: 0 when programs can use the SAN, 1 when something is wrong.")]
pub(crate) struct CheckArguments {
    /// Check this rules file, as if SANSHIM_CONFIG named it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Say whether your programs share memory with those of this user, or with this running process; with two, whether these
    /// two share memory
    #[arg(long, value_name = "USER|PID", num_args = 1..=2)]
    pub(crate) with: Vec<String>,
}

/// List the networks that programs can use instead of TCP
///
/// Shared memory is built in. Other providers are libraries beside libsanshim.so. sanctl shows the kind and the version of each,
/// and the local addresses that it serves. If a provider cannot be used, sanctl says why.
#[derive(Args)]
#[command(after_help = "Exit status: 0, or 1 when libsanshim.so is not found.")]
pub(crate) struct ProvidersArguments {
    /// Print JSON for programs instead of a list for people
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write man pages and shell completions into a folder
#[derive(Args)]
pub(crate) struct GenerateArguments {
    /// Where `man` and `completions` are made
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}
