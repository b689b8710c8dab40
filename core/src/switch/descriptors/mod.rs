//! What a program does with descriptors, rather than with the bytes behind them.

pub(super) mod accept;
pub(super) mod connect;
pub mod lifecycle;
pub(in crate::switch) mod link_end;
pub mod options;
pub mod sets;
