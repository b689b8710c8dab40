//! A service unit as systemd reads it: its files in order, and the settings of their `[Service]` sections.

use std::fs;
use std::path::{Path, PathBuf};

/// Where units and their drop-ins lie, the first found counts.
const FOLDERS: [&str; 6] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "lib/systemd/system",
    "usr/lib/systemd/system",
    "run/systemd/generator",
];

/// A service unit.
#[derive(Debug, Default)]
pub(super) struct Unit {
    settings: Vec<Setting>,
}

/// One line of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) key: String,
    pub(super) value: String,
    /// `FILE:LINE`.
    pub(super) place: String,
}

impl Unit {
    /// The service `name`, with its `.service`, under the root folder; what the drop-in `without` says is left out.
    ///
    /// # Errors
    /// There is no such unit, it is masked, or a file of it cannot be read.
    pub(super) fn read(root: &Path, name: &str, without: &str) -> Result<Unit, String> {
        let names = [Some(name.to_owned()), template(name)];
        let file = names.iter().flatten().find_map(|name| {
            FOLDERS.iter().map(|folder| root.join(folder).join(name)).find(|path| path.exists())
        });
        let Some(file) = file else {
            let folders = FOLDERS.map(|folder| format!("/{folder}"));
            return Err(format!("there is no unit {name} in {}", folders.join(", ")));
        };
        if fs::metadata(&file).is_ok_and(|masked| masked.len() == 0) {
            let file = file.display();
            return Err(format!("{name} is masked ({file}): systemctl unmask {name} first"));
        }
        let mut unit = Unit::default();
        unit.add(&file)?;
        for drop_in in drop_ins(root, name) {
            if drop_in.file_name().is_none_or(|file| file != without) {
                unit.add(&drop_in)?;
            }
        }
        Ok(unit)
    }

    fn add(&mut self, file: &Path) -> Result<(), String> {
        let text =
            fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        for setting in parse(&text, &file.display().to_string()) {
            // An empty value takes back all before it.
            if setting.value.is_empty() {
                self.settings.retain(|one| one.key != setting.key);
            } else {
                self.settings.push(setting);
            }
        }
        Ok(())
    }

    /// All values of a setting, in order.
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Setting> {
        self.settings.iter().filter(move |setting| setting.key == key)
    }

    /// Of one that has a single value.
    pub(super) fn last(&self, key: &str) -> Option<&Setting> {
        self.settings.iter().rev().find(|setting| setting.key == key)
    }

    /// A setting that is yes or no, if it is yes; also one with another value that is not no.
    pub(super) fn on(&self, key: &str) -> Option<&Setting> {
        self.last(key).filter(|one| !matches!(one.value.as_str(), "no" | "false" | "off" | "0"))
    }

    /// The last value that Environment= has for a variable.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        let words = self.all("Environment").flat_map(|setting| words(&setting.value));
        let values =
            words.filter_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()));
        values.last()
    }
}

/// That of an instance: `getty@tty1.service` is of `getty@.service`.
fn template(name: &str) -> Option<String> {
    let (prefix, rest) = name.split_once('@')?;
    let (_, kind) = rest.rsplit_once('.')?;
    Some(format!("{prefix}@.{kind}"))
}

/// The drop-ins of a unit, by their names; of those with the same name the first folder's.
fn drop_ins(root: &Path, name: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let names = [Some(name.to_owned()), template(name), Some("service".to_owned())];
    for name in names.into_iter().flatten() {
        for folder in FOLDERS {
            let folder = root.join(folder).join(format!("{name}.d"));
            for path in
                fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
            {
                let is_new = found.iter().all(|one| one.file_name() != path.file_name());
                if path.extension().is_some_and(|extension| extension == "conf") && is_new {
                    found.push(path);
                }
            }
        }
    }
    found.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    found
}

/// The settings of the `[Service]` section.
fn parse(text: &str, file: &str) -> Vec<Setting> {
    let (mut settings, mut is_service) = (Vec::new(), false);
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let line = line.trim();
        if line.starts_with(['#', ';']) || line.is_empty() {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_service = section == "Service";
            continue;
        }
        let mut whole = line.to_owned();
        while let Some(before) = whole.strip_suffix('\\') {
            let next = lines
                .by_ref()
                .map(|(_, line)| line.trim())
                .find(|line| !line.starts_with(['#', ';']));
            whole = format!("{before} {}", next.unwrap_or_default());
        }
        if let Some((key, value)) = whole.split_once('=').filter(|_| is_service) {
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            settings.push(Setting { key, value, place: format!("{file}:{}", number + 1) });
        }
    }
    settings
}

/// Words of a value, which quotes hold together.
pub(super) fn words(value: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in value.chars() {
        match (character, quote) {
            (_, Some(open)) if character == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (' ' | '\t', None) => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_comments_continuations_and_places_are_understood() {
        let text = "[Unit]\nUser=wrong\n[Service]\n# User=no\nUser=me\nSystemCallFilter=a \\\n; c\n  b\n[Install]\nX=1\n";
        let setting = |key: &str, value: &str, line| Setting {
            key: key.to_owned(),
            value: value.to_owned(),
            place: format!("f:{line}"),
        };
        let expected = [setting("User", "me", 5), setting("SystemCallFilter", "a  b", 6)];
        assert_eq!(parse(text, "f"), expected);
    }

    #[test]
    fn words_are_held_together_by_quotes() {
        assert_eq!(words(r#"A=1 "B=x y" 'C=" z'  D="e f"g"#), ["A=1", "B=x y", "C=\" z", "D=e fg"]);
    }

    #[test]
    fn an_instance_has_a_template() {
        assert_eq!(template("redis@a.service").as_deref(), Some("redis@.service"));
        assert_eq!(template("redis.service"), None);
    }
}
