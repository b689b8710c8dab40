//! Two simulated providers. In one the processes of an end share the connection, as on shared memory.
//! In the other it belongs to one process: it is torn down when control moves, with whatever was
//! on its way, and built anew in the next process (D8); it dies with its process.

use sanshim_core::session::{Header, LARGEST_BODY};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Shared,
    OfOneProcess,
}

/// What a process has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    SendBuffers,
    ReceiveBuffers,
    /// A receive that waits, for RDMA write.
    Posted,
    /// What a send sends, for RDMA read.
    Lent,
}

impl Memory {
    pub(crate) fn is_rdma(self) -> bool {
        matches!(self, Memory::Posted | Memory::Lent)
    }
}

pub(crate) struct Message {
    pub(crate) words: [u32; 4],
    pub(crate) body: [u8; LARGEST_BODY],
    pub(crate) data: Vec<u8>,
}

pub(crate) struct Provider {
    pub(crate) kind: Kind,
    /// The processes in control: those that have the connection.
    owners: [usize; 2],
    /// `lines[i]`: what end i sent and the other did not take yet.
    lines: [VecDeque<Message>; 2],
    registered: [Vec<(usize, Memory)>; 2],
    /// The end whose process died with the connection: nothing arrives any more.
    pub(crate) lost: Option<usize>,
    /// Both ends know that it is lost.
    pub(crate) broken: bool,
    pub(crate) rebuilt: u64,
}

impl Provider {
    pub(crate) fn new(kind: Kind) -> Provider {
        let buffers = || vec![(0, Memory::SendBuffers), (0, Memory::ReceiveBuffers)];
        Provider {
            kind,
            owners: [0, 0],
            lines: Default::default(),
            registered: [buffers(), buffers()],
            lost: None,
            broken: false,
            rebuilt: 0,
        }
    }

    pub(crate) fn owner(&self, end: usize) -> usize {
        self.owners[end]
    }

    pub(crate) fn has(&self, end: usize, process: usize, memory: Memory) -> bool {
        self.registered[end].contains(&(process, memory))
    }

    pub(crate) fn registered(&self, end: usize) -> &[(usize, Memory)] {
        &self.registered[end]
    }

    pub(crate) fn register(&mut self, end: usize, process: usize, memory: Memory) {
        assert_eq!(self.owners[end], process, "{memory:?} registered without control");
        assert!(!self.has(end, process, memory), "{memory:?} registered twice");
        self.registered[end].push((process, memory));
    }

    pub(crate) fn deregister(&mut self, end: usize, memory: Memory) {
        self.registered[end].retain(|&(_, registered)| registered != memory);
    }

    pub(crate) fn send(&mut self, end: usize, header: &Header, body: &[u8], data: &[u8]) {
        assert!(self.has(end, self.owners[end], Memory::SendBuffers), "sent from no buffer");
        let mut message =
            Message { words: header.encode(), body: [0; LARGEST_BODY], data: data.to_vec() };
        message.body[..body.len()].copy_from_slice(body);
        if self.lost.is_none() {
            self.lines[end].push_back(message);
        }
    }

    /// The next message that arrives at `end`.
    pub(crate) fn take(&mut self, end: usize) -> Option<Message> {
        assert!(self.has(end, self.owners[end], Memory::ReceiveBuffers), "received into no buffer");
        self.lines[1 - end].pop_front()
    }

    /// Swap-out and swap-in. The switch has deregistered all but what receives had pending, which are
    /// completed with nothing (D7).
    pub(crate) fn move_to(&mut self, end: usize, process: usize) {
        self.deregister(end, Memory::ReceiveBuffers);
        assert_eq!(self.registered[end], [], "left registered by the old controller");
        if self.kind == Kind::OfOneProcess {
            self.rebuilt += 1;
            // What is on its way would be lost, and is.
            self.lines = Default::default();
        }
        self.owners[end] = process;
        self.register(end, process, Memory::SendBuffers);
        self.register(end, process, Memory::ReceiveBuffers);
    }

    /// The kernel takes back what a dead process had; message buffers are shared where the connection is.
    pub(crate) fn died(&mut self, end: usize, process: usize) {
        match self.kind {
            Kind::Shared => {
                self.registered[end].retain(|&(of, memory)| of != process || !memory.is_rdma());
            }
            Kind::OfOneProcess if self.owners[end] == process => {
                self.lost = self.lost.or(Some(end));
                self.lines = Default::default();
            }
            Kind::OfOneProcess => {}
        }
    }
}
