//! Unit and property tests of headers and credits.

use super::{Header, Kind, NoCredit, ProtocolError, Session, HEADER_SIZE, VERSION};
use proptest::prelude::*;

const MAX_PAYLOAD: u32 = 1520;

fn data(sequence: u32, last_received: u32, posted: u16) -> Header {
    Header { sequence, last_received, posted, kind: Kind::Data, flags: 0, length: 1 }
}

/// Sends from `from` to `to`, both as they should be used.
fn pass(from: &Session, to: &Session, kind: Kind) -> Header {
    let header = from.next_message(kind, u32::from(kind == Kind::Data)).unwrap();
    from.sent(&header);
    to.received(&Header::decode(header.encode(), MAX_PAYLOAD).unwrap()).unwrap();
    header
}

/// Two open sessions with all buffers posted.
fn opened(buffers: u16) -> (Session, Session) {
    let (a, b) = (Session::new(buffers), Session::new(buffers));
    pass(&a, &b, Kind::SessionRequest);
    b.reposted(1);
    pass(&b, &a, Kind::SessionAccept);
    a.reposted(1);
    (a, b)
}

#[test]
fn the_header_has_its_documented_layout() {
    let header = Header {
        sequence: 0x0102_0304,
        last_received: 0x0506_0708,
        posted: 0x090a,
        kind: Kind::SessionAccept,
        flags: VERSION,
        length: 0,
    };
    let words = header.encode();
    assert_eq!(words, [0x0102_0304, 0x0506_0708, 0x0304_090a, 0]);
    assert_eq!(size_of_val(&words), HEADER_SIZE);
    assert_eq!(Header::decode(words, 0), Ok(header));
}

#[test]
fn headers_no_honest_peer_sends_are_refused() {
    use ProtocolError as E;
    let decode = |kind: u32, flags: u32, length: u32| {
        Header::decode([1, 0, kind << 16 | flags << 24, length], MAX_PAYLOAD)
    };
    assert_eq!(decode(0, 0, 1), Err(E::UnknownKind(0)));
    assert_eq!(decode(18, 0, 1), Err(E::UnknownKind(18)));
    assert_eq!(decode(2, 1, 0), Err(E::UnknownFlags { kind: Kind::CreditUpdate, flags: 1 }));
    let complete = Kind::TransferComplete;
    assert_eq!(decode(6, 0, 15), Err(E::TooShort { kind: complete, length: 15, body: 16 }));
    assert_eq!(decode(1, 1, 32), Err(E::EmptyData));
    assert!(decode(1, 1, 33).is_ok() && decode(5, 0, 24).is_ok());
    assert_eq!(decode(1, 0, 0), Err(E::EmptyData));
    assert_eq!(decode(1, 4, 1), Err(E::UnknownFlags { kind: Kind::Data, flags: 4 }));
    assert_eq!(decode(3, 9, 0), Err(E::Version { peer: 9, ours: VERSION }));
    let too_long = |kind, length, limit| Err(E::TooLong { kind, length, limit });
    assert_eq!(decode(1, 0, 1521), too_long(Kind::Data, 1521, MAX_PAYLOAD));
    assert_eq!(decode(1, 0, u32::MAX), too_long(Kind::Data, u32::MAX, MAX_PAYLOAD));
    assert_eq!(decode(2, 0, 1), too_long(Kind::CreditUpdate, 1, 0));
    assert!(decode(1, 0, MAX_PAYLOAD).is_ok());
}

/// A1: before the peer's first message there is no credit, and only our own first message goes.
#[test]
fn a_session_opens_before_data_flows() {
    let (a, b) = (Session::new(16), Session::new(16));
    assert_eq!(a.credit(), 0);
    assert!(!a.credit_update_due());
    assert_eq!(a.next_message(Kind::Data, 1), Err(NoCredit));
    assert_eq!(a.next_message(Kind::CreditUpdate, 0), Err(NoCredit));
    let request = pass(&a, &b, Kind::SessionRequest);
    assert_eq!((request.sequence, request.posted, request.flags), (1, 16, VERSION));
    assert_eq!(a.credit(), 0, "credit comes with the answer");
    assert_eq!(b.credit(), 16, "the request told the number of buffers");
    assert_eq!(b.next_message(Kind::Data, 1), Err(NoCredit), "the answer goes first");
    assert_eq!(a.next_message(Kind::SessionRequest, 0), Err(NoCredit), "once");
    let accept = pass(&b, &a, Kind::SessionAccept);
    assert_eq!((accept.last_received, accept.posted), (1, 15));
    assert_eq!(a.credit(), 15);
    assert!(a.next_message(Kind::Data, 1).is_ok() && b.next_message(Kind::Data, 1).is_ok());
}

/// A17: data stops at one credit; a credit update takes it.
#[test]
fn the_last_credit_is_for_a_credit_update() {
    let (a, b) = opened(4);
    while a.credit() > 1 {
        pass(&a, &b, Kind::Data);
    }
    assert_eq!(a.next_message(Kind::Data, 1), Err(NoCredit));
    pass(&a, &b, Kind::CreditUpdate);
    assert_eq!(a.credit(), 0);
    assert_eq!(a.next_message(Kind::CreditUpdate, 0), Err(NoCredit));
}

