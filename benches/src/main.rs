//! `sanbench`: one measurement per run, one JSON line on standard output.
//!
//! `floor` measures two processes over bare shared memory, which is what the machine itself allows. `socket` measures
//! two processes over a TCP connection that is made with plain libc calls. With `--library` those processes run under
//! the shim, so the same code measures TCP and the SAN. `scripts/bench` runs both side by side. This program must know
//! nothing of the shim but its path.

mod error;
mod figures;
mod floor;
mod options;
mod pace;
mod process;
mod report;
mod socket;
mod spin;
mod stats;
mod sys;

use error::BenchError;
use options::{BenchRole, Options};

fn run() -> Result<(), BenchError> {
    let mut args = std::env::args().skip(1);
    let Some(first) = args.next() else {
        println!("{}", options::USAGE);
        return Ok(());
    };
    if first == "help" || first == "--help" || first == "-h" {
        println!("{}", options::USAGE);
        return Ok(());
    }
    let role = BenchRole::parse(&first)?;
    let options = Options::parse(args)?;
    match role {
        BenchRole::Floor => floor::run(&options),
        BenchRole::Socket => process::run_pair(&options),
        BenchRole::Client => socket::client(&options),
        BenchRole::Server => socket::server(&options),
    }
}

fn main() {
    if let Err(error) = run() {
        eprintln!("sanbench: {error}");
        std::process::exit(error.exit_status());
    }
}
