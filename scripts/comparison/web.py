"""nginx with wrk: a small static file over keep-alive connections."""
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
    server {{ listen 127.0.0.1:{port}; root content; }}
}}
"""
MICROSECONDS = {"us": 1, "ms": 1000, "s": 1_000_000}


def measure(stage, transport, seconds, threads, connections):
    port = free_port()
    content = stage.folder / "content"
    content.mkdir(exist_ok=True)
    (content / "index.html").write_text("small\n" * 100)
    # Workers of another user could not enter the stage's folder.
    user = "user root;" if os.geteuid() == 0 else ""
    settings = CONFIGURATION.format(user=user, workers=threads, port=port)
    (stage.folder / "nginx.conf").write_text(settings)
    server = stage.start(
        transport, ["nginx", "-p", str(stage.folder), "-c", "nginx.conf", "-e", "error.log"]
    )
    stage.wait_listening(server, port)
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


def cases():
    for threads, connections in ((1, 1), (2, 32)):
        yield Case(
            "nginx",
            f"600-byte file, {connections} connection{'s' * (connections > 1)}",
            "requests/s",
            f"wrk -t{threads} -c{connections} --latency (nginx with {threads} worker{'s' * (threads > 1)})",
            lambda *where, what=(threads, connections): measure(*where, *what),
        )
