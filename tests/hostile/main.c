/* Peers that write anything into the memory of their connections, and what the process at the other ends does then.
 *
 *   hostile FIRST COUNT     runs COUNT plans, of the seeds from FIRST on
 *
 * A victim has honest connections and hostile ones. It transfers, polls, forks, spawns, shuts down, moves to the SAN and back. The
 * peer of a hostile connection writes into its memory: by the layout (fields, words of messages, whole forged messages, bells), or
 * anywhere. With HOSTILE_STILL in the environment, and natively, nobody writes: then each byte of those connections is right too.
 * What is checked: the victim neither crashes nor hangs; honest connections have each byte right; no call that may not wait sleeps
 * or works for long; once nobody writes any more honest work takes what it took before, in processor time, sleeps, calls and events
 * for nothing; and the victim has in the end what it had before. A plan that goes wrong, or hangs, is printed with its seed. */
#include "hostile.h"
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum { HANG_S = 40, SETTLED = 40, QUIET_S = 5 };
struct shared *shared;
struct plan plan;
long seed_;
int scribbles;
static struct worker victim;
static char sanctl[4096];

void fail(const char *what, long value) {
    int number = errno;
    shared->failures++;
    fprintf(stderr, "seed %ld: %s %ld (errno: %s)\n", seed_, what, value, strerror(number));
}

/* Brings the victim's connections back to TCP, as a user would. */
static pid_t run_sanctl(void) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    char number[16];
    snprintf(number, sizeof number, "%d", victim.pid);
    unsetenv("LD_PRELOAD");
    int none = open("/dev/null", O_WRONLY);
    dup2(none, 1), dup2(none, 2);
    execl(sanctl, "sanctl", "detach", "--wait", "0", number, "all", (char *)0);
    _exit(99);
}
static void start_peer(struct peer *peer, void run(int index), int index) {
    pid_t pid = fork();
    if (pid == 0) run(index);
    peer->pid = pid;
}
/* Ended children; true if the victim is one. */
static int reap(void) {
    int status, is_gone = 0;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (int i = 0; i < plan.hostile_count; i++)
            if (shared->hostile[i].pid == pid) shared->hostile[i].is_quiet = 1, shared->hostile[i].pid = 0;
        for (int i = 0; i < plan.honest_count; i++) {
            if (shared->honest[i].pid != pid) continue;
            shared->honest[i].pid = 0;
            if (status) fail("an honest peer ended with", status);
        }
        if (pid != victim.pid) continue;
        victim.pid = 0, is_gone = 1;
        fail("the victim ended with", status);
    }
    return is_gone;
}
static void end_peers(void) {
    for (int i = 0; i < plan.hostile_count; i++)
        if (shared->hostile[i].pid > 0) kill(shared->hostile[i].pid, SIGKILL), waitpid(shared->hostile[i].pid, 0, 0);
    for (int i = 0; i < plan.honest_count && shared->failures; i++)
        if (shared->honest[i].pid > 0) kill(shared->honest[i].pid, SIGKILL), waitpid(shared->honest[i].pid, 0, 0);
    for (int i = 0; i < plan.honest_count && !shared->failures; i++) {
        int status = 0;
        if (shared->honest[i].pid > 0 && waitpid(shared->honest[i].pid, &status, 0) > 0 && status) fail("an honest peer ended with", status);
    }
}

/* What peers did in all plans. */
static struct {
    long plans_written, writes, calls, segments, sleeps, victim_calls, empty, rounds, detached, quiet_cpu, reference_cpu;
    long due, used_sleeps, used_calls, used_cpu, asleep;
} sum;
static void add_up(void) {
    int has_written = 0;
    for (int i = 0; i < plan.hostile_count; i++) {
        struct peer *p = &shared->hostile[i];
        sum.writes += p->writes, sum.calls += p->calls, sum.segments += p->segments;
        has_written |= p->writes > 0;
    }
    sum.plans_written += has_written, sum.sleeps += shared->sleeps, sum.victim_calls += shared->calls, sum.empty += shared->empty;
    sum.due += shared->due, sum.used_sleeps += shared->used_sleeps, sum.used_calls += shared->used_calls, sum.used_cpu += shared->used_cpu;
    sum.asleep = most(sum.asleep, shared->asleep);
    sum.rounds += shared->rounds, sum.quiet_cpu += shared->quiet_cpu, sum.reference_cpu += shared->reference_cpu;
}

