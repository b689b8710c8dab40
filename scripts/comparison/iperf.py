"""iperf3: one stream, four, reverse, both directions at once."""
import json
import math

import san
from cases import Case, Figure
from processes import Failure, free_port


def measure(stage, transport, seconds, streams, options):
    port = free_port()
    server = stage.start(transport, ["iperf3", "-s", "-p", str(port)])
    stage.wait_listening(server, port)
    arguments = f"-c 127.0.0.1 -p {port} -J -t {math.ceil(seconds * 2)} {options}"
    client = stage.start(transport, ["iperf3", *arguments.split()])
    if transport == "san":
        # The control connection says too little to leave TCP.
        san.require_shm(stage, server, client, streams, quiet=1)
    text = stage.finish(client)
    if transport == "san":
        san.require_kept(stage, server, client)
    stage.end(server)
    end = json.loads(text)["end"]
    sums = [end[name] for name in ("sum_received", "sum_received_bidir_reverse") if name in end]
    if not sums:
        raise Failure(f"iperf3 {arguments} gave no figure:\n{text}")
    return Figure(sum(one["bits_per_second"] for one in sums) / 1e9)


def cases():
    for label, streams, options in (
        ("one stream", 1, ""),
        ("four streams", 4, "-P 4"),
        ("one stream, reverse", 1, "-R"),
        ("both directions at once", 2, "--bidir"),
    ):
        yield Case(
            "iperf3",
            label,
            "Gbit/s",
            f"iperf3 -c 127.0.0.1 {options}".strip(),
            lambda *where, what=(streams, options): measure(*where, *what),
        )
