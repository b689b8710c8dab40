//! A process, named for people.

use sanshim_core::registry::Process;

use crate::output::printable;

/// Its program and its number, as in "redis-server (pid 4711)", with what tells it from those of other namespaces.
pub(crate) fn who(process: &Process) -> String {
    let program = printable(&process.program);
    match process.own_pid {
        None => format!("{program} (pid {})", process.pid),
        Some(own) => format!("{program} (pid {}, {own} in its own PID namespace)", process.pid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_another_namespace_has_both_its_numbers() {
        let near = Process { pid: 7, program: "a\x1b".to_owned(), ..Process::default() };
        assert_eq!(who(&near), "a\\u{1b} (pid 7)");
        let far = Process { own_pid: Some(1), ..near };
        assert_eq!(who(&far), "a\\u{1b} (pid 7, 1 in its own PID namespace)");
    }
}
