//! `sanctl check`: whether programs can use the SAN here, and if not, what to do.

mod folder;
mod machine;
mod meeting;
mod sharing;
mod sock_diag;

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use sanshim_core::config::Config;
use sanshim_core::logging;

use crate::cli::CheckArguments;
use crate::library;
use crate::output::{print, printable};
use crate::rules;

/// One finding: what is fine, or what is wrong and what to do.
type Finding = Result<String, String>;

/// Prints the findings, and gives the exit status.
pub(crate) fn check(arguments: &CheckArguments) -> i32 {
    if let Some(file) = &arguments.config {
        std::env::set_var("SANSHIM_CONFIG", file);
    }
    let named = arguments.config.as_deref().map_or(Ok(()), rules::check_named);
    let mut findings: Vec<(&str, Finding)> = vec![
        (
            "library",
            library::find().and_then(|library| {
                library::check_fits(&library).and_then(|()| preloads(&library))
            }),
        ),
        ("configuration", named.and_then(|()| configuration())),
        ("registry", machine::registry()),
        ("segments", machine::segments()),
        ("rendezvous", machine::rendezvous()),
        ("sock_diag", sock_diag::query()),
    ];
    // An error of the configuration is another finding.
    if let Some(path) = Config::load().ok().as_ref().and_then(Config::folder) {
        findings.push(("folder", folder::judge(path)));
    }
    if !arguments.with.is_empty() {
        findings.push(("sharing", sharing::judge(&arguments.with)));
    }
    let mut text = String::new();
    let mut wrong = 0;
    for (what, finding) in &findings {
        let (mark, line) = match finding {
            Ok(line) => ("ok  ", line),
            Err(line) => ("FAIL", line),
        };
        wrong += i32::from(finding.is_err());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{mark} {what:<13} {}", printable(line));
    }
    text.push_str(match wrong {
        0 => "Programs can use the SAN: sanctl run -- PROGRAM ARGS...\n",
        _ => "What is marked FAIL keeps programs off the SAN, or out of sanctl status.\n",
    });
    print(&text).max(i32::from(wrong > 0))
}

/// Preloads the library into another sanctl, as the dynamic loader would for a program.
fn preloads(library: &Path) -> Finding {
    let shown = library.display();
    let run = |preload: bool| {
        let mut command = Command::new("/proc/self/exe");
        command.arg("--version").stdin(Stdio::null()).env_remove("LD_PRELOAD");
        if preload {
            // An error of the configuration is another finding.
            for (name, _) in std::env::vars_os() {
                if name.as_encoded_bytes().starts_with(b"SANSHIM_") {
                    command.env_remove(name);
                }
            }
            command
                .env("LD_PRELOAD", library)
                .env("SANSHIM", "off")
                .env("SANSHIM_CONFIG", "/dev/null");
        }
        command.output()
    };
    let failed = |why: &str| Err(format!("{shown} cannot be preloaded: {why}; reinstall it"));
    match (run(false), run(true)) {
        (Ok(plain), Ok(loaded)) if plain == loaded => Ok(shown.to_string()),
        (Ok(_), Ok(loaded)) => {
            let complaint = String::from_utf8_lossy(&loaded.stderr);
            let first = complaint.lines().next().unwrap_or("it changes the program's output");
            failed(first)
        }
        (Err(error), _) | (_, Err(error)) => failed(&error.to_string()),
    }
}

fn configuration() -> Finding {
    let config = Config::load().map_err(|error| error.to_string())?;
    logging::check(&config).map_err(|error| error.to_string())?;
    let rules = match &config.rules_file {
        Some(file) => format!("rules in {}", file.display()),
        None => "no rules file, defaults hold".to_owned(),
    };
    if !config.enabled {
        Err(format!("{rules}; the shim is switched off, unset SANSHIM=off or enabled = false"))
    } else if !config.has_provider() {
        Err(format!("{rules}; providers names none, so that all stays on TCP; name \"shm\""))
    } else {
        Ok(rules)
    }
}
