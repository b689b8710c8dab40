//! Helpers shared by the integration tests.

pub mod behaviour;
pub mod plans;
pub mod programs;

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has a program run without the right to access every process's memory, with which it uses none of its peers' (RDMA on
/// one host). Root has it.
pub fn without_access_to_all(command: &mut Command) {
    const SYS_PTRACE: libc::c_ulong = 19;
    // SAFETY: one system call, no memory.
    unsafe {
        command.pre_exec(|| {
            // Who is not root has it not, and may not drop it.
            libc::prctl(libc::PR_CAPBSET_DROP, SYS_PTRACE, 0, 0, 0);
            Ok(())
        });
    }
}
