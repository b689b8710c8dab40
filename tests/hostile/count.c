/* What a process or a thread used: what it looked at costs time of its own, and what it waited for or asked the kernel is counted. */
#include "hostile.h"
#include <sys/resource.h>

static long cpu_us(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}
/* Calls that read or write a file, pipe or eventfd: bells too. Those of relatives that ended are among them. */
static long io_calls(void) {
    FILE *io = fopen("/proc/self/io", "r");
    char line[128];
    long sum = 0, n;
    while (io && fgets(line, sizeof line, io))
        if (sscanf(line, "syscr: %ld", &n) == 1 || sscanf(line, "syscw: %ld", &n) == 1) sum += n;
    if (io) fclose(io);
    return sum - shared->own_reads;
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

/* How long (us) the calling thread was ready to run and another one had the processor; -1: the kernel does not say. */
static long held_back_us(void) {
    static _Thread_local int fd = -1;
    static _Thread_local pid_t of;
    char text[96] = "";
    long ran = 0, waited = 0;
    if (fd < 0 || of != gettid()) fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC), of = gettid();
    shared->own_reads++;
    if (pread(fd, text, sizeof text - 1, 0) <= 0 || sscanf(text, "%ld %ld", &ran, &waited) != 2) return -1;
    return waited / 1000;
}
static long sleeps_of_thread(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}
/* The time is read last here and first there: a thread that is held back in between has not slept for that. */
struct span begin_span(void) {
    struct span b = {sleeps_of_thread(), cpu_us(CLOCK_THREAD_CPUTIME_ID), held_back_us(), 0};
    b.now_us = now_ns() / 1000;
    return b;
}
/* A thread that did not run and was not held back was asleep, however busy the machine is. */
struct span end_span(struct span b) {
    long now_us = now_ns() / 1000;
    struct span e = {sleeps_of_thread() - b.sleeps, cpu_us(CLOCK_THREAD_CPUTIME_ID) - b.cpu_us, 0, 0};
    long held_us = held_back_us();
    if (e.sleeps > 0 && held_us >= 0) e.now_us = most(0, now_us - b.now_us - e.cpu_us - (held_us - b.held_us));
    return e;
}
