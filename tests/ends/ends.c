/* Streams that end, at random: every byte is accounted for.
 *
 *   ends FIRST COUNT          runs COUNT plans, of the seeds from FIRST on
 *   ends FIRST COUNT unread   the same plans, but an end ends with something unread
 *   ends FIRST COUNT unkilled  the same plans, but an end that would be killed closes
 *
 * Two processes hold one connection. A plan says what they do with it: streams one way, exchanges, pauses, forks, programs
 * that they execute, and at last how an end ends. Both make the same plan from the seed. An end that ends has nothing unread,
 * so TCP delivers every byte and then the end of the stream. With `unread` it has something: TCP resets the connection, but
 * delivers what came before the reset, also to an end that has learnt of the reset by something else than a receive. The
 * receiver knows each byte by its place.
 * A plan that loses, doubles or changes a byte, or hangs, is printed with its seed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum kind { STREAM, EXCHANGE, PAUSE, FORKED, EXECUTED, KINDS };
enum end { CLOSED, EXITED, EXITED_AT_ONCE, KILLED, SHUT_WRITE, SHUT_BOTH, CLOSED_BY_EXEC, CLOSED_BY_THREAD, LINGERED, DUP_CLOSED,
           REPLACED, CLOSED_BY_CHILD, ENDS };
/* What an end does before it reads what its peer sent before it ended with something unread. */
enum first { NOTHING, SENDS, SENDS_TWICE, ASKS_FOR_THE_ERROR, POLLS, LOOKS, COUNTS, FIRSTS };
enum reading { READ, POLLED, SELECTED, EPOLLED, EDGE, WAITALL, NONBLOCKING, READINGS };
static const char *const ends[] = {"close", "exit", "_exit", "SIGKILL", "SHUT_WR", "SHUT_RDWR", "exec", "another thread's close",
                                   "linger", "dup and close", "dup2 over it", "a child's close"};
static const char *const firsts[] = {"nothing", "a send", "two sends", "SO_ERROR", "poll", "MSG_PEEK", "FIONREAD"};
static const char *const kinds[] = {"stream", "exchange", "pause", "fork", "exec"};
static const char *const readings[] = {"read", "poll", "select", "epoll", "edge", "waitall", "nonblocking"};

#define MOST_PHASES 8
struct phase {
    enum kind kind;
    int by;          /* the end that sends, forks or executes */
    long bytes;      /* of a stream, or of each message of an exchange */
    int rounds;
    int chunk;       /* bytes of a write */
    int slow;        /* so many writes have a pause before them */
    int slow_from;   /* from this write on */
    int pause;       /* microseconds */
    int read_chunk, read_pause, read_slow;
    enum reading reading;
    int writes_nonblocking;
};
struct plan {
    struct phase phases[MOST_PHASES];
    int count;
    int ender;       /* the end that ends first */
    enum end end, other_end;
    long back;       /* bytes that the other end sends after a half-close */
    long tail, left; /* bytes that an end sends before it ends, with so many unread */
    enum first first;
};
static enum variant { PLAIN, UNREAD, UNKILLED } variant;
static const char *const variants[] = {"", "unread", "unkilled"};

static uint64_t state;
static uint64_t draw(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state * 0x2545F4914F6CDD1DULL >> 11;
}
static long below(long n) { return (long)(draw() % (uint64_t)n); }
static long up_to(int bits) { return 1 + below(1L << (1 + below(bits))); }

