//! The environment variables.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::accounts::Account;
use super::error::ConfigError;
use super::mistake::OF_SHM;
use super::Config;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

type Lookup<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// Where variables are looked up. An empty one counts as unset.
pub(super) struct Environment<'a> {
    variable: Box<Lookup<'a>>,
}

impl<'a> Environment<'a> {
    /// This process's environment. It counts as empty in a program that runs with more rights than its caller has
    /// (setuid), because the caller chose it.
    pub(super) fn of_process() -> Environment<'static> {
        // SAFETY: reads a number from the auxiliary vector.
        let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        Environment::new(move |name| std::env::var_os(name).filter(|_| !secure))
    }

    pub(super) fn new(variable: impl Fn(&str) -> Option<OsString> + 'a) -> Environment<'a> {
        Environment { variable: Box::new(variable) }
    }

    fn get(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// A variable that holds a path.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from)
    }

    /// Applies the variables, which override what the file said.
    pub(super) fn apply(&self, config: &mut Config) -> Result<(), ConfigError> {
        self.refuse_names_of_the_file()?;
        if let Some(value) = self.get("SANSHIM") {
            config.enabled = match value.to_str() {
                Some("on") => true,
                Some("off") => false,
                _ => return Err(wrong("SANSHIM", value, "must be on or off")),
            };
        }
        if let Some(value) = self.get("SANSHIM_PROVIDERS") {
            let wrong = |remedy| wrong("SANSHIM_PROVIDERS", value.clone(), remedy);
            let text = value.to_str().ok_or_else(|| wrong("is not UTF-8"))?;
            config.providers = super::providers(text.split(','))
                .ok_or_else(|| wrong("must be of shm and verbs, separated by a comma"))?;
        }
        if let Some(value) = self.get("SANSHIM_MOVE_AFTER") {
            let number = value.to_str().and_then(|text| text.parse().ok());
            config.move_after = number
                .filter(|after| *after <= 65_536)
                .ok_or_else(|| wrong("SANSHIM_MOVE_AFTER", value, "must be 0 to 65536"))?;
        }
        if let Some(users) = self.accounts("SANSHIM_ALLOW_USERS", Account::user)? {
            config.allow_users = users;
        }
        if let Some(members) = self.accounts("SANSHIM_ALLOW_GROUPS", Account::members)? {
            config.allow_members = members.concat();
        }
        if let Some(value) = self.get("SANSHIM_FOLDER") {
            let folder = super::folder(Path::new(&value));
            config.folder = Some(folder.map_err(|remedy| wrong("SANSHIM_FOLDER", value, remedy))?);
        }
        if let Some(value) = self.get("SANSHIM_LOG") {
            match value.to_str().map(check_filter) {
                Some(Ok(())) => config.log = value.into_string().ok(),
                Some(Err(remedy)) => return Err(wrong("SANSHIM_LOG", value, remedy)),
                None => return Err(wrong("SANSHIM_LOG", value, "is not UTF-8")),
            }
        }
        if let Some(path) = self.path("SANSHIM_LOG_FILE") {
            // Because the program may change its working folder before the file is opened again.
            let absolute = std::path::absolute(&path);
            config.log_file = Some(absolute.unwrap_or(path));
        }
        Ok(())
    }

    /// Some names of the rules file have no variable. A user who sets one all the same is to hear of that.
    fn refuse_names_of_the_file(&self) -> Result<(), ConfigError> {
        for name in ["enabled", "spin_microseconds"].into_iter().chain(OF_SHM) {
            let variable = format!("SANSHIM_{}", name.to_uppercase());
            if let Some(value) = self.get(&variable) {
                let remedy =
                    format!("is no variable; set {name} in a file that SANSHIM_CONFIG names");
                return Err(wrong(variable, value, remedy));
            }
        }
        Ok(())
    }

    /// What a variable names, separated by commas.
    fn accounts<T>(
        &self,
        name: &'static str,
        look_up: impl Fn(&Account) -> Result<T, String>,
    ) -> Result<Option<Vec<T>>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = |remedy| wrong(name, value.clone(), remedy);
        let text = value.to_str().ok_or_else(|| wrong("is not UTF-8".to_owned()))?;
        let accounts = text.split(',').map(|one| Account::of_text(one.trim()));
        accounts.map(|one| look_up(&one).map_err(&wrong)).collect::<Result<_, _>>().map(Some)
    }
}

fn wrong(
    name: impl Into<String>,
    value: impl Into<OsString>,
    remedy: impl Into<String>,
) -> ConfigError {
    let value = value.into().to_string_lossy().into_owned();
    ConfigError::Variable { name: name.into(), value, remedy: remedy.into() }
}

/// Checks a filter in env_logger's syntax: levels, or target=level, separated by commas.
///
/// A bare word that is no level is refused. env_logger would take it for a target, so a misspelt level would silently
/// log everything or nothing.
fn check_filter(filter: &str) -> Result<(), String> {
    for part in filter.split(',').map(str::trim) {
        let level = part.split_once('=').map_or(part, |(_, level)| level).trim();
        if !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
            let levels = LEVELS.join(", ");
            return Err(format!("{level:?} is no level; use one of {levels}, or target=level"));
        }
    }
    Ok(())
}
