"""Lists the programs to compare, what each needs, and what gives its cases."""

import dataclasses
import os
import shutil

import adverse
import containers
import copies
import iperf
import java
import memcached
import node
import postgres
import proxy
import python
import rabbitmq
import redis
import web


@dataclasses.dataclass(frozen=True)
class Program:
    """`needs` has commands in PATH, or paths, and the packages of Debian that bring them."""

    cases: object
    needs: dict
    # This gives what else the program lacks.
    lacking: object = list

    def missing(self):
        """Gives the packages that the program lacks, or else what else it lacks."""
        packages = [package for need, package in self.needs.items() if not (shutil.which(need) or os.path.exists(need))]
        return packages or self.lacking()


MODULES = "/usr/lib/python3/dist-packages"
PROGRAMS = {
    "redis": Program(redis.cases, {"redis-server": "redis-server", "redis-benchmark": "redis-tools"}),
    "containers": Program(containers.cases, {"redis-server": "redis-server", "redis-benchmark": "redis-tools", "nft": "nftables"}, containers.lacking),
    "memcached": Program(memcached.cases, {"memcached": "memcached", "cc": "gcc"}),
    "postgres": Program(postgres.cases, {"pgbench": "postgresql"}),
    "nginx": Program(web.cases, {"nginx": "nginx", "wrk": "wrk", "ab": "apache2-utils"}),
    "haproxy": Program(proxy.cases, {"haproxy": "haproxy", "nginx": "nginx", "wrk": "wrk"}),
    "node": Program(node.cases, {"node": "nodejs", "cc": "gcc"}),
    "java": Program(java.cases, {"javac": "default-jdk-headless", "wrk": "wrk"}),
    "grpc": Program(python.grpc_cases, {f"{MODULES}/grpc": "python3-grpcio"}),
    "asyncio": Program(python.asyncio_cases, {python.PYTHON: "python3"}),
    "rabbitmq": Program(rabbitmq.cases, {rabbitmq.SERVER: "rabbitmq-server", f"{MODULES}/pika": "python3-pika"}),
    "iperf3": Program(iperf.cases, {"iperf3": "iperf3"}),
    "scp": Program(copies.scp_cases, {"scp": "openssh-client", "/usr/sbin/sshd": "openssh-server"}),
    "adverse": Program(adverse.cases, {"redis-server": "redis-server", "redis-cli": "redis-tools", "cc": "gcc"}),
    "rsync": Program(copies.rsync_cases, {"rsync": "rsync"}),
}
