//! The configuration as a whole: precedence, defaults, and one clear line for each mistake.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::provider::shm::Geometry;

/// A folder for rules files that is removed at the end of a test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sanshim-config-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("mkdir");
        Folder(path)
    }

    /// Writes a file and returns its path as text.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
        fs::write(&path, text).expect("write");
        path.to_str().expect("text").to_owned()
    }

    /// Loads the configuration with these variables. The system file is `system.toml` here.
    fn load(&self, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        let environment = Environment::new(|name| variables.get(name).map(OsString::from));
        Config::from_sources(&environment, &self.0.join("system.toml"), b"redis-server")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn load_text(text: &str) -> Result<Config, ConfigError> {
    let folder = Folder::new();
    let path = folder.write("rules.toml", text);
    folder.load(&[("SANSHIM_CONFIG", &path)])
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

#[test]
fn nothing_set_is_the_default() {
    let config = Folder::new().load(&[]).expect("valid");
    assert_eq!(config, Config::default());
    assert!(config.enabled);
    assert_eq!((config.shm.message_buffers, config.shm.message_size), (16, 1536));
    assert_eq!(config.shm.send_buffer, 1_048_576);
    assert!(config.allows(SocketRole::Connect, &address("127.0.0.1:1")));
}

#[test]
fn an_empty_file_and_empty_variables_are_the_default() {
    let folder = Folder::new();
    folder.write("system.toml", "");
    let names = ["SANSHIM", "SANSHIM_LOG", "SANSHIM_LOG_FILE", "SANSHIM_CONFIG", "HOME"];
    let config = folder.load(&names.map(|name| (name, ""))).expect("valid");
    let expected = Config { rules_file: Some(folder.0.join("system.toml")), ..Config::default() };
    assert_eq!(config, expected);
}

#[test]
fn a_folder_to_meet_in_is_absolute_and_short() {
    let folder = |path: &str| Folder::new().load(&[("SANSHIM_FOLDER", path)]);
    let longest = format!("/{}", "a".repeat(32));
    for path in ["/run/san", &longest] {
        assert_eq!(folder(path).expect("valid").folder, Some(path.into()));
    }
    assert_eq!(Folder::new().load(&[]).expect("valid").folder, None);
    let error = |path: &str| folder(path).expect_err("refused").to_string();
    assert!(error("run/san").contains("must be an absolute path"));
    let long = error(&format!("{longest}b"));
    assert!(long.contains("has 34 bytes: mount it at a path of at most 33"), "{long}");
    let config = load_text("folder = \"/run/san\"").expect("valid");
    assert_eq!(config.folder, Some("/run/san".into()));
    let error = load_text("# where\nfolder = \"san\"").expect_err("refused").to_string();
    assert!(error.contains("line 2") && error.contains("must be an absolute path"), "{error}");
}

#[test]
fn everything_set_is_read() {
    let folder = Folder::new();
    let path = folder.write(
        "rules.toml",
        r#"
        enabled = false
        allow_users = ["root", 1000, "nobody"]
        allow_groups = ["nogroup", 4711]
        spin_microseconds = 0
        move_after = 7
        [shm]
        message_buffers = 64
        message_size = 4096
        send_buffer = 65536
        "#,
    );
    let config = folder
        .load(&[
            ("SANSHIM_CONFIG", &path),
            ("SANSHIM", "on"),
            ("SANSHIM_LOG", "warn, sanshim_core::switch=trace"),
            ("SANSHIM_LOG_FILE", "some.log"),
        ])
        .expect("valid");
    assert!(config.enabled, "the variable wins over the file");
    assert_eq!(config.log.as_deref(), Some("warn, sanshim_core::switch=trace"));
    let here = std::env::current_dir().expect("a folder");
    assert_eq!(config.log_file, Some(here.join("some.log")));
    let allowed: Vec<u32> = config.allowed_users().collect();
    assert_eq!(allowed[..3], [0, 1000, 65534]);
    // It is the group of the last of them, which has more members on some machines.
    assert!(allowed[3..].contains(&65534), "{allowed:?}");
    let shm = ShmConfig {
        message_buffers: 64,
        message_size: 4096,
        send_buffer: 65536,
        ..ShmConfig::default()
    };
    assert_eq!(config.shm, shm);
    assert_eq!((config.spin_microseconds, config.move_after), (0, 7));
}

#[test]
#[allow(clippy::type_complexity, reason = "a table of cases")]
fn the_first_file_found_is_the_only_one() {
    let folder = Folder::new();
    let named = folder.write("named.toml", "[shm]\nmessage_buffers = 8");
    folder.write("xdg/sanshim.toml", "[shm]\nmessage_buffers = 32");
    folder.write("home/.config/sanshim.toml", "[shm]\nmessage_buffers = 64");
    folder.write("system.toml", "[shm]\nmessage_buffers = 64\nmessage_size = 256");
    let path = |name: &str| folder.0.join(name).to_str().expect("text").to_owned();
    let (xdg, home, missing) = (path("xdg"), path("home"), path("missing"));
    let cases: [(&[(&str, &str)], (u16, u32)); 6] = [
        (&[("SANSHIM_CONFIG", &named), ("XDG_CONFIG_HOME", &xdg), ("HOME", &home)], (8, 1536)),
        (&[("XDG_CONFIG_HOME", &xdg), ("HOME", &home)], (32, 1536)),
        (&[("HOME", &home)], (64, 1536)),
        (&[("XDG_CONFIG_HOME", &missing), ("HOME", &home)], (64, 256)),
        (&[("XDG_CONFIG_HOME", "relative")], (64, 256)),
        (&[], (64, 256)),
    ];
    for (variables, expected) in cases {
        let config = folder.load(variables).expect("valid");
        // The sizes are those of one file. Two files are not mixed.
        let found = (config.shm.message_buffers, config.shm.message_size);
        assert_eq!(found, expected, "{variables:?}");
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let config = load_text(
        r#"
        [[rule]]
        program = "nginx"
        san = false
        [[rule]]
        program = "redis-*"
        role = "listen"
        port = 6379
        san = true
        [[rule]]
        role = "listen"
        port = "6000-7000"
        san = false
        [[rule]]
        role = "connect"
        address = "10.0.0.0/8"
        san = false
        [[rule]]
        address = "fd00::/8"
        port = "80"
        san = false
        "#,
    )
    .expect("valid");
    let cases = [
        (SocketRole::Listen, "127.0.0.1:6379", true),
        (SocketRole::Listen, "127.0.0.1:5999", true),
        (SocketRole::Listen, "127.0.0.1:6000", false),
        (SocketRole::Listen, "[::]:7000", false),
        (SocketRole::Connect, "127.0.0.1:7000", true),
        (SocketRole::Connect, "10.1.2.3:80", false),
        (SocketRole::Connect, "[::ffff:10.1.2.3]:80", false),
        (SocketRole::Connect, "11.1.2.3:80", true),
        (SocketRole::Listen, "10.1.2.3:80", true),
        (SocketRole::Connect, "[fd01::1]:80", false),
        (SocketRole::Listen, "[fd01::1]:80", false),
        (SocketRole::Listen, "[fd01::1]:81", true),
    ];
    for (role, text, expected) in cases {
        assert_eq!(config.allows(role, &address(text)), expected, "{role:?} {text}");
    }
}

#[test]
fn wrong_variables_are_named() {
    let folder = Folder::new();
    let cases = [
        ("SANSHIM", "yes", "SANSHIM=yes: must be on or off"),
        ("SANSHIM", "a\nb", "SANSHIM=a\\nb: must be on or off"),
        ("SANSHIM_SPIN_MICROSECONDS", "0", "set spin_microseconds in a file that SANSHIM_CONFIG"),
        ("SANSHIM_LOG", "debgu", "\"debgu\" is no level; use one of off, error, warn, info"),
        ("SANSHIM_LOG", "info,", "\"\" is no level"),
        ("SANSHIM_LOG", "core=loud", "\"loud\" is no level"),
        ("SANSHIM_ALLOW_USERS", "root,no-such-user", "no user \"no-such-user\" in /etc/passwd"),
        ("SANSHIM_ALLOW_USERS", "root,", "no user \"\" in /etc/passwd"),
        ("SANSHIM_ALLOW_USERS", "4294967295", "4294967295 is no user's number"),
        ("SANSHIM_ALLOW_GROUPS", "no-such-group", "no group \"no-such-group\" in /etc/group"),
        ("SANSHIM_CONFIG", "/missing.toml", "cannot read /missing.toml: No such file"),
        ("SANSHIM_CONFIG", "/missing.toml", "correct or unset SANSHIM_CONFIG"),
        ("SANSHIM_CONFIG", "/", "cannot read /: Is a directory"),
    ];
    for (name, value, expected) in cases {
        let error = folder.load(&[(name, value)]).expect_err(value).to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn wrong_lines_are_named() {
    let cases = [
        ("enable = true", 1, "enable = true: unknown field `enable`, expected one of `enabled`"),
        ("\nenabled = 1", 2, "enabled = 1: must be true or false"),
        ("enabled = tru", 1, "enabled = tru: must be true or false"),
        ("enabled = yes # now", 1, "must be true or false"),
        ("[[rule]]\nsan = \"no\"", 2, "san = \"no\": must be true or false"),
        ("x", 1, "x: "),
        ("[shm]\nmessage_buffers = 17", 2, "must be a power of two, 8 to 64"),
        ("[shm]\nmessage_buffers = 128", 2, "must be a power of two, 8 to 64"),
        ("[shm]\nmessage_buffers = -16", 2, "must be a power of two, 8 to 64"),
        ("[shm]\nmessage_size = 1000", 2, "must be a multiple of 64, 256 to 65536"),
        ("[shm]\nmessage_size = 64", 2, "must be a multiple of 64, 256 to 65536"),
        ("[shm]\nsend_buffer = 65537", 2, "must be a power of two, 65536 to 67108864"),
        ("[shm]\nsend_buffer = 9007199254740992", 2, "65536 to 67108864"),
        ("spin_microseconds = 10001", 1, "must be 0 to 10000"),
        ("spin_microseconds = -1", 1, "must be 0 to 10000"),
        ("move_after = 65537", 1, "must be 0 to 65536"),
        ("[shm]\nspin_microseconds = 5", 2, "move spin_microseconds above the first [...] line"),
        ("[shm]\nmove_after = 5", 2, "move move_after above the first [...] line"),
        ("message_size = 512", 1, "move message_size below [shm]"),
        ("san = false", 1, "move san below [[rule]]"),
        ("[[rule]]\nsan = true\nallow_users = [1]", 3, "move allow_users above the first [...]"),
        ("[shm]\nspin = 1", 2, "unknown field `spin`"),
        ("[shm]\nmessage_size = \"1536\"", 2, "expected i64"),
        ("allow_users = [\n\"nobody\",\n\"no-such-user\"]", 3, "use the user's number"),
        ("allow_users = [-1]", 1, "-1 is no user's number"),
        ("allow_users = [4294967295]", 1, "4294967295 is no user's number"),
        ("allow_users = [1.5]", 1, "expected a user's name or number"),
        ("allow_groups = [\n\"no-such-group\"]", 2, "no group \"no-such-group\" in /etc/group"),
        ("allow_groups = [4294967295]", 1, "4294967295 is no group's number"),
        ("allow_groups = [true]", 1, "expected a group's name or number"),
        ("allow_groups = \"users\"", 1, "expected a sequence"),
        ("[[rule]]\nport = 1", 1, "missing field `san`"),
        ("[[rule]]\nsan = true\nrole = \"server\"", 3, "unknown variant `server`"),
        ("[[rule]]\nsan = true\naddress = \"localhost\"", 3, "must be an address like"),
        ("[[rule]]\nsan = true\naddress = \"127.0.0.1/8\"", 3, "bits set behind the prefix"),
        ("[[rule]]\nsan = true\naddress = \"::/129\"", 3, "must be 0 to 128"),
        ("[[rule]]\nsan = true\nport = 0", 3, "must be a port, 1 to 65535"),
        ("[[rule]]\nsan = true\nport = 65536", 3, "must be a port, 1 to 65535"),
        ("[[rule]]\nsan = true\nport = \"7000-6000\"", 3, "or a range like"),
        ("[[rule]]\nsan = true\nport = \"http\"", 3, "or a range like"),
        ("[[rule]]\nsan = true\nport = true", 3, "expected a port or a range"),
        ("[[rule]]\nprogram = \"other\"\nsan = true\nport = 0", 4, "must be a port"),
        ("[rule]\nsan = true", 1, "expected a sequence"),
    ];
    for (text, line, expected) in cases {
        let error = load_text(text).expect_err(text).to_string();
        assert!(error.contains(&format!("rules.toml, line {line}: ")), "{text:?}: {error}");
        assert!(error.contains(expected), "{text:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn the_provider_takes_every_size_at_the_ends_of_the_ranges() {
    for buffers in [8, 64] {
        for size in [256, 65536] {
            for send_buffer in [65536, 67_108_864] {
                let text = format!(
                    "[shm]\nmessage_buffers = {buffers}\nmessage_size = {size}\n\
                     send_buffer = {send_buffer}"
                );
                let shm = load_text(&text).expect(&text).shm;
                let geometry = Geometry {
                    buffers: u32::from(shm.message_buffers),
                    message_size: shm.message_size,
                    send_buffer: shm.send_buffer,
                    largest_message: shm.largest_message_size.max(shm.message_size),
                    largest_send_buffer: shm.largest_send_buffer.max(shm.send_buffer),
                };
                assert_eq!(geometry.check(), Ok(geometry), "{text}");
            }
        }
    }
}

#[test]
fn rdma_is_chosen_by_words_or_bytes() {
    let threshold = |value: &str| {
        load_text(&format!("[shm]\nrdma_threshold = {value}")).map(|c| c.shm.rdma_threshold)
    };
    assert_eq!(threshold("\"measured\"").expect("valid"), RdmaThreshold::Measured);
    assert_eq!(threshold("\"never\"").expect("valid"), RdmaThreshold::Never);
    assert_eq!(threshold("65536").expect("valid"), RdmaThreshold::Bytes(65536));
    for wrong in ["0", "-1", "\"always\"", "1073741825"] {
        let error = threshold(wrong).expect_err(wrong).to_string();
        assert!(error.contains("must be \"measured\", \"never\", or bytes"), "{error}");
    }
    let both = load_text("[shm]\nrdma_operations = \"both\"").expect("valid").shm;
    assert_eq!(both.rdma_operations, RdmaOperations::Both);
    assert!(load_text("[shm]\nrdma_operations = \"none\"").is_err());
}

#[test]
fn control_moves_by_handing_over_unless_the_file_says_otherwise() {
    let swap = |text: &str| load_text(text).map(|config| config.shm.swap);
    assert_eq!(swap("").ok(), Some(Swap::HandOver));
    assert_eq!(swap("[shm]\nswap = \"hand-over\"").ok(), Some(Swap::HandOver));
    assert_eq!(swap("[shm]\nswap = \"suspend\"").ok(), Some(Swap::Suspend));
    assert!(swap("[shm]\nswap = \"never\"").is_err());
}

#[test]
fn a_file_that_is_no_text_is_named() {
    let folder = Folder::new();
    fs::write(folder.0.join("system.toml"), [0xff, 0xfe]).expect("write");
    let error = folder.load(&[]).expect_err("not UTF-8").to_string();
    assert!(error.contains("system.toml") && error.contains("readable text file"), "{error}");
}

#[test]
fn a_long_value_is_cut() {
    let long = "x".repeat(10_000);
    let error = Folder::new().load(&[("SANSHIM", &long)]).expect_err("wrong").to_string();
    assert!(error.len() < 200 && error.contains("must be on or off"), "{error}");
}

#[test]
fn the_variables_of_users_win_over_the_file_each_for_its_own_list() {
    let folder = Folder::new();
    let path = folder.write("rules.toml", "allow_users = [1, 2]\nallow_groups = [4711]");
    let allowed = |variables: &[(&str, &str)]| {
        let variables = [variables, &[("SANSHIM_CONFIG", path.as_str())]].concat();
        let config = folder.load(&variables).expect("valid");
        (config.allow_users, config.allow_members)
    };
    assert_eq!(allowed(&[]), (vec![1, 2], vec![]));
    assert_eq!(allowed(&[("SANSHIM_ALLOW_USERS", "root, 1000")]), (vec![0, 1000], vec![]));
    let (users, members) = allowed(&[("SANSHIM_ALLOW_GROUPS", "nogroup,4711")]);
    assert_eq!(users, [1, 2]);
    assert!(members.contains(&65534), "{members:?}");
}

#[test]
fn this_program_has_a_name() {
    let name = String::from_utf8(program_name()).expect("text");
    assert!(name.starts_with("sanshim_core-"), "{name}");
}

#[test]
fn providers_are_named_by_the_file_and_the_variable_wins() {
    let of = |text: &str| load_text(text).map(|config| config.providers);
    assert_eq!(of("").unwrap(), Providers { shm: true, verbs: true, objects: false });
    assert_eq!(
        of("providers = []").unwrap(),
        Providers { shm: false, verbs: false, objects: false }
    );
    assert_eq!(
        of("providers = [\"verbs\"]").unwrap(),
        Providers { shm: false, verbs: true, objects: false }
    );
    let objects = Providers { shm: false, verbs: false, objects: true };
    assert_eq!(of("providers = [\"shm-objects\"]").unwrap(), objects);
    let line = of("providers = [\"shm\", \"rdma\"]").unwrap_err().to_string();
    assert!(line.contains("must be a list of \"shm\" and \"verbs\""), "{line}");
    let folder = Folder::new();
    let path = folder.write("rules.toml", "providers = [\"shm\"]");
    let load = |value| folder.load(&[("SANSHIM_CONFIG", &path), ("SANSHIM_PROVIDERS", value)]);
    assert_eq!(
        load("verbs, shm").unwrap().providers,
        Providers { shm: true, verbs: true, objects: false }
    );
    let line = load("shm,").unwrap_err().to_string();
    assert!(line.contains("SANSHIM_PROVIDERS") && line.contains("must be of shm"), "{line}");
}

#[test]
fn a_file_that_others_may_write_is_not_believed() {
    use std::os::unix::fs::{chown, PermissionsExt};
    let folder = Folder::new();
    let named = folder.write("named.toml", "allow_users = [7]\n");
    let own = folder.write("home/.config/sanshim.toml", "allow_users = [7]\n");
    let home = folder.0.join("home").to_str().unwrap().to_owned();
    let by_home = || folder.load(&[("HOME", &home)]);
    let allowed = |config: Config| config.allowed_users().collect::<Vec<_>>();
    assert_eq!(by_home().map(allowed).unwrap(), [7]);
    for (path, variable, value) in [(&named, "SANSHIM_CONFIG", &named), (&own, "HOME", &home)] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
        let why = folder.load(&[(variable, value)]).unwrap_err().to_string();
        assert!(
            why.contains(&format!("cannot read {path}: every user may write to it; ")),
            "{why}"
        );
        // As where each user has a group of his own.
        fs::set_permissions(path, fs::Permissions::from_mode(0o664)).unwrap();
        assert_eq!(folder.load(&[(variable, value)]).map(allowed).unwrap(), [7]);
    }
    // SAFETY: no memory is involved.
    if unsafe { libc::geteuid() } == 0 {
        // HOME is another user's, as under sudo. A file that is named counts, whoever has it.
        chown(&own, Some(7), None).unwrap();
        chown(&named, Some(7), None).unwrap();
        assert_eq!(by_home().map(allowed).unwrap(), []);
        assert_eq!(folder.load(&[("SANSHIM_CONFIG", &named)]).map(allowed).unwrap(), [7]);
    }
    // Nobody writes to it.
    fs::remove_file(&own).unwrap();
    let pipe = std::ffi::CString::new(own.as_str()).unwrap();
    // SAFETY: a path that ends with zero.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    assert!(by_home().unwrap_err().to_string().contains("is no file"));
}
