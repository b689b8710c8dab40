//! Has a thread of another process that is stopped (SIGSTOP) leave what it is in the middle of.
//!
//! The kernel stops no thread in the midst of a send: where TCP's is, ours is between two instructions, and holds a lock that
//! relatives wait for. Such a thread is traced (ptrace), an instruction at a time, until it has let go, and stands still again.
//! Nothing of the program's own runs meanwhile, and no signal is delivered, or lost. Where the kernel does not let us trace it,
//! it keeps what it holds until it is continued.

use super::process::{self, SignalsHeld, State};
use super::{beside, call, file, time};
use std::ffi::CStr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How long (ns) it may take to let go.
const PATIENCE: u64 = 1_000_000_000;
/// How long (ms) one that could not be led out is left alone by who cannot wait.
const LATELY: u32 = 10_000;
/// How long (ns) one instruction may take: a system call in which it waits for somebody is not waited for.
const INSTRUCTION: u64 = 100_000_000;
/// Registers as ptrace shows them on x86-64.
const REGISTERS: usize = 27;
const RAX: usize = 10;
const RIP: usize = 16;
const NT_PRSTATUS: usize = 1;
/// Where ptrace has the debug registers of x86-64, and what in the last one makes the first one stop at an instruction.
const DEBUG_REGISTERS: usize = 848;
const CONTROL: usize = DEBUG_REGISTERS + 7 * 8;
const FIRST_STOPS: usize = 1;
const PTRACE_GETSIGMASK: u32 = 0x420a;
const PTRACE_SETSIGMASK: u32 = 0x420b;
/// Signals that an instruction raises itself: held back they would end the process.
const OF_INSTRUCTIONS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
/// How the files are called whose code a call of ours consists of.
const OURS: [&[u8]; 6] = [b"libsanshim", b"libc.so", b"libc-2", b"libpthread", b"ld-", b"[vdso]"];
/// Mappings that are remembered: a call goes from one to another.
const REMEMBERED: usize = 4;

/// What became of a thread that was to be led on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Led {
    /// It stands still in the middle of it yet, and will.
    pub resists: bool,
    /// A handler of the calling thread ran meanwhile.
    pub signalled: bool,
}

/// A thread that could not be led out, and when that was. Zeroed memory: none.
#[derive(Debug, Default)]
pub struct Resistance(AtomicU64);

impl Resistance {
    fn now() -> u32 {
        (time::now() / 1_000_000) as u32
    }

    /// It was tried just now, in vain.
    pub fn note(&self, thread: u32) {
        self.0.store(u64::from(thread) << 32 | u64::from(Self::now()), Relaxed);
    }

    /// True if it was tried lately with that thread.
    pub fn is_of(&self, thread: u32) -> bool {
        let word = self.0.load(Relaxed);
        (word >> 32) as u32 == thread && Self::now().wrapping_sub(word as u32) < LATELY
    }
}

/// Leads a thread on until `is_out`, if it is a stopped one of another process, and may be traced. `is_out` looks at memory
/// that the thread's process shares, and does nothing else.
#[cold]
pub fn step_out(thread: u32, is_out: impl Fn() -> bool) -> Led {
    let is_stopped = || process::state(thread) == State::Stopped;
    if !is_stopped() || process::is_own_thread(thread) {
        return Led::default();
    }
    if !cfg!(target_arch = "x86_64") || process::is_confined() {
        return Led { resists: true, signalled: false };
    }
    let held = SignalsHeld::new();
    let mut out = false;
    // Not by this process: the program's own waits would be told of the thread's stops.
    beside::with_own_descriptors(&mut || {
        // An end that another thread closes meanwhile is not to stay open here.
        let _ = call!(close_range, 0, u32::MAX, 0);
        if let Some(mut tracee) = Tracee::seize(thread) {
            out = tracee.lead(&is_out);
            tracee.let_go();
        }
    });
    if out {
        log::info!("thread {thread}, which is stopped, was led out of a call that others wait for");
    }
    // It may have been continued instead.
    let resists = !out && !is_out() && is_stopped();
    Led { resists, signalled: held.let_in() }
}

