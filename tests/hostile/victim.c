/* The process that hostile peers try to stop: all its connections, by one thread, or with threads for the hostile ones. */
#include "hostile.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>

enum { PACED = 40, SETTLING = 8, TRIES = 3, MOST_AFTERWARDS = 64 << 20 };
static struct exchange exchanges[MOST_HONEST];
static struct end ends[MOST_HOSTILE];
static char buffers[MOST_HOSTILE * 3][BUFFER];

/* ---- waiting ---------------------------------------------------------------------------------- */

/* Honest connections come first. */
enum { MOST = MOST_HONEST + MOST_HOSTILE };
static int set = -1;
static uint32_t registered[MOST];
static int fds[MOST];
static short wanted[MOST], came[MOST];

static void wait_by_poll(void) {
    struct pollfd p[MOST];
    int at[MOST], n = 0;
    for (int i = 0; i < MOST; i++)
        if (fds[i] >= 0) p[n] = (struct pollfd){fds[i], wanted[i], 0}, at[n++] = i;
    poll(p, (nfds_t)n, -1);
    for (int i = 0; i < n; i++) came[at[i]] = p[i].revents;
}
static void wait_by_select(void) {
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    int highest = 0;
    for (int i = 0; i < MOST; i++) {
        if (fds[i] < 0) continue;
        if (wanted[i] & POLLIN) FD_SET(fds[i], &in);
        if (wanted[i] & POLLOUT) FD_SET(fds[i], &out);
        if (fds[i] >= highest) highest = fds[i] + 1;
    }
    if (select(highest, &in, &out, 0, 0) < 0) return;
    for (int i = 0; i < MOST; i++)
        if (fds[i] >= 0) came[i] = (short)((FD_ISSET(fds[i], &in) ? POLLIN : 0) | (FD_ISSET(fds[i], &out) ? POLLOUT : 0));
}
static void wait_by_epoll(void) {
    for (int i = 0; i < MOST; i++) {
        if (fds[i] < 0) continue;
        uint32_t events = plan.style == EDGE ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET : (uint32_t)wanted[i] | EPOLLRDHUP;
        if (events == registered[i]) continue;
        struct epoll_event event = {.events = events, .data.u32 = (uint32_t)i};
        if (epoll_ctl(set, registered[i] ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fds[i], &event)) fail("epoll_ctl", errno);
        registered[i] = events;
    }
    struct epoll_event some[MOST];
    int n = epoll_wait(set, some, MOST, -1);
    for (int i = 0; i < n; i++) came[some[i].data.u32] = (short)some[i].events;
}
static void wait_for_any(void) {
    if (set >= 0) wait_by_epoll();
    else if (plan.style == SELECT) wait_by_select();
    else wait_by_poll();
}

/* ---- one round of the loop -------------------------------------------------------------------- */

/* Times that a wait returned and nothing had come. */
static long empty;

/* What came on a hostile connection; true if anything did. */
static int take(struct end *e, short events) {
    int took = 0;
    if (events & (POLLIN | POLLHUP | POLLERR | POLLRDHUP)) {
        do took += receive_once(e, 0) != 0;
        while (plan.style == EDGE && !e->is_over && took && took < 64 && receive_once(e, MSG_PEEK) > 0);
    }
    if (events & POLLOUT && !e->is_over && e->is_full) took += send_once(e, 4096, 0) != 0;
    return took || e->is_over;
}
static void forget(struct end *e) {
    int at = MOST_HONEST + e->index;
    /* A program takes what has ended out of its set. */
    if (set >= 0 && registered[at] && e->fd >= 0) epoll_ctl(set, EPOLL_CTL_DEL, e->fd, 0);
    registered[at] = 0, fds[at] = -1;
}
/* Goes on with the honest connections. True: one of them moved. What is left: whether one has not reached its goal. */
static int advance_all(int *is_left) {
    int moved = 0;
    for (int i = 0; i < plan.honest_count; i++) {
        struct exchange *x = &exchanges[i];
        if (x->round == x->goal) continue;
        wanted[i] = advance(x);
        moved |= wanted[i] == 0, *is_left |= x->round < x->goal;
        if (x->round == x->goal) wanted[i] = POLLIN;
    }
    return moved;
}
/* The same with the hostile ones; if `calls`, these go on to theirs. */
static int suffer_all(int calls, int *is_left) {
    int moved = 0, has_honest = *is_left;
    for (int i = 0; i < plan.hostile_count; i++) {
        struct end *e = &ends[i];
        if (came[MOST_HONEST + i] && !e->is_over) moved |= take(e, came[MOST_HONEST + i]);
        int has_calls = calls && e->fd >= 0 && e->calls < e->plan->victim_calls;
        *is_left |= has_calls;
        if (has_calls && (!has_honest || drawn(&e->state, 2))) call_once(e);
        if (e->is_over) forget(e);
        wanted[MOST_HONEST + i] = (short)(POLLIN | (e->is_full ? POLLOUT : 0));
    }
    memset(came, 0, sizeof came);
    return moved;
}
/* Until all have reached their goals. It waits where the honest ones wait. */
static void go_on(int calls) {
    for (int has_waited = 0;;) {
        int is_left = 0, has_moved = advance_all(&is_left), waits = is_left && !has_moved;
        has_moved |= suffer_all(calls, &is_left);
        if (!is_left || shared->failures) return;
        empty += has_waited && !has_moved;
        has_waited = waits && !has_moved;
        HERE();
        if (has_waited) wait_for_any();
    }
}
static void rounds(int more, int calls) {
    for (int i = 0; i < plan.honest_count; i++) exchanges[i].goal += more >= 0 ? more : plan.honest[i].rounds;
    go_on(calls);
}

