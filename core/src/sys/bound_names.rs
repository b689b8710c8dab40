//! The names of Unix sockets in this network namespace.

use super::file;

/// So many bytes of the kernel's list are read at most.
const MOST: usize = 1 << 18;

/// Those that are such a path, and of these so many at most. The process that bound one may see other files than this process.
pub(crate) fn such(is_such: impl Fn(&str) -> bool, most: usize) -> Vec<String> {
    let Ok(fd) = file::open_to_read(c"/proc/thread-self/net/unix") else { return Vec::new() };
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
    let name = |line: &str| line.split_ascii_whitespace().nth(7).map(str::to_owned);
    let list = String::from_utf8_lossy(&list[..length]);
    list.lines().filter_map(name).filter(|name| is_such(name)).take(most).collect()
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
        assert_eq!(such(|name| name == path, 2), [path]);
        assert_eq!(such(|name| name == path, 0).len(), 0);
        assert_eq!(such(|name| name == "/nowhere/at/all", 2).len(), 0);
        std::fs::remove_file(path).unwrap();
    }
}
