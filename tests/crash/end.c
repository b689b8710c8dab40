/* One end of a connection: it sends and receives what the plan says, and knows each byte by its place. */
#include "crash.h"
#include <poll.h>
#include <sys/uio.h>

/* A byte that says: what follows is numbered anew. No other byte of either end has this value. */
#define MARKER ((char)0xff)
/* The last byte of a round. */
#define GO_ON ((char)0x80)
#define STOP ((char)0x81)

void fail(struct end *e, const char *what, long value) {
    int number = errno;
    struct progress *p = e->progress, *o = &e->common->progress[1 - e->side];
    shared->failures++;
    fprintf(stderr, "seed %ld, connection %d, end %d.%d: %s (%ld; %s): phase %d round %d, sent %ld-%ld received %ld-%ld, other sent %ld-%ld received %ld-%ld, after %ld %ld\n",
            seed_, e->index, e->side, e->self, what, value, strerror(number), p->phase, p->round, p->sent, p->asked, p->received,
            p->wanted, o->sent, o->asked, o->received, o->wanted, e->after_sent, e->after_received);
    if (e->side == VICTIM) _exit(1);
    close(e->fd), e->mode = OVER, e->common->over[e->side] = 1;
}
int is_killed_alone(const struct end *e) { return e->link->family == ALONE && e->link->fate != LIVES; }

/* ---- bytes ------------------------------------------------------------------------------------ */

static uint64_t stream_of(const struct end *e, int side, int stream) {
    return (uint64_t)(side * 2 + stream + 4 * e->index) << 56 ^ (uint64_t)seed_ << 32;
}
static void fill(const struct end *e, int stream, long at, char *to, long n) { pattern(stream_of(e, e->side, stream), at, to, n); }
/* The first of these bytes that is not the one of its place, or n. */
static long agrees(const struct end *e, int stream, long at, const char *from, long n) {
    long i = 0;
    while ((i += agreeing(stream_of(e, 1 - e->side, stream), at + i, from + i, n - i)) < n) {
        if (e->side != SURVIVOR || stream || (from[i] != GO_ON && from[i] != STOP)) break;
        i++;
    }
    return i;
}
static long after(const struct end *e, int side) {
    return 1 + (long)(mixed((uint64_t)(seed_ * 8 + e->index * 2 + side)) % 60000);
}

/* ---- steps ------------------------------------------------------------------------------------ */

static const struct phase *phase_of(const struct end *e) { return &e->link->phases[e->progress->phase]; }
static void set_quotas(struct end *e) {
    const struct phase *f = phase_of(e);
    int by = e->progress->round % 2 ? 1 - f->by : f->by;
    long own = 0, others = 0;
    if (f->kind == BOTH_WAYS) own = f->by == e->side ? f->bytes : f->back, others = f->by == e->side ? f->back : f->bytes;
    else if (f->kind == STREAM || f->kind == EXCHANGE || f->kind == CONTROL) *(by == e->side ? &own : &others) = f->bytes;
    e->progress->to_send = own, e->progress->to_receive = others;
}
static void pass(struct end *e) {
    int error = pass_to_oneself(e->fd);
    if (error == NO_SOCKETS) return fail(e, "socketpair", 0);
    /* One whose peer is gone with something unread cannot be passed: docs/reference/handing-over.md. */
    if (error && error != EOPNOTSUPP) errno = error, fail(e, "pass", 0);
}
static void next_step(struct end *e) {
    struct progress *p = e->progress;
    const struct phase *f = phase_of(e);
    p->round++;
    if (p->round >= (f->kind == EXCHANGE ? f->rounds * 2 : f->kind == CONTROL ? 2 : 1)) {
        p->round = 0;
        p->phase = (p->phase + 1) % e->link->count;
        f = phase_of(e);
        if (f->by == e->side && f->kind == PAUSE) rest(f->pause);
        if (f->by == e->side && f->kind == PASSED && (e->side == SURVIVOR || e->link->family == ALONE)) pass(e);
    }
    set_quotas(e);
    p->steps++;
}
void begin(struct end *e) {
    e->progress = &e->common->progress[e->side];
    e->located = 1;
    set_quotas(e);
}

/* ---- calls ------------------------------------------------------------------------------------ */

static int is_nonblocking(const struct end *e) {
    enum style style = e->side == SURVIVOR && !plan.threads ? plan.loop : e->link->style[e->side];
    return style == EPOLL || style == EDGE;
}
static ssize_t put(struct end *e, const char *from, long n, int may_wait) {
    before_call(e);
    int flags = may_wait || is_nonblocking(e) ? 0 : MSG_DONTWAIT;
    if (n > 2 && e->progress->sent % 5 == 1 && !flags) {
        struct iovec two[2] = {{(char *)from, (size_t)n / 2}, {(char *)from + n / 2, (size_t)(n - n / 2)}};
        return writev(e->fd, two, 2);
    }
    return send(e->fd, from, (size_t)n, MSG_NOSIGNAL | flags);
}
static ssize_t get(struct end *e, long n, int may_wait) {
    before_call(e);
    int flags = may_wait || is_nonblocking(e) ? 0 : MSG_DONTWAIT;
    if (may_wait && e->link->style[e->side] == WAITALL) flags |= MSG_WAITALL;
    if (!flags && n % 2) return read(e->fd, e->buffer, (size_t)n);
    return recv(e->fd, e->buffer, (size_t)n, flags);
}
static int is_later(void) { return errno == EAGAIN || errno == EINTR; }

