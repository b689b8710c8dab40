"""Measures iperf3: one stream, four streams, one in reverse, and both directions at once."""

import json
import math

import load
from cases import Case, Figure
from processes import Failure

NOT_HELD_BACK = (
    "sockmap does not hold a sender back that is faster than its receiver. In a run of both directions at once 10.7 Gbit/s were sent "
    "and 1.1 received, and in three runs of four a write failed for want of memory (ENOMEM). The rate is what was received."
)


def measure(stage, transport, seconds, streams, options):
    endpoint = stage.endpoint(transport)
    server = stage.start(transport, ["iperf3", "-s", "-p", str(endpoint.port)])
    stage.wait_listening(server, endpoint)
    arguments = f"-c 127.0.0.1 -p {endpoint.port} -J -t {math.ceil(seconds)} {options}"
    # The control connection makes too few transfers to leave TCP.
    done = load.run(stage, transport, ["iperf3", *arguments.split()], server, streams, quiet=1)
    stage.end(server)
    end = json.loads(done.text)["end"]
    sums = [end[name] for name in ("sum_received", "sum_received_bidir_reverse") if name in end]
    if not sums:
        raise Failure(f"iperf3 {arguments} gave no figure:\n{done.text}")
    gib = sum(one["bytes"] for one in sums) / load.GIB
    return Figure(sum(one["bits_per_second"] for one in sums) / 1e9, cpu=done.cpu / gib)


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
            headline=options == "",
            footnote=NOT_HELD_BACK if options == "--bidir" else "",
        )