static struct plan plan_of(long seed) {
    struct plan p = {0};
    state = 0x9E3779B97F4A7C15ULL * (uint64_t)(seed + 1) | 1;
    for (int i = 0; i < 8; i++) draw();
    p.count = 1 + (int)below(MOST_PHASES - 1);
    for (int i = 0; i < p.count; i++) {
        struct phase *f = &p.phases[i];
        static const enum kind odds[] = {STREAM, STREAM, STREAM, STREAM, EXCHANGE, EXCHANGE, EXCHANGE, PAUSE, FORKED, EXECUTED};
        f->kind = odds[below(10)];
        f->by = (int)below(2);
        f->bytes = f->kind == STREAM ? up_to(below(4) ? 20 : 22) : up_to(12);
        f->rounds = (int)up_to(7);
        f->chunk = (int)up_to(16);
        if (f->kind == STREAM && f->bytes / f->chunk > 4000) f->chunk = (int)(f->bytes / 4000);
        f->slow = below(2) ? 0 : (int)up_to(8);
        f->slow_from = below(2) ? 0 : (int)up_to(8);
        f->pause = (int)(f->kind == PAUSE ? up_to(12) : up_to(7));
        f->read_chunk = (int)up_to(17);
        if (f->kind == STREAM && f->bytes / f->read_chunk > 4000) f->read_chunk = (int)(f->bytes / 4000);
        f->read_pause = (int)up_to(7), f->read_slow = below(3) ? 0 : (int)up_to(7);
        f->reading = (enum reading)below(READINGS);
        f->writes_nonblocking = below(3) == 0;
    }
    p.ender = (int)below(2);
    p.end = (enum end)below(ENDS);
    p.other_end = (enum end)below(ENDS);
    p.back = below(2) ? 0 : up_to(20);
    p.tail = up_to(14), p.left = up_to(12), p.first = (enum first)below(FIRSTS);
    if (variant == UNREAD && (p.end == SHUT_WRITE || p.end == SHUT_BOTH)) p.end = CLOSED;
    if (variant == UNKILLED && p.end == KILLED) p.end = CLOSED;
    if (variant == UNKILLED && p.other_end == KILLED) p.other_end = CLOSED;
    return p;
}

static void describe(FILE *to, long seed) {
    struct plan p = plan_of(seed);
    fprintf(to, "seed %ld:", seed);
    for (int i = 0; i < p.count; i++) {
        struct phase *f = &p.phases[i];
        if (f->kind == STREAM)
            fprintf(to, " [%d streams %ld in %d, slow %d from %d by %d us, %s of %d%s]", f->by, f->bytes, f->chunk, f->slow,
                    f->slow_from, f->pause, readings[f->reading], f->read_chunk, f->writes_nonblocking ? ", nonblocking" : "");
        else if (f->kind == EXCHANGE)
            fprintf(to, " [%d exchanges %d times %ld, %s]", f->by, f->rounds, f->bytes, readings[f->reading]);
        else
            fprintf(to, " [%d: %s %d]", f->by, kinds[f->kind], f->pause);
    }
    if (variant == UNREAD)
        fprintf(to, " then %d sends %ld and ends, with %ld unread: %s; %d first: %s\n", p.ender, p.tail, p.left, ends[p.end],
                1 - p.ender, firsts[p.first]);
    else
        fprintf(to, " then %d ends: %s, back %ld, and %d: %s\n", p.ender, ends[p.end], p.back, 1 - p.ender,
                ends[p.other_end]);
}

/* One end. Its position in either direction is the number of bytes so far. */
static struct plan plan;
static long seed_;
static int role, fd, epoll_ = -1, is_edge;
static long sent, received;
static char buffer[1 << 18];

static void fail(const char *what, long value) {
    fprintf(stderr, "seed %ld, end %d: %s (%ld; sent %ld, received %ld; %s)\n", seed_, role, what, value, sent, received,
            strerror(errno));
    _exit(1);
}
static char byte_at(int from, long at) { return (char)((at * 31 + (at >> 8) * 7 + (at >> 16) * 3 + from * 101) & 0xff); }
static void rest(int us) {
    if (us > 0) nanosleep(&(struct timespec){0, us * 1000L}, 0);
}
static void set_nonblocking(int on) {
    int f = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, on ? f | O_NONBLOCK : f & ~O_NONBLOCK);
}
static void wait_for(short events) {
    struct pollfd p = {fd, events, 0};
    if (poll(&p, 1, -1) != 1) fail("poll", errno);
}

