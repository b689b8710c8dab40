//! Both halves of one direction, for the tests: what one says the other takes in.

use super::*;

/// The two halves of one direction.
pub(super) struct Ends {
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    pub(super) abilities: Abilities,
    /// Number of the last message towards the receiver.
    pub(super) sequence: Cell<u32>,
    /// Bytes of data sent, and bytes received.
    pub(super) sent: Cell<u64>,
    pub(super) received: Cell<u64>,
}

impl Ends {
    pub(super) fn new(abilities: Abilities) -> Ends {
        Ends {
            sending: Sending::default(),
            receiving: Receiving::default(),
            abilities,
            sequence: Cell::new(1),
            sent: Cell::new(0),
            received: Cell::new(0),
        }
    }

    /// Ends whose sender has found `mode` out and told it.
    pub(super) fn in_mode(abilities: Abilities, mode: Mode) -> Ends {
        let ends = Ends::new(abilities);
        let behaviour = Behaviour::ALL[mode as usize - 1];
        (0..3).for_each(|_| {
            ends.sending.observer().observe(behaviour);
        });
        ends.pass(Control::EnterMode(mode, false));
        ends
    }

    /// A message on its way: what its receiver makes of it.
    pub(super) fn try_pass(&self, control: Control) -> Result<(), ProtocolError> {
        let decoded = Control::decode(control.kind(), &control.encode())?.expect("has a body");
        assert_eq!(decoded, control);
        if let Control::DataAvailable(_) = decoded {
            self.sequence.set(self.sequence.get() + 1);
        }
        let concerns = obey(&decoded, self.sequence.get(), &self.sending, &self.receiving)?;
        assert!(concerns, "{control:?} is not of a transfer");
        Ok(())
    }

    pub(super) fn pass(&self, control: Control) {
        self.try_pass(control).expect("an honest message");
    }

    pub(super) fn plan(&self, length: u64) -> Plan {
        self.sending.plan(length, self.sent.get(), true, self.abilities)
    }

    pub(super) fn progress(&self) -> Progress {
        self.sending.progress(self.sent.get(), self.abilities)
    }

    /// A large send begins as planned; gives the transfer's number.
    pub(super) fn announce(&self) -> u32 {
        let Plan::Announce { readable, first_part } = self.plan(LARGE) else {
            panic!("not announced")
        };
        let first = if first_part { FIRST } else { 0 };
        let rest = LARGE as u32 - first;
        let key = self.sending.begin(rest);
        self.sent.set(self.sent.get() + u64::from(first));
        let address = readable.then_some(0x1000);
        self.pass(Control::DataAvailable(Available { key, rest, address }));
        key
    }

    /// `call` takes the first part out of the announcing message.
    pub(super) fn take_first_part(&self, call: Call) {
        self.receiving.begun(call);
        self.received.set(self.received.get() + u64::from(FIRST));
    }

    /// `call` reads `bytes` of the rest with room for `room`.
    pub(super) fn read(&self, call: Call, bytes: u32, room: u64) -> Option<Complete> {
        self.received.set(self.received.get() + u64::from(bytes));
        self.receiving.read(call, bytes, room, self.abilities)
    }

    /// All of the rest is read, the sender told; its mode if that is a new one.
    pub(super) fn read_all(&self, call: Call, room: u64) -> Option<Mode> {
        let rest = self.receiving.rest().expect("announced");
        let left = rest.length - rest.taken;
        let complete = self.read(call, left, room).expect("all is read");
        self.pass(Control::TransferComplete(complete));
        assert_eq!(self.progress(), Progress::Complete(rest.length));
        self.sent.set(self.sent.get() + u64::from(rest.length));
        self.sending.end(End::Read)
    }

    /// A receive posts a buffer of `length`; the advertisement that goes out.
    pub(super) fn post(&self, call: Call, length: u32) -> Advertisement {
        match self.receiving.post(length.into(), true, self.abilities) {
            Posting::Advertise(key) => {
                self.receiving.advertisement(key, 0x2000, length, call, self.received.get())
            }
            other => panic!("not advertised but {other:?}"),
        }
    }

    /// The sender writes `bytes` into `a`, tells it, and the receiver takes its buffer back.
    pub(super) fn write(&self, a: &Advertisement, bytes: u32) {
        self.sending.used(a.key, true);
        self.sent.set(self.sent.get() + u64::from(bytes));
        self.pass(Control::TransferComplete(Complete { key: a.key, bytes, behaviour: None }));
        assert_eq!(self.receiving.written_to(a.key), Some(bytes));
        self.receiving.withdrawn(bytes);
        self.received.set(self.received.get() + u64::from(bytes));
    }
}
