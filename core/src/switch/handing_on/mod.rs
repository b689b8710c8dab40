//! Connections that somebody is to go on with who cannot do so on the SAN: another program (exec), another process (a message),
//! or this one by ways that pass the library's hooks. They go back to TCP before.

pub mod bring_back;
pub mod exec;
pub mod passing;
mod substitute;
