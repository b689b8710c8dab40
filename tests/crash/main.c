/* Kills processes, and looks at what their peers and relatives see.
 *
 *   crash FIRST COUNT     runs COUNT plans, of the seeds from FIRST on. From a thousand million on ten thousand seeds are one plan
 *                         that kills at one instruction after the other.
 *
 * A survivor has connections to several victims, each of them one process or two that share the connection by fork. Numbered bytes
 * go in both directions. SIGKILL ends victims: after a time, after a call, by a timer within a call, while they are stopped, or at an
 * instruction within a call, to which ptrace leads them. The survivor reads a correct prefix and then what TCP gives. A relative goes
 * on where the killed one was, and other connections go on. At the end the survivor has as many descriptors, mappings and pages as it
 * had. A plan that goes wrong, or hangs, is printed with its seed. The variable CRASH_WITH says what is the matter with the machine. */
#include "crash.h"
#include <sys/mman.h>
#include <sys/prctl.h>

enum { HANG_S = 40, SETTLED = 60 };
struct shared *shared;
struct plan plan;
long seed_;

static struct worker survivor;

static int has_children(pid_t but) {
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0) {
        if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
            fprintf(stderr, "seed %ld: a process ended by signal %d\n", seed_, WTERMSIG(status));
            shared->failures++;
        }
        if (pid == but) survivor.pid = 0;
    }
    for (int i = 0; i < plan.count; i++)
        for (int n = 0; n < 2; n++)
            if (shared->links[i].pids[n] > 0 && kill(shared->links[i].pids[n], 0) == 0) return 1;
    return 0;
}
static void say_where(void) {
    for (int i = 0; i < plan.count; i++) {
        struct common *c = &shared->links[i];
        for (int s = 0; s < 2; s++) {
            struct progress *p = &c->progress[s];
            fprintf(stderr, "  %d.%d: over %d, phase %d round %d, to send %ld to receive %ld, sent %ld-%ld received %ld-%ld\n", i, s, c->over[s],
                    p->phase, p->round, p->to_send, p->to_receive, p->sent, p->asked, p->received, p->wanted);
        }
        fprintf(stderr, "     calls %d, connected %d, dead %d, noticed %d, stop %d, processes %d %d\n", c->calls, c->connected, c->dead, c->noticed,
                c->stop, c->pids[0], c->pids[1]);
    }
}

/* Runs one plan; true if all went as over TCP. */
static int run(long seed, struct footprint *footprint) {
    plan = plan_of(seed), seed_ = seed;
    int64_t clock = shared->clock;
    memset(shared, 0, sizeof *shared);
    shared->clock = clock;
    if (!survivor.pid) start_worker(&survivor, survive);
    pid_t first[MOST_CONNECTIONS] = {0};
    fflush(0);
    pid_t surrounding = surround_plan(seed);
    for (int i = 0; i < plan.count; i++)
        if ((first[i] = fork()) == 0) run_victim(i);
    ask_worker(&survivor, seed);
    pid_t storm = plan.storms || plan.stands_still ? start_storm(survivor.pid) : 0;
    kills.storms += plan.storms;
    int64_t deadline = awake_ns() + HANG_S * 1000000000LL;
    int is_done = kill_victims(deadline);
    for (int i = 0; i < plan.count; i++)
        if (!shared->links[i].stop) shared->links[i].stop = 1;
    int is_heard = 0;
    while (is_done && !is_heard && !(is_heard = hear_worker(&survivor, now_ns() + 50000000, footprint))) is_done = awake_ns() < deadline;
    if (surrounding > 0) kill(surrounding, SIGKILL);
    while (is_done && has_children(survivor.pid))
        if (rest(50), awake_ns() > deadline) is_done = 0;
    if (!is_done) {
        fprintf(stderr, "seed %ld: hangs\n", seed);
        say_where();
        if (getenv("CRASH_STOP")) fprintf(stderr, "survivor %d\n", survivor.pid), pause();
        shared->failures++;
        for (int i = 0; i < plan.count; i++) {
            if (first[i] > 0) kill(first[i], SIGKILL);
            for (int n = 0; n < 2; n++)
                if (shared->links[i].pids[n] > 0) kill(shared->links[i].pids[n], SIGKILL);
        }
        if (survivor.pid) kill(survivor.pid, SIGKILL);
        survivor.pid = 0;
    }
    if (storm > 0) waitpid(storm, 0, 0);
    while (!is_done && waitpid(-1, 0, __WALL) > 0) {}
    return shared->failures == 0;
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: crash FIRST COUNT\n");
        return 2;
    }
    long first = atol(arguments[1]), plans = atol(arguments[2]), wrong = 0, resets = 0, cut = 0, soft = 0, taken = 0;
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    surround();
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    /* Rests are short ones. */
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    signal(SIGPIPE, SIG_IGN);
    struct footprint now = {0};
    struct growth growth = {.settling = SETTLED, .descriptors = 4};
    int is_one_survivor = 1;
    for (long seed = first; seed < first + plans; seed++) {
        int is_right = run(seed, &now);
        resets += shared->resets, cut += shared->resets_short, soft += shared->ends_for_resets, taken += shared->taken_over;
        if (!is_right) describe(stderr, seed), wrong++;
        is_one_survivor &= survivor.pid != 0;
        note_footprint(&growth, seed - first, plans, &now);
        if (getenv("CRASH_SHOW")) printf("%ld: %ld descriptors, %ld mappings, %ld KiB\n", seed, now.descriptors, now.mappings, now.kib), fflush(stdout);
    }
    wrong += is_one_survivor && has_grown(&growth, plans);
    long made = 0;
    for (int i = 0; i < FATES; i++) made += kills.made[i];
    printf("%ld of %ld plans went wrong: %ld kills (%ld at times, %ld after calls, %ld by timers, %ld at instructions, %ld stopped), %ld of "
           "relatives, %ld taken over, %ld stops; %ld resets, %ld of them short, %ld ends for a reset\n",
           wrong, plans, made, kills.made[AT_TIME], kills.made[AFTER_CALLS], kills.made[BY_TIMER], kills.made[STEPPED], kills.made[WHILE_STOPPED],
           kills.relatives, taken, kills.storms, resets, cut, soft);
    if (survivor.pid) printf("survivor: %ld descriptors, %ld mappings, %ld KiB\n", now.descriptors, now.mappings, now.kib);
    if (survivor.pid) kill(survivor.pid, SIGKILL);
    leave_surroundings();
    return wrong != 0;
}
