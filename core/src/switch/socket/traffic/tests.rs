//! When a connection goes to the SAN.

use super::*;

const TRANSFERS: u32 = 32;

fn begun() -> Traffic {
    initialize(TRANSFERS);
    let traffic = Traffic::new();
    traffic.begin();
    traffic
}

/// Transfers until the next attempt.
fn until_busy(traffic: &Traffic) -> u32 {
    (1..).find(|_| traffic.count(1) && traffic.look() == Look::Busy).unwrap()
}

// One test, for the number of transfers that it takes is the process's.
#[test]
fn a_connection_that_lives_is_looked_at() {
    let traffic = begun();
    assert_eq!(until_busy(&traffic), TRANSFERS);
    let mut before = 0;
    for _ in 0..5 {
        traffic.failed(false);
        let next = until_busy(&traffic);
        assert!(next > before, "attempts that fail get rarer: {next}");
        before = next;
    }
    traffic.returned();
    assert!(traffic.count(1), "what is left of the session is ended");
    assert_eq!(until_busy(&traffic), TRANSFERS - 1);

    let traffic = begun();
    assert!(!traffic.count(MANY_BYTES as usize - 1));
    assert!(traffic.count(1) && traffic.look() == Look::Busy, "much data");
    assert!(!traffic.count(1));

    for _ in 0..2 {
        traffic.begin();
        let over = [(); 8].map(|()| traffic.failed_elsewhere());
        assert_eq!(over, [false, false, false, false, false, false, false, true]);
    }
}