/// A16: T is half of the buffers, never below 3, and a one-way stream never stops for good.
#[test]
fn the_threshold_fits_every_number_of_buffers() {
    for (buffers, threshold) in [(4, 3), (6, 3), (10, 5), (12, 6), (16, 8), (u16::MAX, 32767)] {
        assert_eq!(Session::new(buffers).threshold(), threshold);
    }
    for buffers in 4..70 {
        let (a, b) = opened(buffers);
        for _ in 0..3 {
            let mut unread = 0;
            while a.next_message(Kind::Data, 1).is_ok() {
                pass(&a, &b, Kind::Data);
                unread += 1;
                assert!(!b.credit_update_due(), "nothing was posted again yet");
            }
            b.reposted(unread);
            assert!(b.credit_update_due(), "{buffers} buffers: stopped for good");
            let before = a.credit();
            pass(&b, &a, Kind::CreditUpdate);
            a.reposted(1);
            assert!(a.credit() - before >= u32::from(b.threshold()));
            assert!(!b.credit_update_due());
        }
    }
}

#[test]
#[should_panic(expected = "at least 4 message buffers")]
fn fewer_than_four_buffers_are_refused() {
    Session::new(3);
}

/// A16: OtherSidesSendCredit is PR on every send and one less on every receive.
#[test]
fn the_other_sides_credit_is_tracked() {
    let (a, b) = opened(16);
    assert_eq!(b.other_sides_credit(), 16);
    pass(&a, &b, Kind::Data);
    pass(&a, &b, Kind::Data);
    assert_eq!((b.other_sides_credit(), b.posted()), (14, 14));
    b.reposted(1);
    assert_eq!((b.other_sides_credit(), b.posted()), (14, 15));
    pass(&b, &a, Kind::Data);
    assert_eq!((b.other_sides_credit(), a.credit()), (15, 15));
    b.reposted(100);
    assert_eq!(b.posted(), 16, "never more than there are");
}

#[test]
fn a_session_stays_the_same_when_it_refuses_a_header() {
    use ProtocolError as E;
    let (a, b) = opened(4);
    pass(&a, &b, Kind::Data);
    // B received 2 messages and sent 1; A had said LRSQ 1 and PR 4.
    let credit_update = Header { kind: Kind::CreditUpdate, length: 0, ..data(3, 1, 4) };
    let accept = Header { kind: Kind::SessionAccept, flags: VERSION, ..credit_update };
    let bad = [
        (data(2, 1, 4), E::Sequence { expected: 3, got: 2 }),
        (data(4, 1, 4), E::Sequence { expected: 3, got: 4 }),
        (accept, E::AlreadyOpen(Kind::SessionAccept)),
        (data(3, 1, 5), E::Posted { posted: 5, buffers: 4 }),
        (data(3, 0, 4), E::LastReceived { got: 0, before: 1, sent: 1 }),
        (data(3, 3, 4), E::LastReceived { got: 3, before: 1, sent: 1 }),
        (data(3, 1, 3), E::CreditWithdrawn { limit: 4, before: 5 }),
    ];
    let before = format!("{b:?}");
    for (header, error) in bad {
        assert_eq!(b.received(&header), Err(error));
        assert_eq!(format!("{b:?}"), before);
    }
    assert_eq!(
        Session::new(4).received(&data(1, 0, 4)),
        Err(E::NotOpen(Kind::Data)),
        "data before the session request"
    );
    for sequence in 3..=5 {
        b.received(&data(sequence, 1, 4)).unwrap();
    }
    assert_eq!(b.received(&data(6, 1, 4)), Err(E::Overrun { sequence: 6 }));
}

/// The answer to a message may arrive before its sender has recorded it as sent.
#[test]
fn an_answer_may_overtake_the_record_of_its_message() {
    let (a, b) = opened(4);
    let header = a.next_message(Kind::Data, 1).unwrap();
    b.received(&header).unwrap();
    let answer = b.next_message(Kind::Data, 1).unwrap();
    assert_eq!(answer.last_received, header.sequence);
    a.received(&answer).unwrap();
    a.sent(&header);
    assert_eq!(a.credit(), 3);
}

/// A15: everything holds while the sequence numbers wrap around.
#[test]
fn sequence_numbers_wrap_around() {
    let start = u32::MAX - 40;
    let (a, b) = (Session::resumed(8, start), Session::resumed(8, start));
    let mut updates = 0;
    for round in 0..100 {
        assert_eq!(b.expected(), a.last_sent().wrapping_add(1));
        pass(&a, &b, Kind::Data);
        b.reposted(1);
        assert!((1..8).contains(&a.credit()), "credit {} in round {round}", a.credit());
        if b.credit_update_due() {
            updates += 1;
            pass(&b, &a, Kind::CreditUpdate);
            a.reposted(1);
        }
    }
    assert_eq!(a.last_sent(), start.wrapping_add(100));
    assert!((10..=25).contains(&updates), "{updates}");
}

