//! The way back to TCP.

pub(in crate::switch) mod detach;
pub(in crate::switch) mod helper_calls;
pub(in crate::switch) mod request;
pub(in crate::switch) mod resend;
pub(in crate::switch) mod resend_for_peer;