/* Runs one plan; true if all went well. */
static int run(long seed, struct footprint *footprint) {
    plan = plan_of(seed), seed_ = seed;
    memset(shared, 0, sizeof *shared);
    if (!victim.pid) start_worker(&victim, suffer);
    fflush(0);
    for (int i = 0; i < plan.honest_count; i++) start_peer(&shared->honest[i], run_honest, i);
    for (int i = 0; i < plan.hostile_count; i++) start_peer(&shared->hostile[i], run_hostile, i);
    ask_worker(&victim, seed);
    int64_t deadline = now_ns() + HANG_S * 1000000000LL, quiet_by = 0;
    int is_done = 0;
    while (!is_done && !reap() && now_ns() < deadline) {
        is_done = hear_worker(&victim, now_ns() + 2000000, footprint);
        if (shared->detach) shared->detach = 0, sum.detached++, run_sanctl();
        if (!shared->quiet) continue;
        if (!quiet_by) quiet_by = now_ns() + QUIET_S * 1000000000LL;
        /* One whose own library does not come back any more. */
        for (int i = 0; i < plan.hostile_count && now_ns() > quiet_by; i++)
            if (!shared->hostile[i].is_quiet && shared->hostile[i].pid > 0) kill(shared->hostile[i].pid, SIGKILL);
    }
    if (!is_done) {
        fprintf(stderr, "seed %ld: hangs\n", seed);
        fprintf(stderr, "  the victim was last seen at line %d, quiet %d, %ld rounds, %d failures\n", shared->where, shared->quiet, shared->rounds,
                shared->failures);
        if (getenv("HOSTILE_STOP")) fprintf(stderr, "victim %d\n", victim.pid), pause();
        shared->failures++;
        if (victim.pid) kill(victim.pid, SIGKILL), waitpid(victim.pid, 0, 0);
        victim.pid = 0;
    } else if (shared->failures) {
        kill(victim.pid, SIGKILL), waitpid(victim.pid, 0, 0);
        victim.pid = 0;
    }
    end_peers();
    while (waitpid(-1, 0, WNOHANG) > 0) {}
    add_up();
    return shared->failures == 0;
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: hostile FIRST COUNT\n");
        return 2;
    }
    check_layout();
    long first = atol(arguments[1]), plans = atol(arguments[2]), wrong = 0;
    const char *library = getenv("LD_PRELOAD");
    scribbles = library && *library && !getenv("HOSTILE_STILL");
    if (library) snprintf(sanctl, sizeof sanctl, "%.*s/sanctl", (int)(strrchr(library, '/') - library), library);
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    signal(SIGPIPE, SIG_IGN), signal(SIGIO, SIG_IGN);
    struct footprint now = {0};
    /* An offer that nobody took is kept for ten seconds: three descriptors. */
    struct growth growth = {.settling = least(SETTLED, plans / 4), .descriptors = 64};
    int is_one_victim = 1;
    for (long seed = first; seed < first + plans; seed++) {
        if (!run(seed, &now)) describe(stderr, seed), wrong++;
        is_one_victim &= victim.pid != 0;
        note_footprint(&growth, seed - first, plans, &now);
        if (getenv("HOSTILE_SHOW")) printf("%ld: %ld descriptors, %ld mappings, %ld KiB\n", seed, now.descriptors, now.mappings, now.kib), fflush(stdout);
    }
    wrong += is_one_victim && has_grown(&growth, plans);
    printf("%ld of %ld plans went wrong: peers wrote %ld times in %ld plans, into %ld segments, and made %ld calls; %ld honest rounds, %ld detached\n",
           wrong, plans, sum.writes, sum.plans_written, sum.segments, sum.calls, sum.rounds, sum.detached);
    printf("victim: %ld sleeps in %ld calls that may not wait, %ld us at most; for %ld things due %ld sleeps, %ld reads and writes, "
           "%ld events for nothing, %ld us; then %ld us where %ld were needed before\n",
           sum.sleeps, sum.victim_calls, sum.asleep, sum.due, sum.used_sleeps, sum.used_calls, sum.empty, sum.used_cpu, sum.quiet_cpu, sum.reference_cpu);
    if (victim.pid) printf("victim in the end: %ld descriptors, %ld mappings, %ld KiB\n", now.descriptors, now.mappings, now.kib);
    return wrong != 0;
}
