//! What a simulated queue pair consists of.

use crate::provider::interface::*;
use crate::provider::software::{Completions, Memory};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

pub(super) struct Posted {
    pub(super) request: u64,
    pub(super) into: Vec<Segment>,
}

pub(super) enum Work {
    Send(Vec<u8>),
    Read(Vec<Segment>, RemoteMemory),
    Write(Vec<Segment>, RemoteMemory),
    Bind(u32, Binding),
    Invalidate(u32),
}

impl Work {
    pub(super) fn kind(&self) -> RequestKind {
        match self {
            Work::Send(_) => RequestKind::Send,
            Work::Read(..) => RequestKind::Read,
            Work::Write(..) => RequestKind::Write,
            Work::Bind(..) => RequestKind::Bind,
            Work::Invalidate(_) => RequestKind::Invalidate,
        }
    }
}

pub(super) struct Binding {
    pub(super) region: u32,
    pub(super) range: Range<u64>,
    pub(super) access: RemoteAccess,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Connected,
    Failed,
}

pub(super) struct Pair {
    pub(super) ip: IpAddr,
    pub(super) attributes: QueuePairAttributes,
    pub(super) receive: Arc<Completions>,
    pub(super) initiator: Arc<Completions>,
    pub(super) memory: Arc<Memory>,
    pub(super) shared: Option<u64>,
    pub(super) peer: Option<u64>,
    pub(super) state: State,
    pub(super) posted: VecDeque<Posted>,
    pub(super) outstanding: VecDeque<(u64, Work, Flags)>,
    pub(super) bindings: BTreeMap<u32, Binding>,
}

impl Pair {
    pub(super) fn received(&self, request: u64, result: Result<u32>) {
        let context = self.attributes.context;
        self.receive.add(Completion::new(RequestKind::Receive, request, context, result));
    }

    pub(super) fn initiated(&self, kind: RequestKind, request: u64, result: Result<u32>) {
        let context = self.attributes.context;
        self.initiator.add(Completion::new(kind, request, context, result));
    }
}
