"""Files, names and pictures over TCP."""

import hashlib
import re

from .registry import bytes_of, digest, service
from .web import website


@service("python3-pyftpdlib", "lftp")
def ftp(place):
    port, there = place.port(), website(place)
    place.serve(port, "/usr/bin/python3", "-m", "pyftpdlib", "-i", "127.0.0.1", "-p", port, "-d", there)
    copy = place.folder / "copy"
    place.ask("lftp", "-e", f"mirror --no-perms --parallel=3 / {copy}; bye", f"ftp://127.0.0.1:{port}")
    return [(file.name, digest(file.read_bytes())) for file in sorted(copy.iterdir())]


@service("ffmpeg")
def ffmpeg(place):
    port = place.port()
    listens = place.begin("ffmpeg", "-v", "error", "-i", f"tcp://127.0.0.1:{port}?listen", "-map", "0", "-f", "md5", "-")
    place.pause(1)
    place.ask("ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc=size=640x480:rate=30:duration=8", "-c:v", "rawvideo",
              "-pix_fmt", "yuv420p", "-f", "nut", f"tcp://127.0.0.1:{port}")
    return place.end_of(listens)


@service("nbdkit", "qemu-utils")
def network_block_device(place):
    port, disk = place.port(), f"nbd://127.0.0.1:{{}}"
    place.serve(port, "nbdkit", "-f", "-p", port, "-i", "127.0.0.1", "memory", "256M")
    disk = disk.format(port)
    (place.folder / "image").write_bytes(bytes_of(200_000_000))
    place.ask("qemu-img", "convert", "-n", "-W", "-m", 8, "-f", "raw", "-O", "raw", place.folder / "image", disk)
    place.ask("qemu-img", "bench", "-f", "raw", "-c", 5000, "-d", 16, "-s", 4096, disk)
    place.ask("qemu-img", "bench", "-f", "raw", "-c", 3000, "-d", 8, "-s", 65536, "-w", "--pattern=7", "-o", 209715200, "-S", 0, disk)
    place.ask("qemu-img", "convert", "-m", 8, "-f", "raw", "-O", "raw", disk, place.folder / "back")
    return digest((place.folder / "back").read_bytes()[:200_000_000])


@service("git")
def git_daemon(place):
    port, home = place.port(), place.folder / "repositories"
    home.mkdir()
    place.environment |= {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a",
                          "GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
    place.prepare("git", "init", "-q", home / "one")
    (home / "one" / "large").write_bytes(hashlib.shake_256(b"x").digest(30_000_000))
    place.prepare("git", "-C", home / "one", "add", "large")
    place.prepare("git", "-C", home / "one", "commit", "-q", "-m", "one")
    place.serve(port, "git", "daemon", f"--base-path={home}", "--export-all", "--listen=127.0.0.1", f"--port={port}",
                "--enable=receive-pack", "--reuseaddr")
    place.ask("git", "clone", "-q", f"git://127.0.0.1:{port}/one", place.folder / "clone")
    (place.folder / "clone" / "more").write_bytes(hashlib.shake_256(b"y").digest(10_000_000))
    place.prepare("git", "-C", place.folder / "clone", "add", "more")
    place.prepare("git", "-C", place.folder / "clone", "commit", "-q", "-m", "two")
    place.ask("git", "-C", place.folder / "clone", "push", "-q", "origin", "HEAD:refs/heads/two")
    return place.ask("git", "-C", home / "one", "rev-parse", "two")


@service("subversion")
def subversion(place):
    port, home = place.port(), place.folder / "repository"
    place.prepare("svnadmin", "create", home)
    (home / "conf" / "svnserve.conf").write_text("[general]\nanon-access = write\n")
    place.serve(port, "svnserve", "-d", "--foreground", f"--listen-port={port}", "--listen-host=127.0.0.1", "-r", place.folder)
    tree = place.folder / "tree"
    tree.mkdir()
    for n in range(300):
        (tree / f"f{n}").write_bytes(bytes_of(n * 997))
    there = f"svn://127.0.0.1:{port}/repository"
    place.ask("svn", "import", "-q", "-m", "one", tree, there)
    place.ask("svn", "checkout", "-q", there, place.folder / "out")
    files = sorted((place.folder / "out").glob("f*"))
    return digest(*(file.read_bytes() for file in files)), len(files)


@service("distcc", "gcc")
def distcc(place):
    port = place.port()
    place.serve(port, "distccd", "--no-detach", "--daemon", "--allow", "127.0.0.1", "--listen", "127.0.0.1", "--port", port, "-j", 4,
                "--enable-tcp-insecure")
    place.environment |= {"DISTCC_HOSTS": f"127.0.0.1:{port}/4", "DISTCC_FALLBACK": "0", "DISTCC_DIR": str(place.folder)}
    for n in range(12):
        place.write(f"c{n}.c", "".join(f"int f{n}_{i}(int a) {{ return a * {i} + {n}; }}\n" for i in range(3000)))
        place.ask("distcc", "gcc", "-c", place.folder / f"c{n}.c", "-o", place.folder / f"c{n}.o")
    return digest(*((place.folder / f"c{n}.o").read_bytes() for n in range(12)))


@service("nuttcp")
def nuttcp(place):
    port = place.port()
    place.serve(port, "nuttcp", "-S", "--nofork", f"-P{port}", f"-p{port + 1}")
    return [place.ask("nuttcp", *options, f"-P{port}", f"-p{port + 1}", "-n", 3000, "127.0.0.1").split()[:2]
            for options in (["-t"], ["-r"], ["-t", "-N4"])]


@service("bind9", "bind9-dnsutils", "dnsperf")
def bind(place):
    port = place.port()
    place.write("named.conf", f"""
options {{ directory "{place.folder}"; listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; recursion no;
pid-file "{place.folder}/pid"; session-keyfile "{place.folder}/key"; managed-keys-directory "{place.folder}"; }};
controls {{ }};
zone "x" {{ type master; file "{place.folder}/x"; }};
""")
    records = "".join(f"h{n} A 10.0.{n // 256}.{n % 256}\n" for n in range(5000))
    place.write("x", f"$TTL 60\n@ SOA a.x. b.x. 1 60 60 60 60\n@ NS a.x.\na A 127.0.0.1\n{records}")
    place.write("queries", "".join(f"h{n}.x A\n" for n in range(5000)))
    place.serve(port, "named", "-f", "-c", place.folder / "named.conf")
    told = place.ask("dnsperf", "-m", "tcp", "-s", "127.0.0.1", "-p", port, "-d", place.folder / "queries", "-n", 4, "-c", 8)
    zone = place.ask("dig", "@127.0.0.1", "-p", port, "x", "AXFR", "+nostats", "+nocmd")
    return re.findall(r"Queries (?:completed|lost):\s+(\d+)", told), zone


@service("xvfb", "x11-apps")
def x_server(place):
    place.environment["DISPLAY"] = "127.0.0.1:7"
    place.serve(6007, "Xvfb", ":7", "-listen", "tcp", "-nolisten", "unix", "-ac", "-screen", "0", "1024x768x24")
    place.ask("x11perf", "-repeat", 1, "-time", 1, "-dot", "-putimage500", "-getimage500", "-prop", "-create", "-noop")
    checks = place.ask("rendercheck", "-t", "fill,dcoords,scoords,composite", "-f", "a8r8g8b8")
    picture = place.ask("sh", "-c", "xlogo & sleep 2; xwd -root | sha256sum; kill $!")
    return checks + picture
