//! A sender and a receiver, and what they say.

use sanshim_core::session::transfer::{
    self, Abilities, Call, End, Plan, Posting, Progress, Receiving, Sending,
};
use sanshim_core::session::{
    Advertisement, Available, Complete, Control, Header, Kind, Mode, LARGEST_BODY,
};

const FIRST_PART: u32 = 1024;

pub(crate) struct Ends {
    sender: Sending,
    receiver: Receiving,
    abilities: Abilities,
    /// Bytes sent, and bytes received.
    sent: u64,
    received: u64,
    sequence: u32,
    /// The transfer under way: number, bytes of the rest.
    transfer: (u32, u32),
    call: Call,
    /// A buffer that is posted; its advertisement, if it is advertised.
    posted: u32,
    mode: Option<Control>,
    silent: bool,
    lines: String,
}

impl Ends {
    pub(crate) fn new(abilities: Abilities) -> Ends {
        Ends {
            sender: Sending::default(),
            receiver: Receiving::default(),
            abilities,
            sent: 0,
            received: 0,
            sequence: 0,
            transfer: (0, 0),
            call: Call { number: 0, directly: false },
            posted: 0,
            mode: None,
            silent: false,
            lines: String::new(),
        }
    }

    pub(crate) fn lines(self) -> String {
        format!("{:<34}{:^28}{}\n{}", "sender", "", "receiver", self.lines)
    }

    /// What leads up to the case, without drawing it.
    pub(crate) fn quietly(&mut self, run: impl FnOnce(&mut Ends)) {
        self.silent = true;
        run(self);
        self.silent = false;
    }

    fn line(&mut self, text: &str) {
        if !self.silent {
            self.lines.push_str(text.trim_end());
            self.lines.push('\n');
        }
    }

    fn at_sender(&mut self, what: &str) {
        self.line(what);
    }

    fn at_receiver(&mut self, what: &str) {
        self.line(&format!("{:62}{what}", ""));
    }

    /// The other end takes a control message in: only its bytes arrive.
    fn arrives(&self, control: &Control) {
        let body = control.encode();
        let mut copy = [0; LARGEST_BODY];
        let size = control.kind().body_size() as usize;
        copy[..size].copy_from_slice(&body[..size]);
        let arrived = Control::decode(control.kind(), &copy).expect("valid").expect("has a body");
        let obeyed = transfer::obey(&arrived, self.sequence, &self.sender, &self.receiver);
        assert_eq!(obeyed, Ok(true), "an honest message of a transfer");
    }

    fn tell_receiver(&mut self, control: &Control, with: &str) {
        self.sequence += 1;
        let text = format!("{}{with} ", name(control));
        self.line(&format!("{:34}-- {text:-<56}>", ""));
        self.arrives(control);
    }

    fn tell_sender(&mut self, control: &Control) {
        let text = format!(" {}", name(control));
        self.line(&format!("{:34}<{text:->56} --", ""));
        self.arrives(control);
    }

    /// The receiver's application posts a receive of `room` bytes and waits.
    pub(crate) fn posts(&mut self, room: u32) {
        self.posted = room;
        if self.receiver.rest().is_none() {
            self.call = self.receiver.call(true);
            self.at_receiver(&format!("recv({room}) waits"));
        }
        match self.receiver.post(room.into(), true, self.abilities) {
            Posting::Nothing => {}
            Posting::Rediscover => self.tell_sender(&Control::Rediscover),
            Posting::SendInMessages(key) => {
                self.tell_sender(&Control::SendInMessages(key, false));
            }
            Posting::Advertise(key) => {
                self.at_receiver("registers it for RDMA write");
                let a = self.receiver.advertisement(key, 0, room, self.call, self.received);
                self.tell_sender(&Control::Advertisement(a));
            }
        }
    }

    /// As [`posts`](Self::posts) in large-receive mode, while no credit is left for a message of its own.
    pub(crate) fn posts_without_credit(&mut self, room: u32) -> Advertisement {
        self.call = self.receiver.call(true);
        self.at_receiver(&format!("recv({room}) waits"));
        let posting = self.receiver.post(room.into(), true, self.abilities);
        let Posting::Advertise(key) = posting else { panic!("{posting:?}") };
        self.at_receiver("registers it for RDMA write");
        self.receiver.advertisement(key, 0, room, self.call, self.received)
    }

