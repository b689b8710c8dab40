//! A signal handler of the program may leave a call of ours by longjmp. If the call sleeps, it ends first, as when its
//! thread is cancelled: it gives back all that it holds. Then the jump goes where the program wants it.
//!
//! A thread sleeps below a frame of [`sleeping`]. The hook of longjmp can bring it out of the handler, back to that
//! frame. From there the unwinder ends the frames of this library, up to the program's own. If the code of ours that is
//! jumped past does not sleep, the switch learns of the jump before it goes. This works on x86-64 with glibc, into
//! whose jmp_buf this looks.

use super::process::SignalsHeld;
use super::thread_word;
use super::{errno, thread};
use std::arch::{asm, naked_asm};
use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::OnceLock;

/// libc's longjmp, under any of its names.
pub type LongJump = unsafe extern "C-unwind" fn(*mut c_void, c_int) -> !;

/// What has to be known of the process.
struct Process {
    /// Where the code of this library lies.
    code: Range<usize>,
    /// Told of every jump before it goes.
    before: fn(&Jump),
}

static PROCESS: OnceLock<Process> = OnceLock::new();

/// From now on sleeping calls end before a jump passes them. `code` is where the code of this library lies. `before` is
/// called with each jump before it goes, in the thread that jumps. Only the first call counts.
pub fn install(code: Range<usize>, before: fn(&Jump)) {
    let _ = PROCESS.set(Process { code, before });
}

/// A jump that is under way.
#[derive(Clone, Copy)]
pub struct Jump {
    function: LongJump,
    environment: *mut c_void,
    value: c_int,
    /// The stack pointer before the jump, and after it.
    from: usize,
    to: usize,
}

impl Jump {
    /// True if the jump leaves the frame at `stack`. If the program has two stacks of its own, the lower one is taken
    /// to be the one that is left.
    pub(crate) fn passes(&self, stack: usize) -> bool {
        match thread::alternate_stack() {
            Some(handlers) if !handlers.contains(&self.to) => {
                handlers.contains(&stack) || stack < self.to
            }
            _ => self.from < stack && stack < self.to,
        }
    }

    fn tell(&self) {
        if let Some(process) = PROCESS.get() {
            errno::kept(|| (process.before)(self));
        }
    }
}

/// A frame of [`sleeping`].
struct Frame {
    /// The stack pointer of its [`call_below`].
    stack: usize,
    outer: *const Frame,
}

/// The address at which [`call_below`] goes on after its function has returned.
#[link_section = "sanshim_words"]
static RETURN: AtomicUsize = AtomicUsize::new(0);

impl Frame {
    /// False if a thread left the frame in a way of which the library does not know, and something else lies there now.
    ///
    /// # Safety
    ///
    /// The memory is mapped.
    unsafe fn is_there(frame: *const Frame) -> bool {
        const MOST_BELOW: usize = 4096;
        // SAFETY: the caller's promise.
        unsafe {
            let below = (frame as usize).wrapping_sub((*frame).stack);
            below < MOST_BELOW
                && (((*frame).stack - 8) as *const usize).read() == RETURN.load(Relaxed)
        }
    }
}

/// A jump for which frames are being ended. Signals are held back meanwhile, because a handler could jump as well.
struct UnderWay {
    jump: Jump,
    /// A copy of the jump's jmp_buf, because that may lie where the frames that end lay.
    environment: Environment,
    signals: ManuallyDrop<SignalsHeld>,
    /// The handler's, which the jump takes along.
    errno: c_int,
}

/// A jmp_buf.
type Environment = [usize; 25];

/// True if frames are being ended for a jump.
pub(crate) fn is_under_way() -> bool {
    ENDING.get()
}

/// True if the calling thread is in a handler that interrupted a sleeping call.
pub(crate) fn is_asleep() -> bool {
    !innermost().get().is_null()
}

/// What the unwinder keeps while it ends frames (`struct _Unwind_Exception`).
#[repr(C, align(16))]
struct Exception {
    class: u64,
    cleanup: Option<unsafe extern "C" fn(c_int, *mut Exception)>,
    private: [u64; 2],
}

impl Exception {
    const NONE: Exception = Exception { class: 0, cleanup: None, private: [0; 2] };
}

type Stop = unsafe extern "C-unwind" fn(
    c_int,
    c_int,
    u64,
    *mut Exception,
    *mut c_void,
    *mut c_void,
) -> c_int;

