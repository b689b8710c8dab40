/* Bytes that are known by their stream and their place in it. */
#include "plans.h"

static uint64_t word(uint64_t stream, long at) { return mixed((uint64_t)at >> 3 ^ stream); }

void pattern(uint64_t stream, long at, char *to, long n) {
    uint64_t w = word(stream, at);
    for (long i = 0; i < n; i++, at++) {
        if ((at & 7) == 0) w = word(stream, at);
        to[i] = (char)(w >> 8 * (at & 7) & 0x7f);
    }
}
long agreeing(uint64_t stream, long at, const char *from, long n) {
    uint64_t w = word(stream, at);
    for (long i = 0; i < n; i++, at++) {
        if ((at & 7) == 0) w = word(stream, at);
        if (from[i] != (char)(w >> 8 * (at & 7) & 0x7f)) return i;
    }
    return n;
}
