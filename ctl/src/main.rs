//! sanctl: runs programs under sanshim and shows what happens inside.
//!
//! It only talks to people and other programs. All its knowledge comes from `sanshim-core`.

// Rust's start-up code would ignore SIGPIPE and open closed standard descriptors. It is left out, because `sanctl run`
// hands this process to the program exactly as it found it.
#![cfg_attr(not(test), no_main)]

mod check;
mod cli;
mod detach;
mod executable;
mod export;
mod filter;
mod generate;
mod happened;
mod library;
mod obstacle;
mod output;
mod pages;
mod progress;
mod providers;
mod rules;
mod run;
mod runtime;
mod status;
mod systemd;
mod top;
mod trace;
mod units;
mod who;
mod why;

use clap::Parser;
use cli::{Cli, Command};

/// Does what the command line asks for, and gives the exit status.
fn start() -> i32 {
    match Cli::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Status(arguments) => status::status(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Why(arguments) => why::why(&arguments),
        Command::Trace(arguments) => trace::trace(&arguments),
        Command::Export(arguments) => export::export(&arguments),
        Command::Detach(arguments) => detach::detach(&arguments),
        Command::Systemd(arguments) => systemd::systemd(&arguments),
        Command::Check(arguments) => check::check(&arguments),
        Command::Providers(arguments) => providers::providers(&arguments),
        Command::Generate(arguments) => generate::generate(&arguments),
    }
}

/// The C runtime's entry.
#[cfg(not(test))]
#[no_mangle]
extern "C" fn main(_argc: libc::c_int, _argv: *const *const libc::c_char) -> libc::c_int {
    start()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        super::Cli::command().debug_assert();
        let _: fn() -> i32 = super::start;
    }
}
