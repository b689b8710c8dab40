//! A program's file, and a library's label.
#![no_main]

#[path = "../../ctl/src/executable/elf.rs"]
mod elf;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    sanshim_core::fuzzing::programs(data);
    let _ = elf::Elf::parse(data);
});
