"""What docs/containers.md tells people to write, as it stands there, run by podman: the image's layers, the volume of the compose file, and the
manifest. The images that people take from a registry are made of this machine's programs, and the package of the library alone."""

import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import time

import paths
from processes import HANG, Failure

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs/containers.md"
LIBRARY = "usr/lib/sanshim/libsanshim.so"
# What the layers and the commands below run, and what dpkg needs besides.
PROGRAMS = "sh", "cp", "chmod", "sleep", "rm", "redis-server", "redis-benchmark"
FOR_DPKG = "dpkg", "dpkg-deb", "dpkg-split", "dpkg-query", "tar", "diff", "ldconfig", "start-stop-daemon"
FOLDERS = "tmp", "run", "proc", "dev", "etc", "var/log", "var/lib/dpkg/updates", "var/lib/dpkg/info", "var/lib/dpkg/triggers"
INSTALLED = "Package: libc6\nStatus: install ok installed\nVersion: 2.36\nArchitecture: amd64\nMaintainer: none\nDescription: stands for libc\n"
CONTROL = "Package: sanshim\nVersion: 0\nArchitecture: amd64\nDepends: libc6 (>= 2.34)\nMaintainer: none\nDescription: stands for the package\n"
BASES = "docker.io/library/debian:12", "docker.io/library/redis:7-bookworm"
IMAGE, WITH_PACKAGE = "localhost/redis-with-sanshim", "localhost/sanshim"
SERVER = ["redis-server", "--port", str(paths.SERVED), "--save", "", "--protected-mode", "no"]
CLIENT = f"sleep 1; exec redis-benchmark -h {{address}} -p {paths.SERVED} -t get -n 30000 -c 10 --csv"


def block(heading):
    """What stands indented below a heading of the document, up to the next text."""
    below = DOCUMENT.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found = re.search(r"(?:^(?:    .*)?\n)*^    .*$", below, re.M)
    if not found:
        raise Failure(f"{DOCUMENT}: nothing to run below '{heading}'")
    return "\n".join(line[4:] for line in found[0].strip("\n").splitlines())


