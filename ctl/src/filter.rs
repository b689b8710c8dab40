//! Which processes and connections a command shows.

use clap::Args;
use sanshim_core::reason::Reason;
use sanshim_core::registry::{Connection, Process, Provider, State};

/// All of them, unless something is asked for.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Show only this process
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,

    /// Show only programs whose name contains this
    #[arg(long, value_name = "NAME")]
    pub(crate) program: Option<String>,

    /// Show only connections and listening sockets that have this port at one of their ends
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,

    /// Show only connections that are on TCP
    #[arg(long)]
    pub(crate) not_on_san: bool,
}

impl Filter {
    /// Leaves only what is asked for. If connections are chosen, a process without one goes too.
    pub(crate) fn apply(&self, processes: &mut Vec<Process>) {
        processes.retain(|process| self.pid.is_none_or(|pid| process.pid == pid));
        if let Some(name) = &self.program {
            processes.retain(|process| process.program.contains(name.as_str()));
        }
        if self.port.is_none() && !self.not_on_san {
            return;
        }
        for process in processes.iter_mut() {
            process.connections.retain(|connection| self.is_shown(connection));
        }
        processes.retain(|process| !process.connections.is_empty());
    }

    /// True if connections are chosen, and not only a process.
    pub(crate) fn chooses(&self) -> bool {
        self.program.is_some() || self.port.is_some() || self.not_on_san
    }

    fn is_shown(&self, connection: &Connection) -> bool {
        let ports = [connection.local.port(), connection.peer.port()];
        let is_on_tcp = connection.provider == Provider::Tcp && is_connection(connection);
        self.port.is_none_or(|port| ports.contains(&port)) && (!self.not_on_san || is_on_tcp)
    }
}

/// False for listening sockets, and for sockets that are not connected.
pub(crate) fn is_connection(connection: &Connection) -> bool {
    connection.state != State::Listen && connection.reason != Reason::NotConnected
}
