//! A process that connected to a listener of ours, to say one thing and pass one piece of memory and two bells with it.
//!
//! It may send anything, though. This thread takes nothing out of its connection, and does not close the connection,
//! before it has seen that it need not wait for that ([`closing`]).

use super::{bell, call, closing, file, hidden, net, packet, sealed, Errno, Fd, Result};
use std::mem::size_of;

/// See the module. Hangs up when it is dropped.
pub(crate) struct Caller {
    connection: Fd,
    /// It has a number out of the program's way.
    is_hidden: bool,
    /// The process and its user, as the kernel noted them when it connected.
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

/// What a caller said.
pub(crate) enum CallerSaid {
    /// Nothing yet.
    Silence(Caller),
    /// So many bytes of the buffer, with sealed memory and two pipes.
    Message(usize, [Fd; PASSED]),
    /// It makes no sense, or the caller hung up before it said anything.
    Nonsense,
}

/// What waits first in a connection.
enum First {
    Nothing,
    End,
    /// A packet's length, the first descriptors that came with it, and whether there are more.
    Packet(usize, [Option<Fd>; PASSED], bool),
}

/// Descriptors of a message.
const PASSED: usize = 3;

/// Has the callers of a listener tell with each packet which processes they are. That tells the kernel's "no bytes" of
/// a packet from that of the end. Called before the listener listens.
pub(crate) fn announce(listener: Fd) -> Result<()> {
    net::set_option(listener, libc::SOL_SOCKET, libc::SO_PASSCRED, &1i32)
}

impl Caller {
    /// The next caller. EAGAIN if there is none.
    pub(crate) fn accept(listener: Fd) -> Result<Caller> {
        let connection = net::accept(listener, libc::SOCK_CLOEXEC)?;
        let (pid, uid) = packet::peer_credentials(connection).unwrap_or((0, u32::MAX));
        Ok(Caller { connection, is_hidden: false, pid, uid })
    }

    /// Takes what he says, without waiting.
    pub(crate) fn hear(mut self, buffer: &mut [u8]) -> CallerSaid {
        match self.first(buffer) {
            First::Nothing => CallerSaid::Silence(self),
            First::Packet(length, [Some(memory), Some(one), Some(other)], false)
                if sealed::is_sealed(memory) && bell::may_be(one) && bell::may_be(other) =>
            {
                // This drops second descriptors of what is open here.
                let _ = net::recv(self.connection(), &mut [], libc::MSG_DONTWAIT);
                CallerSaid::Message(length, [memory, one, other])
            }
            First::Packet(_, passed, _) => {
                self.leave_with(passed.into_iter().flatten());
                CallerSaid::Nonsense
            }
            First::End => CallerSaid::Nonsense,
        }
    }

    /// Keeps the connection open for longer, out of the program's way.
    pub(crate) fn keep(mut self) -> Caller {
        if !self.is_hidden {
            self.connection = hidden::keep(self.connection);
            self.is_hidden = true;
        }
        self
    }

    /// In a fork child, whose parent goes on to hear the caller: this closes nothing of what waits for the last time.
    pub(crate) fn forget(mut self) {
        file::close(self.take_connection());
    }

    /// Minus one, with which every system call fails, once the program has taken the number over, or another thread closes it.
    fn connection(&self) -> Fd {
        if self.is_hidden && !hidden::is_kept(self.connection) {
            -1
        } else {
            self.connection
        }
    }

    fn take_connection(&mut self) -> Fd {
        let connection = self.connection();
        hidden::forget(connection);
        self.connection = -1;
        connection
    }

    fn first(&self, buffer: &mut [u8]) -> First {
        match look(self.connection(), buffer) {
            // The kernel first looks for packets, and then whether the other end was closed. If a packet and then the end
            // come in between, it wrongly says that this is the end. So it is asked once more.
            First::End => look(self.connection(), buffer),
            first => first,
        }
    }

