//! The helpers of one host's processes send each other messages. Each has a datagram socket, with an address that only
//! processes know which share something with it.
//!
//! Every user sees the socket's name and may send there. So the name does not tell the address, and the kernel lets in
//! only datagrams that begin with the address. Nobody else's messages wake the helper, fill its queue, or leave it
//! descriptors to close.
//!
//! Every message may be lost, or come twice. A helper that waits for the effect sends the message again.

use super::request::Cookie;
use crate::sys::packet::{self, Name};
use crate::sys::{hidden, net, process, Fd, Result};
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;

/// A process's mailbox, by a number that is not to be guessed. Zero: none.
pub(super) type MailboxAddress = u64;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HelperMessage {
    /// Another process published something, or waits.
    Look,
    /// A relative wants control of a link: its peer is to come to that number with that cookie.
    Want { link: u64, invitation: Invitation },
    /// A process that is about to exit has control of a link: the one that had it before is to take it.
    Take { link: u64 },
}

/// Where a process waits for a connection, at a listener of its own: the number, the cookie, and the mailbox to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Invitation {
    /// In rdma_cm's own space.
    pub(super) number: u16,
    pub(super) cookie: Cookie,
    pub(super) mailbox: MailboxAddress,
    pub(super) pid: u32,
}

/// Longest message, in bytes, and what is in front of each.
const LONGEST: usize = 256;
const ADDRESS: usize = 8;

impl Invitation {
    fn words(&self) -> [u64; 4] {
        let place = u64::from(self.pid) << 16 | u64::from(self.number);
        [place, self.cookie[0], self.cookie[1], self.mailbox]
    }

    fn of(words: &[u64]) -> Option<Self> {
        let &[place, a, b, mailbox] = words else { return None };
        Some(Invitation {
            number: place as u16,
            cookie: [a, b],
            mailbox,
            pid: (place >> 16) as u32,
        })
    }
}

impl HelperMessage {
    fn encode(&self) -> Vec<u8> {
        let mut words = vec![];
        match self {
            HelperMessage::Look => words.push(0),
            HelperMessage::Want { link, invitation } => {
                words.extend([1, *link]);
                words.extend(invitation.words());
            }
            HelperMessage::Take { link } => words.extend([2, *link]),
        }
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
            .collect();
        match words[..] {
            [0] => Some(HelperMessage::Look),
            [1, link, ..] => {
                Some(HelperMessage::Want { link, invitation: Invitation::of(&words[2..])? })
            }
            [2, link] => Some(HelperMessage::Take { link }),
            _ => None,
        }
    }
}

/// This process's own.
pub(super) struct Mailbox {
    pub(super) fd: Fd,
    pub(super) address: MailboxAddress,
}

impl Mailbox {
    pub(super) fn open() -> Result<Self> {
        let address = process::random()[0] | 1;
        let bound = packet::bind_datagrams(&name(address), &address.to_ne_bytes())?;
        let fd = hidden::keep(bound);
        Ok(Self { fd, address })
    }

    /// The next message, without waiting.
    pub(super) fn next(&self) -> Option<HelperMessage> {
        loop {
            let mut buffer = [0u8; ADDRESS + LONGEST];
            // This thread of ours closes a descriptor that somebody passes.
            let n = net::recv(hidden::kept(self.fd), &mut buffer, libc::MSG_DONTWAIT).ok()?;
            if let Some(message) = HelperMessage::decode(&buffer[ADDRESS.min(n)..n]) {
                return Some(message);
            }
        }
    }
}

/// Sends to another process's helper, from any of these sockets; false: it is gone.
pub(super) fn send(from: Fd, to: MailboxAddress, message: &HelperMessage) -> bool {
    let bytes = [&to.to_ne_bytes()[..], &message.encode()].concat();
    !matches!(
        packet::send_to(from, &name(to), &bytes),
        Err(crate::sys::Errno(libc::ECONNREFUSED | libc::ENOENT))
    )
}

/// [`HelperMessage::Look`], without allocating: a signal handler may call this.
pub(super) fn kick(from: Fd, to: MailboxAddress) -> Result<()> {
    let mut bytes = [0; 2 * ADDRESS];
    bytes[..ADDRESS].copy_from_slice(&to.to_ne_bytes());
    packet::send_to(from, &name(to), &bytes).map(drop)
}

/// The name that its process and the senders make of an address. All of them are of one version.
fn name(address: MailboxAddress) -> Name {
    // SipHash, twice: what it was made of is not found in less than the tries that guessing takes.
    let once = |value: u64| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(value);
        hasher.finish()
    };
    let mut text = *b"sanshim/helper/................";
    // It has just that many digits.
    let _ = write!(&mut text[15..], "{:016x}", once(once(address)));
    Name::abstract_of(&text)
}

/// What may come to a mailbox: it is nothing, or what was meant.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    if let Some(message) = HelperMessage::decode(data) {
        let bytes = message.encode();
        assert!(HelperMessage::decode(&bytes).is_some_and(|again| again.encode() == bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{file, Errno};

    #[test]
    fn messages_arrive_and_nonsense_does_not() {
        let (a, b) = (Mailbox::open().unwrap(), Mailbox::open().unwrap());
        let invitation =
            Invitation { number: 7471, cookie: [1, u64::MAX], mailbox: a.address, pid: 1 << 22 };
        let all = [
            HelperMessage::Look,
            HelperMessage::Want { link: 5, invitation },
            HelperMessage::Take { link: 7 },
        ];
        assert_eq!(b.next(), None);
        for message in &all {
            assert!(send(a.fd, b.address, message));
            let nonsense = [&b.address.to_ne_bytes()[..], &[1; 50]].concat();
            assert!(packet::send_to(a.fd, &name(b.address), &nonsense).is_ok());
        }
        for message in all {
            assert_eq!(b.next(), Some(message));
        }
        assert_eq!(b.next(), None);
        hidden::close(b.fd);
        assert!(!send(a.fd, b.address, &HelperMessage::Look));
        hidden::close(a.fd);
    }

    /// Others than the family see the name.
    #[test]
    fn who_does_not_know_the_address_leaves_nothing() {
        let mailbox = Mailbox::open().unwrap();
        let (from, look) = (packet::datagrams().unwrap(), 0u64.to_ne_bytes());
        let start = (mailbox.address ^ 1 << 63).to_ne_bytes();
        let end = (mailbox.address ^ 2).to_ne_bytes();
        // More than wait in one socket.
        for _ in 0..1000 {
            for other in [&look[..], &[], &[0; 7], &start, &end] {
                for bytes in [other.to_vec(), [other, &look].concat()] {
                    let sent = packet::send_to(from, &name(mailbox.address), &bytes);
                    assert_eq!(sent, Ok(bytes.len()));
                }
            }
        }
        assert_eq!(
            net::recv(mailbox.fd, &mut [0; 8], libc::MSG_DONTWAIT),
            Err(Errno(libc::EAGAIN))
        );
        kick(from, mailbox.address).unwrap();
        assert_eq!(mailbox.next(), Some(HelperMessage::Look));
        file::close(from);
        hidden::close(mailbox.fd);
    }
}
