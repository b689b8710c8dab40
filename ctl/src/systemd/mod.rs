//! `sanctl systemd`: puts the library in front of a service with a drop-in, or says what of its sandbox hinders that.

mod calls;
mod checks;
mod permission;
mod unit;

use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use self::checks::{check, Finding, Severity};
use self::unit::Unit;
use crate::cli::SystemdArguments;
use crate::library;
use crate::output::{complain, print};

/// The drop-in's name: the last of a unit's, so that what others set of LD_PRELOAD stays behind the library.
const NAME: &str = "zz-sanshim.conf";
/// What units there are beside services.
const OTHER_KINDS: [&str; 10] =
    ["automount", "device", "mount", "path", "scope", "slice", "socket", "swap", "target", "timer"];

/// Writes, checks or removes; returns the exit status.
pub(crate) fn systemd(arguments: &SystemdArguments) -> i32 {
    let done = if arguments.remove { remove(arguments) } else { install(arguments) };
    match done {
        Ok((text, status)) => print(&text).max(status),
        Err(why) => {
            complain(&why);
            1
        }
    }
}

/// With its kind.
fn name(arguments: &SystemdArguments) -> Result<String, String> {
    let given = arguments.unit.as_str();
    if given.contains('/') {
        return Err(format!("{given} is a path: give the unit's name, as systemctl takes it"));
    }
    match given.rsplit_once('.') {
        Some((_, "service")) => Ok(given.to_owned()),
        Some((_, kind)) if OTHER_KINDS.contains(&kind) => {
            Err(format!("{given} is no service: give the service that it belongs to"))
        }
        _ => Ok(format!("{given}.service")),
    }
}

fn drop_in(arguments: &SystemdArguments, name: &str) -> PathBuf {
    arguments.root.join("etc/systemd/system").join(format!("{name}.d")).join(NAME)
}

fn install(arguments: &SystemdArguments) -> Result<(String, i32), String> {
    let name = name(arguments)?;
    let unit = Unit::read(&arguments.root, &name, NAME)?;
    let library = library::find()?;
    library::check_fits(&library)?;
    let findings = check(&unit, &arguments.root, &library);
    let worst = findings.iter().map(|finding| finding.severity).max();
    let may = worst.is_none_or(|worst| worst == Severity::Limits);
    let mut text = report(&name, &findings);
    if arguments.check || (!may && !arguments.force) {
        if !arguments.check {
            text.push_str("Nothing was written. Change what hinders it, or use --force.\n");
        }
        return Ok((text, i32::from(!may)));
    }
    let path = drop_in(arguments, &name);
    let existing = unit.variable("LD_PRELOAD");
    let preload = library::preload(&library, None, existing.as_deref().map(str::as_ref));
    let content = format!(
        "# Made by sanctl systemd {name}; sanctl systemd --remove {name} takes it away.\n[Service]\n\
         Environment=\"LD_PRELOAD={}\"\n",
        preload.display()
    );
    write(&path, &content)?;
    let _ = writeln!(text, "Wrote {}. It takes effect with:\n", path.display());
    let _ = writeln!(text, "    systemctl daemon-reload && systemctl restart {name}");
    Ok((text, 0))
}

/// In one step: a reader finds the old one or the whole of the new one.
fn write(path: &Path, content: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}; are you root?", path.display());
    let new = path.with_extension("conf.new");
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    fs::write(&new, content).and_then(|()| fs::rename(&new, path)).map_err(failed)
}

fn remove(arguments: &SystemdArguments) -> Result<(String, i32), String> {
    let name = name(arguments)?;
    let path = drop_in(arguments, &name);
    match fs::remove_file(&path) {
        Ok(()) => {
            // Others' drop-ins keep it.
            let _ = fs::remove_dir(path.parent().unwrap_or(Path::new("/")));
            let next = format!("systemctl daemon-reload && systemctl restart {name}");
            Ok((format!("Removed {}. It takes effect with:\n\n    {next}\n", path.display()), 0))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Ok((format!("{} is not there: {name} starts without the shim.\n", path.display()), 0))
        }
        Err(error) => Err(format!("{}: {error}; are you root?", path.display())),
    }
}

fn report(name: &str, findings: &[Finding]) -> String {
    if findings.is_empty() {
        return format!("Nothing in {name} hinders the shim.\n");
    }
    let mut text = String::new();
    for finding in findings {
        let word = match finding.severity {
            Severity::Breaks => "breaks",
            Severity::Hinders => "hinders",
            Severity::Limits => "limits",
        };
        let _ = writeln!(text, "{word}: {}\n    {}.", finding.line, finding.what);
    }
    text
}
