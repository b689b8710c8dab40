//! Two queue pairs of one process, joined without a listener.

mod nonsense;
mod opening;
mod order;
mod sleepers;
mod windows;

use super::channel::ChannelParts;
use super::completion_queue::LocalCompletionQueue;
use super::layout::{Mapping, ACKNOWLEDGEMENTS, MESSAGES};
use super::pair::{LocalPair, CONNECTED, ENDED};
use super::queue_pair::LocalQueuePair;
use super::ring::RING;
use super::shared_receive_queue::LocalSharedReceiveQueue;
use super::window;
use crate::provider::interface::implement::{
    CompletionQueueObject as _, MemoryRegionObject as _, OverlappedObject as _,
    QueuePairObject as _, SharedReceiveQueueObject as _,
};
use crate::provider::interface::*;
use crate::provider::software::inherited::Descriptor;
use crate::provider::software::{AdapterMemory, Region};
use crate::sys::{file, net, poll, process};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::Arc;

const SIZE: usize = 1 << 20;

struct End {
    pair: LocalQueuePair,
    queue: LocalCompletionQueue,
    memory: Arc<AdapterMemory>,
    region: Region,
    bytes: *mut u8,
}

// SAFETY: memory that only copies touch.
unsafe impl Sync for End {}

impl End {
    fn new(depth: u32, shared: bool) -> (Self, Option<LocalSharedReceiveQueue>) {
        Self::over(depth, shared, None)
    }

    /// With another completion queue for its sends.
    fn over(
        depth: u32,
        shared: bool,
        sends: Option<&LocalCompletionQueue>,
    ) -> (Self, Option<LocalSharedReceiveQueue>) {
        let memory = Arc::<AdapterMemory>::default();
        let queue = LocalCompletionQueue::new(1024).unwrap();
        let shared = shared.then(|| LocalSharedReceiveQueue::new(&memory, depth).unwrap());
        let attributes = QueuePairAttributes {
            context: 1,
            receive_depth: depth,
            initiator_depth: depth,
            segments: 2,
            inline_size: 64,
        };
        let receives = shared.as_ref().map(|shared| &shared.0);
        let sends = sends.unwrap_or(&queue);
        let pair = LocalQueuePair::new(&attributes, &queue.0, &sends.0, receives, &memory).unwrap();
        let bytes = file::map_private(SIZE).unwrap();
        let region = Region::new(&memory);
        // SAFETY: mapped until the end of the test's process.
        unsafe { region.register(bytes, SIZE) }.unwrap();
        (End { pair, queue, memory, region, bytes }, shared)
    }

    fn segment(&self, offset: usize, length: usize) -> MemoryPiece {
        let token = self.region.token().unwrap();
        MemoryPiece { address: self.bytes as u64 + offset as u64, length: length as u32, token }
    }

    fn results(&self) -> Vec<Completion> {
        let mut some = [Completion::default(); 64];
        let count = self.queue.get_results(&mut some).unwrap();
        some[..count].to_vec()
    }

    fn state(&self) -> &LocalPair {
        &self.pair.pair
    }

    fn end(&self) -> &super::layout::EndWords {
        self.state().channel.get().unwrap().own()
    }
}

/// Connects them; `a`'s number is 0.
fn join(a: &End, b: &End) {
    let [ours, theirs] = parts();
    a.state().open(ours).unwrap();
    b.state().open(theirs).unwrap();
}

/// What the two ends of a connection consist of.
fn parts() -> [ChannelParts; 2] {
    let (memory, fd) = Mapping::create().unwrap();
    let theirs = Mapping::of(fd).unwrap();
    file::close(fd);
    theirs.end(1).proof.0.offer();
    let [doorbell, other_bell] = net::stream_pair().unwrap().map(Descriptor::new);
    let [control, other_control] =
        net::stream_pair().unwrap().map(|fd| Arc::new(Descriptor::new(fd)));
    let peer = process::pid();
    let ours = ChannelParts { memory, doorbell, control, peer, number: 0 };
    let (doorbell, control) = (other_bell, other_control);
    [ours, ChannelParts { memory: theirs, doorbell, control, peer, number: 1 }]
}

fn joined() -> (End, End) {
    let ((a, _), (b, _)) = (End::new(64, false), End::new(64, false));
    join(&a, &b);
    (a, b)
}
