//! Model check of credits: nobody is granted a buffer that is still being read.

use super::flow::Session;
use super::header::{Header, Kind};
use super::sync::{AtomicU32, Ordering};
use super::{bounded, Reached};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A message as it lies in shared memory: the sequence number is published last.
struct Mailbox {
    words: [AtomicU32; 4],
}

impl Mailbox {
    fn new() -> Mailbox {
        let mailbox = Mailbox { words: [const { AtomicU32::new(0) }; 4] };
        mailbox.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        mailbox
    }

    fn publish(&self, header: &Header) {
        let words = header.encode();
        for (word, value) in self.words.iter().zip(words).skip(1) {
            word.store(value, Ordering::Relaxed);
        }
        self.words[0].store(words[0], Ordering::Release);
    }

    fn look(&self, sequence: u32) -> Option<Header> {
        (self.words[0].load(Ordering::Acquire) == sequence).then(|| {
            let words = [0, 1, 2, 3].map(|i| self.words[i].load(Ordering::Relaxed));
            Header::decode(words, 1).unwrap()
        })
    }
}

/// Two sessions of 4 buffers after session request and accept, the request not yet consumed.
fn opened() -> (Session, Session) {
    let (a, b) = (Session::new(4), Session::new(4));
    let request = b.next_message(Kind::SessionRequest, 0).unwrap();
    b.sent(&request);
    a.received(&request).unwrap();
    let accept = a.next_message(Kind::SessionAccept, 0).unwrap();
    a.sent(&accept);
    b.received(&accept).unwrap();
    (a, b)
}

/// A15: a header never carries a PR and an LRSQ of different moments.
#[test]
fn a_header_never_grants_more_than_is_posted() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    loom::model(move || {
        let (a, b) = opened();
        b.reposted(1);
        let first = b.next_message(Kind::Data, 1).unwrap();
        b.sent(&first);
        a.received(&first).unwrap();
        let second = b.next_message(Kind::Data, 1).unwrap();
        let a = Arc::new(a);
        let sender = thread::spawn({
            let a = a.clone();
            move || a.next_message(Kind::Data, 1).unwrap()
        });
        a.reposted(2);
        a.received(&second).unwrap();
        a.reposted(1);
        let header = sender.join().unwrap();
        seen.note((u32::from(header.posted), header.last_received));
    });
    assert_eq!(reached.states(), [(2, 2), (3, 3), (4, 2), (4, 3)]);
}

/// S1, A15: who fills a buffer that was posted again comes after its last reader, although four
/// threads hand the credit on and no lock joins them.
#[test]
fn a_buffer_is_free_before_its_credit_arrives() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(2, move || {
        let (a, b) = opened();
        let (a, b) = (Arc::new(a), Arc::new(b));
        b.reposted(1);
        let first = b.next_message(Kind::Data, 1).unwrap();
        b.sent(&first);
        a.received(&first).unwrap();
        let second = b.next_message(Kind::Data, 1).unwrap();
        let mailbox = Arc::new(Mailbox::new());
        // Buffer of messages 1 and 5; 1 is received and still being read.
        let buffer = Arc::new(UnsafeCell::new(0_u8));
        let granted = b.credit();

        let replier = thread::spawn({
            let (a, mailbox) = (a.clone(), mailbox.clone());
            move || mailbox.publish(&a.next_message(Kind::Data, 1).unwrap())
        });
        let receiver = thread::spawn({
            let b = b.clone();
            move || {
                if let Some(header) = mailbox.look(b.expected()) {
                    b.received(&header).unwrap();
                }
            }
        });
        let writer = thread::spawn({
            let buffer = buffer.clone();
            let seen = seen.clone();
            move || {
                let credit = b.credit();
                seen.note((credit, granted));
                if credit > granted {
                    // SAFETY: loom fails the model if a read or write is concurrent.
                    buffer.with_mut(|byte| unsafe { *byte = 1 });
                }
            }
        });
        // SAFETY: loom fails the model if a write is concurrent.
        buffer.with(|byte| unsafe { *byte });
        a.reposted(1);
        a.received(&second).unwrap();
        for thread in [replier, receiver, writer] {
            thread.join().unwrap();
        }
    });
    assert_eq!(reached.states(), [(2, 2), (3, 2)]);
}
