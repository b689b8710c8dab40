"""Network namespaces and what leads from one to another: containers, and what stands for their host."""

import os
import pathlib
import subprocess

from processes import Failure

def run(command, text=None):
    """Runs a command that sets something up."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))} failed: {done.stderr}")


class Namespace:
    """One that lives as long as its process, or the script's own."""

    def __init__(self, process=None):
        self.process = process
        self.inside = ["nsenter", "-t", str(process.pid), "-n"] if process else []

    def run(self, *command, text=None):
        run([*self.inside, *command], text)

    def rules(self, text):
        """Adds rules of nft."""
        self.run("nft", "-f", "-", text=text)

    def forward(self):
        self.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")


class Net:
    """The host and the containers of one run. The script's own namespace is the host, or one of the host's own."""

    def __init__(self, stage, is_own=True):
        self.stage = stage
        self.host = Namespace() if is_own else self.container()
        self.links = 0

    def container(self):
        process = self.stage.start("tcp", ["unshare", "-n", "sh", "-c", "ip link set lo up; echo ready; exec sleep 100000"])
        while "ready" not in self.stage.output(process):
            if self.stage.ended(process):
                raise Failure(f"no namespace can be had: {self.stage.output(process)}")
            self.stage.pause(0.01)
        return Namespace(process)

    def link(self, inner, address, outer=None, bridge=None):
        """A link from a container to the host, where it has the address `outer` or is a port of a bridge; its name in the container."""
        self.links += 1
        here, there = f"h{self.links}", f"c{self.links}"
        self.host.run("ip", "link", "add", here, "type", "veth", "peer", "name", there)
        self.host.run("ip", "link", "set", there, "netns", str(inner.process.pid))
        inner.run("ip", "address", "add", address, "dev", there)
        inner.run("ip", "link", "set", there, "up")
        if bridge:
            self.host.run("ip", "link", "set", here, "master", bridge)
        else:
            self.host.run("ip", "address", "add", outer, "dev", here)
            inner.run("ip", "route", "add", "default", "via", outer.split("/")[0])
        self.host.run("ip", "link", "set", here, "up")
        return there

    def bridge(self, name, address):
        self.host.run("ip", "link", "add", name, "type", "bridge")
        self.host.run("ip", "address", "add", address, "dev", name)
        self.host.run("ip", "link", "set", name, "up")


def may_translate(inside=()):
    """True if the kernel's NAT can be had here, or where the command `inside` leads."""
    probe = "table ip probe {\n chain c {\n type nat hook output priority -100\n tcp dport 9 redirect to :8\n }\n}\n"
    try:
        run([*inside, "nft", "-f", "-"], probe)
        if not inside:
            run(["nft", "delete", "table", "ip", "probe"])
    except (Failure, FileNotFoundError):
        return False
    return True


def has(program):
    return any((pathlib.Path(folder) / program).exists() for folder in os.environ["PATH"].split(":"))
