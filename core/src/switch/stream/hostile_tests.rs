//! Runs of `hostile` from many seeds.

use super::hostile::{run, Rng};
use super::test_ends::GEOMETRY;
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn whatever_the_peer_writes_no_call_panics_or_stays() {
    const ROUNDS: u64 = 1000;
    // Longer than any machine needs for one connection.
    const HANG: Duration = Duration::from_secs(100);
    assert!(GEOMETRY.check().is_ok());
    let (tell, told) = mpsc::channel();
    let runs = std::thread::spawn(move || {
        for seed in 0..ROUNDS {
            let ended = run(Rng::Seed(seed));
            tell.send(ended).unwrap();
        }
    });
    let mut ended = 0;
    for seed in 0..ROUNDS {
        match told.recv_timeout(HANG) {
            Ok(one) => ended += usize::from(one),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!("seed {seed}: a call does not come back")
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("seed {seed}: {:?}", runs.join()),
        }
    }
    assert!(ended > 100, "only {ended} connections ended: the memory was hardly touched");
}
