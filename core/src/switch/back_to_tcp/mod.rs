//! The way back to TCP.

pub(in crate::switch) mod away;
pub(in crate::switch) mod detach;
pub mod from_outside;
pub(in crate::switch) mod request;
pub(in crate::switch) mod resend;
pub(in crate::switch) mod stand_in;
