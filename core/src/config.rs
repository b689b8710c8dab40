//! Configuration: environment variables and a file of rules, read once when the library loads.
//!
//! Programs may later wipe their environment and change their user, so the library reads nothing here twice. This
//! module finds, checks and explains the configuration. Every error is one line that names the place, the bad value and
//! the remedy. It acts on none of it: it neither logs nor opens sockets.
//!
//! A setting has its field and its default here, its name and range in `file`, and its variable in `environment`.
//! `rule` has only the `[[rule]]` tables.

mod accounts;
mod environment;
mod error;
mod file;
mod mistake;
mod rule;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

pub use accounts::{user_name, user_number};
use environment::Environment;
pub use error::ConfigError;
use rule::Rule;
pub use rule::SocketRole;

/// The rules file of the whole machine.
const SYSTEM_FILE: &str = "/etc/sanshim.toml";
/// The rules file's name in a user's configuration folder.
const USER_FILE: &str = "sanshim.toml";

/// The configuration of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// If false, every connection stays on plain TCP.
    pub enabled: bool,
    /// What to log, in env_logger's filter syntax; `None` logs nothing.
    pub(crate) log: Option<String>,
    /// Absolute path of the file that the log is appended to. `None` is standard error.
    pub(crate) log_file: Option<PathBuf>,
    /// The file that the rules came from, if there was one.
    pub rules_file: Option<PathBuf>,
    /// Which providers may carry connections.
    pub(crate) providers: Providers,
    /// After how many transfers a connection goes to the SAN: 0 (at once) to 65536.
    pub(crate) move_after: u32,
    /// How long (µs) a waiting end looks at shared memory before it sleeps in the kernel, at most: 0 to 10000.
    pub(crate) spin_microseconds: u32,
    /// Settings of the shared-memory provider.
    pub(crate) shm: ShmConfig,
    /// Users whose processes may share memory with this one, besides our own user.
    allow_users: Vec<u32>,
    /// Members of groups whose processes may do so, as they were when this was read.
    allow_members: Vec<u32>,
    /// The folder in which the ends of a connection find each other, where that is not the host's shared memory: absolute, at
    /// most [`LONGEST_FOLDER`] bytes. Programs that name one folder may use the SAN across network namespaces.
    pub(crate) folder: Option<PathBuf>,
    /// The rules that concern this program, in the order of the file.
    rules: Vec<Rule>,
}

/// Which providers may carry connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Providers {
    /// Shared memory, with peers on this host.
    pub(crate) shm: bool,
    /// RDMA, with the peers that it reaches.
    pub(crate) verbs: bool,
    /// Shared memory with peers on this host, treated as if they were on another one. Takes the place of `verbs`. For
    /// tests.
    pub(crate) objects: bool,
}

/// Sizes of the shared-memory provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShmConfig {
    /// Message buffers per direction: a power of two, 8 to 64.
    pub(crate) message_buffers: u16,
    /// Bytes of a message buffer with its header: a multiple of 64, 256 to 65536.
    pub(crate) message_size: u32,
    /// Bytes of the send buffer per direction (A19): a power of two, 64 KiB to 64 MiB.
    pub(crate) send_buffer: u32,
    /// Most bytes of a message buffer after a resize (A9), in the range of `message_size`.
    pub(crate) largest_message_size: u32,
    /// Bytes of the send buffer that a direction changes to when it streams, in the range of `send_buffer`.
    pub(crate) largest_send_buffer: u32,
    /// The size from which on RDMA is used.
    pub(crate) rdma_threshold: RdmaThreshold,
    /// Which RDMA operations are used.
    pub(crate) rdma_operations: RdmaOperations,
    /// How control of a socket moves from one process to another.
    pub(crate) swap: Swap,
}

/// The size from which on a transfer may be RDMA (A2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RdmaThreshold {
    /// Where RDMA proves faster than messages. Each connection measures for itself.
    Measured,
    /// Messages carry everything.
    Never,
    /// So many bytes, without measuring: 1 to 2^30.
    Bytes(u32),
}

/// Which RDMA operations the shared-memory provider offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RdmaOperations {
    /// Only RDMA read. A receive that is interrupted then never waits for the peer.
    #[default]
    Read,
    /// Only RDMA write, as over a provider without RDMA read.
    Write,
    /// Both.
    Both,
}

/// How control of a shared socket moves from one process to another (D4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Swap {
    /// Only the token moves. The next process finds everything else in the same memory.
    #[default]
    HandOver,
    /// The session is suspended first, as over a provider whose connections belong to one process.
    Suspend,
}

impl Default for ShmConfig {
    fn default() -> Self {
        ShmConfig {
            message_buffers: 16,
            message_size: 1536,
            send_buffer: 1 << 20,
            largest_message_size: 16 << 10,
            largest_send_buffer: 4 << 20,
            rdma_threshold: RdmaThreshold::Never,
            rdma_operations: RdmaOperations::Read,
            swap: Swap::HandOver,
        }
    }
}

