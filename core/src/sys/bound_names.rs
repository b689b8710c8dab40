//! The names of Unix sockets in this network namespace.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

/// So many bytes of the kernel's list are read at most.
const MOST: u64 = 1 << 18;

/// True if one of them is such a path. Whoever bound it may see other files than this process.
pub(crate) fn any(is_such: impl Fn(&str) -> bool) -> bool {
    let Ok(list) = File::open("/proc/thread-self/net/unix") else { return false };
    let lines = BufReader::new(list.take(MOST)).lines();
    // The eighth word, which may be missing.
    let names = |line: String| line.split_ascii_whitespace().nth(7).is_some_and(&is_such);
    lines.map_while(Result::ok).any(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_name_is_found_while_its_socket_lives() {
        let folder = std::env::temp_dir().join(format!("sanshim-names-{}", std::process::id()));
        let _listener = UnixListener::bind(&folder).unwrap();
        let path = folder.to_str().unwrap();
        assert!(any(|name| name == path));
        assert!(!any(|name| name == "/nowhere/at/all"));
        std::fs::remove_file(path).unwrap();
    }
}
