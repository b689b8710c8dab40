/* The process that outlives its peers: it has one end of each connection, by a thread for each or one for all. */
#include "crash.h"
#include <pthread.h>

static char buffers[MOST_CONNECTIONS][BUFFER];
static struct end ends[MOST_CONNECTIONS];

static void *drive_one(void *end) {
    struct end *e = end;
    drive(e, 1, e->link->style[SURVIVOR]);
    return end;
}
void survive(long seed) {
    plan = plan_of(seed_ = seed);
    if (surroundings == CLOCKS_JUMP) jump_clocks(seed);
    int listeners[MOST_CONNECTIONS];
    for (int i = 0; i < plan.count; i++) {
        listeners[i] = -1;
        if (plan.links[i].survivor_listens) make_connection(&shared->links[i].port, 1, &listeners[i]);
    }
    for (int i = 0; i < plan.count; i++) {
        const struct link *l = &plan.links[i];
        struct end *e = &ends[i];
        *e = (struct end){.side = SURVIVOR, .index = i, .common = &shared->links[i], .link = l, .buffer = buffers[i]};
        e->fd = make_connection(&e->common->port, l->survivor_listens, &listeners[i]);
        if (l->small_buffer) setsockopt(e->fd, SOL_SOCKET, SO_SNDBUF, &(int){4096}, sizeof(int));
        bring_to_san(l, e->fd, 0);
        enum style style = plan.threads ? l->style[SURVIVOR] : plan.loop;
        if (style == EPOLL || style == EDGE) fcntl(e->fd, F_SETFL, O_RDWR | O_NONBLOCK);
        begin(e);
    }
    if (!plan.threads) return drive(ends, plan.count, plan.loop);
    pthread_t threads[MOST_CONNECTIONS];
    for (int i = 0; i < plan.count; i++) pthread_create(&threads[i], 0, drive_one, &ends[i]);
    for (int i = 0; i < plan.count; i++) pthread_join(threads[i], 0);
}