/// A thread that the calling one traces, at rest.
struct Tracee {
    thread: u32,
    /// The program's own signal mask.
    mask: u64,
    /// A signal that it gets when it goes on.
    signal: i32,
    /// Where code was seen to be ours.
    ours: [Range<u64>; REMEMBERED],
    next: usize,
    until: u64,
}

/// How a traced thread came to rest again.
enum Stop {
    /// At its next instruction, or at the beginning or end of a system call.
    Step,
    /// About to get that signal.
    Signal(i32),
    /// Not yet.
    Runs,
    /// It is dead.
    Gone,
}

impl Tracee {
    /// `None`: it may not be traced, or is not stopped any more.
    fn seize(thread: u32) -> Option<Self> {
        let until = time::now() + PATIENCE;
        let ours = [const { 0..0 }; REMEMBERED];
        let mut tracee = Tracee { thread, mask: 0, signal: 0, ours, next: 0, until };
        tracee.request(libc::PTRACE_SEIZE, 0, 0)?;
        // One that is stopped shows so at once; another was continued meanwhile.
        match tracee.next_stop(Some(INSTRUCTION)) {
            Stop::Step => {}
            Stop::Signal(signal) => {
                tracee.request(libc::PTRACE_DETACH, 0, signal as usize);
                return None;
            }
            Stop::Runs | Stop::Gone => return None,
        }
        if tracee.hold_signals_back().is_none() {
            tracee.request(libc::PTRACE_DETACH, 0, 0);
            return None;
        }
        Some(tracee)
    }

    fn request(&self, request: u32, address: usize, data: usize) -> Option<()> {
        call!(ptrace, request, self.thread, address, data).ok().map(drop)
    }

    /// Notes the program's mask, and puts another in its place.
    fn hold_signals_back(&mut self) -> Option<()> {
        let mut mask = 0u64;
        self.request(PTRACE_GETSIGMASK, size_of::<u64>(), (&raw mut mask) as usize)?;
        self.mask = mask;
        let bit = |signal: i32| 1u64 << (signal - 1);
        let raised = OF_INSTRUCTIONS.iter().fold(0, |all, signal| all | bit(*signal));
        let held = !raised | (mask & raised & !bit(libc::SIGTRAP));
        self.request(PTRACE_SETSIGMASK, size_of::<u64>(), (&raw const held) as usize)
    }

    fn restore_mask(&self) -> Option<()> {
        self.request(PTRACE_SETSIGMASK, size_of::<u64>(), (&raw const self.mask) as usize)
    }

    /// Waits for it; no longer than `patience` ns.
    fn next_stop(&self, patience: Option<u64>) -> Stop {
        const EVENTS: i32 = 16;
        let since = time::now();
        let options = libc::__WALL | if patience.is_some() { libc::WNOHANG } else { 0 };
        loop {
            let mut status = 0i32;
            match call!(wait4, self.thread, (&raw mut status) as usize, options, 0) {
                Ok(0) if patience.is_some_and(|patience| time::now() - since > patience) => {
                    return Stop::Runs
                }
                Ok(0) => process::yield_now(),
                Ok(_) if !libc::WIFSTOPPED(status) => return Stop::Gone,
                Ok(_) if status >> EVENTS != 0 || libc::WSTOPSIG(status) == libc::SIGTRAP => {
                    return Stop::Step
                }
                Ok(_) => return Stop::Signal(libc::WSTOPSIG(status)),
                Err(_) => return Stop::Gone,
            }
        }
    }

    /// An instruction at a time, until `is_out`; false if it does not come to that.
    fn lead(&mut self, is_out: impl Fn() -> bool) -> bool {
        while !is_out() {
            if time::now() > self.until || self.step().is_none() {
                return is_out();
            }
        }
        true
    }

    /// One instruction of ours; `None`: not any further.
    fn step(&mut self) -> Option<()> {
        let registers = self.registers()?;
        if !self.is_ours(registers[RIP]) {
            return None;
        }
        match self.next_instruction(&registers) {
            Instruction::SetsMask => self.step_over_mask(),
            Instruction::Repeats { length } => self.run_to(registers[RIP] + length),
            Instruction::Any => self.go_on(libc::PTRACE_SINGLESTEP),
        }
    }

