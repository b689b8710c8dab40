//! The sequence diagrams of docs/protocol.md: each is what two real ends say to each other.
//!
//! `SANSHIM_UPDATE_DOCS=1 cargo test -p sanshim-core --test diagrams` writes them anew.

mod ends;
mod suspension;

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

fn small_then_large_with_write() -> Ends {
    let mut ends = Ends::new(WRITE);
    let transfer = |ends: &mut Ends| {
        ends.sends(LARGE);
        ends.small_receive(16);
        ends.posts(LARGE - 1024);
        ends.writes();
    };
    ends.quietly(|ends| (0..3).for_each(|_| transfer(ends)));
    ends.tells_mode();
    transfer(&mut ends);
    ends
}

fn three_large_receives(ends: &mut Ends) {
    for _ in 0..3 {
        ends.posts(LARGE);
        ends.sends(LARGE);
        ends.takes_first_part();
        ends.posts(LARGE - 1024);
        ends.writes();
    }
}

/// Ends in large-receive mode, which the receiver was told of.
fn in_large_receive_mode() -> Ends {
    let mut ends = Ends::new(WRITE);
    ends.quietly(|ends| {
        three_large_receives(ends);
        ends.tells_mode();
    });
    ends
}

fn receive_send() -> Ends {
    let mut ends = in_large_receive_mode();
    let advertisement = ends.posts_without_credit(LARGE);
    ends.answers(64, Some(advertisement));
    ends.sends(LARGE);
    ends.writes();
    ends
}

fn send_receive() -> Ends {
    let mut ends = in_large_receive_mode();
    ends.answers(64, None);
    ends.posts(LARGE);
    ends.sends(LARGE);
    ends.writes();
    ends
}

fn out_of_date() -> Ends {
    let mut ends = in_large_receive_mode();
    ends.advertises_too_late(100, LARGE);
    ends
}

fn large_receive_with_write() -> Ends {
    let mut ends = Ends::new(WRITE);
    ends.quietly(three_large_receives);
    ends.tells_mode();
    ends.posts(LARGE);
    ends.sends(LARGE);
    ends.writes();
    ends
}

fn three_large_receives_by_read(ends: &mut Ends) {
    for _ in 0..3 {
        ends.posts(LARGE);
        ends.sends(LARGE);
        ends.takes_first_part();
        ends.reads_rest(LARGE);
    }
    ends.learns();
}

fn large_receive_with_read() -> Ends {
    let mut ends = Ends::new(READ);
    ends.quietly(three_large_receives_by_read);
    ends.tells_mode();
    ends.posts(LARGE);
    ends.sends(LARGE);
    ends.reads_rest(LARGE);
    ends
}

fn large_receive_crossing() -> Ends {
    let mut ends = Ends::new(BOTH);
    ends.quietly(|ends| {
        three_large_receives_by_read(ends);
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

const MOVES: &str = "end whose control moves";

fn control_moves() -> String {
    let mut ends = suspension::Ends::new();
    ends.does(0, "process 2 calls send; queues");
    ends.does(0, "process 1 finishes, takes back");
    ends.does(0, "what it had posted for RDMA");
    let suspend = ends.asks(0);
    ends.hears(1, &suspend);
    ends.does(1, "takes RDMA memory back; new");
    ends.does(1, "sends stay in the send buffer");
    ends.answers(1);
    ends.does(0, "the connection moves to process 2");
    ends.resumes(0);
    ends.does(0, "process 2 sends");
    ends.does(1, "sends what it kept");
    assert!(ends.is_at_rest());
    ends.lines(MOVES, "peer")
}

fn both_ask() -> String {
    let mut ends = suspension::Ends::new();
    let from_connector = ends.asks(0);
    let from_acceptor = ends.asks(1);
    ends.hears(0, &from_acceptor);
    ends.hears(1, &from_connector);
    ends.does(0, "disregards it");
    ends.does(1, "gives way");
    ends.answers(1);
    ends.does(0, "moves");
    ends.resumes(0);
    let again = ends.asks(1);
    ends.hears(0, &again);
    ends.answers(0);
    ends.does(1, "moves");
    ends.resumes(1);
    assert!(ends.is_at_rest());
    ends.lines("connector", "acceptor")
}

fn no_answer() -> String {
    let mut ends = suspension::Ends::new();
    let suspend = ends.asks(0);
    ends.does(1, "its program is elsewhere");
    ends.does(0, "goes on after 2 ms (shm)");
    ends.hears(1, &suspend);
    ends.resumes(0);
    ends.does(1, "looks, finds both: no answer");
    assert!(ends.is_at_rest());
    ends.lines(MOVES, "peer")
}

type Scenario = (&'static str, fn() -> String);

const TRANSFERS: [Scenario; 13] = [
    ("Discovery, RDMA read (S4, A3): a large receive was posted", || discovery_with_read().lines()),
    ("Discovery, RDMA write (S5, A6)", || discovery_with_write().lines()),
    ("The posted receive is too small (A5)", || too_small().lines()),
    ("Nobody receives (A4)", || nobody_receives().lines()),
    ("Small-then-large mode, RDMA read (A10)", || small_then_large_with_read().lines()),
    ("Small-then-large mode, RDMA write (A10)", || small_then_large_with_write().lines()),
    ("Large-receive mode, RDMA write (A11)", || large_receive_with_write().lines()),
    ("Large-receive mode, RDMA read (A12)", || large_receive_with_read().lines()),
    ("Large-receive mode, both operations: the advertisement wins (A12)", || {
        large_receive_crossing().lines()
    }),
    ("Receive, then send: the advertisement rides on the data (A13)", || receive_send().lines()),
    ("Send, then receive: the advertisement goes alone (A13)", || send_receive().lines()),
    ("An advertisement that crosses data is out of date (A14)", || out_of_date().lines()),
    ("Small-receive mode and back (A8)", || back_to_discovery().lines()),
];

const SUSPENSIONS: [Scenario; 3] = [
    ("Control moves from process 1 to process 2 (D4, D5)", control_moves),
    ("Both ends ask at once", both_ask),
    ("The peer does not answer", no_answer),
];

/// Where in docs/protocol.md they stand.
const PLACES: [(&str, &[Scenario]); 2] = [("diagrams", &TRANSFERS), ("suspension", &SUSPENSIONS)];

#[test]
fn the_diagrams_in_the_documentation_are_what_happens() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol.md");
    for (name, scenarios) in PLACES {
        let mut drawn = String::new();
        for (title, scenario) in scenarios {
            write!(drawn, "\n**{title}**\n\n```text\n{}```\n", scenario()).expect("text");
        }
        let (begin, end) = (format!("<!-- {name}:begin -->\n"), format!("<!-- {name}:end -->"));
        let text = std::fs::read_to_string(&path).expect("docs/protocol.md");
        let (before, rest) = text.split_once(&begin).expect("where the diagrams begin");
        let (old, after) = rest.split_once(&end).expect("where they end");
        if std::env::var_os("SANSHIM_UPDATE_DOCS").is_some() {
            let new = format!("{before}{begin}{drawn}\n{end}{after}");
            std::fs::write(&path, new).expect("docs/protocol.md");
            continue;
        }
        assert_eq!(old.trim(), drawn.trim(), "run it with SANSHIM_UPDATE_DOCS=1");
    }
}
