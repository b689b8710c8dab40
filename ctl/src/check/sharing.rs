//! `sanctl check --with`: whether two processes would share memory, and if not, what changes that.

use std::fs;
use std::path::Path;

use sanshim_core::config::{user_name, user_number, Config};
use sanshim_core::registry::{self, Admitted};

use super::meeting::meet;
use super::Finding;
use crate::output::printable;

/// The rules file of those that name no other.
const SYSTEM_FILE: &str = "/etc/sanshim.toml";

/// One of the two: a process, or one that a user would start.
pub(super) struct ComparedSide {
    /// Its name for people.
    pub(super) who: String,
    /// The process; `None`: there is none.
    pub(super) pid: Option<u32>,
    /// Its user, as the caller sees him.
    user: u32,
    /// The users with whom it shares memory, by the numbers of its user namespace, and the place.
    pub(super) admitted: Admitted,
    /// Where its configuration is.
    file: String,
}

/// Judges processes of `with`: of the one and the other, or of the caller and the one.
pub(super) fn judge(with: &[String]) -> Finding {
    let sides: Vec<ComparedSide> = with.iter().map(|who| side(who)).collect::<Result<_, _>>()?;
    match <[ComparedSide; 2]>::try_from(sides) {
        Ok([one, other]) => compare(&one, &other),
        Err(sides) => {
            let own = of_user(rustix::process::geteuid().as_raw())?;
            sides
                .first()
                .map_or_else(|| Err("nobody is named".to_owned()), |one| compare(&own, one))
        }
    }
}

fn side(who: &str) -> Result<ComparedSide, String> {
    match (who.parse(), who.strip_prefix("uid:")) {
        (Ok(pid), _) => of_process(pid),
        (_, Some(number)) => {
            let number = number.parse().map_err(|_| format!("{who}: not a user's number"));
            of_user(number?)
        }
        _ => of_user(user_number(who)?),
    }
}

/// A process of that user, which would read the configuration that the caller's read.
fn of_user(user: u32) -> Result<ComparedSide, String> {
    let config = Config::load().map_err(|error| error.to_string())?;
    let file = config.rules_file.as_ref().map(|file| file.display().to_string());
    let users = Some(config.allowed_users().collect());
    let folder = config.folder().map(Path::to_owned);
    let admitted = Admitted { started_as: user, users, folder };
    let who = format!("a program of {}", name(user));
    Ok(ComparedSide {
        who,
        pid: None,
        user,
        admitted,
        file: file.unwrap_or(SYSTEM_FILE.to_owned()),
    })
}

fn of_process(pid: u32) -> Result<ComparedSide, String> {
    let found = registry::read_published().processes.into_iter().find(|one| one.pid == pid);
    let process = found.ok_or_else(|| {
        format!("process {pid} does not run under the shim, or is another user's: sanctl why {pid} tells; a user without a name is given as uid:{pid}")
    })?;
    let user = effective_user(pid).unwrap_or(process.uid);
    let who = format!("{} (pid {pid}) of {}", printable(&process.program), name(user));
    let file = rules_file(pid).unwrap_or_else(|| SYSTEM_FILE.to_owned());
    Ok(ComparedSide { who, pid: Some(pid), user, admitted: process.admitted, file })
}

fn effective_user(pid: u32) -> Option<u32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

/// The one that its environment names.
fn rules_file(pid: u32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut entries = environment.split(|&byte| byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(b"SANSHIM_CONFIG="))?;
    Some(printable(&String::from_utf8_lossy(value))).filter(|file| !file.is_empty())
}

fn name(user: u32) -> String {
    user_name(user)
        .map_or_else(|| format!("user {user}"), |name| format!("user {}", printable(&name)))
}

/// What a side lacks to share memory with the other one.
enum Lacks {
    Nothing,
    /// Nothing for connections that come in where the other one listened while it was root's.
    MaybeNothing(u32),
    /// That it allows this user, by the number that he has there.
    User(u32),
}

