//! Faults: at will in the simulation, a killed peer over verbs; and what only the simulation checks.

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

const VICTIM: &str = "SANSHIM_CONFORMANCE_VICTIM";

/// The peer that is killed: connects to the address in the environment, sends a byte, and waits.
#[test]
#[ignore = "started by a_killed_peer_ends_the_connection"]
fn victim() {
    let Ok(address) = std::env::var(VICTIM) else { return };
    let setting = crate::verbs();
    let (adapter, _) = setting.adapters();
    let side = Side::new(&adapter, 1, None);
    let started = side.connector.connect(&side.pair, address.parse().unwrap(), b"", 1);
    finish(started, &side.connector, 1).unwrap();
    finish(side.connector.complete_connect(2), &side.connector, 2).unwrap();
    side.pair.send_inline(3, b"x", Flags::NONE).unwrap();
    loop {
        std::thread::park();
    }
}

mod verbs {
    use super::*;
    use std::process::{Command, Stdio};

    /// D12 needs it: the kernel tells the end of a process that cannot tell it itself.
    #[test]
    #[ignore = "needs an RDMA device: scripts/test --rdma"]
    fn a_killed_peer_ends_the_connection() {
        let setting = crate::verbs();
        let (_, adapter) = setting.adapters();
        let listener = setting.listener(&adapter);
        let side = Side::new(&adapter, 2, None);
        side.post(1, 0, 8);
        side.post(2, 8, 8);
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "faults::victim"])
            .env(VICTIM, listener.local_address().unwrap().to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        finish(listener.get_connection_request(&side.connector, 4), &listener, 4).unwrap();
        finish(side.connector.accept(&side.pair, b"", 5), &side.connector, 5).unwrap();
        assert_eq!(side.expect(RequestKind::Receive, 1), Ok(1));
        assert_eq!(side.connector.notify_disconnect(6), Ok(Started::Pending));
        victim.kill().unwrap();
        victim.wait().unwrap();
        assert_eq!(reported(&side.connector).request, 6);
        assert_eq!(side.expect(RequestKind::Receive, 2), Err(Error::Cancelled));
    }
}
