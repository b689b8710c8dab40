/* The process that has the other end of a hostile connection, and writes into its memory. */
#include "hostile.h"
#include <pthread.h>

static const struct hostile *own;
static struct peer *told;
static struct memory memory;
static uint64_t state;
static _Atomic int may_write;

static void write_some(int times) {
    if (!scribbles || !(own->is_early || may_write)) return;
    if (!memory.at || told->writes % 512 == 0) told->segments += find_memory(&memory);
    for (int i = 0; memory.at && i < times; i++) {
        told->rings += scribble(&memory, own, &state);
        told->writes++;
    }
}
static void *write_all_the_time(void *argument) {
    while (!shared->quiet) {
        write_some(1);
        if (!memory.at) rest(100);
    }
    told->is_quiet++;
    return argument;
}

static char buffer[BUFFER];
static long sent, received;
/* Its own calls may do what they like. Where nobody writes each byte is right. */
static void call(int fd, uint64_t *draws) {
    long n = 1 + drawn_bits(draws, 15);
    if (drawn(draws, 8) < own->sends) {
        pattern(stream_of(1, (int)(own - plan.hostile), PEER), sent, buffer, n);
        ssize_t k = send(fd, buffer, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k > 0) sent += k;
    }
    if (drawn(draws, 8) >= own->receives) return;
    ssize_t k = recv(fd, buffer, (size_t)n, MSG_DONTWAIT);
    if (k <= 0) return;
    long right = agreeing(stream_of(1, (int)(own - plan.hostile), VICTIM), received, buffer, k);
    if (!scribbles && right < k) fail("a wrong byte at a peer that writes nowhere at", received + right), _exit(1);
    received += k;
}
void run_hostile(int index) {
    own = &plan.hostile[index], told = &shared->hostile[index];
    uint64_t draws = mixed((uint64_t)seed_ * 4 + (uint64_t)index);
    state = mixed(draws);
    int listener = -1;
    if (!own->victim_listens) make_connection(&told->port, 1, &listener);
    int fd = make_connection(&told->port, !own->victim_listens, &listener);
    pthread_t writer;
    int has_writer = own->is_continuous && pthread_create(&writer, 0, write_all_the_time, 0) == 0;
    if (!own->is_early) warm_up(fd, 1);
    may_write = 1;
    for (int i = 1; i <= own->calls && !shared->quiet; i++) {
        call(fd, &draws);
        told->calls++;
        if (!has_writer) write_some(own->burst);
        if (i == own->killed_at) kill(getpid(), SIGKILL);
        if (i % 8 == 0) rest(drawn(&draws, 200));
    }
    while (!shared->quiet) rest(100);
    if (has_writer) pthread_join(writer, 0);
    else told->is_quiet++;
    for (;;) pause();
}
