"""Databases, directories, and what stands before them."""

import pathlib
import re

import postgres_server

from .registry import digest, service


@service("mariadb-server", "sysbench")
def mariadb(place):
    data, port = place.folder / "data", place.port()
    place.prepare("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal")
    place.serve(
        port, "mariadbd", "--no-defaults", f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1",
        f"--socket={place.folder}/sock", f"--pid-file={place.folder}/pid", "--max-allowed-packet=64M",
    )
    to = ["-h127.0.0.1", f"-P{port}", "-uroot"]
    place.ask("mariadb-slap", "--no-defaults", *to, "--concurrency=8", "--auto-generate-sql", "--number-of-queries=4000")
    load = ["sysbench", "oltp_read_write", "--mysql-host=127.0.0.1", f"--mysql-port={port}", "--mysql-user=root",
            "--mysql-db=test", "--tables=2", "--table-size=2000", "--threads=6", "--rand-seed=1"]
    place.ask(*load, "prepare")
    place.ask(*load, "--time=0", "--events=600", "run")
    statements = ["create table t(n int, b longblob);"]
    statements += [f"insert into t values({n}, repeat('{n}', {n} * 100000));" for n in range(1, 40)]
    statements += ["select n, md5(b), length(b) from t order by n;", "select b from t where n in (3, 30);"]
    return place.ask("mariadb", "--no-defaults", *to, "--max-allowed-packet=64M", "test", "-e", "".join(statements))


@service("slapd", "ldap-utils")
def slapd(place):
    port = place.port()
    (place.folder / "db").mkdir()
    place.write("slapd.conf", f"""
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {place.folder}/slapd.pid
database mdb
maxsize 268435456
suffix dc=x
rootdn cn=admin,dc=x
rootpw secret
directory {place.folder}/db
dbnosync
""")
    entries = ["dn: dc=x\nobjectClass: dcObject\nobjectClass: organization\no: x\ndc: x\n"]
    entries += [f"dn: cn=p{n},dc=x\nobjectClass: inetOrgPerson\ncn: p{n}\nsn: s{n}\ndescription: {'d' * (n % 700 + 1)}\n"
                for n in range(1500)]
    place.write("entries.ldif", "\n".join(entries))
    place.serve(port, "slapd", "-d", 0, "-h", f"ldap://127.0.0.1:{port}", "-f", place.folder / "slapd.conf")
    who = ["-x", "-H", f"ldap://127.0.0.1:{port}", "-D", "cn=admin,dc=x", "-w", "secret"]
    place.ask("ldapadd", "-f", place.folder / "entries.ldif", *who)
    return place.ask("ldapsearch", *who, "-LLL", "-b", "dc=x", "(sn=s*)", "cn", "description")


@service("redis-server", "redis-tools")
def redis_cluster(place):
    ports = [place.port() for _ in range(3)]
    for port in ports:
        folder = place.folder / str(port)
        folder.mkdir()
        place.serve(port, "redis-server", "--port", port, "--cluster-enabled", "yes", "--dir", folder, "--save", "",
                    "--cluster-port", place.port())
    nodes = [f"127.0.0.1:{port}" for port in ports]
    place.ask("redis-cli", "--cluster", "create", *nodes, "--cluster-yes")
    place.until("cluster_state:ok", "redis-cli", "-p", ports[0], "cluster", "info")
    place.ask("redis-cli", "-c", "-p", ports[0], stdin="".join(f"set k{n} {'v' * (n % 500)}{n}\n" for n in range(3000)))
    where = place.ask("redis-cli", "-p", ports[0], "cluster", "myid").strip()
    source = place.ask("redis-cli", "-p", ports[1], "cluster", "myid").strip()
    place.ask("redis-cli", "--cluster", "reshard", nodes[0], "--cluster-from", source, "--cluster-to", where,
              "--cluster-slots", 1500, "--cluster-yes")
    place.ask("redis-benchmark", "--cluster", "-p", ports[0], "-n", 30000, "-t", "set,get", "-q")
    told = place.ask("redis-cli", "-c", "-p", ports[0], stdin="".join(f"get k{n}\n" for n in range(3000)))
    return re.sub(r"127.0.0.1:\d+", "node", told)


