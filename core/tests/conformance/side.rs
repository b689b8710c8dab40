//! One end of a connection, and the ways to wait for it.

use crate::buffer::Buffer;
use crate::Setting;
use sanshim_core::provider::interface::client::*;
use sanshim_core::provider::interface::*;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// After this a test that waits for what never comes is given up.
const HANG: Duration = Duration::from_secs(60);

/// Depth of the queues of a test's queue pair.
pub(crate) const DEPTH: u32 = 32;
/// Bytes of a test's buffer.
pub(crate) const BUFFER: usize = 1 << 20;

pub(crate) struct Side {
    // Dropped in this order.
    pub(crate) connector: Connector,
    pub(crate) pair: QueuePair,
    pub(crate) queue: CompletionQueue,
    pub(crate) buffer: Buffer,
    pub(crate) adapter: Adapter,
}

pub(crate) fn attributes(context: u64) -> QueuePairAttributes {
    QueuePairAttributes {
        context,
        receive_depth: DEPTH,
        initiator_depth: DEPTH,
        segments: 2,
        inline_size: 32,
    }
}

impl Side {
    pub(crate) fn new(
        adapter: &Adapter,
        context: u64,
        shared: Option<&SharedReceiveQueue>,
    ) -> Self {
        let queue = adapter.create_completion_queue(4 * DEPTH).unwrap();
        let pair = adapter.create_queue_pair(&attributes(context), &queue, &queue, shared).unwrap();
        Side {
            connector: adapter.create_connector().unwrap(),
            pair,
            queue,
            buffer: Buffer::new(adapter, BUFFER),
            adapter: adapter.clone(),
        }
    }

    /// The next completion, waiting for it the way a client without threads does (N4).
    pub(crate) fn completion(&self) -> Completion {
        let mut one = [Completion::default()];
        let deadline = Instant::now() + HANG;
        let mut asked = false;
        loop {
            if self.queue.get_results(&mut one).unwrap() == 1 {
                if asked {
                    self.queue.cancel();
                    while self.queue.next_result().is_some() {}
                }
                return one[0];
            }
            if asked {
                readable(self.queue.descriptor(), deadline);
                if let Some(reported) = self.queue.next_result() {
                    assert_eq!((reported.request, reported.result), (77, Ok(())));
                    asked = false;
                }
            } else {
                assert_eq!(self.queue.notify(77), Ok(Started::Pending));
                asked = true;
            }
        }
    }

    /// The next completion, which must be of this request and kind.
    pub(crate) fn expect(&self, kind: RequestKind, request: u64) -> ProviderResult<u32> {
        let got = self.completion();
        assert_eq!(got.request, request, "{got:?}");
        // A device need not say what a failed request was.
        assert!(
            got.kind() == kind || (got.status != 0 && got.kind() == RequestKind::Unknown),
            "{got:?}"
        );
        got.result()
    }

    pub(crate) fn post(&self, request: u64, offset: usize, length: usize) {
        self.pair.receive(request, &[self.buffer.segment(offset, length)]).unwrap();
    }

    pub(crate) fn send(&self, request: u64, offset: usize, length: usize) {
        let segment = self.buffer.segment(offset, length);
        self.pair.send(request, &[segment], Flags::NONE).unwrap();
    }

    /// Binds `length` bytes of the buffer from its start for the peer.
    pub(crate) fn bind(&self, length: usize, access: RemoteAccess) -> RemoteMemory {
        let address = self.buffer.address();
        let range = address..address + length as u64;
        let token = self.pair.bind(500, &self.buffer.region, range, access, Flags::NONE).unwrap();
        self.expect(RequestKind::Bind, 500).unwrap();
        RemoteMemory { address, token }
    }
}

/// Waits until one of the descriptors is readable.
fn any_readable(fds: &[RawFd], deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    let entry = |&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<_> = fds.iter().map(entry).collect();
    // SAFETY: as many valid entries.
    let ready =
        unsafe { libc::poll(polled.as_mut_ptr(), fds.len() as u64, left.as_millis() as i32) };
    assert!(ready > 0, "nothing came");
}

/// Waits until a descriptor is readable.
pub(crate) fn readable(fd: RawFd, deadline: Instant) {
    any_readable(&[fd], deadline);
}

pub(crate) fn is_readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// The next result of a pending operation.
pub(crate) fn reported(object: &impl Overlapped) -> Reported {
    let deadline = Instant::now() + HANG;
    loop {
        if let Some(reported) = object.next_result() {
            return reported;
        }
        readable(object.descriptor(), deadline);
    }
}

/// The result of an operation that was to be number `request`, at once or later.
pub(crate) fn finish(
    started: ProviderResult<Started>,
    object: &impl Overlapped,
    request: u64,
) -> ProviderResult<()> {
    match started? {
        Started::Done => Ok(()),
        Started::Pending => {
            let reported = reported(object);
            assert_eq!(reported.request, request);
            reported.result
        }
    }
}

impl Setting {
    pub(crate) fn provider(&self) -> Provider {
        Provider::open(&self.library).unwrap()
    }

    pub(crate) fn adapters(&self) -> (Adapter, Adapter) {
        let provider = self.provider();
        (provider.open_adapter(self.here).unwrap(), provider.open_adapter(self.there).unwrap())
    }

    pub(crate) fn listener(&self, adapter: &Adapter) -> Listener {
        let listener = adapter.create_listener().unwrap();
        listener.bind(self.there).unwrap();
        listener.listen(8).unwrap();
        listener
    }

    /// Two connected ends.
    pub(crate) fn connected(&self) -> (Side, Side) {
        let (a, b) = self.adapters();
        let (a, b) = (Side::new(&a, 1, None), Side::new(&b, 2, None));
        let listener = self.listener(&b.adapter);
        connect(&a, &b, &listener);
        (a, b)
    }
}

/// Takes the request that `a` is making into `b`'s connector; `a`'s steps go on meanwhile, since an
/// operation goes on only while its object is asked for results. What `a` was told, if anything.
pub(crate) fn hand_over(a: &Side, b: &Side, listener: &Listener) -> Option<Reported> {
    let mut told = None;
    if listener.get_connection_request(&b.connector, 2).unwrap() == Started::Done {
        return told;
    }
    let deadline = Instant::now() + HANG;
    loop {
        told = told.or_else(|| a.connector.next_result());
        if let Some(handed) = listener.next_result() {
            assert_eq!(handed, Reported { request: 2, result: Ok(()) });
            return told;
        }
        any_readable(&[a.connector.descriptor(), listener.descriptor()], deadline);
    }
}

/// Connects two ends over a listener.
pub(crate) fn connect(a: &Side, b: &Side, listener: &Listener) {
    let to = listener.local_address().unwrap();
    assert_eq!(a.connector.connect(&a.pair, to, b"hello", 1), Ok(Started::Pending));
    let answer = hand_over(a, b, listener);
    assert!(b.connector.private_data().unwrap().starts_with(b"hello"));
    let accepted = b.connector.accept(&b.pair, b"welcome", 3);
    assert_eq!(
        answer.unwrap_or_else(|| reported(&a.connector)),
        Reported { request: 1, result: Ok(()) }
    );
    assert!(a.connector.private_data().unwrap().starts_with(b"welcome"));
    finish(a.connector.complete_connect(4), &a.connector, 4).unwrap();
    finish(accepted, &b.connector, 3).unwrap();
}