impl Default for Config {
    /// The configuration without any variable or file.
    fn default() -> Self {
        Config {
            enabled: true,
            log: None,
            log_file: None,
            rules_file: None,
            providers: Providers { shm: true, verbs: true, objects: false },
            move_after: 32,
            spin_microseconds: 50,
            shm: ShmConfig::default(),
            allow_users: Vec::new(),
            allow_members: Vec::new(),
            folder: None,
            rules: Vec::new(),
        }
    }
}

impl Config {
    /// Reads the environment and the first rules file there is: `$SANSHIM_CONFIG`,
    /// `$XDG_CONFIG_HOME/sanshim.toml`, `/etc/sanshim.toml`.
    ///
    /// # Errors
    /// The first value that is wrong, in one line.
    pub fn load() -> Result<Config, ConfigError> {
        Self::load_for(&program_name())
    }

    /// As [`load`](Self::load), with the rules for the given program.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn load_for(program: &[u8]) -> Result<Config, ConfigError> {
        let environment = Environment::of_process();
        Self::from_sources(&environment, Path::new(SYSTEM_FILE), program)
    }

    fn from_sources(
        environment: &Environment<'_>,
        system_file: &Path,
        program: &[u8],
    ) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        if let Some((path, text)) = file::find(environment, system_file)? {
            file::apply(&mut config, &path, &text, program)?;
            config.rules_file = Some(path);
        }
        environment.apply(&mut config)?;
        Ok(config)
    }

    /// False if every connection stays on plain TCP, because no provider may carry any.
    pub fn has_provider(&self) -> bool {
        self.providers.shm || self.providers.verbs || self.providers.objects
    }

    /// Users other than our own whose processes may share memory with this one, by their names or their groups.
    pub fn allowed_users(&self) -> impl Iterator<Item = u32> + '_ {
        self.allow_users.iter().chain(&self.allow_members).copied()
    }

    /// The folder in which the ends of a connection find each other, if it names one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Whether the rules let a connection use the SAN. The first rule that matches decides. If none does, it may. For
    /// [`SocketRole::Connect`] the address is the peer's, for [`SocketRole::Listen`] our own. An IPv4-mapped IPv6 address counts as
    /// the IPv4 address.
    pub(crate) fn allows(&self, role: SocketRole, address: &SocketAddr) -> bool {
        self.rules.iter().find(|rule| rule.matches(role, address)).is_none_or(|rule| rule.san)
    }
}

/// Most bytes of the folder's path: a socket in it has a name of at most 107.
pub(crate) const LONGEST_FOLDER: usize = 33;

/// The folder of that path. Or what to do about one that cannot be used.
fn folder(path: &Path) -> Result<PathBuf, String> {
    let bytes = path.as_os_str().as_bytes();
    if !path.is_absolute() || bytes.contains(&0) {
        Err("must be an absolute path".to_owned())
    } else if bytes.len() > LONGEST_FOLDER {
        Err(format!("has {} bytes: mount it at a path of at most {LONGEST_FOLDER}", bytes.len()))
    } else {
        Ok(path.to_owned())
    }
}

/// The providers of these names. `None` if no provider has one of them.
fn providers<'a>(names: impl Iterator<Item = &'a str>) -> Option<Providers> {
    let mut providers = Providers { shm: false, verbs: false, objects: false };
    for name in names {
        match name.trim() {
            "shm" => providers.shm = true,
            "verbs" => providers.verbs = true,
            "shm-objects" => providers.objects = true,
            _ => return None,
        }
    }
    Some(providers)
}

/// A line for each variable, and the rules file behind an empty one: a configuration, or one line that says what is wrong.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(text: &str) {
    let (variables, rules) = text.split_once("\n\n").unwrap_or((text, ""));
    let value = |name: &str| {
        let mut values =
            variables.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        values.next().map(OsString::from)
    };
    let mut config = Config::default();
    let environment = Environment::new(value);
    let read = file::apply(&mut config, Path::new("rules"), rules, b"redis-server")
        .and_then(|()| environment.apply(&mut config));
    match read {
        Ok(()) => {
            for address in ["127.0.0.1:6379", "[::1]:80", "[::ffff:10.0.0.1]:65535"] {
                let address = address.parse().unwrap_or_else(|_| ([0; 4], 0).into());
                let _ = config.allows(SocketRole::Connect, &address)
                    | config.allows(SocketRole::Listen, &address);
            }
        }
        Err(why) => assert_eq!(why.to_string().lines().count(), 1, "{why}"),
    }
}

/// The name by which rules and the registry know this program: the last part of its `argv[0]`.
///
/// It is not the executable's name, because one executable may serve several programs (busybox, redis-server).
pub(crate) fn program_name() -> Vec<u8> {
    let name = std::env::args_os().next().map(OsString::into_vec).unwrap_or_default();
    let start = name.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    if start < name.len() {
        return name[start..].to_vec();
    }
    let executable = std::env::current_exe().unwrap_or_default();
    executable.file_name().unwrap_or_default().as_bytes().to_vec()
}
