//! What a simulated queue pair consists of.

use crate::provider::interface::*;
use crate::provider::software::{AdapterMemory, Completions};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

pub(super) struct SimulatedReceive {
    pub(super) request: u64,
    pub(super) into: Vec<MemoryPiece>,
}

pub(super) enum SimulatedWork {
    Send(Vec<u8>),
    Read(Vec<MemoryPiece>, RemoteMemory),
    /// Whether it tells the peer of itself.
    Write(Vec<MemoryPiece>, RemoteMemory, bool),
    Bind(u32, Binding),
    Invalidate(u32),
}

impl SimulatedWork {
    pub(super) fn kind(&self) -> RequestKind {
        match self {
            SimulatedWork::Send(_) => RequestKind::Send,
            SimulatedWork::Read(..) => RequestKind::Read,
            SimulatedWork::Write(..) => RequestKind::Write,
            SimulatedWork::Bind(..) => RequestKind::Bind,
            SimulatedWork::Invalidate(_) => RequestKind::Invalidate,
        }
    }
}

pub(super) struct Binding {
    pub(super) region: u32,
    pub(super) range: Range<u64>,
    pub(super) access: RemoteAccess,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PairState {
    Idle,
    Connected,
    Failed,
}

pub(super) struct SimulatedPair {
    pub(super) ip: IpAddr,
    pub(super) attributes: QueuePairAttributes,
    pub(super) receive: Arc<Completions>,
    pub(super) initiator: Arc<Completions>,
    pub(super) memory: Arc<AdapterMemory>,
    pub(super) shared: Option<u64>,
    pub(super) peer: Option<u64>,
    pub(super) state: PairState,
    pub(super) posted: VecDeque<SimulatedReceive>,
    pub(super) outstanding: VecDeque<(u64, SimulatedWork, Flags)>,
    pub(super) bindings: BTreeMap<u32, Binding>,
}

impl SimulatedPair {
    pub(super) fn received(&self, request: u64, result: ProviderResult<u32>) {
        self.took(RequestKind::Receive, request, result);
    }

    /// A receive was taken by what comes.
    pub(super) fn took(&self, kind: RequestKind, request: u64, result: ProviderResult<u32>) {
        let context = self.attributes.context;
        self.receive.add(Completion::new(kind, request, context, result));
    }

    pub(super) fn initiated(&self, kind: RequestKind, request: u64, result: ProviderResult<u32>) {
        let context = self.attributes.context;
        self.initiator.add(Completion::new(kind, request, context, result));
    }
}
