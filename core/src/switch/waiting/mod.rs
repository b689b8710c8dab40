//! Sleeping until something happens on a connection.

mod link_sleep;
pub(in crate::switch) mod ring;
pub(in crate::switch) mod wait;