/* ---- threads that wait ------------------------------------------------------------------------ */

static void *receive_all(void *argument) {
    struct end *e = argument;
    char *bytes = buffers[MOST_HOSTILE + 2 * e->index];
    ssize_t k;
    while ((k = recv(e->fd, bytes, BUFFER, 0)) > 0 || (k < 0 && errno == EINTR)) {
        if (k > 0 && !scribbles && agreeing(stream_of(1, e->index, PEER), e->received, bytes, k) < k) fail("a wrong byte in a thread", e->received);
        if (k > 0) e->received += k;
    }
    return argument;
}
static void *send_all(void *argument) {
    struct end *e = argument;
    char *bytes = buffers[MOST_HOSTILE + 2 * e->index + 1];
    for (ssize_t k = 0; k >= 0 || errno == EINTR; e->sent += most(k, 0)) {
        pattern(stream_of(1, e->index, VICTIM), e->sent, bytes, 7000);
        k = send(e->fd, bytes, 7000, MSG_NOSIGNAL);
        if (shared->quiet) rest(1000);
    }
    return argument;
}

/* ---- the plan --------------------------------------------------------------------------------- */

static void begin(void) {
    int honest[MOST_HONEST] = {-1, -1, -1}, hostile[MOST_HOSTILE] = {-1, -1};
    for (int i = 0; i < plan.honest_count; i++)
        if (plan.honest[i].victim_listens) make_connection(&shared->honest[i].port, 1, &honest[i]);
    for (int i = 0; i < plan.hostile_count; i++)
        if (plan.hostile[i].victim_listens) make_connection(&shared->hostile[i].port, 1, &hostile[i]);
    for (int i = 0; i < MOST; i++) fds[i] = -1, registered[i] = 0;
    memset(came, 0, sizeof came);
    for (int i = 0; i < plan.honest_count; i++) {
        int fd = fds[i] = make_connection(&shared->honest[i].port, plan.honest[i].victim_listens, &honest[i]);
        exchanges[i] = (struct exchange){.index = i, .fd = fd};
        warm_up(fd, 0);
    }
    for (int i = 0; i < plan.hostile_count; i++) {
        const struct hostile *h = &plan.hostile[i];
        int fd = make_connection(&shared->hostile[i].port, h->victim_listens, &hostile[i]);
        if (plan.style != THREADS) fds[MOST_HONEST + i] = fd;
        ends[i] = (struct end){.index = i, .fd = fd, .plan = h, .state = mixed((uint64_t)seed_ * 8 + (uint64_t)i), .buffer = buffers[i]};
        if (!h->is_early) warm_up(fd, 0);
    }
    set = plan.style == EPOLL || plan.style == EDGE ? epoll_create1(EPOLL_CLOEXEC) : -1;
}
/* One that transfers beside this process. */
static void await_relative(struct end *e) {
    int status = 0;
    if (e->beside > 0) waitpid(e->beside, &status, 0);
    if (WIFSIGNALED(status)) fail("a relative ended by signal", WTERMSIG(status));
    e->beside = 0;
}
/* The same honest work as before, where nobody writes any more: it takes as much. */
static void compare(struct count reference, long empty_before) {
    struct count used = {0};
    for (int try = 0; try < TRIES && !shared->failures; try++) {
        struct count before = count_now();
        empty = 0;
        rounds(PACED, 0);
        used = used_since(before);
        int is_right = used.cpu_us <= 3 * reference.cpu_us + 15000 && used.sleeps <= 3 * reference.sleeps + 100 &&
                       used.calls <= 3 * reference.calls + 200 && empty <= 3 * empty_before + PACED * plan.honest_count;
        shared->quiet_cpu += used.cpu_us, shared->reference_cpu += reference.cpu_us;
        if (is_right) return;
    }
    if (shared->failures) return;
    fprintf(stderr, "seed %ld: %ld us, %ld sleeps, %ld calls, %ld empty events; before: %ld us, %ld sleeps, %ld calls, %ld empty events\n", seed_,
            used.cpu_us, used.sleeps, used.calls, empty, reference.cpu_us, reference.sleeps, reference.calls, empty_before);
    fail("honest connections take more than before, although nobody writes", used.cpu_us);
}
/* What took more than it may, of something that was used. */
static void expect_at_most(const char *what, long used, long may_be) {
    if (used <= may_be) return;
    fprintf(stderr, "seed %ld: %s: %ld may be\n", seed_, what, may_be);
    fail(what, used);
}
/* While peers write: this process works for honest messages, for its own calls, and for the calls and rings of its peers. What they
 * write makes no work. Where nobody writes the most is 0.5 sleeps, 0.9 calls and 32 us for each of these. */
