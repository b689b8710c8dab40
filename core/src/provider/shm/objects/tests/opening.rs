//! What comes while a connection is opened.

use super::*;

#[test]
fn a_queue_pair_that_is_flushed_while_it_is_opened_stays_ended() {
    let (mut opened, mut refused) = (0, 0);
    for round in 0..200 {
        let (end, _) = End::new(2, false);
        let [ours, _theirs] = parts();
        end.pair.receive(1, &[end.segment(0, 8)]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| end.pair.flush().unwrap());
            for _ in 0..round % 8 {
                process::yield_now();
            }
            match end.state().open(ours) {
                Ok(()) => opened += 1,
                Err(_) => refused += 1,
            }
        });
        assert_eq!(end.state().phase(), ENDED);
        let results = end.results();
        assert_eq!((results.len(), results[0].result()), (1, Err(Error::Cancelled)));
    }
    assert_eq!(opened + refused, 200);
}
