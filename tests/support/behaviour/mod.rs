//! The behaviour test programs (`tests/behaviour/*.c`): compiling them, listing their cases, and
//! running one case natively or under the shim. What a case expects is written in the C source.

mod build;
mod fabric;
mod run;

pub use build::{build, Program};
pub use run::{shim_library, Carrier, Case, Exercise, Mode};
