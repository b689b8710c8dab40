//! A terminal for `sanctl`, and what it shows.

// Not every test file uses all of it.
#![allow(dead_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const SANCTL: &str = env!("CARGO_BIN_EXE_sanctl");
const PATIENCE: Duration = Duration::from_secs(60);

/// `sanctl` on a terminal of its own.
pub(crate) struct Terminal {
    pub(crate) child: Child,
    master: File,
    screen: vt100::Parser,
}

impl Terminal {
    pub(crate) fn start(arguments: &[&str], [rows, columns]: [u16; 2]) -> Terminal {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: fills two descriptors, ours then; the size is only read.
        let opened = unsafe {
            libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null(), &size)
        };
        assert_eq!(opened, 0, "openpty");
        // SAFETY: just opened, and nobody else's.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let end = || Stdio::from(slave.try_clone().expect("dup"));
        let mut command = Command::new(SANCTL);
        command.args(arguments);
        command.env("TERM", "xterm-256color").stdin(end()).stdout(end()).stderr(end());
        // SAFETY: setsid and ioctl are async-signal-safe. The terminal becomes the child's.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = command.spawn().expect("sanctl runs");
        // SAFETY: only a flag of our own descriptor.
        unsafe { libc::fcntl(master.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        Terminal { child, master, screen: vt100::Parser::new(size_of(rows), size_of(columns), 0) }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("the terminal");
    }

    fn read(&mut self) {
        let mut bytes = [0; 4096];
        match self.master.read(&mut bytes) {
            Ok(n) => self.screen.process(&bytes[..n]),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }

    fn lines(&self) -> Vec<String> {
        let (_, columns) = self.screen.screen().size();
        let rows = self.screen.screen().rows(0, columns.get());
        rows.map(|row| row.trim_end().to_owned()).collect()
    }

    /// Waits until the screen is so.
    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&[String]) -> bool) -> Vec<String> {
        let started = Instant::now();
        loop {
            let lines = self.lines();
            if is_so(&lines) {
                return lines;
            }
            assert!(started.elapsed() < PATIENCE, "never {what}: {lines:#?}");
            self.read();
        }
    }

    /// Its exit status; the terminal has its first screen again.
    pub(crate) fn end(mut self) -> Option<i32> {
        let started = Instant::now();
        let status = loop {
            self.read();
            if let Some(status) = self.child.try_wait().expect("wait") {
                break status;
            }
            assert!(started.elapsed() < PATIENCE, "did not end");
        };
        while self.screen.screen().alternate_screen() {
            assert!(started.elapsed() < PATIENCE, "the terminal is not as it was");
            self.read();
        }
        status.code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size_of(side: u16) -> NonZero<u16> {
    NonZero::new(side).expect("a size")
}