static void is_over(struct end *e) {
    close(e->fd), e->mode = OVER;
    e->common->over[e->side] = 1;
}
/* Whether an end that is killed may lose what it sent: its connection goes back to TCP (docs/reference/handing-over.md). */
static int may_lose(const struct end *e) {
    /* Clocks that jump make it idle. */
    if (surroundings == CLOCKS_JUMP || surroundings == BETWEEN_HOSTS) return 1;
    for (int i = 0; i < e->link->count; i++)
        if (e->link->phases[i].kind == PASSED) return 1;
    return 0;
}
/* The one that was killed left this end alone. */
static void end_killed(struct end *e, int was_reset) {
    struct progress *own = e->progress, *other = &e->common->progress[VICTIM];
    if (own->received > other->asked) return fail(e, "more than was sent", own->received - other->asked);
    if (own->received < other->sent) {
        if (!was_reset && !e->broken && !may_lose(e)) return fail(e, "the stream ended early, missing", other->sent - own->received);
        shared->resets_short++;
    }
    if (was_reset) {
        shared->resets++;
        if (own->sent == other->received && surroundings != BETWEEN_HOSTS) return fail(e, "a reset with nothing unread", 0);
    } else if (own->sent > other->wanted && !e->broken) {
        shared->ends_for_resets++;
    }
    char byte = 0;
    for (int i = 0; send(e->fd, &byte, 1, MSG_NOSIGNAL) >= 0; i++) {
        if (i == 1000) return fail(e, "sends to nobody go on", i);
        rest(1000);
    }
    if (errno != EPIPE && errno != ECONNRESET) return fail(e, "a send to nobody", errno);
    struct pollfd p = {e->fd, POLLIN | POLLOUT, 0};
    if (poll(&p, 1, 10000) != 1 || !(p.revents & POLLHUP)) return fail(e, "poll of an ended one", p.revents);
    ssize_t k = recv(e->fd, &byte, 1, 0);
    if (k != 0 && !(k < 0 && errno == ECONNRESET)) return fail(e, "a receive after the end", k);
    is_over(e);
}

/* Takes bytes of the second numbering. */
static void take_after(struct end *e, const char *from, long n) {
    long right = agrees(e, 1, e->after_received, from, n);
    if (right < n) return fail(e, "a wrong byte after the marker at", e->after_received + right);
    e->after_received += n;
}
/* Where a killed relative's last receive stopped, nobody knows: the bytes tell. They have to lie within that receive. */
static void locate(struct end *e, long n) {
    struct progress *p = e->progress;
    /* Too few tell nothing, but then the other end has sent no more. */
    int is_whole = n == sizeof e->head;
    long first = is_whole ? p->received : e->common->progress[1 - e->side].sent - n;
    for (long at = first; at >= p->received && at <= (is_whole ? p->wanted : first) && at <= p->wanted; at++) {
        if (agrees(e, 0, at, e->head, n) < n) continue;
        e->located = 1, p->received = at + n;
        return;
    }
    fail(e, "bytes that do not follow", n);
}
static void take(struct end *e, const char *from, long n) {
    struct progress *p = e->progress;
    while (n > 0 && !e->peer_marked && e->mode != OVER) {
        const char *mark = memchr(from, MARKER, (size_t)n);
        long before = mark ? mark - from : n;
        if (e->located) {
            long right = agrees(e, 0, p->received, from, before);
            if (right < before) return fail(e, "a wrong byte at", p->received + right);
            p->received += before, p->to_receive -= before;
            if (before == 1 && *from == STOP) e->mode = AFTERMATH;
        } else {
            before = least(before, (long)sizeof e->head - e->unlocated);
            memcpy(e->head + e->unlocated, from, (size_t)before);
            e->unlocated += before;
            if (e->unlocated == sizeof e->head || (mark && from + before == mark)) locate(e, e->unlocated);
        }
        from += before, n -= before;
        if (n == 0 || e->mode == OVER || *from != MARKER) continue;
        struct progress *other = &e->common->progress[1 - e->side];
        if (e->link->family == ALONE && e->link->fate != LIVES) return fail(e, "a wrong byte at", p->received);
        if (p->received < other->sent || p->received > other->asked) return fail(e, "bytes are missing before the marker", other->sent - p->received);
        e->peer_marked = 1, e->mode = AFTERMATH, from++, n--;
    }
    if (n > 0 && e->mode != OVER) take_after(e, from, n);
}

