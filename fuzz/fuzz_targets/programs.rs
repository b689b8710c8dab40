//! A program's file, and a library's label.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sanshim_core::fuzzing::programs(data));
