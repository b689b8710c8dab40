//! Messages of other processes and hosts, and answers of the kernel.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sanshim_core::fuzzing::messages(data));
