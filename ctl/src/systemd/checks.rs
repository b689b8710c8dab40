//! What of a unit's sandbox hinders the library, by setting.

use std::path::Path;

use crate::executable::{examine, Verdict};

use super::calls::{self, FOR_SPEED};
use super::permission::may_read;
use super::unit::{words, Setting, Unit};
use crate::obstacle;

/// Where programs publish what they do.
const SHM: &str = "/dev/shm";

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// The line that is the cause, with its place.
    pub(super) line: String,
    /// What comes of it, and what to do.
    pub(super) what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// It works, but not everywhere.
    Limits,
    /// No connection comes to the SAN.
    Hinders,
    /// The program would not run.
    Breaks,
}

/// Of the unit of the system whose files are at `root`, with a library at this path.
pub(super) fn check(unit: &Unit, root: &Path, library: &Path) -> Vec<Finding> {
    let mut found = Vec::new();
    program(unit, root, &mut found);
    user(unit, root, library, &mut found);
    files(unit, library, &mut found);
    address_families(unit, &mut found);
    system_calls(unit, &mut found);
    others(unit, &mut found);
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}

fn finding(severity: Severity, cause: &Setting, what: impl Into<String>) -> Finding {
    let line = format!("{}={} ({})", cause.key, cause.value, cause.place);
    Finding { severity, line, what: what.into() }
}

/// Whether the program can be preloaded.
fn program(unit: &Unit, root: &Path, found: &mut Vec<Finding>) {
    let inside = |path: &str| root.join(path.trim_start_matches('/'));
    for start in unit.all("ExecStart") {
        let words = words(&start.value);
        let path = words.first().map(|word| word.trim_start_matches(['@', '-', ':', '+', '!']));
        if let Some(Verdict::Cannot(why)) = path.map(|path| examine(&inside(path), true)) {
            found.push(finding(Severity::Hinders, start, obstacle::explain(&why)));
        }
    }
    for unset in unit.all("UnsetEnvironment") {
        if words(&unset.value).iter().any(|word| word.split('=').next() == Some("LD_PRELOAD")) {
            found.push(finding(Severity::Hinders, unset, "takes LD_PRELOAD away; remove it"));
        }
    }
    for file in unit.all("EnvironmentFile") {
        let path = file.value.trim_start_matches('-');
        let text = std::fs::read_to_string(inside(path)).unwrap_or_default();
        if text.lines().any(|line| line.trim_start().starts_with("LD_PRELOAD=")) {
            let what = "sets LD_PRELOAD, which counts more than the drop-in; add the library there, in front";
            found.push(finding(Severity::Hinders, file, what));
        }
    }
}

/// Whether the service's user can open the library.
fn user(unit: &Unit, root: &Path, library: &Path, found: &mut Vec<Finding>) {
    let user = unit.last("User");
    let Some(cause) = unit.on("DynamicUser").or(user) else { return };
    let name = user.map_or("", |user| user.value.as_str());
    if !may_read(root, name, library) {
        let what = format!("may not read {}; install the library elsewhere", library.display());
        found.push(finding(Severity::Hinders, cause, what));
    }
}

/// Whether the library and /dev/shm are there.
fn files(unit: &Unit, library: &Path, found: &mut Vec<Finding>) {
    let forbids = deepest(unit, "NoExecPaths", library);
    if let Some((depth, paths)) = forbids {
        if deepest(unit, "ExecPaths", library).is_none_or(|(allowed, _)| allowed < depth) {
            let folder = library.parent().unwrap_or(library).display();
            let what = format!("forbids to run the library's code; add ExecPaths={folder}");
            found.push(finding(Severity::Hinders, paths, what));
        }
    }
    for key in ["RootDirectory", "RootImage"] {
        if let Some(root) = unit.last(key) {
            let what =
                "has its own files: install sanshim there, and mount the host's /dev/shm there \
                        (BindPaths=/dev/shm)";
            found.push(finding(Severity::Limits, root, what));
        }
    }
    let hides = format!("hides {}; install the library elsewhere", library.display());
    let home = unit.on("ProtectHome").filter(|home| home.value != "read-only");
    let folders: [(_, &[&str]); 2] =
        [(home, &["/home", "/root", "/run/user"]), (unit.on("PrivateTmp"), &["/tmp", "/var/tmp"])];
    for (cause, hidden) in folders {
        if hidden.iter().any(|folder| library.starts_with(folder)) {
            found.extend(cause.map(|cause| finding(Severity::Hinders, cause, &hides)));
        }
    }
    let takes_away = "takes /dev/shm away, where programs find each other; leave it out";
    for key in ["InaccessiblePaths", "TemporaryFileSystem"] {
        for paths in unit.all(key) {
            let named = words(&paths.value);
            if named.iter().any(|path| covers(path, Path::new(SHM))) {
                found.push(finding(Severity::Hinders, paths, takes_away));
            }
            if named.iter().any(|path| covers(path, library)) {
                found.push(finding(Severity::Hinders, paths, &hides));
            }
        }
    }
    if let Some((depth, paths)) = deepest(unit, "ReadOnlyPaths", Path::new(SHM)) {
        let writable = deepest(unit, "ReadWritePaths", Path::new(SHM));
        if writable.is_none_or(|(writable, _)| writable < depth) {
            found.push(finding(Severity::Hinders, paths, takes_away));
        }
    }
}

