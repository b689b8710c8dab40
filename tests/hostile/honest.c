/* Honest connections: numbered bytes go to a peer and come back from it, and each is right. */
#include "hostile.h"
#include <poll.h>

/* Both ends know how long a round's message is. */
static long length_of(int index, long round) {
    return 1 + (long)(mixed((uint64_t)seed_ << 20 ^ (uint64_t)round << 2 ^ (uint64_t)index) % (1UL << plan.honest[index].bits));
}
uint64_t stream_of(int is_hostile, int index, int side) {
    return (uint64_t)(1 + is_hostile * 16 + index * 2 + side) << 56 ^ (uint64_t)seed_ << 32;
}

/* ---- the victim's end ------------------------------------------------------------------------- */

static char buffer[BUFFER];

short advance(struct exchange *x) {
    if (!x->is_waiting) {
        if (x->round == x->goal) return 0;
        x->to_send = x->to_receive = length_of(x->index, x->round), x->is_waiting = 1;
    }
    if (x->to_send > 0) {
        long n = least(x->to_send, BUFFER);
        pattern(stream_of(0, x->index, VICTIM), x->sent, buffer, n);
        begin_call();
        ssize_t k = send(x->fd, buffer, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
        end_call("send on an honest connection", TRANSFERS);
        if (k < 0 && errno == EAGAIN) return POLLOUT;
        if (k < 0) return fail("an honest send", errno), 0;
        x->sent += k, x->to_send -= k;
        return 0;
    }
    begin_call();
    ssize_t k = recv(x->fd, buffer, (size_t)least(x->to_receive, BUFFER), MSG_DONTWAIT);
    end_call("receive on an honest connection", TRANSFERS);
    if (k < 0 && errno == EAGAIN) return POLLIN;
    if (k <= 0) return fail("an honest receive", k < 0 ? errno : 0), 0;
    long right = agreeing(stream_of(0, x->index, PEER), x->received, buffer, k);
    if (right < k) return fail("a wrong byte on an honest connection at", x->received + right), 0;
    x->received += k, x->to_receive -= k;
    if (x->to_receive == 0) x->round++, x->is_waiting = 0, shared->rounds++;
    return 0;
}
void end_exchange(struct exchange *x) {
    shutdown(x->fd, SHUT_WR);
    if (recv(x->fd, buffer, 1, 0) != 0) fail("an honest end", errno);
    close(x->fd);
}

/* ---- the peer's ------------------------------------------------------------------------------- */

static void peer_fails(const char *what, long value) {
    fail(what, value);
    _exit(1);
}
void run_honest(int index) {
    const struct honest *h = &plan.honest[index];
    int listener = -1;
    if (!h->victim_listens) make_connection(&shared->honest[index].port, 1, &listener);
    int fd = make_connection(&shared->honest[index].port, !h->victim_listens, &listener);
    warm_up(fd, 1);
    long received = 0, sent = 0;
    for (long round = 0;; round++) {
        long n = length_of(index, round);
        for (long left = n; left > 0;) {
            ssize_t k = recv(fd, buffer, (size_t)least(left, BUFFER), 0);
            if (k == 0 && left == n) _exit(0);
            if (k <= 0) peer_fails("a receive of an honest peer", k < 0 ? errno : 0);
            long right = agreeing(stream_of(0, index, VICTIM), received, buffer, k);
            if (right < k) peer_fails("a wrong byte at an honest peer at", received + right);
            received += k, left -= k;
        }
        if (shared->is_paced) rest(1000);
        for (long left = n; left > 0;) {
            pattern(stream_of(0, index, PEER), sent, buffer, least(left, BUFFER));
            ssize_t k = send(fd, buffer, (size_t)least(left, BUFFER), MSG_NOSIGNAL);
            if (k <= 0) peer_fails("a send of an honest peer", errno);
            sent += k, left -= k;
        }
    }
}