extern "C-unwind" {
    fn _Unwind_ForcedUnwind(exception: *mut Exception, stop: Stop, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

thread_local! {
    static ENDING: Cell<bool> = const { Cell::new(false) };
    static UNDER_WAY: Cell<Option<UnderWay>> = const { Cell::new(None) };
    static EXCEPTION: UnsafeCell<Exception> = const { UnsafeCell::new(Exception::NONE) };
}

/// The calling thread's innermost frame, or null.
#[inline(always)]
fn innermost() -> &'static Cell<*const Frame> {
    // SAFETY: the word is used here alone, and a pointer is as good as another.
    unsafe { &*ptr::from_ref(thread_word::get()).cast() }
}

/// The call of [`sleeping`], and what it returned. `innermost` is the thread's.
struct Sleep<F, T> {
    frame: Frame,
    innermost: &'static Cell<*const Frame>,
    call: Option<F>,
    result: MaybeUninit<T>,
}

/// When dropped, makes the outer frame the innermost one again. That happens also when the thread is cancelled.
struct Outer(&'static Cell<*const Frame>, *const Frame);

impl Drop for Outer {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Runs `call`, which sleeps. A jump may end it at any point, so it must hold nothing itself. The caller's frame is
/// then unwound, as when the thread is cancelled.
#[inline]
pub(crate) fn sleeping<T, F: FnOnce() -> T>(call: F) -> T {
    let innermost = innermost();
    let frame = Frame { stack: 0, outer: innermost.get() };
    let mut sleep = Sleep { frame, innermost, call: Some(call), result: MaybeUninit::uninit() };
    let sleep = &raw mut sleep;
    // SAFETY: `sleep` outlives the call, and nobody else has it. `run` has stored the result if it returns.
    unsafe {
        if call_below(&raw mut (*sleep).frame.stack, run::<T, F>, sleep.cast()) {
            end_frames();
        }
        (*sleep).result.assume_init_read()
    }
}

/// # Safety
/// The argument is a `Sleep<F, T>` that nobody else has.
#[link_section = "sanshim_path"]
unsafe extern "C-unwind" fn run<T, F: FnOnce() -> T>(sleep: *mut c_void) {
    let sleep = sleep.cast::<Sleep<F, T>>();
    // SAFETY: the caller's promise.
    unsafe {
        let innermost = (*sleep).innermost;
        let _outer = Outer(innermost, (*sleep).frame.outer);
        let returns = (((*sleep).frame.stack - 8) as *const usize).read();
        if RETURN.load(Relaxed) != returns {
            RETURN.store(returns, Relaxed);
        }
        innermost.set(&raw const (*sleep).frame);
        if let Some(call) = (*sleep).call.take() {
            (*sleep).result.write(call());
        }
    }
}

/// Calls `function` with `argument`, below a frame whose stack pointer is first stored at `stack`. Gives false when the
/// function has returned, and true when [`come_back`] ended it.
///
/// # Safety
/// `stack` may be written, and the function's own contract is kept.
#[unsafe(naked)]
#[link_section = "sanshim_path"]
unsafe extern "C-unwind" fn call_below(
    stack: *mut usize,
    function: unsafe extern "C-unwind" fn(*mut c_void),
    argument: *mut c_void,
) -> bool {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbx, 0",
        "push r12",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r12, 0",
        "push r13",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r13, 0",
        "push r14",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r14, 0",
        "push r15",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r15, 0",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov [rdi], rsp",
        "mov rdi, rdx",
        "call rsi",
        // The function has restored the registers that are its caller's.
        "add rsp, 56",
        ".cfi_adjust_cfa_offset -56",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
    )
}

/// Returns from the [`call_below`] that stored this stack pointer.
///
/// # Safety
/// That call has not returned yet, and what it called holds nothing.
#[unsafe(naked)]
unsafe extern "C" fn come_back(stack: usize) -> ! {
    naked_asm!(
        "lea rsp, [rdi + 8]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "mov eax, 1",
        "ret",
    )
}

/// Ends the frames of this library, and goes on with the jump that is under way.
fn end_frames() -> ! {
    EXCEPTION.with(|exception| {
        let exception = exception.get();
        // SAFETY: the thread's own; its last use ended with a jump. All frames from here up may be unwound: they are
        // where a cancelled thread is unwound.
        unsafe {
            exception.write(Exception::NONE);
            _Unwind_ForcedUnwind(exception, stop, ptr::null_mut());
        }
    });
    go_on()
}

/// Called by the unwinder at each frame.
unsafe extern "C-unwind" fn stop(
    _version: c_int,
    actions: c_int,
    _class: u64,
    _exception: *mut Exception,
    context: *mut c_void,
    _argument: *mut c_void,
) -> c_int {
    const END_OF_STACK: c_int = 16;
    // SAFETY: the unwinder's own context. The address is behind the call.
    let at = unsafe { _Unwind_GetIP(context) } - 1;
    let ours = PROCESS.get().is_some_and(|process| process.code.contains(&at));
    if ours && actions & END_OF_STACK == 0 {
        return 0;
    }
    go_on()
}

fn go_on() -> ! {
    match UNDER_WAY.take() {
        // SAFETY: the program asked for it.
        Some(UnderWay { jump, environment, signals, errno }) => unsafe {
            ENDING.set(false);
            errno::set(errno);
            let environment = (&raw const environment).cast_mut().cast();
            jump_away(Jump { environment, ..jump }, Some(signals))
        },
        None => std::process::abort(),
    }
}

/// The program jumps, by this function with these arguments.
///
/// # Safety
/// They are libc's function and the program's arguments.
pub unsafe fn jump(function: LongJump, environment: *mut c_void, value: c_int) -> ! {
    // SAFETY: the caller's promise.
    unsafe {
        let to = destination(environment.cast());
        jump_away(Jump { function, environment, value, from: 0, to }, None)
    }
}

/// # Safety
/// The program asked for the jump.
unsafe fn jump_away(mut jump: Jump, signals: Option<ManuallyDrop<SignalsHeld>>) -> ! {
    let here = 0u8;
    jump.from = &raw const here as usize;
    let frame = innermost().get();
    let asleep = !frame.is_null() && jump.passes(frame as usize);
    // SAFETY: what the jump passes is the stack's; the frame is there.
    unsafe {
        if asleep && !has_shadow_stack() && Frame::is_there(frame) {
            let signals = signals.unwrap_or_else(|| ManuallyDrop::new(SignalsHeld::new()));
            // Calls of ours in handlers, which do not sleep, are passed as well.
            Jump { to: frame as usize, ..jump }.tell();
            innermost().set((*frame).outer);
            let environment = jump.environment.cast::<Environment>().read();
            let errno = errno::get();
            UNDER_WAY.set(Some(UnderWay { jump, environment, signals, errno }));
            ENDING.set(true);
            come_back((*frame).stack)
        }
    }
    if asleep {
        innermost().set(ptr::null());
    }
    jump.tell();
    drop(signals.map(ManuallyDrop::into_inner));
    // SAFETY: the caller's promise.
    unsafe { (jump.function)(jump.environment, jump.value) }
}

/// The stack pointer after a jump to `environment`.
///
/// # Safety
/// It is a jmp_buf of glibc that setjmp has filled in.
unsafe fn destination(environment: *const usize) -> usize {
    const STACK_POINTER: usize = 6;
    let guard: usize;
    // SAFETY: glibc keeps its pointer guard there in every thread; the caller's promise.
    unsafe {
        asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly, preserves_flags));
        environment.add(STACK_POINTER).read().rotate_right(17) ^ guard
    }
}

