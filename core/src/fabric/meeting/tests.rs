//! Ends that look for each other, and strangers that say they are one of them.

use super::appointment::{Appointment, Parties};
use super::approach::Approach;
use super::awaiting::{listen, progress, Awaited, Listening};
use crate::fabric::frame::{self, FrameKind, FrameState};
use crate::fabric::link::{Link, LinkPort};
use crate::fabric::request::{self, Approaching};
use crate::fabric::tests::{link_over, port_at, GEOMETRY};
use crate::proof::{self, FirstNumbers, CONCLUSION, OPENING};
use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::sys::process;
use std::net::SocketAddr;
use std::sync::Arc;

const NUMBERS: FirstNumbers =
    FirstNumbers { connectors: 0xfedc_ba98, acceptors: Some(0x7654_3210) };
const OTHERS: FirstNumbers = FirstNumbers { connectors: 0xfedc_ba99, ..NUMBERS };
const HTTP: u16 = 80;
/// More rounds than a meeting takes.
const ROUNDS: usize = 200;

/// What an acceptor says to open the proof by both numbers.
fn said(opening: proof::Opening) -> Approaching {
    Approaching { port: HTTP, by_both: true, opening }
}

/// What an end knows of the connection between a connector and an acceptor that both have sent something.
fn appointment(
    role: Role,
    [connector, acceptor]: [SocketAddr; 2],
    numbers: FirstNumbers,
) -> Arc<Appointment> {
    let parties = Parties { role, connector, acceptor, numbers, has_peer_sent: true };
    Arc::new(Appointment::new(parties, GEOMETRY))
}

/// The ends of one connection, or of what says that it is one.
struct Ends {
    listening: Vec<Listening>,
    awaited: Vec<Awaited>,
    connector: Arc<Appointment>,
    at: SocketAddr,
    acceptor: SocketAddr,
    near: &'static LinkPort,
    far: &'static LinkPort,
}

impl Ends {
    /// A connector that awaits its acceptor, over adapters of these addresses.
    fn awaiting(near: &str, far: &str) -> Self {
        let ((near, any), (far, acceptor)) = (port_at(near, 0), port_at(far, HTTP));
        // A free number.
        let free = near.device.objects().unwrap().adapter.create_listener().unwrap();
        free.bind(any).unwrap();
        let at = free.local_address().unwrap();
        drop(free);
        let connector = appointment(Role::Connector, [at, acceptor], NUMBERS);
        let awaited = vec![Awaited::new(connector.clone(), near)];
        let mut all = Ends { listening: vec![], awaited, connector, at, acceptor, near, far };
        assert!(!listen(&mut all.listening, &mut all.awaited));
        all
    }

    /// Goes on at the connector's end: the link, once one stands.
    fn go_on(&mut self) -> Option<Arc<Link>> {
        progress(&mut self.listening, &mut self.awaited);
        self.connector.take().map(|met| met.ok().unwrap())
    }

    /// The connection as an acceptor with that number knows it.
    fn approach(&self, numbers: FirstNumbers) -> (Approach, Arc<Appointment>) {
        let one = appointment(Role::Acceptor, [self.at, self.acceptor], numbers);
        (Approach::new(one.clone(), self.far), one)
    }
}

#[test]
fn ends_of_one_connection_prove_it_to_each_other() {
    for (near, far) in [("192.0.2.140", "192.0.2.141"), ("127.0.0.81", "127.0.0.82")] {
        let mut ends = Ends::awaiting(near, far);
        let (mut approach, acceptor) = ends.approach(NUMBERS);
        let (mut here, mut there) = (None, None);
        for _ in 0..ROUNDS {
            here = here.or_else(|| ends.go_on());
            approach.go_on();
            there = there.or_else(|| acceptor.take());
            here.iter().for_each(|link| link.poll());
            if here.as_ref().is_some_and(|link| link.is_proven()) {
                break;
            }
        }
        let there = there.expect("a link").ok().unwrap();
        assert!(there.is_proven() && here.expect("a link").is_proven(), "{near}");
    }
}

#[test]
fn an_acceptor_that_does_not_know_the_number_gets_no_link_and_says_nothing() {
    let mut ends = Ends::awaiting("192.0.2.142", "192.0.2.143");
    let (mut approach, acceptor) = ends.approach(OTHERS);
    for _ in 0..ROUNDS {
        let link = ends.go_on();
        link.iter().for_each(|link| link.poll());
        assert!(link.is_none_or(|link| !link.is_proven()));
        if !approach.go_on() {
            break;
        }
    }
    assert!(matches!(acceptor.take(), Some(Err(Reason::Unproven))));
    let ended = (0..ROUNDS).find_map(|_| {
        let (mut approach, _) = ends.approach(OTHERS);
        for _ in 0..4 {
            approach.go_on();
            progress(&mut ends.listening, &mut ends.awaited);
        }
        ends.connector.take()
    });
    assert!(matches!(ended, Some(Err(Reason::Unproven))), "there are few guesses");
}