static void send_all(long bytes, int chunk, const struct phase *f) {
    long write_ = 0;
    if (f && f->writes_nonblocking) set_nonblocking(1);
    while (bytes > 0) {
        int n = bytes < chunk ? (int)bytes : chunk;
        if (n > (int)sizeof buffer) n = sizeof buffer;
        for (int i = 0; i < n; i++) buffer[i] = byte_at(role, sent + i);
        if (f && f->kind == STREAM && write_ >= f->slow_from && write_ < f->slow_from + f->slow) rest(f->pause);
        write_++;
        ssize_t k;
        if (n > 2 && write_ % 5 == 0) {
            struct iovec two[2] = {{buffer, (size_t)n / 2}, {buffer + n / 2, (size_t)(n - n / 2)}};
            k = writev(fd, two, 2);
        } else {
            k = send(fd, buffer, (size_t)n, MSG_NOSIGNAL);
        }
        if (k < 0 && errno == EAGAIN) {
            wait_for(POLLOUT);
            continue;
        }
        if (k <= 0) fail("send", k);
        sent += k, bytes -= k;
    }
    if (f && f->writes_nonblocking) set_nonblocking(0);
}

static void await_readable(enum reading how) {
    if (how == POLLED) {
        wait_for(POLLIN);
    } else if (how == SELECTED) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        if (select(fd + 1, &set, 0, 0, 0) != 1) fail("select", errno);
    } else if (how == EPOLLED || how == EDGE) {
        if (epoll_ >= 0 && is_edge != (how == EDGE)) close(epoll_), epoll_ = -1;
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (how == EDGE ? EPOLLET : 0)};
        if (epoll_ < 0) {
            epoll_ = epoll_create1(EPOLL_CLOEXEC), is_edge = how == EDGE;
            if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &e)) fail("epoll_ctl", errno);
        }
        if (epoll_wait(epoll_, &e, 1, -1) != 1) fail("epoll_wait", errno);
    }
}

/* At most so many bytes; 0: the end of the stream. */
static long receive_some(long most, const struct phase *f, long number) {
    enum reading how = f ? f->reading : READ;
    long chunk = f ? f->read_chunk : (long)sizeof buffer;
    if (chunk > (long)sizeof buffer) chunk = sizeof buffer;
    if (chunk > most) chunk = most;
    if (f && number < f->read_slow) rest(f->read_pause);
    ssize_t k;
    if (how == NONBLOCKING || how == EDGE) {
        /* Edges come only after EAGAIN. */
        while ((k = recv(fd, buffer, (size_t)chunk, MSG_DONTWAIT)) < 0 && errno == EAGAIN) await_readable(how == EDGE ? EDGE : POLLED);
    } else {
        if (how != READ && how != WAITALL) await_readable(how);
        k = how == READ ? read(fd, buffer, (size_t)chunk) : recv(fd, buffer, (size_t)chunk, how == WAITALL ? MSG_WAITALL : 0);
    }
    if (k < 0) fail("receive", k);
    for (long i = 0; i < k; i++)
        if (buffer[i] != byte_at(1 - role, received + i)) fail("a wrong byte at", received + i);
    received += k;
    return k;
}
static void receive_all(long bytes, const struct phase *f) {
    for (long number = 0; bytes > 0; number++) {
        long k = receive_some(bytes, f, number);
        if (k == 0) fail("the stream ended early, missing", bytes);
        bytes -= k;
    }
}
static void receive_end(void) {
    char more;
    ssize_t k = recv(fd, &more, 1, 0);
    if (k != 0) fail(k < 0 ? "no end of the stream" : "more than was sent", k);
}

static void *closes(void *unused) { return close(fd), unused; }

