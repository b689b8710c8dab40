//! Devices that were removed. The helper ends their connections, and gives back what was made of them.

use crate::fabric::link::{ended, former_links, LinkPort};
use crate::fabric::sharing::invitations;
use crate::fabric::{adapters, helper, meeting};

/// Ports whose devices were removed, and which links still use. Only the helper touches them.
#[derive(Default)]
pub(super) struct Retired(Vec<&'static LinkPort>);

impl Retired {
    /// The device of a port was removed: its connections end.
    pub(super) fn add(&mut self, port: &'static LinkPort) {
        let device = &port.device;
        log::warn!("the RDMA device of {} was removed: its connections end", device.local);
        let watched = [device.descriptor(), device.removal()];
        device.retire();
        watched.into_iter().flatten().for_each(helper::forget);
        adapters::forget(port);
        meeting::retire(port);
        invitations::retire(port);
        self.0.push(port);
    }

    /// Gives back what was made of devices, once nothing uses it; true if something does still.
    pub(super) fn close(&mut self) -> bool {
        self.0.retain(|port| {
            port.each_link(|link| link.lose_device());
            former_links::forget_port(port);
            ended::forget_port(port);
            !port.close()
        });
        !self.0.is_empty()
    }
}
