"""nginx: a small static file over keep-alive connections (wrk), and over a new connection for each request (ab)."""
import math
import os
import re

import san
from cases import Case, Figure
from processes import Failure, free_port

CONFIGURATION = """{user}
daemon off;
worker_processes {workers};
pid nginx.pid;
error_log error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 100000000;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{ listen 127.0.0.1:{port}{listen}; root content; }}
}}
"""
MICROSECONDS = {"us": 1, "ms": 1000, "s": 1_000_000}


def start(stage, transport, workers, listen=""):
    """The server and its port."""
    port = free_port()
    content = stage.folder / "content"
    content.mkdir(exist_ok=True)
    (content / "index.html").write_text("small\n" * 100)
    # Workers of another user could not enter the stage's folder.
    user = "user root;" if os.geteuid() == 0 else ""
    settings = CONFIGURATION.format(user=user, workers=workers, port=port, listen=listen)
    (stage.folder / "nginx.conf").write_text(settings)
    server = stage.start(
        transport, ["nginx", "-p", str(stage.folder), "-c", "nginx.conf", "-e", "error.log"]
    )
    stage.wait_listening(server, port)
    return server, port


def measure(stage, transport, seconds, threads, connections):
    server, port = start(stage, transport, threads)
    arguments = f"-t{threads} -c{connections} -d{math.ceil(seconds)}s --latency"
    client = stage.start(transport, ["wrk", *arguments.split(), f"http://127.0.0.1:{port}/index.html"])
    if transport == "san":
        san.require_shm(stage, server, client, connections)
    text = stage.finish(client)
    if transport == "san":
        san.require_kept(stage, server, client)
    stage.end(server)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    median = re.search(r"\b50%\s+([\d.]+)(us|ms|s)\b", text)
    if not rate or not median or "Socket errors" in text or "Non-2xx" in text:
        raise Failure(f"wrk {arguments} gave no clean figure:\n{text}")
    return Figure(float(rate.group(1)), float(median.group(1)) * MICROSECONDS[median.group(2)])


def measure_short(stage, transport, seconds, workers, listen):
    server, port = start(stage, transport, workers, listen)
    # ab counts requests; below a second only whether it works is asked.
    requests = 20000 if seconds >= 1 else 5000
    arguments = f"-q -n {requests} -c 50"
    text = stage.finish(
        stage.start(transport, ["ab", *arguments.split(), f"http://127.0.0.1:{port}/index.html"])
    )
    stage.end(server)
    rate = re.search(r"Requests per second:\s+([\d.]+)", text)
    failed = re.search(r"Failed requests:\s+(\d+)", text)
    if not rate or not failed or failed.group(1) != "0" or "Non-2xx" in text:
        raise Failure(f"ab {arguments} gave no clean figure:\n{text}")
    # The latency comes in whole milliseconds: too coarse to compare.
    return Figure(float(rate.group(1)))


def cases():
    for threads, connections in ((1, 1), (2, 32)):
        yield Case(
            "nginx",
            f"600-byte file, {connections} connection{'s' * (connections > 1)}",
            "requests/s",
            f"wrk -t{threads} -c{connections} --latency (nginx with {threads} worker{'s' * (threads > 1)})",
            lambda *where, what=(threads, connections): measure(*where, *what),
        )
    for workers, listen, how in ((1, "", "1 worker"), (2, "", "2 workers"), (2, " reuseport", "2 workers, reuseport")):
        yield Case(
            "nginx",
            f"connection per request, {how}",
            "requests/s",
            f"ab -n 20000 -c 50 (nginx with {how})",
            lambda *where, what=(workers, listen): measure_short(*where, *what),
            stays_on_tcp=True,
        )
