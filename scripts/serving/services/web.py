"""Servers of HTTP, and proxies."""

import pathlib

from .registry import bytes_of, digest, service


def website(place):
    """The folder of a web server, and how its clients fetch from it."""
    (place.folder / "www").mkdir(exist_ok=True)
    for name, size in {"index.html": 600, "100k": 100_000, "20m": 20_000_000}.items():
        (place.folder / "www" / name).write_bytes(bytes_of(size))
    return place.folder / "www"


def fetch(place, address, *options):
    """One client that keeps its connection, and many at once."""
    names = ["", "100k", "20m", "100k"] + [""] * 40
    urls = [word for name in names for word in ("-o", "-", f"{address}/{name}")]
    answer = place.ask("curl", "-sS", "--fail", *options, *urls)
    if not options:
        place.ask("ab", "-k", "-q", "-c", 16, "-n", 4000, f"{address}/100k")
    return digest(answer.encode())


def web_server(place):
    """nginx, behind something else."""
    port = place.port()
    place.write("nginx.conf", f"""
daemon off; worker_processes 2; pid {place.folder}/nginx.pid; error_log {place.folder}/nginx.log;
events {{ worker_connections 500; }}
http {{ access_log off; client_body_temp_path {place.folder}/a; proxy_temp_path {place.folder}/b; fastcgi_temp_path {place.folder}/c;
uwsgi_temp_path {place.folder}/d; scgi_temp_path {place.folder}/e;
server {{ listen 127.0.0.1:{port}; root {website(place)}; keepalive_requests 100000; }} }}
""")
    place.serve(port, "nginx", "-e", place.folder / "nginx.log", "-c", place.folder / "nginx.conf")
    return port


@service("apache2", "apache2-utils", "curl")
def apache(place):
    port, modules = place.port(), pathlib.Path("/usr/lib/apache2/modules")
    names = ["mpm_event", "authz_core", "dir", "mime"]
    place.write("apache.conf", f"""
ServerRoot {place.folder}
{"".join(f"LoadModule {name}_module {modules}/mod_{name}.so{chr(10)}" for name in names)}
ServerName localhost
Listen 127.0.0.1:{port}
PidFile {place.folder}/pid
ErrorLog {place.folder}/error
DocumentRoot {website(place)}
TypesConfig /etc/mime.types
MaxKeepAliveRequests 0
""")
    place.serve(port, "apache2", "-DFOREGROUND", "-f", place.folder / "apache.conf")
    return fetch(place, f"http://127.0.0.1:{port}")


@service("varnish", "nginx", "apache2-utils", "curl")
def varnish(place):
    behind, port = web_server(place), place.port()
    place.serve(port, "varnishd", "-F", "-j", "none", "-a", f"127.0.0.1:{port}", "-b", f"127.0.0.1:{behind}", "-n",
                place.folder / "varnish", "-s", "malloc,64m")
    return fetch(place, f"http://127.0.0.1:{port}")


@service("squid", "nginx", "apache2-utils", "curl")
def squid(place):
    behind, port = web_server(place), place.port()
    place.write("squid.conf", f"""
http_port 127.0.0.1:{port}
http_access allow all
cache_mem 64 MB
pid_filename {place.folder}/squid.pid
cache_log {place.folder}/cache.log
access_log none
coredump_dir {place.folder}
shutdown_lifetime 1 seconds
visible_hostname here
""")
    place.serve(port, "squid", "--foreground", "-N", "-f", place.folder / "squid.conf")
    return fetch(place, f"http://127.0.0.1:{behind}", "-x", f"http://127.0.0.1:{port}")


@service("tinyproxy-bin", "nginx", "apache2-utils", "curl")
def tinyproxy(place):
    behind, port = web_server(place), place.port()
    place.write("tiny.conf", f"Port {port}\nListen 127.0.0.1\nTimeout 60\nAllow 127.0.0.1\nMaxClients 50\n")
    place.serve(port, "tinyproxy", "-d", "-c", place.folder / "tiny.conf")
    return fetch(place, f"http://127.0.0.1:{behind}", "-x", f"http://127.0.0.1:{port}")


@service("stunnel4", "nginx", "openssl", "apache2-utils", "curl")
def stunnel(place):
    behind, port, key = web_server(place), place.port(), place.folder / "key.pem"
    place.prepare("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-keyout", key,
                  "-out", place.folder / "cert.pem")
    place.write("stunnel.conf", f"""
foreground = yes
pid =
[web]
accept = 127.0.0.1:{port}
connect = 127.0.0.1:{behind}
cert = {place.folder}/cert.pem
key = {key}
""")
    place.serve(port, "stunnel4", place.folder / "stunnel.conf")
    return fetch(place, f"https://127.0.0.1:{port}", "-k")


@service("uwsgi", "uwsgi-plugin-python3", "apache2-utils", "curl")
def uwsgi(place):
    port = place.port()
    place.write("app.py", """
def application(environ, start):
    body = environ["wsgi.input"].read()
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"got %d " % len(body), b"w" * 70000]
""")
    place.serve(port, "uwsgi", "--plugin", "python3", "--http-socket", f"127.0.0.1:{port}", "--master",
                "--processes", 3, "--threads", 2, "--wsgi-file", place.folder / "app.py")
    (place.folder / "body").write_bytes(bytes_of(1_000_000))
    place.ask("ab", "-q", "-c", 12, "-n", 1500, f"http://127.0.0.1:{port}/")
    urls = [f"http://127.0.0.1:{port}/"] * 10
    return digest(place.ask("curl", "-sS", "--fail", "--data-binary", f"@{place.folder}/body", *urls).encode())


@service("php-cli", "apache2-utils", "curl")
def php_server(place):
    port = place.port()
    place.environment["PHP_CLI_SERVER_WORKERS"] = "3"
    place.serve(port, "php", "-n", "-S", f"127.0.0.1:{port}", "-t", website(place))
    return fetch(place, f"http://127.0.0.1:{port}")


@service("nodejs", "apache2-utils")
def node_cluster(place):
    port = place.port()
    place.write("cluster.js", f"""
const cluster = require("cluster"), http = require("http");
if (cluster.isPrimary) for (let i = 0; i < 3; i++) cluster.fork();
else http.createServer((request, response) => {{
  let all = 0; request.on("data", part => all += part.length);
  request.on("end", () => response.end("got " + all + " " + "y".repeat(50000)));
}}).listen({port}, "127.0.0.1");
""")
    place.serve(port, "node", place.folder / "cluster.js")
    (place.folder / "body").write_bytes(bytes_of(3_000_000))
    place.ask("ab", "-k", "-q", "-c", 12, "-n", 3000, f"http://127.0.0.1:{port}/")
    urls = [f"http://127.0.0.1:{port}/"] * 20
    return digest(place.ask("curl", "-sS", "--fail", "--data-binary", f"@{place.folder}/body", *urls).encode())