    /// An instruction that would come to rest after every byte, as a whole.
    fn run_to(&mut self, next: u64) -> Option<()> {
        let poke = libc::PTRACE_POKEUSER;
        let stops = self
            .request(poke, DEBUG_REGISTERS, next as usize)
            .and_then(|()| self.request(poke, CONTROL, FIRST_STOPS));
        let rests =
            self.go_on(if stops.is_some() { libc::PTRACE_CONT } else { libc::PTRACE_SINGLESTEP });
        self.request(poke, CONTROL, 0);
        rests
    }

    /// Until it rests again. `None`: it is to go no further.
    fn go_on(&mut self, how: u32) -> Option<()> {
        self.request(how, 0, 0)?;
        match self.next_stop(Some(INSTRUCTION)) {
            Stop::Step => return Some(()),
            // Its handler is not ours; it begins when it is continued.
            Stop::Signal(signal) => self.signal = signal,
            Stop::Runs => {
                self.request(libc::PTRACE_INTERRUPT, 0, 0)?;
                // As a system call of the kernel's would be waited for: what was changed in it has to be put right.
                if let Stop::Signal(signal) = self.next_stop(None) {
                    self.signal = signal;
                }
            }
            Stop::Gone => {}
        }
        None
    }

    /// A system call that sets the signal mask sees, and leaves, the program's own.
    fn step_over_mask(&mut self) -> Option<()> {
        self.go_on(libc::PTRACE_SYSCALL)?;
        self.restore_mask()?;
        let rests = self.go_on(libc::PTRACE_SYSCALL);
        self.hold_signals_back()?;
        rests
    }

    /// The program's own mask is there again, and it stands still.
    fn let_go(self) {
        self.restore_mask();
        self.request(libc::PTRACE_DETACH, 0, self.signal as usize);
    }

    fn registers(&self) -> Option<[u64; REGISTERS]> {
        let mut registers = [0u64; REGISTERS];
        let mut to = libc::iovec {
            iov_base: registers.as_mut_ptr().cast(),
            iov_len: size_of_val(&registers),
        };
        self.request(libc::PTRACE_GETREGSET, NT_PRSTATUS, (&raw mut to) as usize)?;
        (to.iov_len == size_of_val(&registers)).then_some(registers)
    }

    fn next_instruction(&self, registers: &[u64; REGISTERS]) -> Instruction {
        let mut word = [0u8; 8];
        let at = registers[RIP] as usize;
        if self.request(libc::PTRACE_PEEKTEXT, at, word.as_mut_ptr() as usize).is_none() {
            return Instruction::Any;
        }
        Instruction::of(&word, registers[RAX] as i64)
    }

    fn is_ours(&mut self, at: u64) -> bool {
        if self.ours.iter().any(|range| range.contains(&at)) {
            return true;
        }
        let Some(range) = mapping_of_ours(self.thread, at) else { return false };
        self.ours[self.next % REMEMBERED] = range;
        self.next += 1;
        true
    }
}

/// What an instruction of x86-64 is, as far as it matters.
#[derive(Debug, PartialEq, Eq)]
enum Instruction {
    /// A system call that sets the signal mask.
    SetsMask,
    /// One that copies or fills, byte by byte; bytes of itself.
    Repeats {
        length: u64,
    },
    Any,
}

impl Instruction {
    /// `rax`: the number of the system call, if it is one.
    fn of(bytes: &[u8; 8], rax: i64) -> Self {
        let sets_mask = [libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn].contains(&rax);
        match bytes {
            [0x0f, 0x05, ..] if sets_mask => Instruction::SetsMask,
            [0xf3, 0xa4 | 0xa5 | 0xaa | 0xab, ..] => Instruction::Repeats { length: 2 },
            [0xf3, 0x40..=0x4f, 0xa4 | 0xa5 | 0xaa | 0xab, ..] => {
                Instruction::Repeats { length: 3 }
            }
            _ => Instruction::Any,
        }
    }
}

/// The mapping of a process of this user around an address, if it is of a file of ours.
fn mapping_of_ours(thread: u32, at: u64) -> Option<Range<u64>> {
    let path = process::path_of(thread, "maps");
    let fd = file::open_to_read(CStr::from_bytes_until_nul(&path).ok()?).ok()?;
    let is_of_user = file::stat(fd).is_ok_and(|stat| stat.st_uid == process::euid());
    let found = is_of_user.then(|| mapping_in(fd, at)).flatten();
    file::close(fd);
    found
}

