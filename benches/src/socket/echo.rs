//! A server of many connections. One epoll loop sends back what comes.

use super::channel::Epoll;
use super::endpoint::{self, BenchSocket};
use crate::error::BenchError;
use crate::options::Options;
use std::collections::HashMap;

/// Serves until it is ended by the process that started it.
pub(crate) fn server(options: &Options, listener: &BenchSocket) -> Result<(), BenchError> {
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
                let socket = endpoint::accept(listener)?;
                endpoint::non_blocking(&socket)?;
                epoll.control(libc::EPOLL_CTL_ADD, socket.0, libc::EPOLLIN)?;
                sockets.insert(socket.0, socket);
                continue;
            }
            let Some(socket) = sockets.get(&fd) else { continue };
            match endpoint::receive(socket, &mut buffer) {
                // A client that ends leaves replies unread, so its connections are reset.
                Ok(Some(0)) | Err(_) => drop(sockets.remove(&fd)),
                Ok(Some(count)) => {
                    if endpoint::send(socket, &buffer[..count]).is_err() {
                        sockets.remove(&fd);
                    }
                }
                Ok(None) => {}
            }
        }
    }
}
