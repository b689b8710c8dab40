//! Connections that another process, or another program in this one, is to go on with: by exec, or in a message.

pub(in crate::switch) mod adopt;
pub mod arrival;
mod crowded;
pub mod exec;
pub mod image;
mod manifest;
pub mod passing;
mod remains;
pub mod trust;
