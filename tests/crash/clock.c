/* Clocks that jump, for the library: its reference to clock_gettime is bound to this one, as the program is linked with -rdynamic. */
#include "crash.h"
#include <sys/syscall.h>

/* In all processes at once, or in each for itself. */
static _Atomic int64_t own, *ahead;
static _Atomic uint64_t state;

void jump_clocks(long seed) {
    state = mixed((uint64_t)seed);
    /* The monotonic clock does not go back, whichever it is. */
    if (own < shared->clock) own = (int64_t)shared->clock;
    if (shared->clock < own) shared->clock = (int64_t)own;
    ahead = seed & 1 ? &shared->clock : &own;
}
int clock_gettime(clockid_t clock, struct timespec *t) {
    long failed = syscall(SYS_clock_gettime, clock, t);
    if (failed || !ahead) return (int)failed;
    uint64_t next = state = mixed(state);
    /* Now and then by up to some five hours, mostly by much less. */
    if (next % 64 == 0) *ahead += 1 + (int64_t)(next >> 20 & ((1ULL << (next >> 8 & 44)) - 1));
    int64_t now = t->tv_sec * 1000000000LL + t->tv_nsec + *ahead;
    /* The time of day may go back as well. */
    if (clock == CLOCK_REALTIME && next & 64) now -= 2 * *ahead;
    t->tv_sec = now / 1000000000, t->tv_nsec = now % 1000000000;
    return 0;
}