    /// The receiver's application sends `length` bytes, `riding` with them (A13).
    pub(crate) fn answers(&mut self, length: u32, riding: Option<Advertisement>) {
        self.at_receiver(&format!("send({length})"));
        let header = Header {
            sequence: self.sequence,
            last_received: 0,
            posted: 1,
            kind: Kind::Data,
            flags: 0,
            length,
        };
        let header = if riding.is_some() { header.advertising() } else { header };
        let header = Header::decode(header.encode(), FIRST_PART).expect("an honest message");
        assert_eq!(header.data_size(), length);
        let text = match riding {
            Some(a) => format!(" {length} bytes, with Advertisement {}, posted directly", a.length),
            None => format!(" {length} bytes"),
        };
        self.line(&format!("{:34}<{text:->56} --", ""));
        if let Some(a) = riding {
            assert_eq!(header.body_size(), Kind::Advertisement.body_size());
            self.arrives(&Control::Advertisement(a));
        }
        self.at_sender(&format!("recv takes {length} bytes"));
    }

    /// The sender's application sends so few bytes that they go in a message.
    pub(crate) fn sends_in_message(&mut self, length: u32) {
        self.at_sender(&format!("send({length})"));
        let plan = self.sender.plan(length.into(), self.sent, true, self.abilities);
        assert_eq!(plan, Plan::Messages);
        self.sent += u64::from(length);
        self.line(&format!("{:34}-- {:-<56}>", "", format!("{length} bytes ")));
    }

    /// An advertisement that crosses data; the next large send waits for one that counts them (A14).
    pub(crate) fn advertises_too_late(&mut self, small: u32, large: u32) {
        let advertisement = self.posts_without_credit(large);
        self.sends_in_message(small);
        self.tell_sender(&Control::Advertisement(advertisement));
        self.received += u64::from(small);
        self.receiver.withdrawn(0);
        self.at_receiver("deregisters; recv returns the message");
        self.at_sender(&format!("send({large})"));
        let plan = self.sender.plan(large.into(), self.sent, true, self.abilities);
        assert_eq!((plan, self.sender.advertisements().1), (Plan::Await, 1));
        self.at_sender("drops what was advertised before");
        self.transfer = (0, large);
        self.posts(large);
        self.writes();
    }

    /// The sender's application sends `length` bytes and waits.
    pub(crate) fn sends(&mut self, length: u32) {
        self.at_sender(&format!("send({length})"));
        match self.sender.plan(length.into(), self.sent, true, self.abilities) {
            Plan::Announce { readable, first_part } => {
                let first = if first_part { FIRST_PART } else { 0 };
                self.announce(length, first, readable);
            }
            Plan::Write(_) => {
                self.transfer = (0, length);
            }
            other => panic!("{other:?}"),
        }
    }

    fn announce(&mut self, length: u32, first: u32, readable: bool) {
        let rest = length - first;
        let key = self.sender.begin(rest);
        self.transfer = (key, rest);
        if readable {
            self.at_sender("registers the rest for RDMA read");
        }
        let address = readable.then_some(0);
        let with = if first > 0 { format!(" + {first} bytes") } else { String::new() };
        self.tell_receiver(&Control::DataAvailable(Available { key, rest, address }), &with);
        self.sent += u64::from(first);
    }

    pub(crate) fn takes_first_part(&mut self) {
        self.receiver.begun(self.call);
        self.received += u64::from(FIRST_PART);
        self.at_receiver(&format!("copies {FIRST_PART} bytes"));
    }

    /// A receive that is posted only when data is there, for its beginning.
    pub(crate) fn small_receive(&mut self, room: u32) {
        let call = self.receiver.call(false);
        self.receiver.begun(call);
        self.received += u64::from(FIRST_PART);
        self.call = self.receiver.call(false);
        self.at_receiver(&format!("recv({room}), then a large recv for the rest"));
    }

