//! The helper does what the helpers of other processes ask for.

use crate::fabric::adapters;
use crate::fabric::link::former_links;
use crate::fabric::mailbox::HelperMessage;

/// Does what a message asks for. (Look: whatever it is, the round comes to it.)
pub(super) fn heed(message: &HelperMessage) {
    match message {
        HelperMessage::Look => {}
        HelperMessage::Want { link, invitation } => {
            for port in adapters::in_use() {
                port.each_link(|one| {
                    if one.id() == *link {
                        one.move_to(invitation);
                    }
                });
            }
        }
        HelperMessage::Take { link } => {
            former_links::find(*link).iter().for_each(|one| one.take_back());
        }
    }
}
