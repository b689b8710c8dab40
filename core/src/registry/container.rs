//! Which container a process is in, as the path of its control group says. The maker of the control group chooses the
//! path, so it is a name for people and proves nothing.

use std::fs;

/// What container managers put in front of an identifier in a path, and what makes such containers.
const SCOPES: [(&str, &str); 6] = [
    ("docker-", "docker"),
    ("libpod-", "podman"),
    ("cri-containerd-", "containerd"),
    ("crio-", "cri-o"),
    ("nerdctl-", "nerdctl"),
    ("containerd-", "containerd"),
];
/// Digits of an identifier that are shown, as the managers' own lists do.
const SHOWN: usize = 12;

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// What made it: `docker`, `podman`, `containerd`, `cri-o`, `nerdctl`, `kubernetes`, `lxc`, `nspawn`.
    pub kind: String,
    /// Its identifier or name.
    pub id: String,
    /// The identifier of its Kubernetes pod.
    pub pod: Option<String>,
}

impl Container {
    /// That of a process; `None` if it is in none, or in the caller's.
    pub(super) fn of(pid: u32) -> Option<Container> {
        let found = Self::of_group(&group(&pid.to_string())?)?;
        let own = group("self").and_then(|own| Self::of_group(&own));
        Some(found).filter(|found| Some(found) != own.as_ref())
    }

    /// For people: `docker 0123456789ab`, with its pod.
    pub fn shown(&self) -> String {
        let id = match is_number(&self.id) {
            true => &self.id[..SHOWN],
            false => &self.id,
        };
        let pod = self.pod.as_ref().map(|pod| format!(" of pod {pod}"));
        format!("{} {id}{}", self.kind, pod.unwrap_or_default())
    }

    /// The innermost one that a control group's path names.
    fn of_group(path: &str) -> Option<Container> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let pod = parts.iter().find_map(|part| pod_in(part));
        let (kind, id) = (0..parts.len()).rev().find_map(|at| one_in(&parts, at))?;
        let kind = if kind.is_empty() && pod.is_some() { "kubernetes" } else { kind };
        (!kind.is_empty()).then(|| Container { kind: kind.to_owned(), id, pod })
    }
}

/// The path of a process's control group: that of version 2, or the longest of version 1.
fn group(process: &str) -> Option<String> {
    let text = fs::read(format!("/proc/{process}/cgroup")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.max_by_key(|path| path.len()).map(str::to_owned)
}

/// The container that a part of the path names, with the parts before it.
fn one_in(parts: &[&str], at: usize) -> Option<(&'static str, String)> {
    let part = parts[at];
    let unit = part.strip_suffix(".scope").or(part.strip_suffix(".service")).unwrap_or(part);
    for (before, kind) in SCOPES {
        if let Some(id) = unit.strip_prefix(before).filter(|id| is_number(id)) {
            return Some((kind, id.to_owned()));
        }
    }
    let parent = at.checked_sub(1).map(|before| parts[before]);
    if is_number(unit) {
        // Without systemd: /docker/ID, /libpod_parent/libpod-ID, /kubepods/besteffort/podUID/ID.
        let kind = match parent {
            Some("docker") => "docker",
            Some("libpod_parent") => "podman",
            _ => "",
        };
        return Some((kind, unit.to_owned()));
    }
    if let Some(name) = part.strip_prefix("lxc.payload.") {
        return Some(("lxc", name.to_owned()));
    }
    if let Some(name) = unit.strip_prefix("systemd-nspawn@") {
        return Some(("nspawn", unescaped(name)));
    }
    match (parent, unit.strip_prefix("machine-")) {
        (Some("lxc"), _) => Some(("lxc", part.to_owned())),
        (Some("machine.slice"), Some(name)) => Some(("nspawn", unescaped(name))),
        _ => None,
    }
}

/// `podUID`, and `kubepods-burstable-podUID.slice` with underscores in the identifier.
fn pod_in(part: &str) -> Option<String> {
    let part = part.strip_suffix(".slice").unwrap_or(part);
    let id = match part.strip_prefix("kubepods") {
        Some(rest) => rest.split("-pod").nth(1)?,
        None => part.strip_prefix("pod")?,
    };
    let is_id = id.len() >= 32 && id.bytes().all(|b| b.is_ascii_hexdigit() || b"_-".contains(&b));
    is_id.then(|| id.replace('_', "-"))
}

/// True of a container's identifier: 64 hexadecimal digits.
fn is_number(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// systemd's escapes of a dash, the one that names have.
fn unescaped(name: &str) -> String {
    name.replace("\\x2d", "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const POD: &str = "1f0c4e2a-9d3b-4c5d-8e6f-a1b2c3d4e5f6";

    #[test]
    fn managers_have_their_ways_to_name_a_group() {
        let pod_there = POD.replace('-', "_");
        let cases = [
            (format!("/system.slice/docker-{ID}.scope"), "docker 0123456789ab"),
            (format!("/docker/{ID}"), "docker 0123456789ab"),
            (format!("/docker/{ID}/init.scope"), "docker 0123456789ab"),
            (format!("/machine.slice/libpod-{ID}.scope/container"), "podman 0123456789ab"),
            (
                format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope"),
                "podman 0123456789ab",
            ),
            (format!("/libpod_parent/{ID}"), "podman 0123456789ab"),
            (format!("/system.slice/nerdctl-{ID}.scope"), "nerdctl 0123456789ab"),
            (
                format!(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod_there}.slice/\
                     cri-containerd-{ID}.scope"
                ),
                "containerd 0123456789ab of pod 1f0c4e2a-9d3b-4c5d-8e6f-a1b2c3d4e5f6",
            ),
            (
                format!("/kubepods.slice/kubepods-pod{pod_there}.slice/crio-{ID}.scope"),
                "cri-o 0123456789ab of pod 1f0c4e2a-9d3b-4c5d-8e6f-a1b2c3d4e5f6",
            ),
            (
                format!("/kubepods/besteffort/pod{POD}/{ID}"),
                "kubernetes 0123456789ab of pod 1f0c4e2a-9d3b-4c5d-8e6f-a1b2c3d4e5f6",
            ),
            ("/lxc.payload.web/system.slice/nginx.service".to_owned(), "lxc web"),
            ("/lxc/web/init".to_owned(), "lxc web"),
            ("/machine.slice/systemd-nspawn@my-box.service/payload".to_owned(), "nspawn my-box"),
            ("/machine.slice/machine-my\\x2dbox.scope/payload".to_owned(), "nspawn my-box"),
        ];
        for (path, expected) in cases {
            let found = Container::of_group(&path);
            assert_eq!(found.map(|one| one.shown()).as_deref(), Some(expected), "{path}");
        }
    }

    #[test]
    fn other_groups_are_no_containers() {
        for path in [
            "",
            "/",
            "/system.slice/redis-server.service",
            "/user.slice/user-1000.slice/session-2.scope",
            "/system.slice/docker.service",
            "/docker-short.scope",
            "/kubepods.slice/kubepods-burstable.slice",
        ] {
            assert_eq!(Container::of_group(path), None, "{path}");
        }
        let nameless = format!("/some/{ID}");
        assert_eq!(Container::of_group(&nameless), None, "nothing says what it is");
        assert_eq!(Container::of(std::process::id()), None, "one's own");
    }
}