fn compare(one: &ComparedSide, other: &ComparedSide) -> Finding {
    let both = format!("{} and {}", one.who, other.who);
    meet(one, other, &both)?;
    let (first, second) = (lacks(one, other)?, lacks(other, one)?);
    let line = |side: &ComparedSide, users: &[u32]| {
        let users: Vec<_> = users.iter().map(|user| entry(side, *user)).collect();
        let known = side.admitted.users.as_ref().is_some_and(|users| !users.is_empty());
        let beside = if known { ", beside those that it names," } else { "" };
        format!("allow_users = [{}]{beside} in {}", users.join(", "), side.file)
    };
    let apart = |lines: String, changed: &[&ComparedSide]| {
        let running: Vec<_> = changed.iter().filter(|side| side.pid.is_some()).collect();
        let restart: Vec<_> = running.iter().map(|side| side.who.as_str()).collect();
        let then = if restart.is_empty() { "" } else { ", and restart " };
        Err(format!("{both} share no memory: write {lines}{then}{}", restart.join(" and ")))
    };
    match (first, second) {
        (Lacks::Nothing, Lacks::Nothing) => Ok(format!("{both} share memory")),
        (Lacks::MaybeNothing(user), Lacks::Nothing) => Ok(maybe(&both, other, &line(one, &[user]))),
        (Lacks::Nothing, Lacks::MaybeNothing(user)) => Ok(maybe(&both, one, &line(other, &[user]))),
        (Lacks::User(user), Lacks::Nothing) => apart(line(one, &[user]), &[one]),
        (Lacks::Nothing, Lacks::User(user)) => apart(line(other, &[user]), &[other]),
        (
            Lacks::User(first) | Lacks::MaybeNothing(first),
            Lacks::User(second) | Lacks::MaybeNothing(second),
        ) => apart(
            match one.file == other.file {
                true => line(one, &[second, first]),
                false => format!("{} and {}", line(one, &[first]), line(other, &[second])),
            },
            &[one, other],
        ),
    }
}

fn maybe(both: &str, server: &ComparedSide, line: &str) -> String {
    format!(
        "{both} share memory on connections to where {} listened while it was root's; for the others write {line}",
        server.who
    )
}

/// What the host lacks to take the guest in.
fn lacks(host: &ComparedSide, guest: &ComparedSide) -> Result<Lacks, String> {
    let number = |user| {
        number_in(host, user).ok_or_else(|| {
            format!(
                "{} and {} share no memory: {} has no number in the user namespace of the first; map the user there",
                host.who,
                guest.who,
                name(guest.user)
            )
        })
    };
    let (own, seen) = (number(host.user)?, number(guest.user)?);
    if seen == 0 || seen == own || seen == host.admitted.started_as {
        return Ok(Lacks::Nothing);
    }
    let Some(users) = &host.admitted.users else {
        return Err(format!(
            "{} allows more users than it publishes; whether {} is among them its rules in {} say",
            host.who,
            name(guest.user),
            host.file
        ));
    };
    let was_root = guest.pid.is_some() && guest.admitted.started_as == 0;
    let same = host.pid.is_none() || registry::share_namespace("user", host.pid, guest.pid);
    match users.contains(&seen) {
        true => Ok(Lacks::Nothing),
        false if was_root && same => Ok(Lacks::MaybeNothing(seen)),
        false => Ok(Lacks::User(seen)),
    }
}

/// How the configuration of that side names a user.
fn entry(side: &ComparedSide, user: u32) -> String {
    let is_known = side.pid.is_none() || registry::share_namespace("user", side.pid, None);
    let name = is_known.then(|| user_name(user)).flatten();
    name.map_or_else(|| user.to_string(), |name| format!("\"{}\"", printable(&name)))
}

/// The number that the caller's user of this number has in the user namespace of a side.
fn number_in(side: &ComparedSide, user: u32) -> Option<u32> {
    let Some(pid) = side.pid else { return Some(user) };
    let Ok(map) = fs::read_to_string(format!("/proc/{pid}/uid_map")) else { return Some(user) };
    map.lines().find_map(|line| {
        let mut words = line.split_whitespace().map(str::parse::<u32>);
        let (there, here, count) = (words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?);
        let at = user.checked_sub(here).filter(|at| *at < count)?;
        there.checked_add(at)
    })
}
