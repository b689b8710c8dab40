//! One end of the connection: what its threads share, and how it comes to the SAN. What it decides by, it has from the
//! library's own files; in which order it comes to that follows `switch/setup` and `switch/anchor`.

use super::agreement::{AgreementState, Role};
use super::end_word::{EndState, EndWord};
use super::kernel::Error;
use super::schedule::{call, chance, step};
use super::segment::{Segment, Side};
use super::select_counter::Called;
use super::turn::{turn, Outbound, OverTcp};
use super::way_in::{InEvent, WayIn};
use super::way_out::{OutEvent, WayOut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// The conditions of an end on the SAN, as those of `switch/endpoint`.
pub(super) mod flag {
    pub(crate) const ANCHOR_ENDED: u32 = 1 << 0;
    pub(crate) const RESET: u32 = 1 << 1;
    pub(crate) const BROKEN_PIPE: u32 = 1 << 2;
}

/// How often a sender tries to turn.
const ATTEMPTS: u32 = 3;

/// A lock of one end's: who holds it does not sleep.
#[derive(Default)]
pub(super) struct Lock(AtomicBool);

/// It is held.
pub(super) struct Held<'a>(&'a Lock);

impl Lock {
    pub(super) fn lock(&self) -> Held<'_> {
        loop {
            step();
            if !self.0.swap(true, Relaxed) {
                return Held(self);
            }
        }
    }
}

impl Lock {
    pub(super) fn try_lock(&self) -> Option<Held<'_>> {
        step();
        (!self.0.swap(true, Relaxed)).then(|| Held(self))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0 .0.store(false, Relaxed);
    }
}

/// An end of a session, as its processes share it.
pub(super) struct Endpoint {
    pub(super) segment: Arc<Segment>,
    role: Role,
    word: EndWord,
    pub(super) over_tcp: OverTcp,
    /// Bytes that came again over TCP, and that it took off there, since it had read them.
    pub(super) passed: AtomicU64,
    /// Which of the peer's counters were answered by a ring.
    pub(super) called_to_read: Called,
    pub(super) called_to_write: Called,
    pub(super) sending: Lock,
    pub(super) receiving: Lock,
    /// Threads that sleep on the connection.
    pub(super) sleepers: AtomicUsize,
}

impl Endpoint {
    fn new(segment: Arc<Segment>, role: Role) -> Endpoint {
        let word = EndWord::new();
        word.begin_on_tcp();
        Endpoint {
            segment,
            role,
            word,
            over_tcp: OverTcp::new(),
            passed: AtomicU64::new(0),
            called_to_read: Called::new(),
            called_to_write: Called::new(),
            sending: Lock::default(),
            receiving: Lock::default(),
            sleepers: AtomicUsize::new(0),
        }
    }

    pub(super) fn own(&self) -> &Side {
        self.segment.side(self.role)
    }

    pub(super) fn peer(&self) -> &Side {
        self.segment.side(self.role.peer())
    }

    pub(super) fn has(&self, flags: u32) -> bool {
        self.state().has(flags)
    }

    pub(super) fn set(&self, flags: u32) {
        self.word.set(flags);
    }

    pub(super) fn state(&self) -> EndState {
        self.word.state()
    }

    /// Where the direction is that this end sends in.
    pub(super) fn way_out(&self) -> WayOut {
        self.state().way_out()
    }

    /// Where the direction is that it receives in.
    pub(super) fn way_in(&self) -> WayIn {
        self.state().way_in()
    }

    pub(super) fn step_in(&self, event: InEvent) {
        self.word.step_in(event);
    }

    pub(super) fn step_out(&self, event: OutEvent) {
        self.word.step_out(event);
    }
}

/// How far an end has come to agree, as it knows.
enum Negotiation {
    Advertised,
    Agreed(Arc<Segment>),
}

/// Where the ends find each other: the acceptor's entry, and what the connector sent there.
#[derive(Default)]
pub(super) struct Place {
    is_advertised: AtomicBool,
    offered: Mutex<Option<Arc<Segment>>>,
    /// Receiving threads that are done, and bytes that each end read.
    received: AtomicUsize,
    pub(super) read: [AtomicU64; 2],
}

impl Place {
    /// A receiving thread is done.
    pub(super) fn note_received(&self) {
        self.received.fetch_add(1, Relaxed);
    }

    /// True if both are.
    pub(super) fn is_over(&self) -> bool {
        step();
        self.received.load(Relaxed) == 2
    }
}

