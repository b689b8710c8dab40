//! Making and ending connections, and cancelling the attempts (N3, N4).

use crate::side::*;
use crate::{suite, Setting};
use sanshim_core::provider::interface::client::Overlapped;
use sanshim_core::provider::interface::*;

fn n3_addresses_are_listed_and_only_those_are_served(setting: &Setting) {
    let provider = setting.provider();
    let listed = provider.addresses().unwrap();
    assert!(!listed.is_empty());
    assert!(listed.iter().all(|address| address.port() == 0));
    for address in listed {
        provider.open_adapter(address).unwrap();
    }
    let foreign = provider.open_adapter("203.0.113.1:0".parse().unwrap());
    assert_eq!(foreign.err(), Some(Error::AddressNotAvailable));
}

fn n2_a_provider_may_be_opened_several_times(setting: &Setting) {
    let (first, second) = (setting.provider(), setting.provider());
    drop(first);
    second.open_adapter(setting.here).unwrap();
    assert!(!setting.library.query().kind().is_empty());
    assert_eq!(setting.library.unusable(), None);
}

fn a_connection_knows_its_addresses(setting: &Setting) {
    let (a, b) = setting.connected();
    let (from, to) = (a.connector.local_address().unwrap(), a.connector.peer_address().unwrap());
    assert_eq!(from.ip(), setting.here.ip());
    assert_eq!(to.ip(), setting.there.ip());
    assert_eq!(b.connector.local_address().unwrap(), to);
    assert_eq!(b.connector.peer_address().unwrap(), from);
}

fn nobody_listening_refuses(setting: &Setting) {
    let (a, b) = setting.adapters();
    let closed = setting.listener(&b).local_address().unwrap();
    let a = Side::new(&a, 1, None);
    let result = finish(a.connector.connect(&a.pair, closed, b"", 1), &a.connector, 1);
    assert_eq!(result, Err(Error::ConnectionRefused));
}

fn a_rejected_request_is_refused_with_the_reason(setting: &Setting) {
    let (a, b) = setting.adapters();
    let listener = setting.listener(&b);
    let (a, b) = (Side::new(&a, 1, None), Side::new(&b, 2, None));
    let to = listener.local_address().unwrap();
    assert_eq!(a.connector.connect(&a.pair, to, b"please", 1), Ok(Started::Pending));
    assert_eq!(hand_over(&a, &b, &listener), None);
    assert!(b.connector.private_data().unwrap().starts_with(b"please"));
    b.connector.reject(b"busy").unwrap();
    let refused = Reported { request: 1, result: Err(Error::ConnectionRefused) };
    assert_eq!(reported(&a.connector), refused);
    assert!(a.connector.private_data().unwrap().starts_with(b"busy"));
}

fn one_listener_serves_several_connections(setting: &Setting) {
    let (a, b) = setting.adapters();
    let listener = setting.listener(&b);
    let ends: Vec<_> = (0..3)
        .map(|i| {
            let (a, b) = (Side::new(&a, i, None), Side::new(&b, i, None));
            connect(&a, &b, &listener);
            (a, b)
        })
        .collect();
    for (i, (a, b)) in ends.iter().enumerate() {
        b.post(1, 0, 16);
        a.buffer.fill(0, &[i as u8; 16]);
        a.send(2, 0, 16);
        assert_eq!(b.expect(RequestKind::Receive, 1), Ok(16));
        assert_eq!(b.buffer.bytes(0, 16), [i as u8; 16]);
    }
}

fn a_listeners_address_is_its_own(setting: &Setting) {
    let (_, b) = setting.adapters();
    let first = setting.listener(&b);
    let taken = first.local_address().unwrap();
    assert_ne!(taken.port(), 0);
    assert_ne!(setting.listener(&b).local_address().unwrap(), taken);
    let second = b.create_listener().unwrap();
    let refused = second.bind(taken).and_then(|()| second.listen(1));
    assert_eq!(refused, Err(Error::AddressInUse));
}