/// Whether a path of a setting is the file, or a folder that it is in.
fn covers(path: &str, file: &Path) -> bool {
    file.starts_with(folder(path))
}

/// Without what settings put before and behind a path.
fn folder(path: &str) -> &str {
    path.trim_start_matches(['-', '+']).split(':').next().unwrap_or_default()
}

/// The path of a setting that covers the file, and how deep it lies; of several the deepest.
fn deepest<'a>(unit: &'a Unit, key: &'a str, file: &Path) -> Option<(usize, &'a Setting)> {
    let all = unit
        .all(key)
        .flat_map(|setting| words(&setting.value).into_iter().map(move |path| (path, setting)));
    let covering = all.filter(|(path, _)| covers(path, file));
    covering
        .map(|(path, setting)| (Path::new(folder(&path)).iter().count(), setting))
        .max_by_key(|(depth, _)| *depth)
}

fn address_families(unit: &Unit, found: &mut Vec<Finding>) {
    let lines: Vec<_> = unit.all("RestrictAddressFamilies").collect();
    let (Some(first), Some(last)) = (lines.first(), lines.last()) else { return };
    let forbids = first.value.starts_with('~');
    let mut unix = forbids;
    for line in &lines {
        let (takes, list) = match line.value.strip_prefix('~') {
            Some(list) => (true, list),
            None => (false, line.value.as_str()),
        };
        if list.split_whitespace().any(|family| family == "AF_UNIX") {
            unix = !takes;
        }
    }
    if !unix {
        let what = "forbids Unix sockets, over which two ends agree; add AF_UNIX";
        found.push(finding(Severity::Hinders, last, what));
    }
}

fn system_calls(unit: &Unit, found: &mut Vec<Finding>) {
    let Some(cause) = unit.last("SystemCallFilter") else { return };
    let calls = match calls::forbidden(unit) {
        Ok(calls) if calls.is_empty() => return,
        Ok(calls) => calls,
        Err(why) => {
            let what = format!("what it forbids cannot be told: {why}");
            return found.push(finding(Severity::Limits, cause, what));
        }
    };
    let allow = "allow them (SystemCallFilter=@system-service holds them)";
    let what = format!("forbids {}; {allow}", calls.join(", "));
    if unit.last("SystemCallErrorNumber").is_none() {
        let what = what + ". As it is, the system ends a program that makes them";
        found.push(finding(Severity::Breaks, cause, what));
    } else if calls.iter().all(|call| FOR_SPEED.contains(call)) {
        found.push(finding(
            Severity::Limits,
            cause,
            what + ". Without them large sends are slower",
        ));
    } else {
        found.push(finding(Severity::Hinders, cause, what));
    }
}

/// What limits it without any further look.
fn others(unit: &Unit, found: &mut Vec<Finding>) {
    let limits = [
        (
            unit.on("PrivateNetwork").or(unit.last("NetworkNamespacePath")),
            "has its own network: only connections inside it come to the SAN, unless the programs at both ends name one `folder`",
        ),
        (unit.on("PrivatePIDs"), "has its own process ids: sanctl shows it only from inside"),
        (unit.on("PrivateDevices"), "hides /dev/infiniband: no RDMA between hosts"),
        (
            unit.on("PrivateUsers"),
            "knows only its own user and root: allow_users can name no others there",
        ),
        (
            unit.on("DynamicUser").or(unit.last("User").filter(|user| user.value != "root")),
            "programs of other users share memory with it only if the configuration of both allows that \
             (allow_users)",
        ),
        (
            unit.last("LimitFSIZE").filter(|size| size.value != "infinity"),
            "below 7 MiB sanctl does not show it",
        ),
    ];
    for (cause, what) in limits {
        found.extend(cause.map(|cause| finding(Severity::Limits, cause, what)));
    }
}
