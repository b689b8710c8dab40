//! A connection whose memory is written to.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sanshim_core::fuzzing::words(data));
