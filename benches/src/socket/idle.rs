//! Connections that were used once and then do nothing: what CPU time and memory they cost.

use super::channel::{Channel, Epoll};
use super::endpoint::{self, Socket};
use super::figures::{CpuUse, Memory};
use crate::error::Error;
use crate::options::{Options, Wait};
use crate::report::{self, Subject};
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;

/// Time for the ends to calm down: whatever spins after traffic has stopped spinning by then.
const SETTLE: Duration = Duration::from_millis(500);

fn connect_and_use(options: &Options) -> Result<Channel, Error> {
    let channel = Channel::new(endpoint::connect(options)?, Wait::Blocking)?;
    let mut buffer = vec![0x5a; options.size];
    channel.send_all(&buffer)?;
    if !channel.receive_all(&mut buffer)? {
        return Err(Error::Peer("closed the connection".into()));
    }
    Ok(channel)
}

pub(crate) fn client(options: &Options) -> Result<(), Error> {
    // The first connection pays for what all share: it is not counted.
    let mut channels = vec![connect_and_use(options)?];
    let own = std::process::id();
    let before = (Memory::of(options.server_pid)?, Memory::of(own)?);
    for _ in 1..options.connections {
        channels.push(connect_and_use(options)?);
    }
    std::thread::sleep(SETTLE);
    let after = (Memory::of(options.server_pid)?, Memory::of(own)?);

    let start = (CpuUse::of(options.server_pid)?, CpuUse::of(own)?);
    std::thread::sleep(options.length);
    let server = CpuUse::of(options.server_pid)?.since(&start.0);
    let client = CpuUse::of(own)?.since(&start.1);

    let more = channels.len() - 1;
    let each = |kib: i64| if more == 0 { 0.0 } else { kib as f64 / more as f64 };
    report::other(
        Subject::Socket,
        options,
        json!({
            "connections": channels.len(),
            "seconds": options.length.as_secs_f64(),
            "server_cpu_ms": server.milliseconds,
            "server_wakeups": server.wakeups,
            "client_cpu_ms": client.milliseconds,
            "client_wakeups": client.wakeups,
            "segment_kib_each":
                each(after.0.segments - before.0.segments + after.1.segments - before.1.segments),
            "server_own_kib_each": each(after.0.own - before.0.own),
            "client_own_kib_each": each(after.1.own - before.1.own),
        }),
    );
    Ok(())
}

/// Echoes on every connection from one epoll loop, until it is ended.
pub(crate) fn server(options: &Options, listener: Socket) -> Result<(), Error> {
    let epoll = Epoll::new()?;
    epoll.control(libc::EPOLL_CTL_ADD, listener.0, libc::EPOLLIN)?;
    let mut sockets = HashMap::new();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
    let mut buffer = vec![0; options.size];
    loop {
        let count = epoll.wait(&mut events)?;
        for event in &events[..count] {
            let fd = event.u64 as i32;
            if fd == listener.0 {
                let socket = endpoint::accept(&listener)?;
                endpoint::non_blocking(&socket)?;
                epoll.control(libc::EPOLL_CTL_ADD, socket.0, libc::EPOLLIN)?;
                sockets.insert(socket.0, socket);
                continue;
            }
            let Some(socket) = sockets.get(&fd) else { continue };
            match endpoint::receive(socket, &mut buffer)? {
                Some(0) => drop(sockets.remove(&fd)),
                Some(count) => {
                    endpoint::send(socket, &buffer[..count])?;
                }
                None => {}
            }
        }
    }
}
