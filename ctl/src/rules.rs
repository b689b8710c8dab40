//! The rules file that the command line names.

use std::fs;
use std::path::Path;

use crate::output::plain;

/// Checks that it can be read. The library would say so as well, but it knows only the variable that `sanctl` sets.
///
/// # Errors
/// One line that names the option and the file.
pub(crate) fn check_named(file: &Path) -> Result<(), String> {
    fs::read_to_string(file).map(drop).map_err(|error| {
        let (file, why) = (file.display(), plain(&error));
        format!("cannot read {file}: {why}; give --config a rules file that can be read")
    })
}