fn n4_a_disconnect_is_told_to_who_asked(setting: &Setting) {
    let (a, b) = setting.connected();
    assert_eq!(b.connector.notify_disconnect(9), Ok(Started::Pending));
    assert_eq!(b.connector.next_result(), None);
    finish(a.connector.disconnect(8), &a.connector, 8).unwrap();
    assert_eq!(reported(&b.connector), Reported { request: 9, result: Ok(()) });
    // An object that has ended already says so at once.
    assert_eq!(b.connector.notify_disconnect(10), Ok(Started::Done));
    assert_eq!(b.connector.next_result(), None);
}

fn a_closed_connector_ends_the_connection(setting: &Setting) {
    let (a, b) = setting.connected();
    assert_eq!(b.connector.notify_disconnect(9), Ok(Started::Pending));
    drop(a);
    assert_eq!(reported(&b.connector), Reported { request: 9, result: Ok(()) });
}

fn n4_a_wait_for_a_request_can_be_cancelled(setting: &Setting) {
    let (a, b) = setting.adapters();
    let listener = setting.listener(&b);
    let (a, b) = (Side::new(&a, 1, None), Side::new(&b, 2, None));
    assert_eq!(listener.get_connection_request(&b.connector, 5), Ok(Started::Pending));
    assert_eq!(listener.next_result(), None);
    listener.cancel();
    assert_eq!(reported(&listener), Reported { request: 5, result: Err(Error::Cancelled) });
    assert_eq!(listener.next_result(), None);
    // Nothing is lost by it.
    connect(&a, &b, &listener);
}

fn n4_an_unanswered_request_can_be_cancelled(setting: &Setting) {
    let (a, b) = setting.adapters();
    let listener = setting.listener(&b);
    let a = Side::new(&a, 1, None);
    let to = listener.local_address().unwrap();
    assert_eq!(a.connector.connect(&a.pair, to, b"", 6), Ok(Started::Pending));
    a.connector.cancel();
    assert_eq!(reported(&a.connector), Reported { request: 6, result: Err(Error::Cancelled) });
}

fn n4_a_wait_for_the_end_can_be_cancelled(setting: &Setting) {
    let (a, b) = setting.connected();
    assert_eq!(b.connector.notify_disconnect(9), Ok(Started::Pending));
    b.connector.cancel();
    assert_eq!(reported(&b.connector), Reported { request: 9, result: Err(Error::Cancelled) });
    // The connection goes on.
    b.post(1, 0, 8);
    a.send(2, 0, 8);
    assert_eq!(b.expect(RequestKind::Receive, 1), Ok(8));
}

fn objects_of_another_adapter_are_refused(setting: &Setting) {
    let (a, b) = setting.adapters();
    let (mine, theirs) =
        (a.create_completion_queue(8).unwrap(), b.create_completion_queue(8).unwrap());
    let mixed = a.create_queue_pair(&attributes(1), &mine, &theirs, None);
    assert_eq!(mixed.err(), Some(Error::InvalidParameter));
    let strangers = a.create_queue_pair(&attributes(1), &theirs, &theirs, None);
    assert_eq!(strangers.err(), Some(Error::InvalidParameter));
}

suite! {
    n3_addresses_are_listed_and_only_those_are_served
    n2_a_provider_may_be_opened_several_times
    a_connection_knows_its_addresses
    nobody_listening_refuses
    a_rejected_request_is_refused_with_the_reason
    one_listener_serves_several_connections
    a_listeners_address_is_its_own
    n4_a_disconnect_is_told_to_who_asked
    a_closed_connector_ends_the_connection
    n4_a_wait_for_a_request_can_be_cancelled
    n4_an_unanswered_request_can_be_cancelled
    n4_a_wait_for_the_end_can_be_cancelled
    objects_of_another_adapter_are_refused
}
