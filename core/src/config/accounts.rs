//! Users and groups by name or number, and a group's members, as /etc/passwd and /etc/group have them.
//!
//! getpwnam and getgrnam would load libraries and talk to services, which a library must not do while it is being
//! loaded.

use std::fs;

const PASSWORD_FILE: &str = "/etc/passwd";
const GROUP_FILE: &str = "/etc/group";
/// So many members of a group are taken at most. Each costs a look when a connection looks for its other end.
const MOST_MEMBERS: usize = 1024;

/// A user or a group, as the configuration names one.
#[derive(Clone, Debug)]
pub(super) enum Account {
    Name(String),
    Number(i64),
}

impl Account {
    /// One of a list in a variable: digits alone are a number.
    pub(super) fn of_text(text: &str) -> Account {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number with too many digits belongs to no user.
        let number = is_number.then(|| text.parse().unwrap_or(i64::MAX));
        number.map_or_else(|| Account::Name(text.to_owned()), Account::Number)
    }

    /// The number of the user.
    ///
    /// # Errors
    /// What is wrong with it and what to write instead.
    pub(super) fn user(&self) -> Result<u32, String> {
        match self {
            Account::Number(number) => {
                valid(*number).ok_or_else(|| format!("{number} is no user's number"))
            }
            Account::Name(name) => number_of(&read(PASSWORD_FILE), name).ok_or_else(|| {
                format!("no user {name:?} in {PASSWORD_FILE}; use the user's number (id -u)")
            }),
        }
    }

    /// The numbers of a group's members: users whose own group it is, and those that it names.
    ///
    /// # Errors
    /// What is wrong with it and what to write instead.
    pub(super) fn members(&self) -> Result<Vec<u32>, String> {
        self.members_by(&read(PASSWORD_FILE), &read(GROUP_FILE))
    }

    fn members_by(&self, users: &str, groups: &str) -> Result<Vec<u32>, String> {
        let group = match self {
            Account::Number(number) => {
                valid(*number).ok_or_else(|| format!("{number} is no group's number"))?
            }
            Account::Name(name) => number_of(groups, name).ok_or_else(|| {
                format!(
                    "no group {name:?} in {GROUP_FILE}; use the group's number (getent group), and allow_users for \
                     members that {PASSWORD_FILE} does not have"
                )
            })?,
        };
        let is_it = |number: &str| number.parse() == Ok(group);
        // The number of a member that has no line is not known.
        let named = lines(groups)
            .filter(|fields| fields.get(2).is_some_and(|number| is_it(number)))
            .flat_map(|fields| fields.get(3).map_or("", |names| names).split(','))
            .filter_map(|name| number_of(users, name.trim()));
        let own = lines(users)
            .filter(|fields| fields.get(3).is_some_and(|number| is_it(number)))
            .filter_map(|fields| fields.get(2)?.parse().ok());
        let mut members: Vec<u32> = own.chain(named).filter(|uid| *uid != u32::MAX).collect();
        members.sort_unstable();
        members.dedup();
        match members.len() {
            0..=MOST_MEMBERS => Ok(members),
            many => Err(format!(
                "the group has {many} members, of at most {MOST_MEMBERS}; name users in allow_users, or a smaller group"
            )),
        }
    }
}

/// The number of the user of that name.
///
/// # Errors
/// What to write instead.
pub fn user_number(name: &str) -> Result<u32, String> {
    Account::Name(name.to_owned()).user()
}

/// The name of the user of that number. `None` if /etc/passwd has none.
pub fn user_name(number: u32) -> Option<String> {
    let users = read(PASSWORD_FILE);
    let is_it = |fields: &Vec<&str>| fields.get(2).is_some_and(|text| text.parse() == Ok(number));
    let found = lines(&users).find(is_it)?;
    found.first().map(|name| (*name).to_owned()).filter(|name| !name.is_empty())
}

/// To the kernel the highest number means "nobody".
fn valid(number: i64) -> Option<u32> {
    u32::try_from(number).ok().filter(|&number| number != u32::MAX)
}

fn read(path: &str) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

fn lines(file: &str) -> impl Iterator<Item = Vec<&str>> {
    file.lines().map(|line| line.split(':').collect())
}

/// The third field of the line that begins with that name.
fn number_of(file: &str, name: &str) -> Option<u32> {
    let found = lines(file).find(|fields| fields.first() == Some(&name));
    found.filter(|_| !name.is_empty())?.get(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0::/root:/bin/sh\nann:x:1000:100::/:\nbob:x:1001:100::/:\n\
                         www:x:33:33::/:\nbroken\neve:x:x:100::/:\n";
    const GROUPS: &str = "root:x:0:\nusers:x:100:\nweb:x:33:ann, gone,bob\nweb2:x:33:root\nnone:x:7:\nbroken\n:x:8:\n";

    fn members(group: Account) -> Result<Vec<u32>, String> {
        group.members_by(USERS, GROUPS)
    }

    #[test]
    fn a_group_has_those_whose_own_it_is_and_those_it_names() {
        let named = |name: &str| members(Account::Name(name.to_owned())).unwrap();
        assert_eq!(named("users"), [1000, 1001]);
        // Two names of one group; one member has no line.
        assert_eq!(named("web"), [0, 33, 1000, 1001]);
        assert_eq!(named("none"), []);
        assert_eq!(members(Account::Number(100)), Ok(vec![1000, 1001]));
        // Its members may be anywhere else.
        assert_eq!(members(Account::Number(4711)), Ok(vec![]));
    }

    #[test]
    fn a_wrong_group_is_named() {
        for (group, expected) in [
            (
                Account::Name("webb".to_owned()),
                "no group \"webb\" in /etc/group; use the group's number",
            ),
            (Account::Name(String::new()), "no group \"\" in /etc/group"),
            (Account::Name("broken".to_owned()), "no group \"broken\""),
            (Account::Number(-1), "-1 is no group's number"),
            (Account::Number(u32::MAX.into()), "4294967295 is no group's number"),
        ] {
            let why = members(group).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
        let many: String = (0..=MOST_MEMBERS).map(|n| format!("u{n}:x:{n}:5::/:\n")).collect();
        let why = Account::Number(5).members_by(&many, "").unwrap_err();
        assert!(why.contains("has 1025 members, of at most 1024"), "{why}");
    }

    #[test]
    fn digits_are_a_number() {
        assert!(matches!(Account::of_text("1000"), Account::Number(1000)));
        assert!(matches!(Account::of_text("99999999999999999999"), Account::Number(i64::MAX)));
        for name in ["", "-1", "www-data", "7z"] {
            assert!(matches!(Account::of_text(name), Account::Name(text) if text == name));
        }
    }
}