@service("redis-server", "redis-tools")
def redis_replication(place):
    first, second = place.port(), place.port()
    for port in (first, second):
        folder = place.folder / str(port)
        folder.mkdir()
        place.serve(port, "redis-server", "--port", port, "--dir", folder, "--save", "", "--repl-diskless-sync", "yes",
                    "--repl-diskless-sync-delay", "0", "--repl-diskless-load", "on-empty-db")
    place.ask("redis-cli", "-p", first, "debug", "populate", 40000, "key", 1000)
    place.ask("redis-cli", "-p", second, "replicaof", "127.0.0.1", first)
    place.ask("redis-benchmark", "-p", first, "-n", 40000, "-r", 5000, "-t", "set,lpush,hset", "-q")
    place.until("master_link_status:up", "redis-cli", "-p", second, "info", "replication")
    place.ask("redis-cli", "-p", first, "wait", 1, 20000)
    same = [place.ask("redis-cli", "-p", port, "debug", "digest") for port in (first, second)]
    return same[0] == same[1]


@service("nutcracker", "redis-server", "redis-tools")
def twemproxy(place):
    behind, port = place.port(), place.port()
    place.serve(behind, "redis-server", "--port", behind, "--save", "", "--dir", place.folder)
    place.write("nutcracker.yml", f"""
pool:
  listen: 127.0.0.1:{port}
  redis: true
  servers:
   - 127.0.0.1:{behind}:1
""")
    place.serve(port, "nutcracker", "-o", place.folder / "log", "-c", place.folder / "nutcracker.yml", "-a", "127.0.0.1", "-s", place.port())
    place.ask("redis-benchmark", "-p", port, "-t", "set,get", "-n", 40000, "-c", 30, "-q")
    place.ask("redis-cli", "-p", port, stdin="".join(f"set k{n} {'v' * n}\n" for n in range(2000)))
    return place.ask("redis-cli", "-p", port, stdin="".join(f"get k{n}\n" for n in range(2000)))


@service("postgresql")
def postgres_replication(place):
    programs = pathlib.Path(postgres_server.programs())
    first, second = place.port(), place.port()
    data, copy = place.folder / "data", place.folder / "copy"
    place.prepare(programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync")
    settings = ["-c", "unix_socket_directories=", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
    place.serve(first, programs / "postgres", "-D", data, "-p", first, *settings)
    to = ["-h", "127.0.0.1", "-U", "postgres"]
    place.ask(programs / "pgbench", *to, "-p", first, "-i", "-s", 2, "-q", "postgres")
    place.ask(programs / "pg_basebackup", *to, "-p", first, "-D", copy, "-R", "-X", "stream", "-c", "fast")
    place.serve(second, programs / "postgres", "-D", copy, "-p", second, *settings)
    place.ask(programs / "pgbench", *to, "-p", first, "-c", 6, "-t", 300, "-n", "postgres")
    big = "create table big as select n, repeat(md5(n::text), 200) b from generate_series(1, 3000) n"
    place.ask(programs / "psql", *to, "-p", first, "-c", big, "postgres")
    query = "select count(*), sum(length(b)), md5(string_agg(b, '' order by n)) from big"
    place.until("6400", programs / "psql", *to, "-p", second, "-At", "-c", "select max(length(b)) from big", "postgres")
    dump = [place.ask(programs / "pg_dump", *to, "-p", port, "-t", "big", "postgres") for port in (first, second)]
    return [place.ask(programs / "psql", *to, "-p", port, "-At", "-c", query, "postgres") for port in (first, second)], dump[0] == dump[1]


@service("pgbouncer", "postgresql")
def pgbouncer(place):
    programs = pathlib.Path(postgres_server.programs())
    behind, port, data = place.port(), place.port(), place.folder / "data"
    place.prepare(programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync")
    place.serve(behind, programs / "postgres", "-D", data, "-p", behind, "-c", "unix_socket_directories=", "-c",
                "listen_addresses=127.0.0.1", "-c", "fsync=off")
    place.write("users.txt", '"postgres" ""\n')
    place.write("pgbouncer.ini", f"""
[databases]
postgres = host=127.0.0.1 port={behind} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {place.folder}/users.txt
pool_mode = transaction
default_pool_size = 5
ignore_startup_parameters = extra_float_digits
""")
    place.serve(port, "pgbouncer", place.folder / "pgbouncer.ini")
    to = ["-h", "127.0.0.1", "-p", port, "-U", "postgres"]
    place.ask(programs / "pgbench", *to, "-i", "-s", 2, "-q", "postgres")
    place.ask(programs / "pgbench", *to, "-c", 12, "-t", 200, "-n", "postgres")
    query = "select md5(string_agg(n::text || repeat('z', n), '')) from generate_series(1, 5000) n"
    return place.ask(programs / "psql", *to, "-At", "-c", query, "-c", "copy (select repeat('q', n) from generate_series(1, 4000) n) to stdout", "postgres")
