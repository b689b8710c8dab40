/* What a process or a thread used: what it looked at costs time of its own, and what it waited for or asked the kernel is counted. */
#include "hostile.h"
#include <sys/resource.h>

static long cpu_us(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}
/* Calls that read or write a file, pipe or eventfd: bells too. */
static long io_calls(void) {
    FILE *io = fopen("/proc/self/io", "r");
    char line[128];
    long sum = 0, n;
    while (io && fgets(line, sizeof line, io))
        if (sscanf(line, "syscr: %ld", &n) == 1 || sscanf(line, "syscw: %ld", &n) == 1) sum += n;
    if (io) fclose(io);
    return sum;
}
struct count count_now(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (struct count){cpu_us(CLOCK_PROCESS_CPUTIME_ID), usage.ru_nvcsw, io_calls()};
}
struct count used_since(struct count before) {
    struct count now = count_now();
    return (struct count){now.cpu_us - before.cpu_us, now.sleeps - before.sleeps, now.calls - before.calls};
}
long thread_sleeps(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}
long thread_cpu_us(void) { return cpu_us(CLOCK_THREAD_CPUTIME_ID); }
