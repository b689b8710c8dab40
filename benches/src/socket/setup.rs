//! Whole connections: connect, a request and its echo, close. One after the other, or many at once.

use super::channel::{BenchChannel, Epoll};
use super::endpoint::{self, BenchSocket};
use crate::error::BenchError;
use crate::options::Options;
use crate::report::{self, Subject};
use crate::stats;
use std::collections::HashMap;

/// Connections in a run, unless said otherwise. Far fewer than there are ephemeral ports, because each leaves one in
/// TIME-WAIT towards this run's server port.
const CONNECTIONS: u64 = 3000;

pub(crate) fn client(options: &Options) -> Result<(), BenchError> {
    let counted = Options { count: Some(options.count.unwrap_or(CONNECTIONS)), ..options.clone() };
    if options.connections > 1 {
        let mut many = Many::new(options)?;
        let summary = stats::measure(&counted, || many.finish_one())?;
        report::latency(Subject::Socket, options, &summary);
        return Ok(());
    }
    let request = vec![0x5a; options.size];
    let mut reply = vec![0; options.size];
    let summary = stats::measure(&counted, || {
        let channel = BenchChannel::new(endpoint::connect(options)?, options.wait)?;
        channel.send_all(&request)?;
        if !channel.receive_all(&mut reply)? {
            return Err(BenchError::Peer("closed the connection without a reply".into()));
        }
        Ok(())
    })?;
    report::latency(Subject::Socket, options, &summary);
    Ok(())
}

/// One of many connections.
struct Asking {
    socket: BenchSocket,
    asked: bool,
    /// Bytes of the reply that have come.
    received: usize,
}

/// Many connections at once. Each is replaced when it has its reply.
struct Many<'a> {
    options: &'a Options,
    epoll: Epoll,
    open: HashMap<i32, Asking>,
    buffer: Vec<u8>,
    /// Connections that have ended and were not yet counted.
    finished: u64,
}

impl<'a> Many<'a> {
    fn new(options: &'a Options) -> Result<Many<'a>, BenchError> {
        let mut many = Many {
            options,
            epoll: Epoll::new()?,
            open: HashMap::new(),
            buffer: vec![0; options.size],
            finished: 0,
        };
        for _ in 0..options.connections {
            many.begin()?;
        }
        Ok(many)
    }

    fn begin(&mut self) -> Result<(), BenchError> {
        let socket = endpoint::begin_connect(self.options)?;
        self.epoll.control(libc::EPOLL_CTL_ADD, socket.0, libc::EPOLLOUT)?;
        self.open.insert(socket.0, Asking { socket, asked: false, received: 0 });
        Ok(())
    }

    /// Goes on with all of them until one more has ended.
    fn finish_one(&mut self) -> Result<(), BenchError> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        while self.finished == 0 {
            let count = self.epoll.wait(&mut events)?;
            for event in &events[..count] {
                if self.go_on(event.u64 as i32)? {
                    self.finished += 1;
                    self.begin()?;
                }
            }
        }
        self.finished -= 1;
        Ok(())
    }

    /// Takes the next step of a connection. True if it has ended.
    fn go_on(&mut self, fd: i32) -> Result<bool, BenchError> {
        let Some(asking) = self.open.get_mut(&fd) else { return Ok(false) };
        if !asking.asked {
            self.buffer.fill(0x5a);
            if endpoint::send(&asking.socket, &self.buffer)? != Some(self.buffer.len()) {
                return Err(BenchError::Peer("a new connection did not take the request".into()));
            }
            asking.asked = true;
            self.epoll.control(libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN)?;
            return Ok(false);
        }
        match endpoint::receive(&asking.socket, &mut self.buffer)? {
            Some(0) => {
                return Err(BenchError::Peer("closed the connection without a reply".into()))
            }
            count => asking.received += count.unwrap_or(0),
        }
        let ended = asking.received >= self.buffer.len();
        if ended {
            self.open.remove(&fd);
        }
        Ok(ended)
    }
}

/// Serves until it is ended by the process that started it.
pub(crate) fn server(options: &Options, listener: &BenchSocket) -> Result<(), BenchError> {
    let mut buffer = vec![0; options.size];
    loop {
        let channel = BenchChannel::new(endpoint::accept(listener)?, options.wait)?;
        while channel.receive_all(&mut buffer)? {
            channel.send_all(&buffer)?;
        }
    }
}
