"""Starts an nginx that serves a folder."""

import os

CONFIGURATION = """{user}
daemon off;
worker_processes {workers};
pid {name}.pid;
error_log {name}.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 100000000;
    client_body_temp_path {name}-body;
    proxy_temp_path {name}-proxy;
    fastcgi_temp_path {name}-fastcgi;
    uwsgi_temp_path {name}-uwsgi;
    scgi_temp_path {name}-scgi;
    {http}
    server {{ listen {listen}; {server} }}
}}
"""


def start(stage, transport, workers=1, name="nginx", option="", http="", server="root content;", listen_on=None, at=None):
    """The server, and where it listens."""
    endpoint = at or stage.endpoint(listen_on or transport)
    content = stage.folder / "content"
    content.mkdir(exist_ok=True)
    page = content / "index.html"
    # It is not cut short under a server that sends it.
    if not page.exists():
        page.write_text("small\n" * 100)
    address = f"unix:{endpoint.path}" if endpoint.path else endpoint.address
    settings = CONFIGURATION.format(
        # Workers of another user could not enter the stage's folder.
        user="user root;" if os.geteuid() == 0 else "",
        workers=workers,
        name=name,
        http=http,
        listen=address + option,
        server=server,
    )
    (stage.folder / f"{name}.conf").write_text(settings)
    running = stage.start(transport, ["nginx", "-p", str(stage.folder), "-c", f"{name}.conf", "-e", f"{name}.log"])
    stage.wait_listening(running, endpoint)
    return running, endpoint
