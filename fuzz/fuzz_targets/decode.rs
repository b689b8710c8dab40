//! Headers and bodies of messages as they come from the peer.
#![no_main]

#[allow(dead_code, unreachable_pub)]
#[path = "../../core/tests/arbitrary/end.rs"]
mod end;

libfuzzer_sys::fuzz_target!(|data: &[u8]| end::decode(data));
