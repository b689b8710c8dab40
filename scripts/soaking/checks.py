"""Native checks of the data of a soak: programs without the library read all of it back."""

import http.client
import re

import clients
from load import WRITERS
from processes import Failure
from servers import FILES

SUMS = (
    "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), "
    "(SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history), "
    "(SELECT count(*) FROM pgbench_history)"
)


class Checks:
    def __init__(self, load):
        self.load, self.stage, self.done = load, load.stage, 0
        self.transactions = {}

    def all(self):
        self.logs()
        for server in self.load.servers:
            check = getattr(self, server.kind, None)
            if check:
                check(server)
        self.done += 1

    def logs(self):
        """The library has no error to report, and no panic."""
        for file in (self.stage.folder / "logs").iterdir():
            with file.open(errors="replace") as lines:
                if bad := next((line for line in lines if re.match(r"sanshim\[\d+\] error:", line) or "panicked" in line), None):
                    raise Failure(f"{file.name}: {bad}")

    def redis(self, server):
        """Each key has a generation that was sent, and none before the one that was acknowledged."""
        where = [str(server.port), str(self.load.journal(server)), str(WRITERS)]
        self.stage.finish(self.stage.start("tcp", [clients.PYTHON, str(clients.OWN / "keys.py"), "check", *where]))

    def postgres(self, server):
        """The sums of all tables are one, and no transaction that a client has an answer of is gone."""
        acknowledged = self.load.transactions[server.name]
        *sums, count = map(int, server.sql(SUMS).split("|"))
        if len(set(sums)) != 1:
            raise Failure(f"{server.name}: accounts, tellers, branches and history have the sums {sums}")
        if count < max(acknowledged, self.transactions.get(server.name, 0)):
            raise Failure(f"{server.name}: there are {count} transactions, and {acknowledged} were acknowledged")
        self.transactions[server.name] = count
        # What an automatic one would do, at times that nobody knows.
        server.sql("VACUUM pgbench_branches")
        server.sql("VACUUM pgbench_tellers")
        server.sql("VACUUM pgbench_accounts")

    def files(self, server):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for name in FILES:
            connection.request("GET", f"/{name}")
            answer = connection.getresponse()
            if answer.read() != (self.load.content / name).read_bytes() or answer.status != 200:
                raise Failure(f"{server.name}: {name} is another file, or came with status {answer.status}")
        connection.close()

    nginx = python = files
