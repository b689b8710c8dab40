//! A connected socket and the way in which it waits: in the call itself, or in epoll.

use super::endpoint::{self, BenchSocket};
use crate::error::BenchError;
use crate::options::WaitKind;
use crate::sys::check;
use std::ffi::c_int;

/// A level-triggered epoll set.
pub(crate) struct Epoll(BenchSocket);

impl Epoll {
    pub(crate) fn new() -> Result<Epoll, BenchError> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        check("epoll_create1", fd).map(|fd| Epoll(BenchSocket(fd)))
    }

    /// Adds (`EPOLL_CTL_ADD`) or changes (`EPOLL_CTL_MOD`) a descriptor. Its `data` is its number.
    pub(crate) fn control(
        &self,
        operation: c_int,
        fd: c_int,
        events: c_int,
    ) -> Result<(), BenchError> {
        let mut event = libc::epoll_event { events: events as u32, u64: fd as u64 };
        // SAFETY: the event is live; the kernel copies it.
        let result = unsafe { libc::epoll_ctl(self.0 .0, operation, fd, &mut event) };
        check("epoll_ctl", result).map(drop)
    }

    /// Waits for as long as it takes. Gives the number of events stored.
    pub(crate) fn wait(&self, events: &mut [libc::epoll_event]) -> Result<usize, BenchError> {
        // SAFETY: the array is live and as long as said.
        let result =
            unsafe { libc::epoll_wait(self.0 .0, events.as_mut_ptr(), events.len() as c_int, -1) };
        check("epoll_wait", result).map(|count| count as usize)
    }
}

/// A connection as the measurements use it.
pub(crate) struct BenchChannel {
    pub(crate) socket: BenchSocket,
    epoll: Option<Epoll>,
}

impl BenchChannel {
    pub(crate) fn new(socket: BenchSocket, wait: WaitKind) -> Result<BenchChannel, BenchError> {
        let epoll = match wait {
            WaitKind::Blocking => None,
            WaitKind::Epoll => {
                endpoint::non_blocking(&socket)?;
                let epoll = Epoll::new()?;
                epoll.control(libc::EPOLL_CTL_ADD, socket.0, libc::EPOLLIN)?;
                Some(epoll)
            }
        };
        Ok(BenchChannel { socket, epoll })
    }

    fn wait(&self) -> Result<(), BenchError> {
        if let Some(epoll) = &self.epoll {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
            epoll.wait(&mut events)?;
        }
        Ok(())
    }

    /// Sends everything. As event loops do, it tries first, and waits only if nothing can be sent.
    pub(crate) fn send_all(&self, mut data: &[u8]) -> Result<(), BenchError> {
        while !data.is_empty() {
            match endpoint::send(&self.socket, data)? {
                Some(count) => data = &data[count..],
                None => self.wait_for_space()?,
            }
        }
        Ok(())
    }

    fn wait_for_space(&self) -> Result<(), BenchError> {
        let Some(epoll) = &self.epoll else {
            return Err(BenchError::Peer("a blocking send said it would block".into()));
        };
        epoll.control(libc::EPOLL_CTL_MOD, self.socket.0, libc::EPOLLOUT)?;
        self.wait()?;
        epoll.control(libc::EPOLL_CTL_MOD, self.socket.0, libc::EPOLLIN)
    }

    /// As event loops do, waits and then receives what there is. Gives 0 at the end of the stream.
    pub(crate) fn receive_some(&self, into: &mut [u8]) -> Result<usize, BenchError> {
        loop {
            self.wait()?;
            if let Some(count) = endpoint::receive(&self.socket, into)? {
                return Ok(count);
            }
        }
    }

    /// Fills the buffer. False if the stream ended before the first byte.
    pub(crate) fn receive_all(&self, into: &mut [u8]) -> Result<bool, BenchError> {
        let mut done = 0;
        while done < into.len() {
            match self.receive_some(&mut into[done..])? {
                0 if done == 0 => return Ok(false),
                0 => {
                    return Err(BenchError::Peer(format!("ended within a message, after {done} B")))
                }
                count => done += count,
            }
        }
        Ok(true)
    }
}
