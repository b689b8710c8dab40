//! The rules file, which is TOML. The reader refuses unknown names, and checks every value.

use std::io::{self, ErrorKind, Read};
use std::ops::RangeInclusive;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use serde::de::{self, Deserializer, Visitor};
use serde::Deserialize;
use toml::Spanned;

use super::accounts::Account;
use super::environment::Environment;
use super::error::ConfigError;
use super::mistake;
use super::rule::{is_program, parse_network, Roles, Rule};
use super::{Config, RdmaOperations, RdmaThreshold, ShmConfig, Swap, USER_FILE};
use crate::sys::process;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Document {
    enabled: Option<bool>,
    allow_users: Vec<Spanned<User>>,
    allow_groups: Vec<Spanned<Group>>,
    folder: Option<Spanned<PathBuf>>,
    providers: Option<Spanned<Vec<String>>>,
    move_after: Option<Spanned<i64>>,
    spin_microseconds: Option<Spanned<i64>>,
    shm: ShmTable,
    rule: Vec<RuleTable>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ShmTable {
    message_buffers: Option<Spanned<i64>>,
    message_size: Option<Spanned<i64>>,
    send_buffer: Option<Spanned<i64>>,
    largest_message_size: Option<Spanned<i64>>,
    largest_send_buffer: Option<Spanned<i64>>,
    rdma_threshold: Option<Spanned<Threshold>>,
    rdma_operations: Option<RdmaOperations>,
    swap: Option<Swap>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    program: Option<String>,
    #[serde(default)]
    role: Roles,
    address: Option<Spanned<String>>,
    port: Option<Spanned<Port>>,
    san: bool,
}

/// A user's name or number.
struct User(Account);

/// A group's name or number.
struct Group(Account);

/// A port, or "first-last".
enum Port {
    One(i64),
    Range(String),
}

/// A number of bytes, "measured" or "never".
enum Threshold {
    Bytes(i64),
    Word(String),
}

/// Declares how a type is read from a number or a string.
macro_rules! number_or_string {
    ($type:ident, $number:expr, $string:expr, $expected:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Value;
                impl Visitor<'_> for Value {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$type, E> {
                        Ok($number(number))
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        Ok($string(text.to_owned()))
                    }
                }
                deserializer.deserialize_any(Value)
            }
        }
    };
}

number_or_string!(
    User,
    |number| User(Account::Number(number)),
    |name| User(Account::Name(name)),
    "a user's name or number"
);
number_or_string!(
    Group,
    |number| Group(Account::Number(number)),
    |name| Group(Account::Name(name)),
    "a group's name or number"
);
number_or_string!(
    Threshold,
    Threshold::Bytes,
    Threshold::Word,
    "a number of bytes, \"measured\" or \"never\""
);
number_or_string!(Port, Port::One, Port::Range, "a port or a range like \"6000-6010\"");

/// The first rules file that exists, with its text.
pub(super) fn find(
    environment: &Environment<'_>,
    system_file: &Path,
) -> Result<Option<(PathBuf, String)>, ConfigError> {
    if let Some(path) = environment.path("SANSHIM_CONFIG") {
        let remedy = "correct or unset SANSHIM_CONFIG";
        return match fs::File::open(&path).and_then(text_of) {
            Ok(text) => Ok(Some((path, text))),
            Err(source) => Err(ConfigError::File { path, source, remedy }),
        };
    }
    let home_folder = || environment.path("HOME").map(|home| home.join(".config"));
    let user_folder = environment.path("XDG_CONFIG_HOME").or_else(home_folder);
    // The XDG base directory specification says that a relative path is to be ignored.
    let user_file =
        user_folder.filter(|folder| folder.is_absolute()).map(|folder| folder.join(USER_FILE));
    for path in user_file.into_iter().chain([system_file.to_owned()]) {
        match open_unnamed(&path).and_then(|file| file.map(text_of).transpose()) {
            Ok(Some(text)) => return Ok(Some((path, text))),
            // Another user could have himself allowed there.
            Ok(None) => {}
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            // HOME may be another user's, as under sudo and su.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && path != system_file => {}
            Err(source) => {
                let remedy = "make it a readable text file, or remove it";
                return Err(ConfigError::File { path, source, remedy });
            }
        }
    }
    Ok(None)
}

/// Opens a rules file that no variable named: it has to be a file, and belong to this user or root. `None` if it is
/// another user's.
fn open_unnamed(path: &Path) -> io::Result<Option<fs::File>> {
    // A pipe would make the program wait.
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    if found.is_dir() || found.is_file() {
        let is_trusted = [0, process::euid()].contains(&found.uid());
        Ok(Some(file).filter(|_| is_trusted))
    } else {
        Err(io::Error::other("is no file"))
    }
}

