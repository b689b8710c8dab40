//! The least that two processes need to have memory of their own for each connection. One process makes a mapping, the
//! other maps it too, a message goes there and back in it, and both end it.

use super::memory::SharedMapping;
use crate::error::BenchError;
use crate::options::Options;
use crate::report::{self, Subject};
use crate::spin::Spin;
use crate::{process, stats};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// Offsets in the memory that both have from the start: of the process that makes the mappings, and of the number and
/// the descriptor of the newest mapping.
const MAKER: usize = 0;
const OFFER: usize = 64;
/// Offset of a word that is not zero once the other process cannot go on.
const FAILED: usize = 72;
const END: u64 = u64::MAX;
/// Offset of the step in a mapping: 1 with the request, 2 with the reply.
const STEP: usize = 0;
const DATA: usize = 8;

pub(crate) fn run(options: &Options) -> Result<(), BenchError> {
    let common = SharedMapping::new(128)?;
    let spin = Spin::new(options.placement);
    let length = (DATA + options.size).next_multiple_of(4096);
    common.word(MAKER).store(std::process::id().into(), Ordering::Release);

    let make = || {
        let out = vec![0x5a; options.size];
        let mut into = vec![0; options.size];
        let mut number = 0_u64;
        let summary = stats::measure(options, || {
            let file = SharedMapping::file(length)?;
            let own = SharedMapping::map(&file, length)?;
            own.copy_in(DATA, &out);
            own.word(STEP).store(1, Ordering::Release);
            number += 1;
            common.word(OFFER).store(number << 32 | file.as_raw_fd() as u64, Ordering::Release);
            let failed = || common.word(FAILED).load(Ordering::Acquire) != 0;
            spin.until(|| own.word(STEP).load(Ordering::Acquire) == 2 || failed());
            if failed() {
                return Err(BenchError::Unavailable(
                    "the other process may not map the memory".into(),
                ));
            }
            own.copy_out(DATA, &mut into);
            Ok(())
        });
        common.word(OFFER).store(END, Ordering::Release);
        if into != out {
            return Err(BenchError::Peer("the echo differs from what was sent".into()));
        }
        summary
    };
    let follow = || {
        let maker = common.word(MAKER).load(Ordering::Acquire);
        let mut buffer = vec![0; options.size];
        let mut seen = 0;
        loop {
            let mut offer = seen;
            spin.until(|| {
                offer = common.word(OFFER).load(Ordering::Acquire);
                offer != seen
            });
            seen = offer;
            if offer == END {
                return;
            }
            let path = format!("/proc/{maker}/fd/{}", offer as u32);
            let file = OpenOptions::new().read(true).write(true).open(path);
            let Some(mapping) = file.ok().and_then(|file| SharedMapping::map(&file, length).ok())
            else {
                return common.word(FAILED).store(1, Ordering::Release);
            };
            spin.until(|| mapping.word(STEP).load(Ordering::Acquire) == 1);
            mapping.copy_out(DATA, &mut buffer);
            mapping.copy_in(DATA, &buffer);
            mapping.word(STEP).store(2, Ordering::Release);
        }
    };
    let summary = process::fork_pair(options, make, follow)?;
    report::latency(Subject::Floor, options, &summary);
    Ok(())
}
