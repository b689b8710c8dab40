/* Has ends go on as far as they can, and waits for them by the style's call. */
#include "crash.h"
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/select.h>

static void wait_by_poll(struct end *ends, const short *wanted, int count) {
    struct pollfd p[MOST_CONNECTIONS];
    int n = 0;
    for (int i = 0; i < count; i++)
        if (ends[i].mode != OVER) p[n++] = (struct pollfd){ends[i].fd, wanted[i], 0};
    poll(p, (nfds_t)n, -1);
}
static void wait_by_select(struct end *ends, const short *wanted, int count) {
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    int most = 0;
    for (int i = 0; i < count; i++) {
        if (ends[i].mode == OVER) continue;
        if (wanted[i] & POLLIN) FD_SET(ends[i].fd, &in);
        if (wanted[i] & POLLOUT) FD_SET(ends[i].fd, &out);
        if (ends[i].fd >= most) most = ends[i].fd + 1;
    }
    select(most, &in, &out, 0, 0);
}
struct set { int fd, is_edge; uint32_t registered[MOST_CONNECTIONS]; };
static void wait_by_epoll(struct set *set, struct end *ends, const short *wanted, int count) {
    struct epoll_event event;
    for (int i = 0; i < count; i++) {
        if (ends[i].mode == OVER) continue;
        uint32_t events = set->is_edge ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
                                       : (wanted[i] & POLLIN ? EPOLLIN : 0u) | (wanted[i] & POLLOUT ? EPOLLOUT : 0u);
        if (events == set->registered[i]) continue;
        event = (struct epoll_event){.events = events};
        if (epoll_ctl(set->fd, set->registered[i] ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, ends[i].fd, &event)) fail(&ends[i], "epoll_ctl", errno);
        set->registered[i] = events;
    }
    epoll_wait(set->fd, &event, 1, -1);
}

void drive(struct end *ends, int count, enum style style) {
    int may_wait = count == 1 && (style == BLOCKING || style == WAITALL);
    struct set set = {.fd = -1, .is_edge = style == EDGE};
    if (style == EPOLL || style == EDGE) set.fd = epoll_create1(EPOLL_CLOEXEC);
    for (;;) {
        short wanted[MOST_CONNECTIONS];
        int live = 0, is_idle = 1;
        for (int i = 0; i < count; i++) {
            wanted[i] = advance(&ends[i], may_wait);
            if (ends[i].mode == OVER) continue;
            live = 1, is_idle &= wanted[i] != 0;
        }
        if (!live) break;
        if (!is_idle) continue;
        if (set.fd >= 0) wait_by_epoll(&set, ends, wanted, count);
        else if (style == BUSY) sched_yield();
        else if (style == SELECT) wait_by_select(ends, wanted, count);
        else wait_by_poll(ends, wanted, count);
    }
    if (set.fd >= 0) close(set.fd);
}
