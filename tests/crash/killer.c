/* Kills victims at the instants of the plan, and stops processes. */
#include "crash.h"
#include <sched.h>
#include <sys/ptrace.h>

struct kills kills;

int64_t awake_ns(void) {
    static int64_t last, lost;
    int64_t now = now_ns();
    if (last && now - last > 2000000000) lost += now - last;
    last = now;
    return now - lost;
}

static int is_gone(pid_t pid) {
    int status;
    waitpid(pid, &status, WNOHANG | __WALL);
    return kill(pid, 0) != 0;
}
/* Single steps into the call that the victim is about to make. One that sleeps there is killed asleep. */
static void step_and_kill(struct common *c, pid_t pid, long instructions, int64_t deadline) {
    int status;
    if (ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_EXITKILL)) perror("ptrace"), exit(2);
    c->stepped = 1;
    if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status)) return;
    for (long i = 0; i < instructions; i++) {
        if (ptrace(PTRACE_SINGLESTEP, pid, 0, 0)) break;
        int64_t asleep = now_ns() + 5000000;
        pid_t k;
        while ((k = waitpid(pid, &status, __WALL | WNOHANG)) == 0 && now_ns() < asleep) sched_yield();
        if (k != pid || !WIFSTOPPED(status) || awake_ns() > deadline) break;
    }
    kill(pid, SIGKILL);
}
/* Whether the relative makes all calls, so that the one to be killed never comes to its own. */
static int makes_no_call(const struct common *c, const struct link *l) { return l->family != ALONE && c->calls > l->calls + 1000; }
/* False: it took too long. */
static int kill_one(int index, int64_t deadline) {
    const struct link *l = &plan.links[index];
    struct common *c = &shared->links[index];
    int64_t before = 0;
    while (!c->connected)
        if (rest(20), awake_ns() > deadline) return 0;
    pid_t pid = c->pids[l->target];
    int waits_for_call = l->fate == AFTER_CALLS || l->fate == WHILE_STOPPED;
    for (long i = 0; waits_for_call && c->calls < l->calls; i++) {
        if (i % 1000 == 999 && awake_ns() > deadline) return 0;
        if (i % 20000 == 19999) rest(20);
    }
    before = now_ns();
    switch (l->fate) {
    case AT_TIME: rest(l->delay / 1000); break;
    case STEPPED:
        while (!c->step_me && !makes_no_call(c, l))
            if (rest(20), awake_ns() > deadline) return 0;
        if (c->step_me) step_and_kill(c, pid, l->delay, deadline);
        break;
    case BY_TIMER:
        while (!is_gone(pid) && !makes_no_call(c, l))
            if (rest(20), awake_ns() > deadline) return 0;
        break;
    case WHILE_STOPPED: kill(pid, SIGSTOP), rest(l->delay / 64); break;
    default:
        while (now_ns() < before + l->delay) {}
    }
    if (!is_gone(pid)) kill(pid, SIGKILL);
    kills.made[l->fate]++, kills.relatives += l->family != ALONE;
    while (!is_gone(pid))
        if (rest(20), awake_ns() > deadline) return 0;
    if (l->family == ALONE || (l->family == IDLE && l->target == 0)) return 1;
    c->dead = 1;
    /* The relative may be about to sleep: it hears of it again. */
    while (!c->noticed && !is_gone(c->pids[1 - l->target])) {
        kill(c->pids[1 - l->target], SIGUSR1), rest(300);
        if (awake_ns() > deadline) return 0;
    }
    return 1;
}
int kill_victims(int64_t deadline) {
    for (int i = 0; i < plan.count; i++)
        if (plan.links[i].fate != LIVES && !kill_one(i, deadline)) return 0;
    return 1;
}

static void send_to_all(pid_t survivor, int signal) {
    kill(survivor, signal);
    for (int i = 0; i < plan.count; i++)
        for (int n = 0; n < 2; n++)
            if (plan.links[i].fate != STEPPED && shared->links[i].pids[n] > 0) kill(shared->links[i].pids[n], signal);
}
pid_t start_storm(pid_t survivor) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    uint64_t state = (uint64_t)seed_;
    if (plan.stands_still) {
        rest(state & 4095);
        send_to_all(survivor, SIGSTOP), rest(plan.stands_still * 1000L), send_to_all(survivor, SIGCONT);
    }
    for (int i = 0; i < plan.storms; i++) {
        state = mixed(state);
        const struct link *l = &plan.links[state >> 8 & (MOST_CONNECTIONS - 1)];
        rest(state >> 16 & 1023);
        struct common *c = &shared->links[l - plan.links];
        pid_t stopped = state & 1 || l - plan.links >= plan.count || l->fate == STEPPED ? survivor : c->pids[state >> 1 & 1];
        if (stopped <= 0) continue;
        kill(stopped, SIGSTOP);
        rest(state >> 32 & 1023);
        kill(stopped, SIGCONT);
    }
    _exit(0);
}