/* Between hosts the death of a relative may reset the connection. */
static int dies_with_a_relative(const struct end *e) {
    return surroundings == BETWEEN_HOSTS && e->link->family != ALONE && e->link->fate != LIVES;
}
/* 1: something came or the end did; 0: nothing yet. */
static int receive(struct end *e, long n, int may_wait) {
    struct progress *p = e->progress;
    int is_first = e->mode == STEPS;
    if (is_first) p->wanted = p->received + n;
    ssize_t k = get(e, n, may_wait);
    if (k > 0) take(e, e->buffer, k);
    if (is_first) p->wanted = (long)p->received;
    if (k > 0) return 1;
    if (k < 0 && is_later()) return 0;
    if (k < 0 && errno != ECONNRESET) return fail(e, "receive", errno), 1;
    if (is_killed_alone(e) && e->side == SURVIVOR) return end_killed(e, k < 0), 1;
    if (k < 0 && dies_with_a_relative(e)) return is_over(e), 1;
    if (k < 0 || e->mode == STEPS) return fail(e, k < 0 ? "a reset" : "the end in the middle", k), 1;
    if (!e->peer_marked || e->after_received != after(e, 1 - e->side)) return fail(e, "the end before the last byte", e->after_received), 1;
    return e->ended = 1;
}
static int transmit(struct end *e, const char *from, long n, int may_wait, long *sent) {
    ssize_t k = put(e, from, n, may_wait);
    if (k >= 0) return *sent = k, 1;
    if (is_later()) return 0;
    if ((errno == EPIPE || errno == ECONNRESET) && is_killed_alone(e) && e->side == SURVIVOR) return e->broken = 1, e->mode = DRAINING, 1;
    if ((errno == EPIPE || errno == ECONNRESET) && dies_with_a_relative(e)) return is_over(e), 1;
    return fail(e, "send", errno), 1;
}

/* ---- what an end does next -------------------------------------------------------------------- */

static short advance_after(struct end *e) {
    int moved = 0;
    long k = 0;
    if (!e->marked) {
        char mark = MARKER;
        if (transmit(e, &mark, 1, 0, &k)) e->marked = 1, moved = 1;
    } else if (!e->shut) {
        long n = least(after(e, e->side) - e->after_sent, 7000);
        fill(e, 1, e->after_sent, e->buffer, n);
        if (transmit(e, e->buffer, n, 0, &k)) e->after_sent += k, moved = 1;
        if (e->mode != OVER && e->after_sent == after(e, e->side)) shutdown(e->fd, SHUT_WR), e->shut = 1;
    }
    if (e->mode != OVER && !e->ended) moved |= receive(e, 9000, 0);
    if (e->mode != OVER && e->ended && e->shut) return is_over(e), 0;
    return moved ? 0 : (short)((e->ended ? 0 : POLLIN) | (e->shut ? 0 : POLLOUT));
}

/* Which part of a step is this process's. */
static int does(const struct end *e, int sends) {
    if (e->side == SURVIVOR || e->link->family == ALONE) return 1;
    if (e->link->family == TURNS) return e->progress->steps % 2 == e->self;
    return e->link->family == SPLIT ? e->self == sends : e->self == 1;
}
short advance(struct end *e, int may_wait) {
    struct progress *p = e->progress;
    if (e->mode == STEPS && e->common->dead) {
        if (e->side == VICTIM && !e->common->noticed) shared->taken_over++;
        if (e->side == VICTIM) e->common->noticed = 1, e->located = p->received == p->wanted;
        e->mode = AFTERMATH;
    }
    if (e->mode == AFTERMATH) return advance_after(e);
    if (e->mode == DRAINING) return receive(e, BUFFER, may_wait) ? 0 : POLLIN;
    if (e->mode == OVER) return 0;
    const struct phase *f = phase_of(e);
    /* Whose turn it is comes first: what a step needs is only certain within one's own turn. */
    int sends = does(e, 1) && p->to_send > 0, receives = does(e, 0) && p->to_receive > 0, moved = 0;
    if (!sends && !receives) {
        if (e->side == VICTIM && e->common->stop == 2) return close(e->fd), e->mode = OVER, 0;
        if (does(e, 0) && p->to_send == 0 && p->to_receive == 0) next_step(e);
        else rest(20);
        return 0;
    }
    may_wait &= !(sends && receives);
    if (sends) {
        long n = least(least(p->to_send, f->chunk), BUFFER), k = 0;
        fill(e, 0, p->sent, e->buffer, n);
        int is_control = f->kind == CONTROL && e->side == VICTIM, is_last = is_control && e->common->stop;
        /* Before it is sent: a relative must not begin another round. */
        if (is_last) e->common->stop = 2;
        if (is_control) e->buffer[0] = is_last ? STOP : GO_ON;
        p->asked = p->sent + n;
        if (transmit(e, e->buffer, n, may_wait, &k)) p->sent += k, p->to_send -= k, moved = 1;
        if (e->mode == STEPS) p->asked = (long)p->sent;
        if (moved && is_last && e->mode == STEPS) e->mode = AFTERMATH;
    }
    if (receives && e->mode == STEPS) moved |= receive(e, least(least(p->to_receive, f->read_chunk), BUFFER), may_wait);
    return moved ? 0 : (short)((sends ? POLLOUT : 0) | (receives ? POLLIN : 0));
}