/* Ends this end. All that came is read. Returns after a half-close. */
static void end_by(enum end how) {
    pthread_t thread;
    struct linger linger = {1, 5};
    switch (how) {
    case CLOSED: close(fd); break;
    case EXITED: exit(0);
    case EXITED_AT_ONCE: _exit(0);
    case KILLED: raise(SIGKILL); break;
    case SHUT_WRITE: shutdown(fd, SHUT_WR); return;
    case SHUT_BOTH: shutdown(fd, SHUT_RDWR), close(fd); break;
    case CLOSED_BY_EXEC: fcntl(fd, F_SETFD, FD_CLOEXEC), execl("/bin/true", "true", (char *)0); fail("exec", errno); break;
    case CLOSED_BY_THREAD: pthread_create(&thread, 0, closes, 0), pthread_join(thread, 0); break;
    case LINGERED: setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), close(fd); break;
    case DUP_CLOSED: close(dup(fd)), close(fd); break;
    case REPLACED: dup2(2, fd), close(fd); break;
    case CLOSED_BY_CHILD: {
        pid_t child = fork();
        if (child == 0) rest(300), _exit(0);
        close(fd), waitpid(child, 0, 0);
        break;
    }
    default: break;
    }
    /* The process lives on for a moment: its exit must not be what ends the connection. */
    rest(2000);
    exit(0);
}

/* One end ends with something unread. The other one reads all that came before. */
static void end_with_unread(void) {
    const struct phase *last = &plan.phases[plan.count - 1];
    if (role == plan.ender) {
        int on = 1, unsent = 1;
        wait_for(POLLIN);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        send_all(plan.tail, (int)plan.tail, 0);
        /* The reset drops what the kernel keeps back. */
        while (ioctl(fd, SIOCOUTQNSD, &unsent) == 0 && unsent > 0) rest(100);
        rest(1000);
        end_by(plan.end);
    }
    struct pollfd end = {fd, POLLRDHUP, 0};
    struct iovec none = {0, 0};
    int error, count;
    socklen_t size = sizeof error;
    char byte;
    send_all(plan.left, (int)plan.left, 0);
    if (poll(&end, 1, -1) != 1) fail("poll", errno);
    rest(1000);
    switch (plan.first) {
    case SENDS_TWICE: writev(fd, &none, 1), send(fd, "x", 1, MSG_NOSIGNAL); /* fall through */
    case SENDS: send(fd, "x", 1, MSG_NOSIGNAL); break;
    case ASKS_FOR_THE_ERROR: getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size); break;
    case POLLS: wait_for(POLLIN | POLLOUT); break;
    case LOOKS:
        if (recv(fd, &byte, 1, MSG_PEEK) != 1) fail("nothing to look at", errno);
        break;
    case COUNTS:
        if (ioctl(fd, FIONREAD, &count) || count <= 0) fail("nothing to count", count);
        break;
    default: break;
    }
    receive_all(plan.tail, last);
    ssize_t k = recv(fd, &byte, 1, 0);
    if (k > 0 || (k < 0 && errno != ECONNRESET)) fail("neither an end nor a reset", k);
    exit(0);
}

