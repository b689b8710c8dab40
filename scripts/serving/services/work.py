"""Programs that give each other work."""

from .registry import WORDS, digest, service


MPI = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    int rank, n;
    MPI_Init(&argc, &argv), MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &n);
    unsigned long sum = 0;
    for (int size = 1; size <= 1 << 20; size *= 4) {
        int *out = malloc(sizeof(int) * size * n), *in = malloc(sizeof(int) * size * n);
        for (int round = 0; round < (size < 5000 ? 30 : 5); round++) {
            for (int i = 0; i < size * n; i++) out[i] = rank * 7919 + i * 31 + round;
            MPI_Alltoall(out, size, MPI_INT, in, size, MPI_INT, MPI_COMM_WORLD);
            for (int p = 0; p < n; p++)
                for (int i = 0; i < size; i++)
                    if (in[p * size + i] != p * 7919 + (rank * size + i) * 31 + round) printf("wrong\n"), MPI_Abort(MPI_COMM_WORLD, 1);
            MPI_Allreduce(out, in, size, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
            for (int i = 0; i < size; i++) sum = sum * 31 + in[i];
            MPI_Request requests[2];
            MPI_Irecv(in, size, MPI_INT, (rank + n - 1) % n, 5, MPI_COMM_WORLD, requests);
            MPI_Isend(out, size, MPI_INT, (rank + 1) % n, 5, MPI_COMM_WORLD, requests + 1);
            MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
            for (int i = 0; i < size; i++) sum = sum * 31 + in[i];
            MPI_Barrier(MPI_COMM_WORLD);
        }
        free(out), free(in);
    }
    unsigned long all;
    MPI_Reduce(&sum, &all, 1, MPI_UNSIGNED_LONG, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (!rank) printf("%lx\n", all);
    MPI_Finalize();
}
"""


@service("openmpi-bin", "libopenmpi-dev")
def openmpi(place):
    program = place.folder / "mpi"
    place.write("mpi.c", MPI)
    place.prepare("mpicc.openmpi", "-O1", "-o", program, place.folder / "mpi.c")
    by_tcp = "--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo"
    return place.ask("mpirun.openmpi", "--oversubscribe", "-n", 3, *by_tcp.split(), program)


@service("mosquitto", "mosquitto-clients")
def mosquitto(place):
    port = place.port()
    place.write("mosquitto.conf", f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")
    place.serve(port, "mosquitto", "-c", place.folder / "mosquitto.conf")
    listens = place.begin("mosquitto_sub", "-h", "127.0.0.1", "-p", port, "-q", 1, "-t", "t", "-C", 3000)
    place.pause(0.5)
    place.ask("mosquitto_pub", "-h", "127.0.0.1", "-p", port, "-q", 1, "-t", "t", "-l", stdin=WORDS)
    return place.end_of(listens)


@service("beanstalkd")
def beanstalkd(place):
    port = place.port()
    place.serve(port, "beanstalkd", "-l", "127.0.0.1", "-p", port, "-z", 2000000)
    place.write("work.py", f"""
import socket, hashlib
s = socket.create_connection(("127.0.0.1", {port})); f = s.makefile("rb")
for n in range(1500):
    body = bytes([n % 251]) * (n * 40)
    s.sendall(b"put 1 0 60 %d\\r\\n%s\\r\\n" % (len(body), body)); assert f.readline().startswith(b"INSERTED")
h = hashlib.sha256()
for n in range(1500):
    s.sendall(b"reserve\\r\\n"); _, job, size = f.readline().split()
    h.update(f.read(int(size) + 2)); s.sendall(b"delete %s\\r\\n" % job); assert f.readline() == b"DELETED\\r\\n"
print(h.hexdigest())
""")
    return place.ask("/usr/bin/python3", place.folder / "work.py")


@service("python3-distributed")
def dask(place):
    port = place.port()
    place.serve(port, "/usr/bin/dask-scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")
    for _ in range(2):
        place.begin("/usr/bin/dask-worker", f"tcp://127.0.0.1:{port}", "--nthreads", 2, "--no-dashboard", "--no-nanny")
    place.write("work.py", f"""
from distributed import Client
client = Client("tcp://127.0.0.1:{port}")
client.wait_for_workers(2)
parts = client.map(lambda n: bytes([n % 256]) * (n * 20000), range(100))
def both(a, b): return a[:len(a) // 2] + b[:len(b) // 2]
for _ in range(3): parts = [client.submit(both, a, b) for a, b in zip(parts, parts[1:] + parts[:1])]
import hashlib
print(hashlib.sha256(b"".join(client.gather(parts))).hexdigest())
print(sum(client.gather(client.map(lambda n: n * n, range(1000)))))
""")
    return place.ask("/usr/bin/python3", place.folder / "work.py")


@service("python3-celery", "python3-redis", "redis-server")
def celery(place):
    port = place.port()
    place.serve(port, "redis-server", "--port", port, "--save", "", "--dir", place.folder)
    place.write("jobs.py", f"""
import celery
app = celery.Celery("jobs", broker="redis://127.0.0.1:{port}/0", backend="redis://127.0.0.1:{port}/1")
@app.task
def square(n, text): return n * n, text[::-1]
""")
    place.environment["PYTHONPATH"] = str(place.folder)
    place.begin("/usr/bin/python3", "-m", "celery", "-A", "jobs", "worker", "-c", 3, "-l", "warning")
    place.write("ask.py", """
import jobs, celery
results = celery.group(jobs.square.s(n, "x" * n) for n in range(400))().get(timeout=50)
print(results[7], sum(n for n, _ in results), sum(len(text) for _, text in results))
""")
    return place.ask("/usr/bin/python3", place.folder / "ask.py")


@service("default-jdk-headless")
def java_rmi(place):
    port = place.port()
    place.write("Work.java", f"""
import java.rmi.*; import java.rmi.registry.*; import java.rmi.server.*; import java.util.*;
public class Work {{
  public interface Job extends Remote {{ byte[] turn(byte[] b) throws RemoteException; List<String> list(int n) throws RemoteException; }}
  static class Real implements Job {{
    public byte[] turn(byte[] b) {{ byte[] r = new byte[b.length]; for (int i = 0; i < b.length; i++) r[i] = b[b.length - 1 - i]; return r; }}
    public List<String> list(int n) {{ List<String> l = new ArrayList<>(); for (int i = 0; i < n; i++) l.add("s" + i * 31); return l; }}
  }}
  static Real real;
  public static void main(String[] a) throws Exception {{
    if (a[0].equals("serve")) {{
      Registry r = LocateRegistry.createRegistry({port}); real = new Real();
      r.bind("job", UnicastRemoteObject.exportObject(real, {port})); Thread.sleep(1000000000);
    }}
    Job job = (Job) LocateRegistry.getRegistry("127.0.0.1", {port}).lookup("job");
    Thread[] all = new Thread[4]; long[] sums = new long[4];
    for (int t = 0; t < 4; t++) {{ int me = t; all[t] = new Thread(() -> {{ try {{
      for (int i = 1; i < 300; i++) {{ byte[] b = new byte[i * 300 * (me + 1)]; new Random(i).nextBytes(b);
        sums[me] = sums[me] * 31 + Arrays.hashCode(job.turn(b)) + job.list(i).hashCode(); }} }} catch (Exception e) {{ throw new RuntimeException(e); }} }}); all[t].start(); }}
    for (Thread t : all) t.join();
    System.out.println(Arrays.toString(sums));
  }}
}}
""")
    place.prepare("javac", "-d", place.folder, place.folder / "Work.java")
    run = ["java", "-Djava.rmi.server.hostname=127.0.0.1", "-cp", place.folder, "Work"]
    place.serve(port, *run, "serve")
    return place.ask(*run, "ask")


@service("ruby")
def ruby_drb(place):
    port = place.port()
    place.write("serve.rb", f"""
require "drb"
class Store; def initialize; @all = {{}}; end; def put(k, v); @all[k] = v; nil; end; def get(k); @all[k]; end; end
DRb.start_service("druby://127.0.0.1:{port}", Store.new, load_limit: 1 << 26); DRb.thread.join
""")
    place.write("ask.rb", f"""
require "drb"; require "digest"
store = DRbObject.new_with_uri("druby://127.0.0.1:{port}")
4.times.map {{ |t| Thread.new {{ 300.times {{ |n| store.put([t, n], "x#{{n}}" * n * 20) }} }} }}.each(&:join)
puts Digest::SHA256.hexdigest((0...4).flat_map {{ |t| (0...300).map {{ |n| store.get([t, n]) }} }}.join)
""")
    place.serve(port, "ruby", place.folder / "serve.rb")
    return place.ask("ruby", place.folder / "ask.rb")


@service("libnet-server-perl", "libwww-perl", "apache2-utils")
def perl_prefork(place):
    port = place.port()
    place.write("serve.pl", f"""
package S; use parent "Net::Server::PreFork";
sub process_request {{ while (my $line = <STDIN>) {{ last if $line =~ /^quit/; chomp $line; print scalar(reverse $line), "\\n"; }} }}
S->run(host => "127.0.0.1", port => {port}, ipv => 4, min_servers => 3, max_servers => 6, no_client_stdout => 0);
""")
    place.serve(port, "perl", place.folder / "serve.pl")
    place.write("ask.py", f"""
import socket, threading, hashlib
out = [None] * 6
def work(t):
    s = socket.create_connection(("127.0.0.1", {port})); f = s.makefile("rb"); h = hashlib.sha256()
    for n in range(400):
        s.sendall(b"%d " % n + b"ab" * (n * (t + 1)) + b"\\n"); h.update(f.readline())
    s.sendall(b"quit\\n"); assert f.read() == b""; out[t] = h.hexdigest()
all_ = [threading.Thread(target=work, args=(t,)) for t in range(6)]
[t.start() for t in all_]; [t.join() for t in all_]; print(out)
""")
    return place.ask("/usr/bin/python3", place.folder / "ask.py")
