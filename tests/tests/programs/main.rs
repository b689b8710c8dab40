//! Real programs, natively and under the shim, with the same expectations; under the shim
//! `sanctl status --json` must show where their connections are. One module per program or
//! language; no program is skipped when it is missing.

mod iperf;
mod java;
mod memcached;
mod mixed;
mod nginx;
mod node;
mod prefork;
mod python;
mod redis;
mod sharing;

use sanshim_tests::programs::{Mode, Running, Sandbox};

/// Declares a test twice: `both!(name: native, shim)` runs `fn name(mode: Mode)` in both modes.
macro_rules! both {
    ($($body:ident: $native:ident, $shim:ident;)*) => {$(
        #[test]
        fn $native() {
            $body(sanshim_tests::programs::Mode::Native);
        }

        #[test]
        fn $shim() {
            $body(sanshim_tests::programs::Mode::Shim);
        }
    )*};
}
pub(crate) use both;

/// The bytes that come back on one connection of every echo client in `tests/programs`.
const ECHOED_PER_CONNECTION: usize = 3_442_337;

/// A program and the arguments that every run of it gets.
#[derive(Clone)]
struct Helper {
    program: String,
    arguments: Vec<String>,
}

impl Helper {
    fn new(program: &str, arguments: &[&str]) -> Helper {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Helper { program: program.to_owned(), arguments }
    }

    fn start(&self, mode: Mode, sandbox: &Sandbox, more: &[&str]) -> Running {
        let arguments = self.arguments.iter().map(String::as_str).chain(more.iter().copied());
        sandbox.start(mode, &self.program, arguments)
    }
}

/// Runs an echo client against an echo server, looks where the connections are while they are
/// held open, and checks what the client says.
fn echo(mode: Mode, server: &Helper, client: &Helper, host: &str) {
    const CONNECTIONS: usize = 4;
    let sandbox = Sandbox::new();
    let server = server.start(mode, &sandbox, &[]);
    let port = server.wait_for_line("port ");
    let mut client = client.start(mode, &sandbox, &[&port, &CONNECTIONS.to_string(), host]);
    client.wait_for_line("hold");
    mode.expect_shm(&client, CONNECTIONS);
    mode.expect_shm(&server, CONNECTIONS);
    client.write("go on\n");
    let total = CONNECTIONS * ECHOED_PER_CONNECTION;
    assert_eq!(client.finish().trim_end(), format!("hold\nok {total}"));
    server.terminate();
}
