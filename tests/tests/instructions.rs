//! How many instructions the calls of a server take that sleeps between two requests (tests/instructions/): no clock is needed
//! to see that a call left its short way.

use sanshim_tests::plans::{self, preload};
use sanshim_tests::programs::Sandbox;
use std::process::Command;

/// Connections that the server has.
const CONNECTIONS: &str = "4";
/// Most instructions of each call, with room for other compilers: one build and the next differ by some tens.
const MOST: [(&str, u32); 3] = [("epoll_wait", 3800), ("recv", 930), ("send", 1100)];

#[test]
fn a_server_that_sleeps_takes_few_instructions_for_a_request() {
    let sandbox = Sandbox::new();
    let output = Command::new(plans::compiled("instructions", &sandbox))
        .arg(CONNECTIONS)
        .envs([("LD_PRELOAD", preload().as_str()), ("SANSHIM_MOVE_AFTER", "0")])
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let counted = String::from_utf8(output.stdout).expect("text");
    for (line, (call, most)) in counted.lines().zip(MOST) {
        let (name, count) = line.split_once(' ').expect("a call and a number");
        let count: u32 = count.parse().expect("a number");
        assert!(name == call && (50..=most).contains(&count), "{line}: at most {most}");
    }
    assert_eq!(counted.lines().count(), MOST.len());
}
