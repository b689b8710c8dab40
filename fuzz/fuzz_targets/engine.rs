//! One end of a connection, fed with arbitrary messages while its program does anything.
#![no_main]

#[allow(dead_code, unreachable_pub)]
#[path = "../../core/tests/arbitrary/end.rs"]
mod end;

libfuzzer_sys::fuzz_target!(|data: &[u8]| end::run(data));
