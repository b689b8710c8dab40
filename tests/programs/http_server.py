"""Python's own HTTP server over a folder, a thread per connection: http_server.py FOLDER [PORT].

Prints "port N" once it listens; also answers POST with the body it got.
"""
import http.server
import sys


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments):
        super().__init__(*arguments, directory=sys.argv[1])

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        print("port", server.server_address[1], flush=True)
        server.serve_forever()
