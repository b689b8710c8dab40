//! The metrics over HTTP, at an address or a Unix socket.
//!
//! At an address everybody of the host may come. So a client that says nothing, reads nothing or comes a thousand times
//! keeps no other client from an answer: an exchange has a time, a request a size, and where there are many at once the
//! server hangs up on the oldest ([why there is no library for
//! it](../../../docs/decisions/the-exporter-speaks-http-itself.md)).

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// That of Prometheus' text format.
const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How long to wait for a request before looking whether to end.
const LOOK: Duration = Duration::from_millis(200);
/// How long a request and its answer may take.
const LONGEST: Duration = Duration::from_secs(5);
/// Most exchanges at a time.
const MOST: usize = 32;
/// Most bytes of a request.
const LARGEST: usize = 8192;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenPlace {
    /// Host and port.
    Address(String),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl std::str::FromStr for ListenPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenPlace, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("no path after unix:".to_owned()),
            Some(path) => Ok(ListenPlace::Unix(path.into())),
            None if text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => {
                Ok(ListenPlace::Address(text.to_owned()))
            }
            None => Err("neither HOST:PORT nor unix:PATH".to_owned()),
        }
    }
}

/// What is shown.
type Render = dyn Fn() -> String + Send;

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
///
/// When `sanctl` cannot listen there.
pub(super) fn serve(place: &ListenPlace, render: Box<Render>) -> Result<(), String> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // Does not fail, because both signals can be caught.
        let _ = signal_hook::flag::register(signal, Arc::clone(&ends));
    }
    let listener = listen(place)?;
    let exchanges = Arc::new(Exchanges::new(render));
    while !ends.load(Relaxed) {
        if !is_ready(listener.fd()) {
            continue;
        }
        match listener.accept() {
            Ok(client) => Exchanges::begin(&exchanges, client),
            // Another thread was faster, or the client hung up.
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {
            }
            // Without a descriptor to spare: there will be one.
            Err(_) => thread::sleep(LOOK),
        }
    }
    if let ListenPlace::Unix(path) = place {
        // If this fails, the next server removes it.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// The exchanges under way.
struct Exchanges {
    /// One look at all processes at a time.
    render: Mutex<Box<Render>>,
    /// The oldest first.
    under_way: Mutex<VecDeque<Arc<Exchange>>>,
    /// One is over.
    is_over: Condvar,
}

/// One client's.
struct Exchange {
    client: Box<dyn Client>,
    /// The client is not to be answered any more.
    is_hung_up: AtomicBool,
}

impl Exchanges {
    fn new(render: Box<Render>) -> Self {
        let (render, under_way) = (Mutex::new(render), Mutex::default());
        Exchanges { render, under_way, is_over: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Exchange>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for one more, and has a thread of its own speak with the client. Without a thread the client is hung up on.
    fn begin(exchanges: &Arc<Exchanges>, client: Box<dyn Client>) {
        let exchange = Arc::new(Exchange { client, is_hung_up: AtomicBool::new(false) });
        exchanges.make_room().push_back(Arc::clone(&exchange));
        let (all, one) = (Arc::clone(exchanges), Arc::clone(&exchange));
        let speak = move || {
            one.run(&all.render);
            all.end(&one);
        };
        if thread::Builder::new().spawn(speak).is_err() {
            exchanges.end(&exchange);
        }
    }

    /// Hangs up on the oldest ones until there are fewer than [`MOST`]. They end as soon as the look at all processes that one of
    /// them has begun.
    fn make_room(&self) -> MutexGuard<'_, VecDeque<Arc<Exchange>>> {
        let mut under_way = self.lock();
        while under_way.len() >= MOST {
            // One that is hung up on and not over yet makes room without another.
            if !under_way.iter().any(|one| one.is_hung_up.load(Relaxed)) {
                under_way.iter().take(1).for_each(|oldest| oldest.hang_up());
            }
            under_way = self.is_over.wait(under_way).unwrap_or_else(PoisonError::into_inner);
        }
        under_way
    }

    fn end(&self, exchange: &Arc<Exchange>) {
        self.lock().retain(|one| !Arc::ptr_eq(one, exchange));
        self.is_over.notify_all();
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection of a client.
trait Client: Send + Sync {
    fn read(&self, buffer: &mut [u8], wait: Duration) -> io::Result<usize>;
    fn write(&self, bytes: &[u8], wait: Duration) -> io::Result<usize>;
    /// A thread that reads or writes learns at once.
    fn hang_up(&self);
}

/// Both kinds of sockets have the same methods.
macro_rules! client {
    ($socket:ty) => {
        impl Client for $socket {
            fn read(&self, buffer: &mut [u8], wait: Duration) -> io::Result<usize> {
                self.set_read_timeout(Some(wait)).and_then(|()| Read::read(&mut { self }, buffer))
            }
            fn write(&self, bytes: &[u8], wait: Duration) -> io::Result<usize> {
                self.set_write_timeout(Some(wait)).and_then(|()| Write::write(&mut { self }, bytes))
            }
            fn hang_up(&self) {
                // If this fails the client has.
                let _ = self.shutdown(Shutdown::Both);
            }
        }
    };
}
client!(TcpStream);
client!(UnixStream);

impl Listener {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Client>> {
        match self {
            Listener::Tcp(listener) => {
                let (client, _) = listener.accept()?;
                client.set_nonblocking(false).map(|()| Box::new(client) as Box<dyn Client>)
            }
            Listener::Unix(listener) => {
                let (client, _) = listener.accept()?;
                client.set_nonblocking(false).map(|()| Box::new(client) as Box<dyn Client>)
            }
        }
    }
}

/// Waits a moment for a client to come.
fn is_ready(listener: BorrowedFd) -> bool {
    let moment = Timespec::try_from(LOOK).ok();
    poll(&mut [PollFd::from_borrowed_fd(listener, PollFlags::IN)], moment.as_ref()) == Ok(1)
}

fn listen(place: &ListenPlace) -> Result<Listener, String> {
    let (shown, listener) = match place {
        ListenPlace::Address(address) => (
            address.clone(),
            TcpListener::bind(address)
                .and_then(|one| one.set_nonblocking(true).map(|()| Listener::Tcp(one))),
        ),
        ListenPlace::Unix(path) => (
            path.display().to_string(),
            make_room(path)
                .and_then(|()| UnixListener::bind(path))
                .and_then(|one| one.set_nonblocking(true).map(|()| Listener::Unix(one))),
        ),
    };
    listener.map_err(|error| format!("cannot listen at {shown}: {error}"))
}

/// Removes a socket at which no process listens any more.
fn make_room(path: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(io::Error::other("it is there, and no socket; name another path"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(io::Error::other("somebody listens there; name another path")),
    }
}

impl Exchange {
    /// Hears one request and answers it. If that fails the client has gone, or is hung up on. It will ask again.
    fn run(&self, render: &Mutex<Box<Render>>) {
        let client = self.client.as_ref();
        let until = Instant::now() + LONGEST;
        let left =
            || Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero());
        let Some(request) = hear(client, left) else { return };
        let render = || {
            let render = render.lock().unwrap_or_else(PoisonError::into_inner);
            if self.is_hung_up.load(Relaxed) {
                String::new()
            } else {
                render()
            }
        };
        let answer = answer(&request, render);
        let mut rest = answer.as_slice();
        while !rest.is_empty() {
            let written = left().map(|left| client.write(rest, left));
            let Some(Ok(written @ 1..)) = written else { return };
            rest = &rest[written..];
        }
    }

    fn hang_up(&self) {
        self.is_hung_up.store(true, Relaxed);
        self.client.hang_up();
    }
}

/// What the client says before an empty line; `None` if that does not come in time, or is too long.
fn hear(client: &dyn Client, left: impl Fn() -> Option<Duration>) -> Option<String> {
    let (mut heard, mut part) = (Vec::new(), [0; 1024]);
    while heard.len() < LARGEST {
        let read = client.read(&mut part, left()?).ok().filter(|read| *read > 0)?;
        heard.extend_from_slice(&part[..read]);
        if heard.windows(4).any(|end| end == b"\r\n\r\n") {
            return Some(String::from_utf8_lossy(&heard).into_owned());
        }
    }
    None
}

fn answer(request: &str, render: impl FnOnce() -> String) -> Vec<u8> {
    let mut words = request.lines().next().unwrap_or_default().split(' ');
    let (method, path, version) = (words.next(), words.next(), words.next());
    let path = path.and_then(|path| path.split('?').next()).unwrap_or_default();
    let is_known = matches!(path, "/" | "/metrics");
    let (status, body) = match (method, is_known) {
        _ if !version.is_some_and(|version| version.starts_with("HTTP/1.")) => {
            ("400 Bad Request", String::new())
        }
        (Some("GET" | "HEAD"), true) => ("200 OK", render()),
        (_, true) => ("405 Method Not Allowed", String::new()),
        (_, false) => ("404 Not Found", "see /metrics\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {TYPE}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let body = if method == Some("HEAD") { String::new() } else { body };
    (head + &body).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::{answer, ListenPlace};

    #[test]
    fn places_are_addresses_or_paths() {
        assert_eq!("[::1]:9464".parse(), Ok(ListenPlace::Address("[::1]:9464".to_owned())));
        assert_eq!("localhost:9464".parse(), Ok(ListenPlace::Address("localhost:9464".to_owned())));
        assert_eq!("unix:/run/s".parse(), Ok(ListenPlace::Unix("/run/s".into())));
        for wrong in ["unix:", "9464", "localhost", "localhost:99999"] {
            assert!(wrong.parse::<ListenPlace>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_request_is_answered_by_its_first_line() {
        let said = |request: &str| {
            let answer = answer(request, || "the metrics\n".to_owned());
            String::from_utf8(answer).unwrap()
        };
        let got = said("GET /metrics?x=1 HTTP/1.1\r\nHost: here\r\n\r\n");
        assert!(got.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"));
        assert!(got.ends_with("\r\nContent-Length: 12\r\nConnection: close\r\n\r\nthe metrics\n"));
        let head = said("HEAD / HTTP/1.0\r\n\r\n");
        assert!(head.contains("Content-Length: 12\r\n") && head.ends_with("\r\n\r\n"));
        assert!(said("GET /else HTTP/1.1").starts_with("HTTP/1.1 404 "));
        assert!(said("POST /metrics HTTP/1.1").starts_with("HTTP/1.1 405 "));
        for wrong in ["", "\r\n", "GET /metrics", "GET /metrics HTTP/2", "\u{fffd}"] {
            assert!(said(wrong).starts_with("HTTP/1.1 400 "), "{wrong}");
        }
    }
}
