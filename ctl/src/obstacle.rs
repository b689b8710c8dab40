//! Why a program cannot run under the shim, in words.

use crate::executable::Obstacle;
use crate::output::printable;

/// Why it runs without the shim, and what to do.
pub(crate) fn explain(obstacle: &Obstacle) -> String {
    match obstacle {
        Obstacle::Static => {
            "it is statically linked and cannot be preloaded; use a dynamically linked build".into()
        }
        Obstacle::Privileged => "it is setuid, setgid or has capabilities, so the system ignores \
             LD_PRELOAD; start it as the user it changes to"
            .into(),
        Obstacle::OtherMachine => {
            "it is built for another machine type than the shim; use a build for this one".into()
        }
        Obstacle::OtherLibc(loader) => format!(
            "its C library is not glibc (loader {}); use a glibc build",
            printable(&loader.to_string_lossy())
        ),
        Obstacle::OwnSystemCalls => {
            "it is a Go program, which makes its system calls itself; nothing can be done".into()
        }
    }
}
