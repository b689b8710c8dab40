/* Many threads on one socket: all of them send records to one that receives, and then one sends a stream that all of them receive. */
#include "overload.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { RECORDS = 2000, CHUNK = 4096 };
#define STREAM (64u << 20)

/* A send of one is whole in the stream. */
struct record {
    uint32_t thread, number;
    uint64_t check;
};

static uint64_t check_of(uint32_t thread, uint32_t number) {
    return (thread * 0x9e3779b97f4a7c15u) ^ (number * 0xc2b2ae3d27d4eb4fu);
}

static int fd;

static void *send_records(void *which) {
    uint32_t thread = (uintptr_t)which;
    for (uint32_t number = 0; number < RECORDS; number++) {
        struct record record = {thread, number, check_of(thread, number)};
        if (send(fd, &record, sizeof record, MSG_NOSIGNAL) != sizeof record) fail_errno("send of thread %u", thread);
    }
    return NULL;
}

/* Those of each thread come in order. */
static void receive_records(int count) {
    uint32_t *next = calloc(count, sizeof *next);
    for (long left = (long)count * RECORDS; left > 0; left--) {
        struct record record;
        if (recv(fd, &record, sizeof record, MSG_WAITALL) != sizeof record) fail_errno("recv of a record");
        if (record.thread >= (uint32_t)count || record.check != check_of(record.thread, record.number))
            fail("wrong: a record of thread %u", record.thread);
        if (record.number != next[record.thread]++)
            fail("wrong: record %u of thread %u is out of order", record.number, record.thread);
    }
    free(next);
}

/* How often each byte came, to all threads together. */
static _Atomic uint64_t seen[256];

static void *receive_parts(void *unused) {
    uint64_t mine[256] = {0};
    unsigned char data[CHUNK];
    ssize_t got;
    while ((got = recv(fd, data, sizeof data, 0)) > 0)
        for (ssize_t i = 0; i < got; i++) mine[data[i]]++;
    if (got < 0) fail_errno("recv of a part");
    for (int byte = 0; byte < 256; byte++) seen[byte] += mine[byte];
    return unused;
}

static void send_stream(void) {
    static unsigned char data[1 << 16];
    for (uint64_t at = 0; at < STREAM; at += sizeof data) {
        for (size_t i = 0; i < sizeof data; i++) data[i] = byte_at(7, at + i);
        for (size_t sent = 0; sent < sizeof data;) {
            ssize_t now = send(fd, data + sent, sizeof data - sent, MSG_NOSIGNAL);
            if (now < 0) fail_errno("send of the stream");
            sent += now;
        }
    }
    if (shutdown(fd, SHUT_WR)) fail_errno("shutdown");
}

static void check_parts(void) {
    uint64_t wanted[256] = {0};
    for (uint64_t at = 0; at < STREAM; at++) wanted[byte_at(7, at)]++;
    for (int byte = 0; byte < 256; byte++)
        if (seen[byte] != wanted[byte])
            fail("wrong: byte %d came %llu times, not %llu", byte, (unsigned long long)seen[byte],
                 (unsigned long long)wanted[byte]);
}

static void run_all(int count, void *(*what)(void *)) {
    pthread_t *ids = calloc(count, sizeof *ids);
    for (int i = 0; i < count; i++) {
        int error = pthread_create(&ids[i], NULL, what, (void *)(uintptr_t)i);
        if (error) fail("thread %d does not start: %s", i, strerror(error));
    }
    for (int i = 0; i < count; i++) pthread_join(ids[i], NULL);
    free(ids);
}

int threads(int count) {
    int listener = listen_here(1);
    char word;
    fd = accept(listener, NULL, NULL);
    if (fd < 0) fail_errno("accept");
    run_all(count, send_records);
    say("sent");
    /* The other end says that it has all of them. */
    if (recv(fd, &word, 1, 0) != 1) fail_errno("recv between the parts");
    run_all(count, receive_parts);
    check_parts();
    say("ok");
    return 0;
}

int peer(int port, int count) {
    fd = connect_from(port, 1, 0);
    receive_records(count);
    if (send(fd, "r", 1, MSG_NOSIGNAL) != 1) fail_errno("send between the parts");
    send_stream();
    say("ok");
    return 0;
}