class Recipes:
    """See the module."""

    name = "recipes"

    def __init__(self, by_podman):
        self.cross, self.stage = by_podman.cross, by_podman.stage
        # Without a manager, a pod's containers have a group of their own that nobody makes.
        self.podman = [*by_podman.podman, "--runtime-flag", "cgroup-manager=disabled"]
        self.own = self.stage.folder / "recipes"
        self.own.mkdir()

    def tell(self, *command):
        """What podman says, of both kinds."""
        command = [str(word) for word in (*self.podman, *command)]
        done = subprocess.run(command, cwd=self.own, env=self.stage.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout.strip(), done.stdout + done.stderr

    def build(self):
        """The images, by the document's own lines."""
        self.pack()
        self.make_base()
        for base in BASES:
            path = "ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin"
            self.tell("import", "--change", path, "--change", 'CMD ["sleep", "100000"]', "base.tar", base)
        (self.own / "Dockerfile").write_text(block("An image layer"))
        build = "build", "--isolation=chroot", "--pull-never"
        self.tell(*build, "--target", "sanshim", "-t", WITH_PACKAGE, ".")
        self.tell(*build, "-t", IMAGE, ".")

    def pack(self):
        content = self.own / "content"
        (content / LIBRARY).parent.mkdir(parents=True)
        (content / "DEBIAN").mkdir()
        shutil.copy(os.environ["SANSHIM_LIBRARY"], content / LIBRARY)
        (content / "DEBIAN/control").write_text(CONTROL)
        self.stage.quietly(["dpkg-deb", "--build", "-Znone", content, self.own / "sanshim_0_amd64.deb"])

    def make_base(self):
        """A tar of programs with their libraries."""
        files = {shutil.which(program) for program in (*PROGRAMS, *FOR_DPKG)}
        if None in files:
            raise Failure("redis-server or dpkg is missing: run scripts/install")
        for program in list(files):
            listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
            files.update(re.findall(r"(?:^|\s)(/\S+)", listed))
        status = self.own / "status"
        status.write_text(INSTALLED)
        with tarfile.open(self.own / "base.tar", "w") as tar:
            for name in "bin", "sbin":
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
                tar.addfile(link)
            for name in FOLDERS:
                folder = tarfile.TarInfo(name)
                folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
                tar.addfile(folder)
            for file in sorted(files):
                tar.add(os.path.realpath(file), re.sub(r"^(s?bin/)", r"usr/\1", file.lstrip("/")))
            tar.add(status, "var/lib/dpkg/status")

    def compose(self):
        """Two containers over a bridge, with the volume of the compose file; how many ends of the client and of the server came to the SAN."""
        options = re.search(r"driver_opts: \{type: (\w+), device: (\w+), o: \"([^\"]*)\"\}", block("Compose"))
        [where] = set(re.findall(r'volumes: \["san:([^"]*)"\]', block("Compose")))
        self.tell("volume", "create", *(f"--opt={name}={value}" for name, value in zip(("type", "device", "o"), options.groups())), "san")
        run = ["run", "--pull=never", "--network", "one", "--cgroups=disabled", "-v", f"san:{where}", "-e", "SANSHIM_LOG=info"]
        self.tell(*run, "-d", "--name", "db", IMAGE, *SERVER)
        address, _ = self.tell("inspect", "-f", "{{.NetworkSettings.Networks.one.IPAddress}}", "db")
        _, said = self.tell(*run, "--rm", IMAGE, "sh", "-c", CLIENT.format(address=address))
        _, log = self.tell("logs", "db")
        self.tell("rm", "-f", "-t", "1", "db")
        self.tell("volume", "rm", "san")
        return moved(said), moved(log)

    def pod(self):
        """The manifest: the application serves redis, and the sidecar asks."""
        commands = {"app": SERVER, "sidecar": ["sh", "-c", CLIENT.format(address="127.0.0.1")]}
        lines = ["apiVersion: v1", "kind: Pod", "metadata: {name: pod}"]
        for line in block("Kubernetes").splitlines():
            lines.append(line.replace("image: sanshim", f"image: {WITH_PACKAGE}"))
            indent, name = re.match(r"( *)(?:- name: (\w+)$)?", line).groups()
            if name in commands:
                own = f"image: {BASES[1]}", f"command: {commands[name]}".replace("'", '"')
                lines += [f"{indent}  {one}" for one in own]
            if "name: SANSHIM_FOLDER" in line:
                lines.append(f"{indent}- {{name: SANSHIM_LOG, value: info}}")
            if line == "spec:":
                lines.append("  restartPolicy: Never")
        (self.own / "pod.yaml").write_text("\n".join(lines) + "\n")
        self.tell("kube", "play", "--network", "none", "pod.yaml")
        deadline = time.monotonic() + HANG
        while self.tell("inspect", "-f", "{{.State.Status}}", "pod-sidecar")[0] != "exited":
            if time.monotonic() > deadline:
                raise Failure(f"the sidecar hangs: {self.tell('logs', 'pod-sidecar')[1]}")
            self.stage.pause(0.1)
        said, log = (self.tell("logs", f"pod-{name}")[1] for name in ("sidecar", "app"))
        status, _ = self.tell("inspect", "-f", "{{.State.ExitCode}}", "pod-sidecar")
        self.tell("kube", "down", "pod.yaml")
        if status != "0":
            raise Failure(f"the sidecar ended with {status}: {said}")
        return moved(said), moved(log)

    def over(self):
        """What each came to."""
        self.build()
        yield "the compose file's volume", self.compose()
        yield "the manifest", self.pod()


def moved(log):
    return len(re.findall("provider=shm reason=on-san", log))