fn mapping_in(fd: super::Fd, at: u64) -> Option<Range<u64>> {
    let (mut text, mut used) = ([0u8; 8192], 0);
    while used < text.len() {
        let rest = &mut text[used..];
        match file::read(fd, rest.as_mut_ptr(), rest.len()) {
            Ok(0) | Err(_) => break,
            Ok(count) => used += count,
        }
        let mut begun = 0;
        while let Some(length) = text[begun..used].iter().position(|byte| *byte == b'\n') {
            let line = &text[begun..begun + length];
            begun += length + 1;
            if let Some(range) = range(line).filter(|range| range.contains(&at)) {
                return Some(range).filter(|_| is_file_of_ours(line));
            }
        }
        text.copy_within(begun..used, 0);
        used -= begun;
    }
    None
}

/// Of a line "from-to rights offset device inode file".
fn range(line: &[u8]) -> Option<Range<u64>> {
    let text = std::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?;
    let (from, to) = text.split_once('-')?;
    Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
}

fn is_file_of_ours(line: &[u8]) -> bool {
    let end = if line.contains(&b'/') { b'/' } else { b' ' };
    let name = line.rsplit(|byte| *byte == end).next().unwrap_or(line);
    OURS.iter().any(|ours| name.starts_with(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_ours_is_known_by_its_file() {
        let line = b"7f0-7ff r-xp 00000000 08:01 1 /usr/lib/x86_64-linux-gnu/libc.so.6";
        assert_eq!(range(line), Some(0x7f0..0x7ff));
        assert!(is_file_of_ours(line));
        assert!(is_file_of_ours(b"1-2 r-xp 0 08:01 1  /home/a b/libsanshim.so (deleted)"));
        assert!(is_file_of_ours(b"1-2 r-xp 0 00:00 0        [vdso]"));
        assert!(!is_file_of_ours(b"1-2 r-xp 0 08:01 1  /lib/libc.so.d/program"));
        assert!(!is_file_of_ours(b"1-2 rwxp 0 00:00 0 "));
        assert_eq!(range(b"nonsense"), None);
    }

    #[test]
    fn the_mapping_of_an_address_is_found_however_many_there_are() {
        let own = process::pid();
        let in_libc = libc::getpid as *const () as u64;
        assert!(mapping_of_ours(own, in_libc).is_some_and(|range| range.contains(&in_libc)));
        let here = code_of_ours_is_known_by_its_file as *const () as u64;
        assert_eq!(mapping_of_ours(own, here), None);
        assert_eq!(mapping_of_ours(own, 1), None);
    }

    #[test]
    fn threads_that_are_not_stopped_are_left_alone() {
        assert_eq!(step_out(process::tid(), || panic!("it is asked")), Led::default());
        assert_eq!(step_out(1, || panic!("it is asked")), Led::default());
    }

    #[test]
    fn who_could_not_be_led_out_is_remembered_for_a_while() {
        let resistance = Resistance::default();
        assert!(!resistance.is_of(7));
        resistance.note(7);
        assert!(resistance.is_of(7) && !resistance.is_of(8));
        let long_ago = Resistance::now().wrapping_sub(LATELY);
        resistance.0.store(7 << 32 | u64::from(long_ago), Relaxed);
        assert!(!resistance.is_of(7));
    }

    #[test]
    fn instructions_that_matter_are_known() {
        let of = |bytes: &[u8], rax| {
            let mut all = [0x90; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            Instruction::of(&all, rax)
        };
        assert_eq!(of(&[0x0f, 0x05], libc::SYS_rt_sigprocmask), Instruction::SetsMask);
        assert_eq!(of(&[0x0f, 0x05], libc::SYS_futex), Instruction::Any);
        assert_eq!(of(&[0xf3, 0xa4], 0), Instruction::Repeats { length: 2 });
        assert_eq!(of(&[0xf3, 0x48, 0xab], 0), Instruction::Repeats { length: 3 });
        assert_eq!(of(&[0xf3, 0x0f, 0x1e, 0xfa], 0), Instruction::Any);
    }
}
