/* Calls that may not wait, or not for long: whether they slept, or worked without end. */
#include "hostile.h"

/* Most sleeps of one call, and how long: naps of a close are for a peer that takes bytes back, and a new program's connections go to
 * TCP first (docs/security.md). Of calls that may not sleep a few do: a page has to be found, or a lock that another thread has. A
 * new process has to wait in the kernel, for its program to be there or while others change their groups: on a busy machine for long. */
static const struct { long sleeps, us; } limits[] = {[TRANSFERS] = {20, 30000}, [NAPS] = {600, 30000}, [STARTS] = {700, 40000000}};
enum { MOST_CPU_US = 200000 };
static _Atomic long calls, sleeps, longest;
static _Thread_local struct span before;

void begin_call(void) { before = begin_span(); }
void end_call(const char *what, enum patience patience) {
    int number = errno;
    struct span used = end_span(before);
    long most_sleeps = limits[patience].sleeps * (1 + 3 * (plan.style == THREADS)), most_us = limits[patience].us;
    const char *wrong = used.cpu_us > MOST_CPU_US ? "worked for us" : used.now_us > most_us ? "slept for us" : used.sleeps > most_sleeps ? "slept times" : 0;
    if (wrong) {
        fprintf(stderr, "seed %ld: a %s: %ld sleeps, %ld us asleep, %ld us of work\n", seed_, what, used.sleeps, used.now_us, used.cpu_us);
        fail(wrong, used.cpu_us > MOST_CPU_US ? used.cpu_us : used.now_us > most_us ? used.now_us : used.sleeps);
    }
    if (patience == TRANSFERS) calls++, sleeps += used.sleeps;
    if (patience != STARTS) longest = most(longest, used.now_us);
    errno = number;
}
void expect_no_waits(void) {
    long may_be = calls / (plan.style == THREADS ? 10 : 50) + 5;
    if (sleeps > may_be) fail("sleeps in calls that may not wait", sleeps);
    shared->calls += calls, shared->sleeps += sleeps, shared->asleep = most(shared->asleep, longest);
    calls = sleeps = longest = 0;
}
