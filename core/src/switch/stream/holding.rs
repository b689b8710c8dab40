//! Notes of what the calling thread has hold of: the locks of connections' ends, and buffers that it posted for RDMA
//! write. A thread that jumps out of a signal handler never comes back to the calls that would let go of these. This
//! module lets go of them instead.

use super::Stream;
use crate::sys::jump::Jump;
use crate::sys::lock::NOBODY;
use crate::sys::lock_order;
use crate::sys::process;
use crate::sys::thread::{with_notes, ThreadNote, MOST_NOTES};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{compiler_fence, Ordering::Relaxed, Ordering::SeqCst};

/// A note of the calling thread that it has hold of an end, until it is dropped. It is made before that is so. Where a
/// thread has hold of very many, in handlers inside of handlers, the last are not noted.
pub(in crate::switch) struct Hold<'a> {
    note: *const ThreadNote,
    /// The stream, which is there as long.
    stream: PhantomData<&'a ()>,
}

impl<'a> Hold<'a> {
    /// The thread is about to have hold of the stream's end. The stream's place tells to which frame it belongs.
    #[inline(always)]
    pub(in crate::switch) fn of(stream: &'a Stream) -> Self {
        let note = with_notes(|notes| {
            let first = &notes[0];
            let free = if first.about.get().is_null() { first } else { next_free(notes) };
            free.token.set(ptr::from_ref(stream.endpoint).cast());
            // A handler may look here at any moment, and finds all or nothing.
            compiler_fence(SeqCst);
            free.about.set(ptr::from_ref(stream).cast());
            ptr::from_ref(free)
        });
        compiler_fence(SeqCst);
        Hold { note, stream: PhantomData }
    }
}

/// The last one serves all that find no other.
#[inline(never)]
fn next_free(notes: &[ThreadNote; MOST_NOTES]) -> &ThreadNote {
    let free = notes.iter().find(|note| note.about.get().is_null());
    free.unwrap_or(&notes[MOST_NOTES - 1])
}

impl Drop for Hold<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        // SAFETY: the thread's own, which lives as long as it; holds do not leave their thread.
        unsafe { (*self.note).about.set(ptr::null()) };
        compiler_fence(SeqCst);
    }
}

/// The stream of a note, unless a thread left its frame in a way that the library did not see.
///
/// # Safety
///
/// It is not null, and lies where a stack is.
unsafe fn stream_of(note: &ThreadNote) -> Option<&Stream<'_>> {
    let stream = note.about.get().cast::<Stream>();
    // SAFETY: the caller's promise; where it is the stream still, all that it names is mapped.
    unsafe {
        let token = (&raw const (*stream).endpoint).cast::<*const ()>().read();
        ptr::eq(token, note.token.get()).then(|| &*stream)
    }
}

/// Before the calling thread jumps out of a signal handler: lets go of what calls have hold of that will never return.
/// The next thread puts right what they left half done, as after a holder that died.
pub fn before_jump(jump: &Jump) {
    lock_order::forget_all();
    with_notes(|notes| {
        let passed = |note: &ThreadNote| jump.passes(note.about.get() as usize);
        for note in notes.iter().filter(|note| !note.about.get().is_null() && passed(note)) {
            // A handler's call on the end that the call it interrupted had hold of has nothing of its own.
            let stays = |other: &ThreadNote| {
                !other.about.get().is_null()
                    && !passed(other)
                    && ptr::eq(other.token.get(), note.token.get())
            };
            // SAFETY: the jump passes it on the stack.
            if let Some(stream) = unsafe { stream_of(note) }.filter(|_| !notes.iter().any(stays)) {
                let_go(stream);
            }
            note.about.set(ptr::null());
        }
    });
}

fn let_go(stream: &Stream) {
    let (endpoint, peer) = (stream.endpoint, stream.peer());
    // Otherwise the buffer that is lent now, if there is one, is another thread's.
    if endpoint.receive.poster.load(Relaxed) == process::tid() {
        endpoint.due.forget_advertisement();
        stream.take_back_writable(0);
        endpoint.receive.poster.store(NOBODY, Relaxed);
    }
    if endpoint.send.lock.is_held_by_caller() {
        stream.take_back_readable(0);
        peer.writable.0.end_write_of(process::tid());
        endpoint.send.awaits_peer.store(0, Relaxed);
    }
    endpoint.sleepers.forget_own();
    endpoint.thrown_out.store(1, Relaxed);
    endpoint.send.lock.abandon_own();
    endpoint.receive.lock.abandon_own();
    endpoint.anchor.abandon_own();
}
