//! What `fuzz/` feeds with any bytes: each decoder of what comes from outside, and a connection whose memory anybody writes. Nothing may
//! panic, hang, or read what it should not; what is decoded is what would be encoded. The inputs that were worth keeping lie in
//! `fuzz/seeds`, and are tried here.
//!
//! Must not decide what is right: that is beside each decoder.

#[cfg(test)]
mod seeds;

use crate::label::Label;
use crate::{config, fabric, provider, registry, switch, sys};

/// Takes any bytes.
pub type Target = fn(&[u8]);

/// The targets by name. (`engine` and `decode` are in core/tests/arbitrary.)
pub const TARGETS: [(&str, Target); 5] = [
    ("messages", messages),
    ("programs", programs),
    ("registry", registry_file),
    ("settings", settings),
    ("words", words),
];

/// What other processes and hosts send, offered memory too, and the kernel answers: the first byte says which.
pub fn messages(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else { return };
    match choice % 7 {
        0 => fabric::fuzzing::fuzz(rest),
        1 => switch::setup::fuzz(rest),
        2 => provider::shm::objects::fuzz(rest),
        3 => {
            let _ = sys::cmsg::each(rest, |_, _, data| sys::cmsg::descriptors(data).for_each(drop));
        }
        4 => {
            sys::sock_diag::fuzz(rest);
            sys::tcp_connections::fuzz(rest);
        }
        5 => sys::lender::fuzz(&String::from_utf8_lossy(rest)),
        _ => provider::shm::fuzzing::fuzz(rest),
    }
}

/// Variables and a rules file.
pub fn settings(data: &[u8]) {
    config::fuzz(&String::from_utf8_lossy(data));
}

/// A registry file.
pub fn registry_file(data: &[u8]) {
    registry::fuzzing::fuzz(data);
}

/// The section of a library that says its version. (`sanctl` has the rest of this target: a program's file.)
pub fn programs(data: &[u8]) {
    if let Some(label) = Label::parse(data) {
        assert!(label.version.is_ascii() && label.version.len() < crate::label::SIZE);
        let _ = label.fits();
    }
}

/// A connection: how its memory is written, and which calls are made.
pub fn words(data: &[u8]) {
    switch::fuzz_words(data);
}

#[test]
fn inputs_that_were_kept_are_right() {
    for (name, target) in TARGETS {
        let tried = seeds::each(name, target);
        assert!(tried > 0, "no input for {name}");
    }
}
