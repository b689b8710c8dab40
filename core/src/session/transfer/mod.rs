//! RDMA transfers and adaptive flow control, each direction of a connection by itself: when much data is announced,
//! advertised, read, written, or sent in messages after all (S3–S5, A3–A8, A10–A14).
//!
//! The sender's half is [`Sending`], the receiver's [`Receiving`]. The caller exchanges their control messages and does
//! the provider's operations. This room moves no bytes, does not wait, and knows no clock.

mod preference;
mod receiving;
mod sending;

#[cfg(test)]
mod tests;

use super::control::{Complete, Control};
use super::error::ProtocolError;
use super::header::Kind;

pub use preference::{Preference, Way};
pub use receiving::{Call, Posting, Receiving, Rest};
pub use sending::{End, Plan, Progress, Sending};

/// What the provider of a connection offers (A2). Asked of the provider, never assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Smallest transfer in bytes that RDMA is worth; `u32::MAX`: never.
    pub threshold: u32,
    /// It has RDMA read.
    pub read: bool,
    /// It has RDMA write.
    pub write: bool,
}

impl Abilities {
    /// A provider, or a connection, on which messages carry everything.
    pub const NONE: Abilities = Abilities { threshold: u32::MAX, read: false, write: false };

    fn rdma(&self) -> bool {
        self.read || self.write
    }
}

/// Gives a control message that came as number `sequence` to the half that it concerns; false: it
/// concerns no transfer. Receive lock.
///
/// # Errors
/// [`ProtocolError`] if an honest peer does not send it now.
pub fn obey(
    control: &Control,
    sequence: u32,
    sending: &Sending,
    receiving: &Receiving,
) -> Result<bool, ProtocolError> {
    match control {
        Control::DataAvailable(available) => receiving.available(available, sequence)?,
        Control::TransferComplete(complete) => match complete {
            Complete { behaviour: Some(behaviour), .. } => {
                sending.completed(complete, *behaviour)?;
            }
            Complete { behaviour: None, .. } => receiving.written(complete)?,
        },
        Control::Advertisement(advertisement) => sending.advertisement(advertisement)?,
        Control::SendInMessages(key, for_ever) => sending.refused(*key, *for_ever)?,
        Control::RestInMessages(key, bytes) => receiving.rest_in_messages(*key, *bytes)?,
        Control::EnterMode(mode, settled) => receiving.mode_entered(*mode, *settled),
        Control::Rediscover => sending.asked_to_rediscover(),
        Control::ResizeRequest(_) | Control::ResizeAnswer(_) | Control::Resized => {
            return Ok(false)
        }
        Control::Suspend(_) | Control::Suspended(_) | Control::Resume(_) => return Ok(false),
    }
    Ok(true)
}

fn wrong_number(kind: Kind, number: u32) -> ProtocolError {
    ProtocolError::Body { kind, field: "number", value: number.into() }
}

/// The number in a message of `kind` must come after `newest`. Some are skipped: of transfers, and
/// buffers, that were given up before there was credit.
fn check_new(kind: Kind, number: u32, newest: u32) -> Result<(), ProtocolError> {
    if number.wrapping_sub(newest) as i32 > 0 {
        Ok(())
    } else {
        Err(wrong_number(kind, number))
    }
}

/// The number in a message of `kind` must be one that was given out, `newest` the last.
fn check_known(kind: Kind, number: u32, newest: u32) -> Result<(), ProtocolError> {
    if newest.wrapping_sub(number) as i32 >= 0 {
        Ok(())
    } else {
        Err(wrong_number(kind, number))
    }
}