static void expect_little(struct count used) {
    long calls = 0, due = 0;
    for (int i = 0; i < plan.hostile_count; i++) calls += shared->hostile[i].calls, due += shared->hostile[i].rings + ends[i].calls;
    for (int i = 0; i < plan.honest_count; i++) due += plan.honest[i].rounds * (1 + (1 << plan.honest[i].bits) / BUFFER);
    due += calls;
    expect_at_most("events for nothing", empty, calls + 100);
    expect_at_most("sleeps", used.sleeps, due + 100);
    expect_at_most("reads and writes of bells", used.calls, 2 * due + 100);
    expect_at_most("microseconds of work", used.cpu_us, 150 * due + 100000);
    shared->empty += empty, shared->due += due, shared->used_sleeps += used.sleeps, shared->used_calls += used.calls, shared->used_cpu += used.cpu_us;
}
static void await_quiet(void) {
    shared->quiet = 1;
    for (;;) {
        int is_quiet = 1;
        for (int i = 0; i < plan.hostile_count; i++) is_quiet &= shared->hostile[i].is_quiet != 0;
        if (is_quiet || shared->failures) break;
        rounds(1, 0);
    }
    rounds(SETTLING, 0);
}
/* What is there of a connection whose peer was killed ends. */
static void read_out(struct end *e) {
    long all = 0;
    ssize_t k = 1;
    while (all < MOST_AFTERWARDS && (k = recv(e->fd, e->buffer, BUFFER, 0)) > 0) all += k;
    if (k > 0) fail("bytes without end from a peer that was killed", all);
}
static void end(struct end *e) {
    if (e->fd < 0) return;
    if (e->plan->killed_in_the_end) {
        /* Zero: it is gone. */
        pid_t peer = shared->hostile[e->index].pid;
        if (peer > 0) kill(peer, SIGKILL);
        HERE();
        if (plan.style != THREADS && !e->is_over) read_out(e);
    }
}
void suffer(long seed) {
    plan = plan_of(seed_ = seed);
    HERE();
    begin();
    HERE();
    shared->is_paced = 1, empty = 0;
    struct count before = count_now();
    rounds(PACED, 0);
    struct count reference = used_since(before);
    long empty_before = empty;
    shared->is_paced = 0, empty = 0;
    pthread_t threads[MOST_HOSTILE][2];
    for (int i = 0; plan.style == THREADS && i < plan.hostile_count; i++)
        pthread_create(&threads[i][0], 0, receive_all, &ends[i]), pthread_create(&threads[i][1], 0, send_all, &ends[i]);
    before = count_now();
    rounds(-1, 1);
    for (int i = 0; i < plan.hostile_count; i++) await_relative(&ends[i]);
    expect_little(used_since(before));
    expect_no_waits();
    shared->is_paced = 1;
    await_quiet();
    compare(reference, empty_before);
    shared->is_paced = 0;
    for (int i = 0; i < plan.hostile_count; i++) end(&ends[i]);
    for (int i = 0; plan.style == THREADS && i < plan.hostile_count; i++) {
        HERE();
        if (!plan.hostile[i].killed_in_the_end) shutdown(ends[i].fd, SHUT_RDWR);
        pthread_join(threads[i][0], 0);
        /* A writer on TCP learns late of a peer that made no room. */
        shutdown(ends[i].fd, SHUT_RDWR);
        HERE();
        pthread_join(threads[i][1], 0);
    }
    for (int i = 0; i < plan.hostile_count; i++) close_end(&ends[i]);
    expect_no_waits();
    HERE();
    for (int i = 0; i < plan.honest_count && !shared->failures; i++) end_exchange(&exchanges[i]);
    if (set >= 0) close(set);
    HERE();
}
