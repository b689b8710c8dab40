/* Numbers drawn from a seed, the same everywhere, and time. */
#include "plans.h"
#include <sys/syscall.h>

uint64_t mixed(uint64_t z) {
    z += 0x9E3779B97F4A7C15ULL;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL, z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
    return z ^ z >> 31;
}
long drawn(uint64_t *state, long n) { return (long)((*state = mixed(*state)) >> 1) % n; }
long drawn_bits(uint64_t *state, int bits) { return 1 + drawn(state, 1L << (1 + drawn(state, bits))); }

int64_t now_ns(void) {
    struct timespec t;
    /* By its number: a program may have a clock_gettime of its own, for the library. */
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
void rest(long us) {
    if (us > 0) nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000L}, 0);
}
long least(long a, long b) { return a < b ? a : b; }
long most(long a, long b) { return a > b ? a : b; }