#[test]
fn an_acceptor_that_has_sent_needs_both_numbers() {
    let mut ends = Ends::awaiting("192.0.2.150", "192.0.2.151");
    let (mut approach, acceptor) = ends.approach(FirstNumbers { acceptors: None, ..NUMBERS });
    for _ in 0..ROUNDS {
        assert!(ends.go_on().is_none());
        approach.go_on();
    }
    assert!(acceptor.take().is_none_or(|met| met.is_err()));
}

#[test]
fn a_process_that_listens_in_the_connectors_stead_gets_no_link() {
    let ends = Ends::awaiting("192.0.2.144", "192.0.2.145");
    let (mut approach, acceptor) = ends.approach(NUMBERS);
    let Ends { listening, awaited, at, near, .. } = ends;
    drop((listening, awaited));
    let stranger = near.device.objects().unwrap().adapter.create_listener().unwrap();
    stranger.bind(at).unwrap();
    stranger.listen(1).unwrap();
    approach.go_on();
    let link = link_over(near);
    let _ = stranger.get_connection_request(link.connector(), 1).unwrap();
    let data = link.connector().private_data().unwrap();
    let (_, purpose) = request::decode(&data).unwrap();
    let request::Purpose::Approach(Approaching { opening, .. }) = purpose else {
        panic!("{purpose:?}")
    };
    // It answers with a number of its own.
    let between = request::between(link.connector(), false).unwrap();
    let (_, answer) = proof::answer(OTHERS, &opening, &between, process::chance()).unwrap();
    let _ = link.connector().accept(link.pair(), &request::encode_answer(&answer), 2).unwrap();
    while approach.go_on() {}
    assert!(matches!(acceptor.take(), Some(Err(Reason::Unproven))), "there is no second guess");
}

#[test]
fn a_link_whose_peer_concludes_nothing_is_not_used() {
    let mut ends = Ends::awaiting("192.0.2.146", "192.0.2.147");
    // Nothing is tried out about the number: any point serves to open.
    let (_, opening) = proof::open(OTHERS, process::chance());
    let stranger = link_over(ends.far);
    let data = request::encode_approach(&GEOMETRY, said(opening));
    let _ = stranger.connector().connect(stranger.pair(), ends.at, &data, 1).unwrap();
    let none = ends.go_on();
    assert!(none.is_none(), "it has not completed the connection");
    assert!(request::decode_answer(&stranger.connector().private_data().unwrap()).is_some());
    let _ = stranger.connector().complete_connect(2).unwrap();
    let link = (0..ROUNDS).find_map(|_| ends.go_on()).expect("a link");
    link.poll();
    assert!(!link.is_proven() && !link.has_failed());
    let said = [0; CONCLUSION];
    let frame = frame::encode(FrameKind::Proof, said.len(), &FrameState::default());
    link.arrived(&[frame.as_slice(), &said].concat());
    assert!(!link.is_proven() && link.has_failed());
}

#[test]
fn a_request_that_opens_with_nonsense_is_not_answered() {
    let mut ends = Ends::awaiting("192.0.2.148", "192.0.2.149");
    let senseless = (0..=u8::MAX)
        .map(|byte| [byte; OPENING])
        .find(|opening| proof::answer(NUMBERS, opening, b"", process::chance()).is_none());
    let stranger = link_over(ends.far);
    let data = request::encode_approach(&GEOMETRY, said(senseless.unwrap()));
    let _ = stranger.connector().connect(stranger.pair(), ends.at, &data, 1).unwrap();
    for _ in 0..ROUNDS {
        assert!(ends.go_on().is_none());
    }
    assert!(!ends.awaited.is_empty(), "the right one may come yet");
}

/// Two processes' connections may have one port, to different acceptors.
#[test]
fn a_number_that_another_process_has_is_waited_for() {
    let (port, any) = port_at("127.0.0.77", 0);
    let others = port.device.objects().unwrap().adapter.create_listener().unwrap();
    others.bind(any).unwrap();
    let at = others.local_address().unwrap();
    let acceptor = "127.0.0.78:80".parse().unwrap();
    let one = appointment(Role::Connector, [at, acceptor], NUMBERS);
    let (mut listening, mut awaited) = (vec![], vec![Awaited::new(one, port)]);
    assert!(listen(&mut listening, &mut awaited), "it is to be tried again");
    progress(&mut listening, &mut awaited);
    assert!(listening.is_empty() && awaited.len() == 1);
    drop(others);
    assert!(!listen(&mut listening, &mut awaited));
    assert!(listening.len() == 1 && awaited.len() == 1);
}
