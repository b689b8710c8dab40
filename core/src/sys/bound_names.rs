//! The names of Unix sockets in this network namespace.

use super::file;

/// So many bytes of the kernel's list are read at most.
const MOST: usize = 1 << 18;

/// True if one of them is such a path. Whoever bound it may see other files than this process.
pub(crate) fn any(is_such: impl Fn(&str) -> bool) -> bool {
    let Ok(fd) = file::open_to_read(c"/proc/thread-self/net/unix") else { return false };
    let (mut list, mut length) = (vec![0u8; MOST], 0);
    while length < MOST {
        let rest = &mut list[length..];
        match file::read(fd, rest.as_mut_ptr(), rest.len()) {
            Ok(n) if n > 0 => length += n,
            _ => break,
        }
    }
    file::close(fd);
    // The eighth word, which may be missing.
    let is_one = |line: &str| line.split_ascii_whitespace().nth(7).is_some_and(&is_such);
    String::from_utf8_lossy(&list[..length]).lines().any(is_one)
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
