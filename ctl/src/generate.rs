//! `sanctl generate`: man pages and shell completions, for packages.

use std::path::Path;
use std::{fs, io};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::{Cli, GenerateArguments};
use crate::output::complain;

/// Writes them all and returns the exit status.
pub(crate) fn generate(arguments: &GenerateArguments) -> i32 {
    let folder = &arguments.folder;
    match write(folder) {
        Ok(()) => 0,
        Err(error) => {
            complain(&format!("cannot write to {}: {error}", folder.display()));
            1
        }
    }
}

/// Writes a page for `sanctl` and one for each of its commands into `man/`, and a file for each shell into
/// `completions/`.
fn write(folder: &Path) -> io::Result<()> {
    let (pages, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command.clone(), &pages)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command.clone(), "sanctl", &completions)?;
    }
    Ok(())
}
