//! The metrics over HTTP, at an address or a Unix socket.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

use tiny_http::{Header, Method, Request, Response, Server};

/// That of Prometheus' text format.
const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How long to wait for a request before looking whether to end.
const LOOK: Duration = Duration::from_millis(200);

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Host and port.
    Address(String),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("no path after unix:".to_owned()),
            Some(path) => Ok(Place::Unix(path.into())),
            None if text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => {
                Ok(Place::Address(text.to_owned()))
            }
            None => Err("neither HOST:PORT nor unix:PATH".to_owned()),
        }
    }
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// When nobody can listen there.
pub(super) fn serve(place: &Place, render: impl Fn() -> String) -> Result<(), String> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // Does not fail, because both signals can be caught.
        let _ = signal_hook::flag::register(signal, Arc::clone(&ends));
    }
    let server = listen(place)?;
    while !ends.load(Relaxed) {
        match server.recv_timeout(LOOK) {
            Ok(Some(request)) => answer(request, &render),
            Ok(None) => {}
            Err(error) => return Err(format!("cannot accept connections: {error}")),
        }
    }
    if let Place::Unix(path) = place {
        // If this fails, the next server removes it.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

fn listen(place: &Place) -> Result<Server, String> {
    match place {
        Place::Address(address) => {
            Server::http(address).map_err(|error| format!("cannot listen at {address}: {error}"))
        }
        Place::Unix(path) => {
            let shown = path.display();
            make_room(path).map_err(|error| format!("cannot listen at {shown}: {error}"))?;
            Server::http_unix(path).map_err(|error| format!("cannot listen at {shown}: {error}"))
        }
    }
}

/// Removes a socket that nobody listens at any more.
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

fn answer(request: Request, render: impl Fn() -> String) {
    let path = request.url().split('?').next().unwrap_or_default();
    let is_known = matches!(path, "/" | "/metrics");
    let answered = match (request.method(), is_known) {
        (Method::Get | Method::Head, true) => {
            let response = Response::from_string(render());
            match Header::from_bytes("Content-Type", TYPE) {
                Ok(header) => request.respond(response.with_header(header)),
                Err(()) => request.respond(response),
            }
        }
        (_, true) => request.respond(Response::empty(405)),
        (_, false) => {
            request.respond(Response::from_string("see /metrics\n").with_status_code(404))
        }
    };
    // On failure the client has gone. It will ask again.
    let _ = answered;
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn places_are_addresses_or_paths() {
        assert_eq!("[::1]:9464".parse(), Ok(Place::Address("[::1]:9464".to_owned())));
        assert_eq!("localhost:9464".parse(), Ok(Place::Address("localhost:9464".to_owned())));
        assert_eq!("unix:/run/s".parse(), Ok(Place::Unix("/run/s".into())));
        for wrong in ["unix:", "9464", "localhost", "localhost:99999"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
