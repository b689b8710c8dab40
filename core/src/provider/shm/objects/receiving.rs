//! The receiving half of a queue pair: it copies messages that wait in the ring into the buffers that were posted for
//! them. All of this happens in a turn of the [`engine`](super::engine).

use super::channel::LocalChannel;
use super::layout::{self, ACKNOWLEDGEMENTS};
use super::pair::LocalPair;
use super::progress::PairProgress;
use super::ring::{record, HEADER, MAX_MESSAGE, RING};
use super::work_queue::Receive;
use crate::provider::interface::{Completion, Error, ProviderResult, RequestKind};
use std::sync::atomic::Ordering;

impl LocalPair {
    pub(super) fn tell_received(&self, receive: &Receive, result: ProviderResult<u32>) {
        let context = self.attributes.context;
        let kind = RequestKind::Receive;
        self.receive.add(Completion::new(kind, receive.request, context, result));
    }

    pub(super) fn next_receive(&self) -> Option<Receive> {
        if let Some(shared) = &self.shared {
            return shared.take();
        }
        let outstanding = self.receives.outstanding();
        if outstanding.is_empty() {
            return None;
        }
        // SAFETY: outstanding; it is our turn, and the copy outlives the reference.
        let receive = *unsafe { self.receives.at(outstanding.start) }.0;
        self.receives.end_first();
        Some(receive)
    }

    /// A buffer for a message that is there. Without one, the thread that posts the next buffer has the message taken.
    fn receive_or_be_awaited(&self) -> Option<Receive> {
        if let Some(receive) = self.next_receive() {
            return Some(receive);
        }
        self.seen.not_ready.store(true, Ordering::SeqCst);
        if let Some(shared) = &self.shared {
            shared.await_receive();
        }
        // Posted before that could be seen.
        let receive = self.next_receive()?;
        self.seen.not_ready.store(false, Ordering::SeqCst);
        Some(receive)
    }

    /// Takes what the peer sent, as far as there are buffers.
    pub(super) fn take_messages(&self, progress: &mut PairProgress, channel: &LocalChannel) {
        let before = progress.taken;
        loop {
            let published = channel.peer().sending.0.published.load(Ordering::Acquire);
            let available = published.wrapping_sub(progress.taken);
            if available == 0 {
                break;
            }
            // Read once, and not taken for granted.
            let length = channel.incoming().length(progress.taken);
            let is_whole = available <= RING as u64
                && length <= MAX_MESSAGE.into()
                && record(length as usize) <= available;
            if !is_whole {
                self.reject_peer(channel, "its messages are nonsense");
                break;
            }
            let Some(receive) = self.receive_or_be_awaited() else { break };
            if let Err(error) = self.take_message(progress, channel, &receive, length as usize) {
                self.tell_received(&receive, Err(error));
                let overflow = error == Error::BufferOverflow;
                progress.is_deaf = true;
                self.stop(if overflow { layout::OVERFLOW } else { layout::ENDED });
                break;
            }
            self.tell_received(&receive, Ok(length as u32));
            // Behind its completion: a sender that knows of it relies on that one.
            progress.taken += record(length as usize);
            self.seen.taken.store(progress.taken, Ordering::Relaxed);
            channel.own().receiving.0.consumed.store(progress.taken, Ordering::Release);
        }
        if progress.taken != before {
            channel.wake(ACKNOWLEDGEMENTS);
        }
    }

    fn take_message(
        &self,
        progress: &PairProgress,
        channel: &LocalChannel,
        receive: &Receive,
        length: usize,
    ) -> ProviderResult<()> {
        let into = receive.into.segments();
        if self.memory.check(into)? < length {
            return Err(Error::BufferOverflow);
        }
        let ring = channel.incoming();
        let (mut position, mut left) = (progress.taken + HEADER as u64, length);
        self.memory.each(into, |at, bytes| {
            let bytes = bytes.min(left);
            // SAFETY: registered, so mapped and ours to write; a message is shorter than the ring.
            unsafe { ring.get(position, at, bytes) };
            position += bytes as u64;
            left -= bytes;
            Ok(())
        })
    }
}
