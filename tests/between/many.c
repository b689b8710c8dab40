/* Many connections of two processes at a time: what they share of an adapter has to do for all of them. */
#include "between.h"
#include <sys/resource.h>

enum { ROUNDS = 30, REQUEST = 200, PAUSE_MS = 20, BURST = 20000, MOST = 4096 };

/* How many: BETWEEN_CONNECTIONS, or a thousand. */
static int count(void) {
    const char *text = getenv("BETWEEN_CONNECTIONS");
    int count = text ? atoi(text) : 1000;
    CHECK(count > 0 && count <= MOST);
    struct rlimit limit = {65536, 65536};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    return count;
}

/* Echoes what comes over any of them, until all have ended. */
void many_listener(int listener) {
    static char bytes[1 << 16];
    int open = count(), set = epoll_create1(0);
    for (int i = 0; i < open; i++) {
        int fd = accept(listener, NULL, NULL);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        CHECK(fd >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    while (open > 0) {
        struct epoll_event ready[64];
        int n = epoll_wait(set, ready, 64, -1);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            ssize_t got = recv(ready[i].data.fd, bytes, sizeof bytes, 0);
            CHECK(got >= 0);
            if (got == 0) {
                CHECK(close(ready[i].data.fd) == 0);
                open--;
            } else {
                CHECK(send(ready[i].data.fd, bytes, (size_t)got, 0) == got);
            }
        }
    }
}

/* Asks over each of them in turn, with pauses in which they may come to RDMA; then over all at once, before it reads any
 * answer. */
void many_dialler(const char *address, int port) {
    static int fds[MOST];
    int open = count();
    for (int i = 0; i < open; i++) fds[i] = dial_only(address, port);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < open; i++) {
            send_pattern(fds[i], (size_t)(round * REQUEST), REQUEST);
            CHECK(receive_pattern(fds[i], (size_t)(round * REQUEST), REQUEST) == REQUEST);
        }
        sleep_ms(PAUSE_MS);
    }
    for (int i = 0; i < open; i++) send_pattern(fds[i], ROUNDS * REQUEST, BURST);
    for (int i = 0; i < open; i++) CHECK(receive_pattern(fds[i], ROUNDS * REQUEST, BURST) == BURST);
    for (int i = 0; i < open; i++) CHECK(close(fds[i]) == 0);
}
