//! What the helpers of one host's processes say to each other: a datagram socket for each, by a name that
//! only those who share something with its process know.
//!
//! Every message may be lost, or come twice: whoever waits for the effect sends it again.

use super::request::Cookie;
use crate::sys::packet::{self, Name};
use crate::sys::{file, hidden, process, Fd, Result};
use std::io::Write;

/// A process's mailbox, by the number in its name. Zero: none.
pub(super) type Address = u64;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Somebody published something, or waits.
    Look,
    /// A relative wants control of a link: its peer is to come to that number with that cookie.
    Want { link: u64, invitation: Invitation },
    /// A process that is about to exit has control of a link: the one that had it before is to take it.
    Take { link: u64 },
}

/// Where a process waits for a connection, at a listener of its own: the number, with what cookie, and whom to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Invitation {
    /// In rdma_cm's own space.
    pub(super) number: u16,
    pub(super) cookie: Cookie,
    pub(super) mailbox: Address,
    pub(super) pid: u32,
}

/// Longest message.
const LONGEST: usize = 256;

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

impl Message {
    fn encode(&self) -> Vec<u8> {
        let mut words = vec![];
        match self {
            Message::Look => words.push(0),
            Message::Want { link, invitation } => {
                words.extend([1, *link]);
                words.extend(invitation.words());
            }
            Message::Take { link } => words.extend([2, *link]),
        }
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
            .collect();
        match words[..] {
            [0] => Some(Message::Look),
            [1, link, ..] => Some(Message::Want { link, invitation: Invitation::of(&words[2..])? }),
            [2, link] => Some(Message::Take { link }),
            _ => None,
        }
    }
}

/// This process's own.
pub(super) struct Mailbox {
    pub(super) fd: Fd,
    pub(super) address: Address,
}

impl Mailbox {
    pub(super) fn open() -> Result<Self> {
        let address = process::random()[0] | 1;
        let fd = hidden::keep(packet::bind_datagrams(&name(address))?);
        Ok(Self { fd, address })
    }

    /// The next message, without waiting.
    pub(super) fn next(&self) -> Option<Message> {
        loop {
            let mut buffer = [0u8; LONGEST];
            let (n, passed) = packet::receive(self.fd, &mut buffer).ok()?;
            if let Some(fd) = passed {
                file::close(fd);
            }
            if let Some(message) = Message::decode(&buffer[..n]) {
                return Some(message);
            }
        }
    }
}

/// Sends to another process's helper, from any of these sockets; false: it is gone.
pub(super) fn send(from: Fd, to: Address, message: &Message) -> bool {
    !matches!(
        packet::send_to(from, &name(to), &message.encode()),
        Err(crate::sys::Errno(libc::ECONNREFUSED | libc::ENOENT))
    )
}

/// [`Message::Look`], without allocating: a signal handler may be at it.
pub(super) fn kick(from: Fd, to: Address) -> Result<()> {
    packet::send_to(from, &name(to), &0u64.to_ne_bytes()).map(drop)
}

fn name(address: Address) -> Name {
    let mut text = *b"sanshim/helper/................";
    // It has just that many digits.
    let _ = write!(&mut text[15..], "{address:016x}");
    Name::abstract_of(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_and_nonsense_does_not() {
        let (a, b) = (Mailbox::open().unwrap(), Mailbox::open().unwrap());
        let invitation =
            Invitation { number: 7471, cookie: [1, u64::MAX], mailbox: a.address, pid: 1 << 22 };
        let all = [Message::Look, Message::Want { link: 5, invitation }, Message::Take { link: 7 }];
        assert_eq!(b.next(), None);
        for message in &all {
            assert!(send(a.fd, b.address, message));
            assert!(packet::send_to(a.fd, &name(b.address), &[1; 50]).is_ok());
        }
        for message in all {
            assert_eq!(b.next(), Some(message));
        }
        assert_eq!(b.next(), None);
        hidden::close(b.fd);
        assert!(!send(a.fd, b.address, &Message::Look));
        hidden::close(a.fd);
    }
}
