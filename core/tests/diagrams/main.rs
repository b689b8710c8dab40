//! The sequence diagrams of docs/protocol.md: each is what two real ends say to each other.
//!
//! `SANSHIM_UPDATE_DOCS=1 cargo test -p sanshim-core --test diagrams` writes them anew.

mod ends;

use ends::Ends;
use sanshim_core::session::transfer::{Abilities, End};
use std::fmt::Write as _;
use std::path::Path;

const READ: Abilities = Abilities { threshold: 4096, read: true, write: false };
const WRITE: Abilities = Abilities { threshold: 4096, read: false, write: true };
const BOTH: Abilities = Abilities { threshold: 4096, read: true, write: true };
const LARGE: u32 = 65_536;

fn discovery_with_read() -> Ends {
    let mut ends = Ends::new(READ);
    ends.posts(LARGE);
    ends.sends(LARGE);
    ends.takes_first_part();
    ends.reads_rest(LARGE);
    ends
}

fn discovery_with_write() -> Ends {
    let mut ends = Ends::new(WRITE);
    ends.posts(LARGE);
    ends.sends(LARGE);
    ends.takes_first_part();
    ends.posts(LARGE - 1024);
    ends.writes();
    ends
}

fn too_small() -> Ends {
    let mut ends = Ends::new(WRITE);
    ends.posts(2000);
    ends.sends(LARGE);
    ends.takes_first_part();
    ends.posts(976);
    ends.falls_back(End::Refused);
    ends
}

fn nobody_receives() -> Ends {
    let mut ends = Ends::new(READ);
    ends.sends(LARGE);
    ends.scans_twice();
    ends
}

fn small_then_large_with_read() -> Ends {
    let mut ends = Ends::new(READ);
    ends.quietly(|ends| {
        for _ in 0..3 {
            ends.sends(LARGE);
            ends.small_receive(16);
            ends.reads_rest(LARGE);
        }
        ends.learns();
    });
    ends.sends(LARGE);
    ends.small_receive(16);
    ends.reads_rest(LARGE);
    ends
}

fn large_receive_with_write() -> Ends {
    let mut ends = Ends::new(WRITE);
    ends.quietly(|ends| {
        for _ in 0..3 {
            ends.posts(LARGE);
            ends.sends(LARGE);
            ends.takes_first_part();
            ends.posts(LARGE - 1024);
            ends.writes();
        }
    });
    ends.tells_mode();
    ends.posts(LARGE);
    ends.sends(LARGE);
    ends.writes();
    ends
}

fn large_receive_crossing() -> Ends {
    let mut ends = Ends::new(BOTH);
    ends.quietly(|ends| {
        for _ in 0..3 {
            ends.posts(LARGE);
            ends.sends(LARGE);
            ends.takes_first_part();
            ends.reads_rest(LARGE);
        }
        ends.learns();
        ends.tells_mode();
    });
    ends.announces_while_advertised(LARGE);
    ends
}

fn back_to_discovery() -> Ends {
    let mut ends = Ends::new(READ);
    ends.quietly(|ends| {
        for _ in 0..3 {
            ends.sends(LARGE);
            ends.scans_twice();
        }
    });
    ends.tells_mode();
    ends.posts(LARGE);
    ends.learns();
    ends.tells_mode();
    ends
}

type Scenario = (&'static str, fn() -> Ends);

const SCENARIOS: [Scenario; 8] = [
    ("Discovery, RDMA read (S4, A3): a large receive was posted", discovery_with_read),
    ("Discovery, RDMA write (S5, A6)", discovery_with_write),
    ("The posted receive is too small (A5)", too_small),
    ("Nobody receives (A4)", nobody_receives),
    ("Small-then-large mode, RDMA read (A10)", small_then_large_with_read),
    ("Large-receive mode, RDMA write (A11)", large_receive_with_write),
    ("Large-receive mode, both operations: the advertisement wins (A12)", large_receive_crossing),
    ("Small-receive mode and back (A8)", back_to_discovery),
];

const BEGIN: &str = "<!-- diagrams:begin -->\n";
const END: &str = "<!-- diagrams:end -->";

#[test]
fn the_diagrams_in_the_documentation_are_what_happens() {
    let mut drawn = String::new();
    for (title, scenario) in SCENARIOS {
        let lines = scenario().lines();
        write!(drawn, "\n**{title}**\n\n```text\n{lines}```\n").expect("text");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol.md");
    let text = std::fs::read_to_string(&path).expect("docs/protocol.md");
    let (before, rest) = text.split_once(BEGIN).expect("where the diagrams begin");
    let (old, after) = rest.split_once(END).expect("where they end");
    if std::env::var_os("SANSHIM_UPDATE_DOCS").is_some() {
        let new = format!("{before}{BEGIN}{drawn}\n{END}{after}");
        std::fs::write(&path, new).expect("docs/protocol.md");
        return;
    }
    assert_eq!(old.trim(), drawn.trim(), "run it with SANSHIM_UPDATE_DOCS=1");
}
