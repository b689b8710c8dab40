//! A peer that does what it must not.

use super::*;

/// The queue pair has ended, and its requests with it; nothing was touched.
fn is_refused(end: &End) {
    let results = end.results();
    assert!(results.iter().all(|one| one.result() == Err(Error::Cancelled)), "{results:?}");
    assert_eq!(end.state().phase(), ENDED);
    let sent = end.pair.send_inline(1, b"x", Flags::NONE);
    assert_eq!(sent, Err(Error::Cancelled));
}

#[test]
fn nonsense_from_the_peer_ends_one_queue_pair() {
    let hostile: [fn(&End); 5] = [
        // More than a ring holds.
        |peer| peer.end().sending.0.published.store(u64::MAX, SeqCst),
        |peer| peer.end().sending.0.published.store(RING as u64 + 8, SeqCst),
        // Less than a header.
        |peer| peer.end().sending.0.published.store(1, SeqCst),
        // A message longer than messages are.
        |peer| {
            peer.state().channel.get().unwrap().outgoing().put_length(0, u64::MAX as usize);
            peer.end().sending.0.published.store(64, SeqCst);
        },
        // A message longer than what was published.
        |peer| {
            peer.state().channel.get().unwrap().outgoing().put_length(0, 100);
            peer.end().sending.0.published.store(64, SeqCst);
        },
    ];
    for act in hostile {
        let (a, b) = joined();
        b.pair.receive(1, &[b.segment(0, 64)]).unwrap();
        act(&a);
        is_refused(&b);
    }
}

#[test]
fn a_peer_that_took_what_was_not_sent_is_refused() {
    for taken in [u64::MAX, 24] {
        let (a, b) = joined();
        a.pair.send(1, &[a.segment(0, 8)], Flags::NONE).unwrap();
        b.end().receiving.0.consumed.store(taken, SeqCst);
        is_refused(&a);
    }
}