    /// Another thread closes the connection, and these before.
    fn leave_with(&mut self, more: impl IntoIterator<Item = Fd>) {
        let connection = self.take_connection();
        closing::elsewhere(more.into_iter().chain([connection]).collect());
    }
}

/// Closes a listener that no other process has. This hangs up on callers that it has not accepted.
pub(crate) fn close_listener(listener: Fd) {
    // No more processes connect from now on.
    let _ = net::shutdown(listener, libc::SHUT_RD);
    match Caller::accept(listener) {
        Err(_) => hidden::close(listener),
        Ok(mut first) => first.leave_with([listener]),
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if self.connection() < 0 {
            return;
        }
        // Nothing more comes from now on.
        let _ = net::shutdown(self.connection(), libc::SHUT_RD);
        match self.first(&mut []) {
            First::Packet(_, passed, _) => self.leave_with(passed.into_iter().flatten()),
            First::Nothing | First::End => file::close(self.take_connection()),
        }
    }
}

/// Room for a control message with who sent it and one with a message's descriptors, which the kernel writes in this order.
#[repr(C, align(8))]
struct Control {
    sender: [u8; SENDER],
    rights: [u8; RIGHTS],
}
// SAFETY: plain computations.
const SENDER: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize;
// SAFETY: as above.
const RIGHTS: usize = unsafe { libc::CMSG_LEN((PASSED * size_of::<Fd>()) as u32) } as usize;

/// Looks at what waits first, which stays there: descriptors that do not fit are not closed for the last time by that.
fn look(connection: Fd, buffer: &mut [u8]) -> First {
    let mut control = Control { sender: [0; SENDER], rights: [0; RIGHTS] };
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: msghdr is plain data; all pointers outlive the call.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    message.msg_control = std::ptr::from_mut(&mut control).cast();
    message.msg_controllen = SENDER + RIGHTS;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let length = match call!(recvmsg, connection, &mut message as *mut _ as usize, flags) {
        Ok(length) => length,
        Err(Errno(libc::EAGAIN | libc::EINTR)) => return First::Nothing,
        Err(_) => return First::End,
    };
    if message.msg_controllen == 0 {
        return First::End;
    }
    let mut passed = [None; PASSED];
    if message.msg_controllen > SENDER {
        // The descriptors come after the header that all control messages have, and that begins with the length of both.
        let (header, descriptors) = control.rights.split_at(RIGHTS - PASSED * size_of::<Fd>());
        let all = header.first_chunk().map_or(0, |length| usize::from_ne_bytes(*length));
        let count = all.saturating_sub(header.len()) / size_of::<Fd>();
        let each = descriptors.chunks_exact(size_of::<Fd>()).take(count);
        for (place, bytes) in passed.iter_mut().zip(each) {
            *place = bytes.try_into().map(Fd::from_ne_bytes).ok();
        }
    }
    First::Packet(length, passed, message.msg_flags & libc::MSG_CTRUNC != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::packet::Name;
    use crate::sys::pipe;
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Listener(Fd, Name);

    impl Listener {
        fn open() -> Self {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let text = format!("sanshim-test-caller-{}-{number}", std::process::id());
            let name = Name::abstract_of(text.as_bytes());
            let listener = packet::bind(&name).unwrap();
            announce(listener).unwrap();
            net::listen(listener, 8).unwrap();
            Listener(listener, name)
        }

        fn call(&self) -> Fd {
            let fd = packet::socket(true).unwrap();
            packet::connect(fd, &self.1).unwrap();
            fd
        }
    }

    fn memory() -> Fd {
        sealed::create(c"test", 4096).unwrap()
    }

    /// Two pipes.
    fn bells() -> [Fd; 2] {
        [(); 2].map(|()| {
            let (read_end, write_end) = pipe::pipe().unwrap();
            file::close(write_end);
            read_end
        })
    }

    /// A connection whose last close waits for a day, and its other end, which takes nothing.
    fn lingering() -> (Fd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        let linger = libc::linger { l_onoff: 1, l_linger: 86_400 };
        net::set_option(one.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
        while net::send(one.as_raw_fd(), &[0; 65536], libc::MSG_DONTWAIT).is_ok() {}
        (one.into_raw_fd(), other)
    }

    #[test]
    fn a_message_comes_with_its_memory() {
        let listener = Listener::open();
        let (connector, memory, [one, other]) = (listener.call(), memory(), bells());
        let CallerSaid::Silence(caller) = Caller::accept(listener.0).unwrap().hear(&mut [0; 8])
        else {
            panic!("nothing was said yet")
        };
        assert_eq!((caller.pid, caller.uid), (std::process::id(), crate::sys::process::euid()));
        packet::send_passing(connector, b"hello", &[memory, one, other]).unwrap();
        file::close(connector);
        let mut buffer = [0; 8];
        let CallerSaid::Message(length, received) = caller.keep().hear(&mut buffer) else {
            panic!("a message")
        };
        assert_eq!(&buffer[..length], b"hello");
        assert_eq!(received.map(file::identity), [memory, one, other].map(file::identity));
        let own = [memory, one, other, listener.0];
        own.into_iter().chain(received).for_each(file::close);
    }

    #[test]
    fn the_last_packet_comes_before_the_end() {
        let (listener, memory, [one, other]) = (Listener::open(), memory(), bells());
        for _ in 0..4000 {
            let connector = listener.call();
            let mut caller = Caller::accept(listener.0).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    packet::send_passing(connector, b"last", &[memory, one, other]).unwrap();
                    file::close(connector);
                });
                loop {
                    match caller.hear(&mut [0; 8]) {
                        CallerSaid::Silence(again) => caller = again,
                        CallerSaid::Message(4, received) => {
                            break received.into_iter().for_each(file::close)
                        }
                        _ => panic!("the end came first"),
                    }
                }
            });
        }
        [listener.0, memory, one, other].into_iter().for_each(file::close);
    }

    #[test]
    fn nonsense_is_left_to_another_thread() {
        let listener = Listener::open();
        let (memory, [one, other]) = (memory(), bells());
        let all = [memory, one, other];
        let send = |to: Fd, bytes: &[u8], pass: &[Fd]| {
            packet::send_passing(to, bytes, pass).unwrap();
        };
        let heard = |say: &dyn Fn(Fd)| {
            let connector = listener.call();
            let mut caller = Caller::accept(listener.0).unwrap();
            say(connector);
            file::close(connector);
            loop {
                match caller.hear(&mut [0; 8]) {
                    // A child that another test has just forked has the connector, too, until it executes.
                    CallerSaid::Silence(again) => caller = again,
                    CallerSaid::Message(_, received) => {
                        received.into_iter().for_each(file::close);
                        break "message";
                    }
                    CallerSaid::Nonsense => break "nonsense",
                }
            }
        };
        let (slow, peers): (Vec<_>, Vec<_>) = (0..5).map(|_| lingering()).unzip();
        // The last close of it is the receiver's.
        let send_slow = |to: Fd, number: usize, before: &[Fd]| {
            send(to, b"slow", &[before, &[slow[number]]].concat());
            file::close(slow[number]);
        };

        assert_eq!(heard(&|_| ()), "nonsense");
        assert_eq!(heard(&|to| send(to, b"no memory", &[])), "nonsense");
        assert_eq!(heard(&|to| send(to, b"all", &all)), "message");
        assert_eq!(heard(&|to| send(to, b"too few", &[memory, one])), "nonsense");
        assert_eq!(heard(&|to| send(to, b"no bell", &[memory, one, memory])), "nonsense");
        assert_eq!(heard(&|to| send(to, b"too much", &[memory, one, other, one])), "nonsense");
        assert_eq!(heard(&|to| send_slow(to, 0, &[])), "nonsense");
        assert_eq!(heard(&|to| send_slow(to, 1, &[memory])), "nonsense");
        let behind_a_message = |to| {
            send(to, b"all", &all);
            send_slow(to, 2, &[]);
        };
        assert_eq!(heard(&behind_a_message), "message");
        let behind_nothing = |to| {
            send(to, b"", &[]);
            send_slow(to, 3, &[]);
        };
        assert_eq!(heard(&behind_nothing), "nonsense");
        // Nobody accepts it.
        let connector = listener.call();
        send_slow(connector, 4, &[]);
        file::close(connector);
        close_listener(listener.0);
        all.into_iter().for_each(file::close);
        // The threads go on.
        drop(peers);
    }
}
