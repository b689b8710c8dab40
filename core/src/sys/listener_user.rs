//! Tells the user of the process that listens at the other end of a Unix socket. SO_PEERCRED names the user that the process
//! had when it listened. A server that root started may have given root up since. An attacker who takes over such a server is
//! not root.

use super::{file, lender, net, packet, poll, Errno, Fd};

/// SO_PEERPIDFD, of Linux 6.5.
const PEER_PIDFD: i32 = 77;

/// `None` if /proc does not tell, or the process is gone: its number may be another one's by now.
pub(crate) fn of(connected: Fd) -> Option<u32> {
    let (pid, _) = packet::peer_credentials(connected).ok()?;
    let user = lender::effective_user(pid)?;
    is_still_there(connected).then_some(user)
}

/// A relative may still have the listener of a process that ended. Before Linux 6.5 the kernel does not tell.
fn is_still_there(connected: Fd) -> bool {
    match net::option(connected, libc::SOL_SOCKET, PEER_PIDFD) {
        Ok(process) => {
            let is_there = poll::poll_one(process, libc::POLLIN) == Ok(0);
            file::close(process);
            is_there
        }
        Err(e) => e == Errno(libc::ENOPROTOOPT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{pipe, process};

    const OTHER: u32 = 65534;

    /// Runs `act` in a process of its own, which does not come back.
    fn apart(act: impl FnOnce()) -> i32 {
        // SAFETY: the child makes system calls alone.
        match unsafe { libc::fork() } {
            0 => {
                act();
                // SAFETY: no handlers of the parent's run.
                unsafe { libc::_exit(0) }
            }
            child => {
                assert!(child > 0);
                child
            }
        }
    }

    #[test]
    fn who_gave_up_root_is_not_root_and_who_is_gone_is_nobody() {
        let name = format!("sanshim-test-listener-user-{}", std::process::id());
        let name = packet::Name::abstract_of(name.as_bytes());
        let (listener, connector) = (packet::bind(&name).unwrap(), packet::socket(true).unwrap());
        net::listen(listener, 1).unwrap();
        packet::connect(connector, &name).unwrap();
        assert_eq!(of(connector), Some(process::euid()));
        [listener, connector].into_iter().for_each(file::close);
        if process::euid() != 0 {
            eprintln!("not run: another user's process needs root");
            return;
        }

        let (reads, writes) = pipe::pipe().unwrap();
        let (stays, goes) = pipe::pipe().unwrap();
        let wait =
            |fd| while file::read(fd, [0u8; 1].as_mut_ptr(), 1) == Err(Errno(libc::EAGAIN)) {};
        let tell = || assert_eq!(file::write(writes, b".".as_ptr(), 1), Ok(1));
        let server = apart(|| {
            let listener = packet::bind(&name).unwrap();
            net::listen(listener, 1).unwrap();
            // SAFETY: no pointers. This thread is the process's only one.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, OTHER, OTHER, OTHER) }, 0);
            // It has the listener, too.
            apart(|| {
                file::close(goes);
                wait(stays);
            });
            tell();
            wait(stays);
        });
        wait(reads);
        let connector = packet::socket(true).unwrap();
        packet::connect(connector, &name).unwrap();
        assert_eq!(packet::peer_credentials(connector), Ok((server as u32, 0)));
        assert!(of(connector) == Some(OTHER) && is_still_there(connector));
        // SAFETY: this test's own child.
        unsafe {
            libc::kill(server, libc::SIGKILL);
            libc::waitpid(server, std::ptr::null_mut(), 0);
        }
        assert_eq!(of(connector), None);
        // A later process may have the number.
        let is_untold =
            net::option(connector, libc::SOL_SOCKET, PEER_PIDFD) == Err(Errno(libc::ENOPROTOOPT));
        assert_eq!(is_still_there(connector), is_untold);
        [reads, writes, stays, goes, connector].into_iter().for_each(file::close);
    }
}
