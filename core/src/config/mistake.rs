//! What to do about a line that the TOML reader refuses, where its own message does not say.

/// Names that stand before the first `[...]` line.
const AT_THE_TOP: [&str; 7] = [
    "enabled",
    "allow_users",
    "allow_groups",
    "folder",
    "providers",
    "move_after",
    "spin_microseconds",
];
/// Names that stand below `[shm]`.
pub(super) const OF_SHM: [&str; 8] = [
    "message_buffers",
    "message_size",
    "send_buffer",
    "largest_message_size",
    "largest_send_buffer",
    "rdma_threshold",
    "rdma_operations",
    "swap",
];
/// Names that stand below `[[rule]]`.
const OF_A_RULE: [&str; 5] = ["program", "role", "address", "port", "san"];
/// Names whose value is true or false.
const SWITCHES: [&str; 2] = ["enabled", "san"];

/// The remedy for a line, from what the reader says of it.
pub(super) fn remedy(message: &str, line: &str) -> String {
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(place) = unknown(&message).and_then(place_of) {
        return place;
    }
    match line.split_once('=') {
        Some((name, value)) if SWITCHES.contains(&name.trim()) && !is_boolean(value) => {
            "must be true or false".to_owned()
        }
        _ => message,
    }
}

/// The name that the reader does not know in its table.
fn unknown(message: &str) -> Option<&str> {
    message.strip_prefix("unknown field `")?.split('`').next()
}

/// Where a name belongs that is known, though not where it stands.
fn place_of(name: &str) -> Option<String> {
    let below = |table: &str| Some(format!("move {name} below {table}, where it belongs"));
    if AT_THE_TOP.contains(&name) {
        Some(format!("move {name} above the first [...] line, where it belongs"))
    } else if OF_SHM.contains(&name) {
        below("[shm]")
    } else if OF_A_RULE.contains(&name) {
        below("[[rule]]")
    } else {
        None
    }
}

fn is_boolean(value: &str) -> bool {
    let value = value.split('#').next().unwrap_or_default().trim();
    matches!(value, "true" | "false")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{file, Config};
    use std::path::Path;

    /// The names that the reader itself lists where it meets an unknown one.
    fn known(text: &str) -> Vec<String> {
        let read = file::apply(&mut Config::default(), Path::new("rules"), text, b"");
        let said = read.expect_err("an unknown name").to_string();
        let (_, list) = said.split_once("expected one of ").expect("a list");
        list.split(", ").map(|name| name.trim_matches('`').to_owned()).collect()
    }

    #[test]
    fn every_name_of_a_table_has_its_place() {
        let tables = ["shm".to_owned(), "rule".to_owned()];
        let top: Vec<_> = AT_THE_TOP.iter().map(|&name| name.to_owned()).chain(tables).collect();
        assert_eq!(known("frob = 1"), top);
        assert_eq!(known("[shm]\nfrob = 1"), OF_SHM);
        assert_eq!(known("[[rule]]\nfrob = 1"), OF_A_RULE);
    }
}