#[test]
fn errors_name_the_thing_and_the_remedy() {
    let text = ProtocolError::Version { peer: 2, ours: 1 }.to_string();
    assert!(text.contains("version 2") && text.contains("same version of sanshim"), "{text}");
    let text = ProtocolError::Sequence { expected: 7, got: 9 }.to_string();
    assert!(text.contains("message 9") && text.contains('7'), "{text}");
    assert!(NoCredit.to_string().contains("wait"));
}

/// What the accessors tell of a session.
fn state(session: &Session) -> (u32, u32, u32, u32, u16, u32) {
    (
        session.credit(),
        session.last_sent(),
        session.last_received(),
        session.other_sides_credit(),
        session.posted(),
        session.expected(),
    )
}

fn near_truth() -> impl Strategy<Value = (i32, i32, u16, u8, bool)> {
    (
        prop_oneof![8 => Just(0), 1 => -2..3_i32, 1 => any::<i32>()],
        -20..20_i32,
        0..20_u16,
        1..5_u8,
        any::<bool>(),
    )
}

proptest! {
    /// Any 16 bytes are refused or mean exactly what they say.
    #[test]
    fn any_words_decode_or_fail(words: [u32; 4], kind in 0..20_u32, tame: bool, limit: u32) {
        let mut words = words;
        if tame {
            words[2] = words[2] & 0xffff | kind << 16 | if kind == 3 || kind == 4 { u32::from(VERSION) << 24 } else { 0 };
            words[3] %= MAX_PAYLOAD * 2;
        }
        if let Ok(header) = Header::decode(words, limit) {
            prop_assert_eq!(header.encode(), words);
            prop_assert!(header.length <= limit);
            prop_assert!(header.length >= header.body_size());
            prop_assert!(header.kind.carries_data() || header.data_size() == 0);
            prop_assert!(header.kind != Kind::Data || header.data_size() > 0);
        }
    }

    /// Whatever a peer sends, the session refuses it unchanged or stays within its bounds.
    #[test]
    fn any_header_leaves_a_valid_session(
        headers in prop::collection::vec((near_truth(), any::<bool>()), 1..60),
        start: u32,
    ) {
        let session = Session::resumed(16, start);
        for ((sequence, last_received, posted, kind, repost), send) in headers {
            let kind = [Kind::Data, Kind::CreditUpdate, Kind::SessionRequest,
                Kind::SessionAccept][usize::from(kind) - 1];
            let header = Header {
                sequence: session.expected().wrapping_add_signed(sequence),
                last_received: session.last_sent().wrapping_add_signed(last_received),
                posted,
                kind,
                flags: 0,
                length: 1,
            };
            let before = state(&session);
            match session.received(&header) {
                Ok(()) => prop_assert_eq!(session.last_received(), header.sequence),
                Err(_) => prop_assert_eq!(state(&session), before),
            }
            if repost {
                session.reposted(posted);
            }
            if send {
                if let Ok(header) = session.next_message(Kind::Data, 1) {
                    session.sent(&header);
                }
            }
            prop_assert!(session.posted() <= 16);
            prop_assert!(session.credit() <= 17);
            prop_assert!(session.other_sides_credit() <= 16);
            session.credit_update_due();
        }
    }

    /// A15: the credit is what the formula says, on both sides, after any honest history.
    #[test]
    fn credit_follows_the_formula(
        steps in prop::collection::vec((0..4_usize, 1..5_u16), 1..300),
        buffers in 4..40_u16,
        start: u32,
    ) {
        let sides = [Session::resumed(buffers, start), Session::resumed(buffers, start)];
        // Per side: PR and LRSQ of the newest header it received; messages it has not consumed.
        let mut newest = [(buffers, start); 2];
        let mut unread = [0_u16; 2];
        for (step, count) in steps {
            let (me, other) = (step % 2, 1 - step % 2);
            if step < 2 {
                let kind = if sides[me].credit_update_due() {
                    Kind::CreditUpdate
                } else {
                    Kind::Data
                };
                if sides[me].next_message(kind, 1).is_ok() {
                    let header = pass(&sides[me], &sides[other], kind);
                    newest[other] = (header.posted, header.last_received);
                    unread[other] += 1;
                }
            } else {
                let count = count.min(unread[me]);
                unread[me] -= count;
                sides[me].reposted(count);
            }
            for i in 0..2 {
                let (pr, lrsq) = newest[i];
                let lssq = sides[i].last_sent();
                let credit = i64::from(pr) - i64::from(lssq.wrapping_sub(lrsq));
                prop_assert_eq!(i64::from(sides[i].credit()), credit);
                prop_assert_eq!(sides[i].posted(), buffers - unread[i]);
                prop_assert!(sides[i].credit() <= u32::from(sides[1 - i].posted()));
                prop_assert_eq!(sides[i].credit(), sides[1 - i].other_sides_credit());
            }
        }
    }
}
