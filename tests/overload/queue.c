/* A crowd before a listen queue: more connections than it takes are begun before the first is accepted. */
#include "overload.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* Milliseconds in which nothing more is made. */
enum { STILL = 1000, BYTES = 3000 };

/* How many of them are made once no more are. */
static int count_made(int *all, int count) {
    struct pollfd *ready = calloc(count, sizeof *ready);
    int made = 0;
    for (;;) {
        for (int i = 0; i < count; i++) ready[i] = (struct pollfd){all[i], POLLOUT, 0};
        poll(ready, count, 0);
        int now = 0;
        for (int i = 0; i < count; i++) now += ready[i].revents == POLLOUT;
        if (now == made) break;
        made = now;
        usleep(STILL * 1000);
    }
    free(ready);
    return made;
}

static void wait_for(int fd, short what) {
    struct pollfd one = {fd, what, 0};
    if (poll(&one, 1, -1) != 1) fail_errno("poll");
}

/* What each sends comes back, in small parts, so that it makes enough transfers to go to the SAN. */
static void exchange(int fd, uint64_t stream) {
    enum { PART = 30 };
    unsigned char data[PART];
    for (int at = 0; at < BYTES; at += PART) {
        for (int i = 0; i < PART; i++) data[i] = byte_at(stream, at + i);
        wait_for(fd, POLLOUT);
        ssize_t sent = send(fd, data, PART, MSG_NOSIGNAL);
        if (sent != PART) fail_errno("send on connection %d", (int)stream);
        for (int done = 0; done < PART;) {
            wait_for(fd, POLLIN);
            ssize_t got = recv(fd, data, PART - done, 0);
            if (got <= 0) fail_errno("recv on connection %d", (int)stream);
            for (int i = 0; i < got; i++, done++)
                if (data[i] != byte_at(stream, at + done)) fail("wrong: byte %d of connection %d", at + done, (int)stream);
        }
    }
    close(fd);
}

int crowd(int port, int count) {
    int *all = calloc(count, sizeof *all);
    for (int i = 0; i < count; i++) all[i] = connect_from(port, 1, SOCK_NONBLOCK);
    say("made %d", count_made(all, count));
    wait_for_line();
    for (int i = 0; i < count; i++) exchange(all[i], i);
    free(all);
    say("ok");
    return 0;
}
