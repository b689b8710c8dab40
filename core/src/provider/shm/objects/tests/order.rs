//! Requests that have no room yet.

use super::*;

#[test]
fn what_has_no_room_stays_outstanding_and_in_order() {
    /// Four of them fit.
    const LENGTH: usize = 60_000;
    let (a, b) = joined();
    for number in 0..20u64 {
        if number < 8 {
            a.pair.send(number, &[a.segment(0, LENGTH)], Flags::NONE).unwrap();
        } else {
            // What waits is not copied yet.
            let own = number as usize * 8;
            // SAFETY: within the memory, which nothing else uses.
            unsafe { a.bytes.add(own).cast::<u64>().write(number) };
            a.pair.send(number, &[a.segment(own, 8)], Flags::NONE).unwrap();
        }
    }
    a.pair.send_inline(20, b"the last", Flags::NONE).unwrap();
    assert!(a.results().is_empty());
    let mut sent = 0;
    for number in 0..21u64 {
        b.pair.receive(number, &[b.segment(0, LENGTH)]).unwrap();
        let got = b.results();
        assert_eq!(got.len(), 1, "{number}");
        assert_eq!(got[0].request, number);
        let length = if number < 8 { LENGTH } else { 8 };
        assert_eq!(got[0].result(), Ok(length as u32));
        if (8..20).contains(&number) {
            // SAFETY: written by the queue pair.
            assert_eq!(unsafe { b.bytes.cast::<u64>().read() }, number);
        }
        for done in a.results() {
            assert_eq!((done.request, done.result()), (sent, Ok(0)));
            sent += 1;
        }
    }
    assert_eq!(sent, 21);
    // SAFETY: written above by the queue pair.
    let last = unsafe { b.bytes.cast::<[u8; 8]>().read() };
    assert_eq!(&last, b"the last");
}
