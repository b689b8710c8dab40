//! Finds the process that has the other end of a connection.

use sanshim_core::registry::{owner_of, Connection, Ends, Process, Provider, Translations};

use super::outside::has_loaded_the_shim;
use crate::output::printable;
use crate::who::who;

/// Describes it in one sentence. A process under the shim says it itself. Of any other the kernel does.
pub(super) fn describe(near: &Process, one: &Connection, all: &[Process]) -> String {
    let ends = Ends::of(all);
    let behind = || ends.translated(&Translations::read(all), one);
    if let Some((at, number)) = ends.other_end(near.network, one).or_else(behind) {
        let (process, found) = (&all[at], &all[at].connections[number]);
        let (who, fd, why) = (who(process), found.fd, found.reason.sentence());
        return format!("{who}, descriptor {fd}, under the shim. Its own account: {why}.");
    }
    match owner_of(near.pid, one.peer, one.local) {
        Some(owner) => {
            let (name, pid, fd) = (printable(&owner.program), owner.pid, owner.fd);
            let how = match has_loaded_the_shim(pid) {
                Ok(true) => format!("which has the shim and publishes nothing: sanctl why {pid}"),
                _ => "without the shim".to_owned(),
            };
            format!("{name} (pid {pid}), descriptor {fd}, {how}.")
        }
        None if one.provider == Provider::Verbs => "on another host, under the shim.".to_owned(),
        None => {
            "in no process that can be looked at from here: on another host, another user's, in \
                 another network namespace, or not accepted yet."
                .to_owned()
        }
    }
}