/// True if the processor checks returns. It would not let [`come_back`] return.
fn has_shadow_stack() -> bool {
    let mut pointer = 0usize;
    // SAFETY: does nothing where there is none.
    unsafe {
        asm!("rdsspq {}", inout(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    pointer != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sleeps_returns_its_result() {
        let text = String::from("result");
        let length = sleeping(|| sleeping(|| text.len()) + text.len());
        assert_eq!(length, 12);
        assert!(innermost().get().is_null());
    }

    #[test]
    fn a_panic_passes_the_frame() {
        let caught = std::panic::catch_unwind(|| sleeping(|| panic!("on purpose")));
        assert!(caught.is_err());
        assert!(innermost().get().is_null());
    }

    #[test]
    fn frames_between_are_passed_and_others_are_not() {
        unsafe extern "C-unwind" fn nowhere(_: *mut c_void, _: c_int) -> ! {
            std::process::abort()
        }
        let to =
            |from, to| Jump { function: nowhere, environment: ptr::null_mut(), value: 1, from, to };
        assert!(to(0x1000, 0x5000).passes(0x3000));
        assert!(!to(0x1000, 0x2000).passes(0x3000), "it stays in the handler");
        assert!(!to(0x4000, 0x5000).passes(0x3000), "from another stack");
    }
}
