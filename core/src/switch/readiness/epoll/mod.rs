//! Epoll sets with SAN sockets in them: what they report, and to whom. [`control()`] and [`wait()`] are the program's
//! calls.
//!
//! The kernel's set keeps every descriptor that is not on the SAN, with the program's own data. SAN sockets are
//! registered in a hidden shadow set, which is itself a member of the program's set. So a sleeper, an outer set or poll
//! on the set's descriptor wakes for SAN sockets too.
//!
//! A SAN registration is hot or cold. Hot registrations have had traffic lately: `epoll_wait` looks at their streams
//! itself, and raises their select counters only to sleep. The counters of cold registrations stay raised. Cold
//! registrations cost nothing until their bell rings (A18).

mod due;
mod epoll_ctl;
mod hot;
mod kernel_events;
mod wait;
mod watched_set;

pub use epoll_ctl::control;
pub use wait::wait;
