/* The process, or the family of processes, with the other end of a connection. Some of them are killed. */
#include "crash.h"
#include <sched.h>
#include <sys/resource.h>

static char buffer[BUFFER];
static struct end end_;
static int is_done;

/* One that is to die within a call says so before it. */
void before_call(struct end *e) {
    if (e->side != VICTIM) return;
    int call = ++e->common->calls;
    const struct link *l = e->link;
    if (is_done || e->self != l->target || call < l->calls) return;
    if (l->fate == BY_TIMER) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
        timer_t timer;
        if (timer_create(CLOCK_MONOTONIC, &event, &timer)) return;
        is_done = 1;
        timer_settime(timer, 0, &(struct itimerspec){.it_value.tv_nsec = l->delay}, 0);
    } else if (l->fate == STEPPED) {
        is_done = 1;
        e->common->step_me = 1;
        while (!e->common->stepped) sched_yield();
        /* From here the instructions count. */
        kill(getpid(), SIGSTOP);
    }
}

/* Some for what the program itself does, and not enough for the library. */
static void limit(enum scarce scarce) {
    if (scarce == DESCRIPTORS) {
        int next = dup(0);
        close(next);
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)next + 8, (rlim_t)next + 8});
    } else if (scarce == ADDRESSES) {
        long pages = 0;
        FILE *statm = fopen("/proc/self/statm", "r");
        if (fscanf(statm, "%ld", &pages) != 1) pages = 1 << 20;
        fclose(statm);
        rlim_t most = (rlim_t)pages * 4096 + (4 << 20);
        setrlimit(RLIMIT_AS, &(struct rlimit){most, most});
    }
}

static void notice(int number) { (void)number; }

void run_victim(int index) {
    struct link *l = &plan.links[index];
    struct end *e = &end_;
    struct common *c = &shared->links[index];
    /* Nobody has to wait for a relative that is gone. */
    signal(SIGCHLD, SIG_IGN), signal(SIGPIPE, SIG_IGN);
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = notice}, 0);
    *e = (struct end){.side = VICTIM, .index = index, .common = c, .link = l, .buffer = buffer};
    limit(l->scarce);
    int listener = -1;
    if (!l->survivor_listens) make_connection(&c->port, 1, &listener);
    e->fd = make_connection(&c->port, !l->survivor_listens, &listener);
    enum style style = l->style[VICTIM];
    bring_to_san(l, e->fd, 1);
    if (style == EPOLL || style == EDGE) fcntl(e->fd, F_SETFL, O_RDWR | O_NONBLOCK);
    begin(e);
    c->pids[0] = getpid();
    if (l->family != ALONE) {
        pid_t child = fork();
        if (child < 0) fail(e, "fork", errno);
        if (child == 0) e->self = 1;
        if (child > 0) c->pids[1] = child, c->connected = 1;
    } else {
        c->connected = 1;
    }
    drive(e, 1, style);
    _exit(0);
}