static void run_from(int first) {
    for (int i = first; i < plan.count; i++) {
        struct phase *f = &plan.phases[i];
        if (f->kind == STREAM) {
            if (f->by == role) send_all(f->bytes, f->chunk, f);
            else receive_all(f->bytes, f);
        } else if (f->kind == EXCHANGE) {
            for (int r = 0; r < f->rounds; r++) {
                if (f->by == role) send_all(f->bytes, (int)f->bytes, f), receive_all(f->bytes, f);
                else receive_all(f->bytes, f), send_all(f->bytes, (int)f->bytes, f);
            }
        } else if (f->kind == PAUSE) {
            rest(f->pause);
        } else if (f->by == role && f->kind == FORKED) {
            /* The child goes on. The parent has the connection a while longer, or not. */
            pid_t child = fork();
            if (child < 0) fail("fork", errno);
            if (child > 0) {
                if (epoll_ >= 0) close(epoll_);
                if (f->pause & 1) close(fd);
                int status;
                if (waitpid(child, &status, 0) != child) fail("waitpid", errno);
                if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) raise(SIGKILL);
                _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
            }
            if (epoll_ >= 0) close(epoll_), epoll_ = -1;
        } else if (f->by == role && f->kind == EXECUTED) {
            char args[7][32];
            long values[] = {seed_, role, fd, i + 1, sent, received, variant};
            for (int a = 0; a < 7; a++) snprintf(args[a], sizeof args[a], "%ld", values[a]);
            if (f->pause & 1) unsetenv("LD_PRELOAD");
            execl("/proc/self/exe", "ends", "goes-on", args[0], args[1], args[2], args[3], args[4], args[5], args[6],
                  (char *)0);
            fail("exec", errno);
        }
    }
    if (variant == UNREAD) end_with_unread();
    const struct phase *last = &plan.phases[plan.count - 1];
    if (role == plan.ender) {
        end_by(plan.end);
        receive_all(plan.back, last);
        receive_end();
        close(fd);
        exit(0);
    }
    receive_end();
    if (plan.end == SHUT_WRITE) send_all(plan.back, last->chunk, 0);
    end_by(plan.other_end);
    close(fd);
    exit(0);
}

static int listen_(struct sockaddr_in *a) {
    socklen_t n = sizeof *a;
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(l, (void *)a, n) || listen(l, 8) || getsockname(l, (void *)a, &n)) perror("listen"), exit(2);
    return l;
}

/* Runs one plan; true if every byte came. */
static int run(long seed) {
    struct sockaddr_in address;
    int listener = listen_(&address), is_right = 1;
    pid_t processes[2];
    fflush(0);
    for (int r = 0; r < 2; r++) {
        processes[r] = fork();
        if (processes[r] != 0) continue;
        plan = plan_of(seed), seed_ = seed, role = r;
        signal(SIGPIPE, SIG_IGN);
        if (r == 0) {
            fd = accept(listener, 0, 0);
        } else {
            fd = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(fd, (void *)&address, sizeof address)) fail("connect", errno);
        }
        close(listener);
        if (fd < 0) fail("accept", errno);
        alarm(30);
        run_from(0);
    }
    close(listener);
    for (int r = 0; r < 2; r++) {
        int status;
        waitpid(processes[r], &status, 0);
        int killed = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        if (killed == SIGALRM) fprintf(stderr, "seed %ld, end %d: hangs\n", seed, r);
        else if (killed && killed != SIGKILL) fprintf(stderr, "seed %ld, end %d: signal %d\n", seed, r, killed);
        is_right &= killed == SIGKILL || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return is_right;
}

int main(int count, char **arguments) {
    if (count == 9 && strcmp(arguments[1], "goes-on") == 0) {
        long value[7];
        for (int a = 0; a < 7; a++) value[a] = atol(arguments[2 + a]);
        seed_ = value[0], role = (int)value[1], fd = (int)value[2], sent = value[4], received = value[5];
        variant = (enum variant)value[6];
        plan = plan_of(seed_);
        signal(SIGPIPE, SIG_IGN);
        alarm(30);
        run_from((int)value[3]);
    }
    while (count == 4 && variant <= UNKILLED && strcmp(arguments[3], variants[variant])) variant++;
    if ((count != 3 && count != 4) || variant > UNKILLED) {
        fprintf(stderr, "usage: ends FIRST COUNT [unread | unkilled]\n");
        return 2;
    }
    long first = atol(arguments[1]), plans = atol(arguments[2]), wrong = 0;
    for (long seed = first; seed < first + plans; seed++) {
        if (run(seed)) continue;
        describe(stderr, seed);
        wrong++;
    }
    printf("%ld of %ld plans went wrong\n", wrong, plans);
    return wrong != 0;
}
