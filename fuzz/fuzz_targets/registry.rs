//! A registry file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sanshim_core::fuzzing::registry_file(data));
