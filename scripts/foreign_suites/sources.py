"""Fetches and builds suites: Debian's source and binary packages, and crates. Nothing of it is committed, all is below target/."""
import os
import pathlib
import shutil
import subprocess

from failure import Failure

DEBIAN = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRRORS = (
    ("http://deb.debian.org/debian", "{release} {release}-updates"),
    ("http://deb.debian.org/debian-security", "{release}-security"),
)


def call(command, log, cwd=None, env=None):
    """Runs a step of a build; its output goes to the file `log`, whose end is shown if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        out.write(f"$ {' '.join(map(str, command))}\n".encode())
        out.flush()
        status = subprocess.run(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"} | (env or {}),
            check=False,
        ).returncode
    if status:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise Failure(f"'{' '.join(map(str, command))}' ended with {status}; all of it is in {log}:\n{tail}")


def installed(package):
    answer = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package], capture_output=True, text=True, check=False
    )
    state, _, version = answer.stdout.partition(" ")
    return version if state == "installed" else None


def install(place, *packages):
    """Debian packages, which stay installed; their daemons are not started."""
    missing = [package for package in packages if not installed(package)]
    if not missing:
        return
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    policy = pathlib.Path("/usr/sbin/policy-rc.d")
    placed = not policy.exists()
    if placed:
        text = place / "policy-rc.d"
        text.write_text("#!/bin/sh\nexit 101\n")
        call([*root, "install", "-m", "755", text, policy], place / "install.log")
    apt = [*root, "apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"]
    try:
        call([*apt, "update"], place / "install.log")
        call([*apt, "install", "--no-install-recommends", *missing], place / "install.log")
    finally:
        if placed:
            call([*root, "rm", "-f", policy], place / "install.log")


def debian(place, package):
    """The unpacked source of the package in this release. Where to get it is said in a configuration of our own:
    the machine's need not name sources."""
    unpacked = place / "source"
    if unpacked.exists():
        return unpacked
    install(place, "dpkg-dev")
    release = os_release()["VERSION_CODENAME"]
    apt = place.parent / "apt"
    for folder in ("lists/partial", "cache/archives/partial", "parts"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "parts" / "source.sources").write_text(
        "\n".join(
            f"Types: deb-src\nURIs: {address}\nSuites: {suites.format(release=release)}\nComponents: main\n"
            f"Signed-By: {DEBIAN}\n"
            for address, suites in MIRRORS
        )
    )
    settings = apt / "apt.conf"
    settings.write_text(
        f'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{apt}/parts";\n'
        f'Dir::State::Lists "{apt}/lists";\nDir::Cache "{apt}/cache";\nAPT::Sandbox::User "root";\n'
    )
    env, log = {"APT_CONFIG": str(settings)}, place / "fetch.log"
    fetched = place / "fetched"
    call(["apt-get", "-q", "update"], log, env=env)
    # A mirror may name a newest version that it does not have.
    for wanted, last in ((package, False), (f"{package}/{release}", True)):
        shutil.rmtree(fetched, ignore_errors=True)
        fetched.mkdir()
        try:
            call(["apt-get", "-q", "source", "--download-only", wanted], log, cwd=fetched, env=env)
            break
        except Failure:
            if last:
                raise
    [description] = fetched.glob("*.dsc")
    half = place / "unpacking"
    shutil.rmtree(half, ignore_errors=True)
    call(["dpkg-source", "-x", description, half], log)
    (place / "version").write_text(description.stem.partition("_")[2])
    half.rename(unpacked)
    return unpacked


def debian_version(place):
    return (place / "version").read_text()


def crate(place, name, version):
    """The published crate, unpacked where it can be built, with its tests."""
    unpacked = place / "source"
    if unpacked.exists():
        return unpacked
    wanted = place / "wanted"
    (wanted / "src").mkdir(parents=True, exist_ok=True)
    (wanted / "src" / "lib.rs").write_text("")
    (wanted / "Cargo.toml").write_text(
        f'[package]\nname = "wanted"\nversion = "0.0.0"\nedition = "2021"\n\n[workspace]\n\n'
        f'[dependencies]\n{name} = "={version}"\n'
    )
    call(["cargo", "fetch"], place / "fetch.log", cwd=wanted)
    home = pathlib.Path(os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo")
    [found] = (home / "registry" / "src").glob(f"*/{name}-{version}")
    half = place / "unpacking"
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(found, half)
    # A workspace of its own, not a member of the one it lies in.
    with open(half / "Cargo.toml", "a", encoding="utf-8") as manifest:
        manifest.write("\n[workspace]\n")
    (place / "version").write_text(version)
    half.rename(unpacked)
    return unpacked


def build(place, source, *commands, env=None):
    """Runs the commands in the source, once."""
    stamp = place / "built"
    recipe = repr([list(map(str, command)) for command in commands])
    if stamp.exists() and stamp.read_text() == recipe:
        return
    log = place / "build.log"
    log.unlink(missing_ok=True)
    for command in commands:
        call(command, log, cwd=source, env=env)
    stamp.write_text(recipe)


def jobs():
    return f"-j{len(os.sched_getaffinity(0))}"


def os_release():
    lines = pathlib.Path("/etc/os-release").read_text().splitlines()
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}
