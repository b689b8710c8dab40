/* What the victim does with a hostile connection: calls that do not wait, and what programs do with their connections besides. */
#include "hostile.h"
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/ioctl.h>

extern char **environ;

/* ---- transfers -------------------------------------------------------------------------------- */

static int is_expected(int e) {
    return e == EAGAIN || e == EINTR || e == ECONNRESET || e == EPIPE || e == ENOTCONN || e == EINVAL || e == ETIMEDOUT;
}
static long result_of(struct end *e, const char *what, long k) {
    if (k >= 0) return k;
    if (!is_expected(errno)) fail(what, errno);
    if (errno == EAGAIN || errno == EINTR || errno == EINVAL) return 0;
    e->is_over = 1;
    return -1;
}
static void check_received(struct end *e, long k) {
    long right = scribbles || k <= 0 ? k : agreeing(stream_of(1, e->index, PEER), e->received, e->buffer, k);
    if (right < k) fail("a wrong byte of a peer that writes nowhere at", e->received + right);
}
long receive_once(struct end *e, int flags) {
    long n = 1 + drawn_bits(&e->state, 15);
    begin_call();
    ssize_t k = recv(e->fd, e->buffer, (size_t)n, MSG_DONTWAIT | flags);
    end_call(flags & MSG_PEEK ? "receive that peeks" : "receive", TRANSFERS);
    if (k == 0) return e->is_over = 1, -1;
    check_received(e, k);
    if (k > 0 && !(flags & MSG_PEEK)) e->received += k;
    return result_of(e, "a receive", k);
}
static long discard_once(struct end *e) {
    begin_call();
    ssize_t k = recv(e->fd, 0, 5000, MSG_DONTWAIT | MSG_TRUNC);
    end_call("receive that discards", TRANSFERS);
    if (k > 0) e->received += k;
    return result_of(e, "a receive that discards", k);
}
long send_once(struct end *e, long n, int flags) {
    pattern(stream_of(1, e->index, VICTIM), e->sent, e->buffer, n);
    begin_call();
    ssize_t k = send(e->fd, e->buffer, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL | flags);
    end_call(flags ? "urgent send" : "send", TRANSFERS);
    e->is_full = k < 0 && errno == EAGAIN;
    if (k > 0 && !flags) e->sent += k;
    return result_of(e, "a send", k);
}
static void look(struct end *e) {
    struct pollfd one = {e->fd, POLLIN | POLLOUT | POLLPRI, 0};
    int value = 0;
    socklen_t size = sizeof value;
    begin_call();
    switch (drawn(&e->state, 4)) {
    case 0: ioctl(e->fd, FIONREAD, &value); break;
    case 1: ioctl(e->fd, TIOCOUTQ, &value); break;
    case 2: getsockopt(e->fd, SOL_SOCKET, SO_ERROR, &value, &size); break;
    default: poll(&one, 1, 0); break;
    }
    end_call("look", TRANSFERS);
}
static void transfer(struct end *e) {
    switch (drawn(&e->state, 10)) {
    case 0: case 1: case 2: send_once(e, drawn_bits(&e->state, 15), 0); break;
    case 3: case 4: case 5: receive_once(e, 0); break;
    case 6: receive_once(e, MSG_PEEK); break;
    case 7: discard_once(e); break;
    default: look(e); break;
    }
}

/* ---- acts ------------------------------------------------------------------------------------- */

static void reap(pid_t child, const char *what) {
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) fail(what, WTERMSIG(status));
}
/* A relative: where bytes are checked it leaves them alone. */
static pid_t relative(struct end *e, int times) {
    begin_call();
    pid_t child = fork();
    end_call("fork", STARTS);
    if (child != 0) return child;
    for (int i = 0; i < times && !e->is_over; i++) {
        if (scribbles) transfer(e);
        else look(e);
    }
    _exit(0);
}
static void execute(struct end *e, int spawns) {
    char *arguments[] = {"true", 0};
    fcntl(e->fd, F_SETFD, 0);
    pid_t child = 0;
    begin_call();
    if (spawns && posix_spawnp(&child, "true", 0, 0, arguments, environ) != 0) child = 0;
    if (!spawns && (child = fork()) == 0) execvp("true", arguments), _exit(1);
    end_call(spawns ? "spawn" : "fork", STARTS);
    fcntl(e->fd, F_SETFD, FD_CLOEXEC);
    if (child > 0) reap(child, "a program ended by signal");
}
static void pass(struct end *e) {
    /* One whose peer is gone with something unread cannot be passed: docs/reference/handing-over.md. */
    if (pass_to_oneself(e->fd) == NO_SOCKETS) fail("socketpair", errno);
}
static void set_options(struct end *e) {
    setsockopt(e->fd, SOL_SOCKET, SO_RCVLOWAT, &(int){(int)drawn_bits(&e->state, 12)}, sizeof(int));
    setsockopt(e->fd, SOL_SOCKET, SO_SNDBUF, &(int){4096}, sizeof(int));
    setsockopt(e->fd, IPPROTO_TCP, 18 /* TCP_USER_TIMEOUT */, &(int){60000}, sizeof(int));
}
static void shut(struct end *e, int how) {
    begin_call();
    if (shutdown(e->fd, how) && errno != ENOTCONN) fail("shutdown", errno);
    end_call("shutdown", TRANSFERS);
}
void close_end(struct end *e) {
    if (e->fd < 0) return;
    begin_call();
    close(e->fd);
    end_call("close", NAPS);
    e->fd = -1, e->is_over = 1;
}
static void carry_out(struct end *e, enum act act) {
    int copy;
    switch (act) {
    case FORKS: reap(relative(e, 20), "a relative ended by signal"); break;
    case FORKS_BESIDE:
        if (!e->beside) e->beside = relative(e, 300);
        break;
    case SPAWNS: execute(e, 1); break;
    case EXECUTES: execute(e, 0); break;
    case ENDS_SENDING: shut(e, SHUT_WR); break;
    case ENDS_RECEIVING: shut(e, SHUT_RD); break;
    case ENDS_BOTH: shut(e, SHUT_RDWR); break;
    case DETACHES: shared->detach = 1; break;
    case ASYNCHRONOUS: {
        int flags = fcntl(e->fd, F_GETFL);
        fcntl(e->fd, F_SETFL, flags | O_ASYNC), fcntl(e->fd, F_SETFL, flags);
        break;
    }
    case PASSES: pass(e); break;
    case URGENT:
        if (scribbles) send_once(e, 1, MSG_OOB);
        break;
    case DUPLICATES:
        copy = fcntl(e->fd, F_DUPFD_CLOEXEC, 0);
        if (copy >= 0) recv(copy, e->buffer, 1, MSG_DONTWAIT | MSG_PEEK), close(copy);
        break;
    case OPTIONS: set_options(e); break;
    case RESETS:
        setsockopt(e->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
        if (plan.style != THREADS) close_end(e);
        break;
    case CLOSES:
        if (plan.style != THREADS) close_end(e);
        else shut(e, SHUT_RDWR);
        break;
    case ACTS: break;
    }
}
void call_once(struct end *e) {
    e->calls++;
    for (int i = 0; i < e->plan->count; i++)
        if (e->plan->steps[i].at == e->calls && e->fd >= 0) HERE(), carry_out(e, e->plan->steps[i].act);
    HERE();
    if (e->fd < 0 || e->is_over) return;
    /* Threads of its own transfer. */
    if (plan.style == THREADS) look(e);
    else transfer(e);
}
