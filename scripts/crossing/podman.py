"""The same in containers of podman, whose root is that of the machine: no registry is needed. Networks, ports and addresses are podman's."""

import pathlib
import subprocess

import namespaces
import paths
import recipes
from processes import Failure
from served import Served

NEEDS = "podman", "crun", "netavark", "iptables"
NETWORKS = {"one": "10.97.1", "other": "10.97.2"}
SERVER = "server"
# By its own network's gateway the client reaches what the host publishes.
PLACES = [
    paths.Path("pod", f"container:{SERVER}", "127.0.0.1", paths.SERVED, True, is_translated=False),
    paths.Path("bridge", "one", "{address}", paths.SERVED, True, is_translated=False),
    paths.Path("published", "other", f"{NETWORKS['other']}.1", paths.PUBLISHED, True),
]
SETTINGS = """[network]
network_backend = "netavark"
network_config_dir = "{nets}"
[containers]
cgroups = "no-conmon"
log_driver = "k8s-file"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
infra_image = "{infra}"
"""
# No manager of control groups is here, and no journal.
OPTIONS = ["--cgroups=disabled", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--log-driver=k8s-file"]
OWN_GROUPS = "umount -R /sys/fs/cgroup 2>/dev/null; mount -t cgroup2 none /sys/fs/cgroup"


class Podman(Served):
    """See the module."""

    name = "podman"
    places = PLACES

    def __init__(self, cross):
        super().__init__(cross)
        own = self.stage.folder / "podman"
        (own / "nets").mkdir(parents=True)
        (own / "containers.conf").write_text(SETTINGS.format(nets=own / "nets", infra=recipes.BASES[0]))
        self.stage.environment["CONTAINERS_CONF"] = str(own / "containers.conf")
        self.podman = ["podman", "--root", own / "root", "--runroot", own / "run", "--cgroup-manager=cgroupfs", "--events-backend=file"]

    def begin(self):
        """Why it cannot be had here; empty if it can."""
        if lacking := [name for name in NEEDS if not (namespaces.has(name) or pathlib.Path("/usr/lib/podman", name).exists())]:
            return f"{', '.join(lacking)} missing"
        try:
            namespaces.run(["sh", "-c", OWN_GROUPS])
            for name, network in NETWORKS.items():
                self.stage.quietly([*self.podman, "network", "create", "--subnet", f"{network}.0/24", name])
            probe = ["run", "--rm", "--network", "one", "-p", f"{paths.PUBLISHED}:{paths.SERVED}", *OPTIONS, "--rootfs", "/:O", "true"]
            self.stage.quietly([*self.podman, *probe])
        except (Failure, OSError) as why:
            return str(why).strip().splitlines()[-1]
        return ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Nothing of it stays mounted in the stage's folder."""
        for command in (("pod", "rm", "-f", "-a"), ("rm", "-f", "-a", "-t", "0")):
            subprocess.run([*self.podman, *command], env=self.stage.environment, capture_output=True, check=False)
        subprocess.run(["umount", "-l", self.stage.folder / "podman/root/overlay"], capture_output=True, check=False)

    def command(self, network, command, log, user, *options):
        variables = [word for one in self.cross.variables(log) for word in ("-e", one)]
        folder = self.stage.folder
        own = ["--network", network, *OPTIONS, "-v", f"{folder}:{folder}", *variables, *(["--user", user] if user else [])]
        return [*self.podman, "run", "--rm", *own, *options, "--rootfs", "/:O", *map(str, command)]

    def serve(self, command, log, user):
        publish = ["--name", SERVER, "-p", f"{paths.PUBLISHED}:{paths.SERVED}"]
        return self.stage.start("tcp", self.command("one", command, log, user, *publish))

    def table(self, server):
        """As far as the container has begun."""
        pid = self.tell("{{.State.Pid}}")
        return pathlib.Path(f"/proc/{pid}/net/tcp" if pid.isdigit() and pid != "0" else "/dev/null")

    def tell(self, what):
        command = [*map(str, self.podman), "inspect", "-f", what, SERVER]
        done = subprocess.run(command, env=self.stage.environment, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def ask(self, place, command, log, user):
        address = self.tell("{{.NetworkSettings.Networks.one.IPAddress}}")
        words = [word.replace("{address}", address) for word in command]
        return self.stage.finish(self.stage.start("tcp", self.command(place.asker, words, log, user)))

    def end(self, server):
        self.stage.quietly([*self.podman, "rm", "-f", "-t", "1", SERVER])
        self.stage.end(server)
