//! Faults at will, and what only the simulation checks.

use crate::side::*;
use crate::simulation;
use sanshim_core::provider::interface::*;
use sanshim_core::provider::simulation::{lose_link, remove_device};

#[test]
fn a_lost_link_ends_the_outstanding_requests() {
    let setting = simulation();
    let (a, b) = setting.connected();
    a.post(1, 0, 8);
    a.send(2, 0, 8);
    a.send(3, 0, 8);
    lose_link(setting.there.ip());
    assert_eq!(a.expect(RequestKind::Send, 2), Err(Error::TimedOut));
    assert_eq!(a.expect(RequestKind::Send, 3), Err(Error::Cancelled));
    assert_eq!(a.expect(RequestKind::Receive, 1), Err(Error::Cancelled));
    drop(b);
}

#[test]
fn a_removed_device_ends_its_connections() {
    let setting = simulation();
    let (a, b) = setting.connected();
    b.post(1, 0, 8);
    assert_eq!(a.connector.notify_disconnect(4), Ok(Started::Pending));
    assert_eq!(b.connector.notify_disconnect(5), Ok(Started::Pending));
    remove_device(setting.there.ip());
    assert_eq!(reported(&b.connector).result, Err(Error::DeviceRemoved));
    assert_eq!(reported(&a.connector).result, Ok(()));
    assert_eq!(b.expect(RequestKind::Receive, 1), Err(Error::Cancelled));
}

#[test]
fn m2_a_bind_may_be_narrower_than_its_region() {
    let (a, b) = simulation().connected();
    let memory = b.bind(64, RemoteAccess::Read);
    let read = a.pair.read(1, &[a.buffer.segment(0, 65)], memory, Flags::NONE);
    assert_eq!(read.and_then(|()| a.expect(RequestKind::Read, 1)), Err(Error::RemoteAccess));
}
