//! Helpers shared by the integration tests.

pub mod behaviour;
pub mod programs;
