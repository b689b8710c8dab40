//! `sanctl generate`: man pages and shell completions, for packages.

use std::path::Path;
use std::{fs, io};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::{Cli, GenerateArguments};
use crate::output::complain;
use crate::pages;

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

/// Writes the pages into `man/`, and a file for each shell into
/// `completions/`.
fn write(folder: &Path) -> io::Result<()> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    let command = Cli::command().disable_help_subcommand(true);
    pages::write(&command, &man)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command.clone(), "sanctl", &completions)?;
    }
    Ok(())
}
