//! Whether a service's user may read a file, by the modes of the file and its folders.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const READ: u32 = 4;
const SEARCH: u32 = 1;

/// True if the user `name` of the system whose files are at `root` may, or if that cannot be told. An unknown user is
/// nobody's owner and in no group.
pub(super) fn may_read(root: &Path, name: &str, file: &Path) -> bool {
    let known = ids(root, name);
    if matches!(known, Some((0, _))) {
        return true;
    }
    let may = |path: &Path, wanted: u32| {
        fs::metadata(path).map_or(true, |about| {
            let shift = match known {
                Some((user, _)) if user == about.uid() => 6,
                Some((_, group)) if group == about.gid() => 3,
                _ => 0,
            };
            about.mode() >> shift & wanted == wanted
        })
    };
    may(file, READ) && file.ancestors().skip(1).all(|folder| may(folder, SEARCH))
}

/// The user's number and its group's.
fn ids(root: &Path, name: &str) -> Option<(u32, u32)> {
    let users = fs::read_to_string(root.join("etc/passwd")).unwrap_or_default();
    let mut lines = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let fields = lines.find(|fields| fields.first() == Some(&name) || fields.get(2) == Some(&name));
    match fields {
        Some(fields) => Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)),
        None if name == "root" => Some((0, 0)),
        None => Some((name.parse().ok()?, u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn modes_of_the_file_and_its_folders_count_for_who_is_who() {
        let root = std::env::temp_dir().join(format!("sanshim-permission-{}", std::process::id()));
        let file = root.join("private/library.so");
        fs::create_dir_all(root.join("etc")).expect("make it");
        fs::create_dir_all(root.join("private")).expect("make it");
        fs::write(&file, "").expect("write");
        let owner = fs::metadata(&file).expect("it is there");
        let line = format!(
            "me:x:{}:{}::/:/bin/sh\nother:x:4000:4000::/:/bin/sh\n",
            owner.uid(),
            owner.gid()
        );
        fs::write(root.join("etc/passwd"), line).expect("write");
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("change it");
        };
        let all = || {
            ["me", "other", "unknown", "4001", "root", ""].map(|user| may_read(&root, user, &file))
        };
        mode(&root.join("private"), 0o755);
        mode(&file, 0o644);
        assert_eq!(all(), [true; 6]);
        mode(&root.join("private"), 0o700);
        assert_eq!(all(), [true, false, false, false, true, false]);
        mode(&root.join("private"), 0o755);
        mode(&file, 0o640);
        assert_eq!(all(), [true, false, false, false, true, false]);
        fs::remove_dir_all(&root).expect("remove it");
    }
}
