//! A process, named for people.

use sanshim_core::registry::Process;

use crate::output::printable;

/// Its program and its number, as in "redis-server (pid 4711)", with what tells it from those of other namespaces.
pub(crate) fn who(process: &Process) -> String {
    let program = printable(&process.program);
    let container = process.container.as_ref();
    let container = container.map(|one| format!(", {}", printable(&one.shown())));
    let own = match (process.own_pid, &container) {
        (None, _) => String::new(),
        (Some(own), Some(_)) => format!(", {own} there"),
        (Some(own), None) => format!(", {own} in its own PID namespace"),
    };
    format!("{program} (pid {}{}{own})", process.pid, container.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sanshim_core::registry::Container;

    #[test]
    fn a_process_of_another_namespace_has_both_its_numbers() {
        let near = Process { pid: 7, program: "a\x1b".to_owned(), ..Process::default() };
        assert_eq!(who(&near), "a\\u{1b} (pid 7)");
        let far = Process { own_pid: Some(1), ..near };
        assert_eq!(who(&far), "a\\u{1b} (pid 7, 1 in its own PID namespace)");
        let (kind, id) = ("lxc".to_owned(), "web\n".to_owned());
        let container = Some(Container { kind, id, pod: None });
        assert_eq!(who(&Process { container, ..far }), "a\\u{1b} (pid 7, lxc web\\n, 1 there)");
    }
}