    /// The receiver reads what was announced into a receive with `room` bytes.
    pub(crate) fn reads_rest(&mut self, room: u32) {
        let (_, rest) = self.transfer;
        let found = self.receiver.rest().expect("announced data");
        assert!(found.address.is_some() && found.length == rest);
        self.at_receiver(&format!("RDMA read of {rest} bytes"));
        let complete = self.receiver.read(self.call, rest, room.into(), self.abilities);
        self.received += u64::from(rest);
        self.tell_sender(&Control::TransferComplete(complete.expect("all of it")));
        let progress = self.sender.progress(self.sent, self.abilities);
        assert_eq!(progress, Progress::Complete(rest));
        self.sent += u64::from(rest);
        let mode = self.sender.end(End::Read);
        self.enters(mode);
        self.at_sender("deregisters; send returns");
    }

    /// The sender writes into what was advertised.
    pub(crate) fn writes(&mut self) {
        let progress = self.sender.progress(self.sent, self.abilities);
        let Progress::Advertised(a) = progress else { panic!("{progress:?}") };
        let bytes = self.transfer.1.min(a.length);
        self.at_sender(&format!("RDMA write of {bytes} bytes"));
        self.sender.used(a.key, true);
        self.sent += u64::from(bytes);
        self.tell_receiver(
            &Control::TransferComplete(Complete { key: a.key, bytes, behaviour: None }),
            "",
        );
        assert_eq!(self.receiver.written_to(a.key), Some(bytes));
        self.receiver.withdrawn(bytes);
        self.received += u64::from(bytes);
        self.at_receiver("deregisters; recv returns");
        let mode = self.sender.end(End::Written { directly: a.directly });
        self.enters(mode);
        self.at_sender("send returns");
    }

    pub(crate) fn falls_back(&mut self, how: End) {
        let (key, rest) = self.transfer;
        let mode = self.sender.end(how);
        self.enters(mode);
        self.tell_receiver(&Control::RestInMessages(key, 0), "");
        self.line(&format!("{:34}-- {:-<56}>", "", format!("{rest} bytes in messages ")));
        self.sent += u64::from(rest);
        self.received = self.sent;
    }

    pub(crate) fn scans_twice(&mut self) {
        assert!(!self.sender.scan(0));
        self.at_sender("scan: nothing was taken");
        assert!(self.sender.scan(0));
        self.at_sender("scan: nothing was taken; deregisters");
        self.falls_back(End::Scanned);
    }

    pub(crate) fn learns(&mut self) {
        let mode = self.sender.learn();
        self.enters(mode);
    }

    fn enters(&mut self, mode: Option<Mode>) {
        self.mode = mode.map(|mode| Control::EnterMode(mode, false)).or(self.mode);
    }

    pub(crate) fn tells_mode(&mut self) {
        let control = self.mode.take().expect("a new mode");
        self.tell_receiver(&control, "");
    }

    /// An advertisement and an announcement cross.
    pub(crate) fn announces_while_advertised(&mut self, length: u32) {
        self.call = self.receiver.call(true);
        self.at_receiver(&format!("recv({length}) waits"));
        let posting = self.receiver.post(length.into(), true, self.abilities);
        let Posting::Advertise(key) = posting else { panic!("{posting:?}") };
        self.at_receiver("registers it for RDMA write");
        let a = self.receiver.advertisement(key, 0, length, self.call, self.received);
        self.sends(length);
        assert_eq!(self.receiver.advertised(), Some(key), "who advertised does not read");
        self.tell_sender(&Control::Advertisement(a));
        self.at_sender("deregisters what it announced");
        self.writes();
    }
}

fn name(control: &Control) -> String {
    match control {
        Control::DataAvailable(a) if a.address.is_some() => {
            format!("DataAvailable {}, descriptor", a.rest)
        }
        Control::DataAvailable(a) => format!("DataAvailable {}", a.rest),
        Control::TransferComplete(c) => match c.behaviour {
            Some(behaviour) => format!("TransferComplete {}, {behaviour:?}", c.bytes),
            None => format!("TransferComplete {}", c.bytes),
        },
        Control::Advertisement(a) if a.directly => {
            format!("Advertisement {}, posted directly", a.length)
        }
        Control::Advertisement(a) => format!("Advertisement {}", a.length),
        Control::SendInMessages(..) => "SendInMessages".to_owned(),
        Control::RestInMessages(..) => "RestInMessages".to_owned(),
        Control::EnterMode(mode, _) => format!("EnterMode {}", mode.name()),
        Control::Rediscover => "Rediscover".to_owned(),
        other => format!("{other:?}"),
    }
}
