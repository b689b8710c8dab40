//! CPU time, wake-ups and memory of a process, as the kernel counts them.

use crate::error::BenchError;
use std::{fs, mem};

fn read(pid: u32, file: &str) -> Result<String, BenchError> {
    fs::read_to_string(format!("/proc/{pid}/{file}"))
        .map_err(|source| BenchError::System { call: "read /proc", source })
}

/// CPU time and wake-ups of all threads of a process since it started.
pub(crate) struct CpuUse {
    pub(crate) milliseconds: f64,
    /// How often a thread gave the CPU up by itself. There is one such time for each wake-up from a sleep.
    pub(crate) wakeups: u64,
}

impl CpuUse {
    /// Of a process, which is not disturbed. The time has a resolution of nanoseconds, unlike utime and stime.
    pub(crate) fn of(pid: u32) -> Result<CpuUse, BenchError> {
        let mut clock = 0;
        // SAFETY: `clock` is live.
        let error = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) };
        if error != 0 {
            let source = std::io::Error::from_raw_os_error(error);
            return Err(BenchError::System { call: "clock_getcpuclockid", source });
        }
        // SAFETY: all zero is a valid timespec; `time` is live.
        let time = unsafe {
            let mut time: libc::timespec = mem::zeroed();
            if libc::clock_gettime(clock, &mut time) != 0 {
                return Err(BenchError::last("clock_gettime"));
            }
            time
        };
        let tasks = fs::read_dir(format!("/proc/{pid}/task"))
            .map_err(|source| BenchError::System { call: "read /proc", source })?;
        let mut wakeups = 0;
        for task in tasks.flatten() {
            // The thread may have ended meanwhile.
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            wakeups += status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
                .and_then(|count| count.trim().parse::<u64>().ok())
                .unwrap_or(0);
        }
        let milliseconds = time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6;
        Ok(CpuUse { milliseconds, wakeups })
    }

    pub(crate) fn since(&self, earlier: &CpuUse) -> CpuUse {
        CpuUse {
            milliseconds: self.milliseconds - earlier.milliseconds,
            wakeups: self.wakeups.saturating_sub(earlier.wakeups),
        }
    }
}

/// Memory that a process has touched, in KiB of its proportional share (smaps, Pss).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TouchedMemory {
    /// Memory in memfds. Memory that two processes share counts half in each, so both ends add up to the whole.
    pub(crate) segments: i64,
    /// Everything else.
    pub(crate) own: i64,
}

impl TouchedMemory {
    pub(crate) fn of(pid: u32) -> Result<TouchedMemory, BenchError> {
        Ok(TouchedMemory::parse(&read(pid, "smaps")?))
    }

    fn parse(smaps: &str) -> TouchedMemory {
        let mut memory = TouchedMemory { segments: 0, own: 0 };
        let mut in_segment = false;
        for line in smaps.lines() {
            let first = line.split_ascii_whitespace().next().unwrap_or_default();
            if !first.ends_with(':') {
                in_segment = line.contains("/memfd:");
            } else if let Some(value) = line.strip_prefix("Pss:") {
                let kib: i64 = value.trim().trim_end_matches(" kB").parse().unwrap_or(0);
                *(if in_segment { &mut memory.segments } else { &mut memory.own }) += kib;
            }
        }
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_are_split_into_segments_and_the_rest() {
        let smaps = "\
7f0000000000-7f0000010000 rw-s 00000000 00:01 7 /memfd:segment (deleted)
Rss:                  64 kB
Pss:                  32 kB
Pss_Dirty:            32 kB
7f0000020000-7f0000030000 rw-p 00000000 00:00 0
Pss:                   8 kB
VmFlags: rd wr mr mw me ac
7ffd00000000-7ffd00020000 rw-p 00000000 00:00 0 [stack]
Pss:                  12 kB
";
        assert_eq!(TouchedMemory::parse(smaps), TouchedMemory { segments: 32, own: 20 });
    }

    #[test]
    fn own_cpu_time_grows() {
        let start = CpuUse::of(std::process::id()).unwrap();
        let grown = (0..1_000_000)
            .map(|_| CpuUse::of(std::process::id()).unwrap().since(&start).milliseconds)
            .any(|milliseconds| milliseconds >= 1.0);
        assert!(grown, "a million looks into /proc cost no CPU time");
    }
}
