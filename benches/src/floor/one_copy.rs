//! A flow with a single copy: the receiver reads the sender's buffers with process_vm_readv.
//!
//! The sender is the child, because a strict Yama setting lets a process read only its children.

use super::memory::SharedMapping;
use crate::error::BenchError;
use crate::options::Options;
use crate::process;
use crate::report::{self, Subject};
use crate::spin::Spin;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Offset of the address of the sender's first buffer, which is 0 until it is there. The second buffer follows the
/// first.
const ADDRESS: usize = 0;
const SENDER: usize = 8;
/// Offset of the number of buffers that were filled and offered.
const OFFERED: usize = 128;
/// Offset of the number of buffers that were read. Its top bit ends the run.
const TAKEN: usize = 256;
const END: u64 = 1 << 63;
/// Buffers that are offered at a time. So the next one is ready while one is read.
const DEPTH: u64 = 2;

pub(crate) fn run(options: &Options) -> Result<(), BenchError> {
    let shared = SharedMapping::new(384)?;
    let spin = Spin::new(options.placement);
    let size = options.size;

    let send = || {
        let data = vec![0x5a_u8; size * DEPTH as usize];
        // SAFETY: getpid has no preconditions.
        shared.word(SENDER).store(unsafe { libc::getpid() } as u64, Ordering::Release);
        shared.word(ADDRESS).store(data.as_ptr() as u64, Ordering::Release);
        let mut offered = 0;
        loop {
            let mut taken = 0;
            spin.until(|| {
                taken = shared.word(TAKEN).load(Ordering::Acquire);
                taken & END != 0 || offered - taken < DEPTH
            });
            if taken & END != 0 {
                return;
            }
            offered += 1;
            shared.word(OFFERED).store(offered, Ordering::Release);
        }
    };
    let receive = || {
        let mut buffer = vec![0_u8; size];
        let mut address = 0;
        spin.until(|| {
            address = shared.word(ADDRESS).load(Ordering::Acquire);
            address != 0
        });
        let sender = shared.word(SENDER).load(Ordering::Acquire) as libc::pid_t;
        let start = Instant::now();
        let mut taken = 0;
        let mut take = || {
            while options.count.map_or(start.elapsed() < options.length, |count| taken < count) {
                spin.until(|| shared.word(OFFERED).load(Ordering::Acquire) > taken);
                read_remote(
                    sender,
                    address as usize + (taken % DEPTH) as usize * size,
                    &mut buffer,
                )?;
                taken += 1;
                shared.word(TAKEN).store(taken, Ordering::Release);
            }
            Ok((taken, start.elapsed()))
        };
        let result = take();
        shared.word(TAKEN).store(END, Ordering::Release);
        if result.is_ok() && buffer.iter().any(|byte| *byte != 0x5a) {
            return Err(BenchError::Peer("read other bytes than were offered".into()));
        }
        result
    };
    let (messages, elapsed) = process::fork_pair(options, receive, send)?;
    report::flow(Subject::Floor, options, messages, elapsed, None);
    Ok(())
}

fn read_remote(pid: libc::pid_t, address: usize, into: &mut [u8]) -> Result<(), BenchError> {
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let remote = libc::iovec { iov_base: (address + done) as *mut _, iov_len: rest.len() };
        // SAFETY: `local` is a live buffer of its length; the remote range is the kernel's to check.
        let count = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
        if count < 0 {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EPERM | libc::ENOSYS) => {
                    BenchError::Unavailable(format!("process_vm_readv: {error}"))
                }
                _ => BenchError::System { call: "process_vm_readv", source: error },
            });
        }
        done += count as usize;
    }
    Ok(())
}