/// What this end's program does.
#[derive(Clone, Debug)]
pub(super) struct Behaviour {
    /// Bytes that it sends, and in pieces of at most how many it sends and receives.
    pub(super) total: u64,
    pub(super) largest: usize,
    /// How often (percent) a transfer on TCP takes the next step to the SAN, and one on the SAN the way back.
    pub(super) moves: usize,
    pub(super) returns: usize,
    /// It makes no call on the connection after a send before the peer has read that.
    pub(super) waits: bool,
    /// The ends go back for programs that can not read on the SAN, and come by until all is read: who does not, his peer sends
    /// in his stead.
    pub(super) recalls: bool,
    /// How often (percent) an end that leaves sends again by itself what is unread, if the kernel says that there is room; and
    /// where it does not say.
    pub(super) pulls: usize,
    pub(super) overfills: bool,
    /// How often it declines, or gives up what it agreed to.
    pub(super) declines: usize,
}

/// See the module.
pub(super) struct End {
    pub(super) number: usize,
    role: Role,
    pub(super) place: Arc<Place>,
    pub(super) behaviour: Behaviour,
    /// On the SAN, with what; none: the kernel's alone.
    endpoint: Mutex<Option<Arc<Endpoint>>>,
    negotiation: Mutex<Option<Negotiation>>,
    structure: Lock,
    /// Threads inside a call on the socket; one of them is about to enter, and the others wait.
    pins: AtomicUsize,
    is_claimed: AtomicBool,
    /// Bytes whose send returned, and that were about to be sent.
    pub(super) sent: AtomicU64,
    pub(super) attempted: AtomicU64,
    /// What happened: turns of either direction, returns, and those with bytes that it sent again by itself.
    pub(super) turns: AtomicU32,
    pub(super) returned: AtomicU32,
    pub(super) pulled: AtomicU32,
    /// Its reader was told the end of the stream, or that it broke.
    pub(super) ended: AtomicBool,
}