/// What an open rules file says.
fn text_of(mut file: fs::File) -> io::Result<String> {
    let found = file.metadata()?;
    if found.is_file() && found.mode() & 0o002 != 0 {
        return Err(io::Error::other("every user may write to it"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map(|_| text)
}

/// Puts what a rules file says into `config`.
pub(super) fn apply(
    config: &mut Config,
    path: &Path,
    text: &str,
    program: &[u8],
) -> Result<(), ConfigError> {
    let source = Source { path, text };
    let document: Document = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let remedy = mistake::remedy(error.message(), source.line(start).1);
        source.error(start, remedy)
    })?;
    config.enabled = document.enabled.unwrap_or(config.enabled);

    let (after, spin) = (&mut config.move_after, &mut config.spin_microseconds);
    source.number(after, document.move_after, 0..=65_536, Step::Multiple(1))?;
    source.number(spin, document.spin_microseconds, 0..=10_000, Step::Multiple(1))?;
    source.shm(&mut config.shm, document.shm)?;
    if let Some(names) = &document.providers {
        let known = super::providers(names.get_ref().iter().map(String::as_str));
        config.providers = known.ok_or_else(|| {
            source.error(names.span().start, "must be a list of \"shm\" and \"verbs\"".to_owned())
        })?;
    }
    for user in &document.allow_users {
        let id = user.get_ref().0.user();
        config.allow_users.push(id.map_err(|remedy| source.error(user.span().start, remedy))?);
    }
    for group in &document.allow_groups {
        let members = group.get_ref().0.members();
        let members = members.map_err(|remedy| source.error(group.span().start, remedy))?;
        config.allow_members.extend(members);
    }
    if let Some(path) = &document.folder {
        let folder = super::folder(path.get_ref());
        config.folder = Some(folder.map_err(|remedy| source.error(path.span().start, remedy))?);
    }
    for table in document.rule {
        // A rule for another program is checked too, so that a mistake shows at once.
        let concerned = table.program.as_ref().is_none_or(|pattern| is_program(pattern, program));
        let rule = source.rule(table)?;
        if concerned {
            config.rules.push(rule);
        }
    }
    Ok(())
}

/// Which numbers of a range are allowed.
#[derive(Clone, Copy)]
enum Step {
    Multiple(i64),
    PowerOfTwo,
}

/// A file's text, kept to say where a mistake is.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    /// The line with the byte `start`, and its number, from 1.
    fn line(&self, start: usize) -> (usize, &str) {
        let before = self.text.get(..start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        (line, self.text.lines().nth(line - 1).unwrap_or_default())
    }

    fn error(&self, start: usize, remedy: String) -> ConfigError {
        let (line, text) = self.line(start);
        ConfigError::Line { path: self.path.to_owned(), line, text: text.to_owned(), remedy }
    }

    /// Stores a number if the file has it and it is allowed.
    fn number<T: TryFrom<i64>>(
        &self,
        target: &mut T,
        value: Option<Spanned<i64>>,
        range: RangeInclusive<i64>,
        step: Step,
    ) -> Result<(), ConfigError> {
        let Some(value) = value else { return Ok(()) };
        let number = *value.get_ref();
        let (fits, kind) = match step {
            Step::Multiple(1) => (true, String::new()),
            Step::Multiple(step) => (number % step == 0, format!("a multiple of {step}, ")),
            Step::PowerOfTwo => (number.count_ones() == 1, "a power of two, ".to_owned()),
        };
        match T::try_from(number) {
            Ok(number_of_type) if fits && range.contains(&number) => {
                *target = number_of_type;
                Ok(())
            }
            _ => {
                let (first, last) = range.into_inner();
                let remedy = format!("must be {kind}{first} to {last}");
                Err(self.error(value.span().start, remedy))
            }
        }
    }

    /// Applies what the file says of shared memory.
    fn shm(&self, shm: &mut ShmConfig, table: ShmTable) -> Result<(), ConfigError> {
        self.number(&mut shm.message_buffers, table.message_buffers, 8..=64, Step::PowerOfTwo)?;
        self.number(&mut shm.message_size, table.message_size, 256..=65536, Step::Multiple(64))?;
        let send_buffer = 64 << 10..=64 << 20;
        self.number(
            &mut shm.send_buffer,
            table.send_buffer,
            send_buffer.clone(),
            Step::PowerOfTwo,
        )?;
        let (size, buffer) = (&mut shm.largest_message_size, &mut shm.largest_send_buffer);
        self.number(size, table.largest_message_size, 256..=65536, Step::Multiple(64))?;
        self.number(buffer, table.largest_send_buffer, send_buffer, Step::PowerOfTwo)?;
        if let Some(threshold) = &table.rdma_threshold {
            shm.rdma_threshold = rdma_threshold(threshold.get_ref()).ok_or_else(|| {
                let remedy = "must be \"measured\", \"never\", or bytes, 1 to 1073741824";
                self.error(threshold.span().start, remedy.to_owned())
            })?;
        }
        shm.rdma_operations = table.rdma_operations.unwrap_or(shm.rdma_operations);
        shm.swap = table.swap.unwrap_or(shm.swap);
        Ok(())
    }

    fn rule(&self, table: RuleTable) -> Result<Rule, ConfigError> {
        let network = match &table.address {
            Some(address) => Some(
                parse_network(address.get_ref())
                    .map_err(|remedy| self.error(address.span().start, remedy))?,
            ),
            None => None,
        };
        let ports = match &table.port {
            Some(port) => Some(ports(port.get_ref()).ok_or_else(|| {
                let remedy = "must be a port, 1 to 65535, or a range like \"6000-6010\"";
                self.error(port.span().start, remedy.to_owned())
            })?),
            None => None,
        };
        Ok(Rule { roles: table.role, network, ports, san: table.san })
    }
}

fn rdma_threshold(threshold: &Threshold) -> Option<RdmaThreshold> {
    match threshold {
        Threshold::Word(word) if word == "measured" => Some(RdmaThreshold::Measured),
        Threshold::Word(word) if word == "never" => Some(RdmaThreshold::Never),
        Threshold::Word(_) => None,
        Threshold::Bytes(bytes) => {
            let bytes = u32::try_from(*bytes).ok()?;
            (1..=1 << 30).contains(&bytes).then_some(RdmaThreshold::Bytes(bytes))
        }
    }
}

fn ports(port: &Port) -> Option<RangeInclusive<u16>> {
    let range = match port {
        Port::One(port) => u16::try_from(*port).ok().map(|port| port..=port)?,
        Port::Range(text) => {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            first.trim().parse().ok()?..=last.trim().parse().ok()?
        }
    };
    (*range.start() > 0 && !range.is_empty()).then_some(range)
}