impl End {
    pub(super) fn new(number: usize, place: Arc<Place>, behaviour: Behaviour) -> End {
        let role = if number == 0 { Role::Connector } else { Role::Acceptor };
        End {
            number,
            role,
            place,
            behaviour,
            endpoint: Mutex::default(),
            negotiation: Mutex::default(),
            structure: Lock::default(),
            pins: AtomicUsize::new(0),
            is_claimed: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            attempted: AtomicU64::new(0),
            turns: AtomicU32::new(0),
            returned: AtomicU32::new(0),
            pulled: AtomicU32::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// Its end of a session, if it is on the SAN.
    pub(super) fn endpoint(&self) -> Option<Arc<Endpoint>> {
        step();
        self.endpoint.lock().unwrap().clone()
    }

    /// A system call on a connection that is on TCP; `None` if it is not. It may sleep there. In a call that pins it.
    pub(super) fn on_tcp<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        if self.endpoint().is_none() && chance(self.behaviour.moves) {
            self.consider_moving();
        }
        self.endpoint().is_none().then(work)
    }

    /// A call of the program's on the socket: while it lasts, it does not enter.
    pub(super) fn pinned<T>(&self, work: impl FnOnce() -> T) -> T {
        step();
        while self.is_claimed.load(Relaxed) {
            step();
        }
        self.pins.fetch_add(1, Relaxed);
        let done = work();
        self.pins.fetch_sub(1, Relaxed);
        done
    }

    /// A transfer takes the next step to the SAN. The caller has pinned it.
    fn consider_moving(&self) {
        let _held = self.structure.lock();
        if self.endpoint().is_some() {
            return;
        }
        let negotiation = self.negotiation.lock().unwrap().take();
        let next = match (negotiation, self.role) {
            (None, Role::Acceptor) => {
                self.place.is_advertised.store(true, Relaxed);
                Some(Negotiation::Advertised)
            }
            (None, Role::Connector) => self.offer(),
            (Some(Negotiation::Advertised), _) => self.look_for_offer(),
            (Some(Negotiation::Agreed(segment)), _) => self.follow(segment),
        };
        *self.negotiation.lock().unwrap() = next;
    }

    fn offer(&self) -> Option<Negotiation> {
        step();
        if !self.place.is_advertised.swap(false, Relaxed) {
            return None;
        }
        let segment = Arc::new(Segment::new());
        *self.place.offered.lock().unwrap() = Some(segment.clone());
        Some(Negotiation::Agreed(segment))
    }

    fn look_for_offer(&self) -> Option<Negotiation> {
        step();
        let Some(segment) = self.place.offered.lock().unwrap().take() else {
            return Some(Negotiation::Advertised);
        };
        if chance(self.behaviour.declines) {
            segment.agreement.decide(AgreementState::Refused);
            return None;
        }
        segment.agreement.decide(AgreementState::Taken).then_some(Negotiation::Agreed(segment))
    }

    /// Looks whether the other end is as far as this one.
    fn follow(&self, segment: Arc<Segment>) -> Option<Negotiation> {
        let gives_up = chance(self.behaviour.declines);
        match segment.agreement.state() {
            AgreementState::Refused | AgreementState::Withdrawn => None,
            _ if gives_up => {
                segment.agreement.withdraw();
                None
            }
            state if state == AgreementState::awaited_by(self.role) => self.enter(segment),
            _ => Some(Negotiation::Agreed(segment)),
        }
    }

    fn enter(&self, segment: Arc<Segment>) -> Option<Negotiation> {
        if self.pins.load(Relaxed) != 1 {
            return Some(Negotiation::Agreed(segment));
        }
        self.is_claimed.store(true, Relaxed);
        let next = self.enter_alone(segment);
        self.is_claimed.store(false, Relaxed);
        next
    }

    fn enter_alone(&self, segment: Arc<Segment>) -> Option<Negotiation> {
        if call(|kernel| kernel.has_ended(self.number)) {
            return Some(Negotiation::Agreed(segment));
        }
        if !segment.agreement.enter(self.role) {
            segment.agreement.withdraw();
            return None;
        }
        let endpoint = Arc::new(Endpoint::new(segment, self.role));
        endpoint.over_tcp.begin(call(|kernel| kernel.taken(self.number)).unwrap_or(0));
        endpoint.peer().word.enter();
        self.turn(&endpoint);
        *self.endpoint.lock().unwrap() = Some(endpoint);
        None
    }

    /// Sends over the SAN from now on, if it can. Send lock, or nobody else knows it.
    pub(super) fn turn(&self, e: &Endpoint) -> bool {
        match e.way_out() {
            WayOut::San => return true,
            WayOut::Tcp => {}
            WayOut::Leaving | WayOut::Left => return false,
        }
        let own = e.own();
        let written = || call(|kernel| kernel.written(self.number));
        match turn(&own.word, &own.turned_at, written, |attempts| attempts < ATTEMPTS) {
            Outbound::Tcp => return false,
            Outbound::Turned(_) => {
                self.turns.fetch_add(1, Relaxed);
            }
            Outbound::San => {}
        }
        e.step_out(OutEvent::Turned);
        true
    }

    /// Back before both ends entered: true if it is on TCP.
    pub(super) fn retreat(&self, e: &Endpoint) -> bool {
        if e.way_out() != WayOut::Tcp || !e.segment.agreement.withdraw() {
            return false;
        }
        self.leave_to_kernel(e);
        true
    }

    /// True if this is still its end of a session.
    pub(super) fn is_on_san(&self, e: &Endpoint) -> bool {
        self.endpoint().is_some_and(|now| std::ptr::eq(&*now, e))
    }

    /// The socket is the kernel's.
    pub(super) fn leave_to_kernel(&self, e: &Endpoint) {
        let _held = self.structure.lock();
        if self.is_on_san(e) {
            *self.endpoint.lock().unwrap() = None;
        }
    }

    /// How far it has come, for who looks when all is over.
    pub(super) fn stage(&self) -> &'static str {
        if let Some(e) = self.endpoint() {
            let state = e.state();
            return match (state.way_out(), state.way_in()) {
                (WayOut::Leaving, _) => "leaving",
                (_, WayIn::Back | WayIn::Asking) => "read out",
                (WayOut::Left, _) => "left",
                (WayOut::Tcp, WayIn::Tcp) => "entered",
                (WayOut::Tcp, WayIn::San) => "turned by the peer",
                (WayOut::San, WayIn::Tcp) => "turned",
                (WayOut::San, WayIn::San) => "san",
            };
        }
        match &*self.negotiation.lock().unwrap() {
            None => "on tcp",
            Some(Negotiation::Advertised) => "advertised",
            Some(Negotiation::Agreed(segment)) => match segment.agreement.state() {
                AgreementState::Pending => "offered",
                AgreementState::Taken => "taken",
                AgreementState::Confirmed => "confirmed",
                AgreementState::Settled => "settled",
                AgreementState::Withdrawn | AgreementState::Refused => "withdrawn",
            },
        }
    }

    /// The next byte of the stream is read.
    pub(super) fn read_byte(&self, byte: u8) {
        let at = self.read();
        assert_eq!(byte, stream_byte(1 - self.number, at), "end {}: byte {at}", self.number);
        self.place.read[self.number].store(at + 1, Relaxed);
    }

    /// Bytes read.
    pub(super) fn read(&self) -> u64 {
        self.place.read[self.number].load(Relaxed)
    }

    /// What the kernel took off the connection is the stream's.
    pub(super) fn read_from_kernel(&self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.read_byte(*byte));
    }

    /// What the kernel says of a call that can not be made any more.
    pub(super) fn broke(&self, e: &Endpoint, error: Error) {
        match error {
            Error::Again => {}
            Error::Reset => e.set(flag::RESET | flag::ANCHOR_ENDED),
            Error::Pipe => e.set(flag::BROKEN_PIPE | flag::ANCHOR_ENDED),
        }
    }
}

/// The byte at `at` of the stream that end `number` sends.
pub(super) fn stream_byte(number: usize, at: u64) -> u8 {
    ((at + number as u64 * 977).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}
