/* Many connections of one process, and many processes with one each: every connection sends messages of known bytes and checks what comes back. */
#include "overload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Connections that are not yet made at a time. */
enum { UNDER_WAY = 200, LARGEST = 200 };

struct connection {
    int fd;
    /* Bytes sent and received in all, and the length of the message under way. */
    uint64_t sent, received;
    size_t length;
    int rounds;
};

static size_t length_of(uint64_t stream, int round) { return 1 + (stream * 17 + round * 29) % LARGEST; }

static void send_next(struct connection *one, uint64_t stream) {
    unsigned char data[LARGEST];
    one->length = length_of(stream, one->rounds);
    for (size_t i = 0; i < one->length; i++) data[i] = byte_at(stream, one->sent + i);
    ssize_t sent = send(one->fd, data, one->length, MSG_NOSIGNAL);
    if (sent < 0) fail_errno("send on connection %d", (int)stream);
    if ((size_t)sent != one->length) fail("sent %zd of %zu bytes on connection %d", sent, one->length, (int)stream);
    one->sent += sent;
}

/* Whether its exchange is over. */
static int receive(struct connection *one, uint64_t stream) {
    unsigned char data[LARGEST];
    ssize_t got = recv(one->fd, data, sizeof data, 0);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got < 0) fail_errno("recv on connection %d", (int)stream);
    if (got == 0) fail("end of connection %d after %llu bytes", (int)stream, (unsigned long long)one->received);
    for (ssize_t i = 0; i < got; i++)
        if (data[i] != byte_at(stream, one->received + i))
            fail("wrong: byte %llu of connection %d", (unsigned long long)one->received + i, (int)stream);
    one->received += got;
    if (one->received > one->sent) fail("wrong: more bytes than were sent on connection %d", (int)stream);
    return one->received == one->sent;
}

static void exchange(int set, struct connection *all, int count, uint64_t first, int rounds) {
    int left = count;
    for (int i = 0; i < count; i++) {
        all[i].rounds = rounds;
        send_next(&all[i], first + i);
    }
    while (left > 0) {
        struct epoll_event ready[256];
        int found = epoll_wait(set, ready, 256, -1);
        if (found < 0 && errno != EINTR) fail_errno("epoll_wait");
        for (int i = 0; i < found; i++) {
            struct connection *one = &all[ready[i].data.u32];
            uint64_t stream = first + ready[i].data.u32;
            if (!receive(one, stream)) continue;
            if (--one->rounds > 0)
                send_next(one, stream);
            else
                left--;
        }
    }
}

static void connect_all(int set, struct connection *all, int port, int source, int count) {
    int begun = 0, made = 0;
    while (made < count) {
        while (begun < count && begun - made < UNDER_WAY) {
            all[begun].fd = connect_from(port, source, SOCK_NONBLOCK);
            struct epoll_event event = {.events = EPOLLOUT, .data.u32 = begun};
            if (epoll_ctl(set, EPOLL_CTL_ADD, all[begun++].fd, &event)) fail_errno("epoll_ctl");
        }
        struct epoll_event ready[256];
        int found = epoll_wait(set, ready, 256, -1);
        for (int i = 0; i < found; i++) {
            int fd = all[ready[i].data.u32].fd, error = 0;
            socklen_t size = sizeof error;
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
            if (errno = error, error) fail_errno("connect of connection %d", (int)ready[i].data.u32);
            struct epoll_event event = {.events = EPOLLIN, .data.u32 = ready[i].data.u32};
            if (epoll_ctl(set, EPOLL_CTL_MOD, fd, &event)) fail_errno("epoll_ctl");
            made++;
        }
    }
}

int clients(int port, int source, int count, int rounds) {
    struct connection *all = calloc(count, sizeof *all);
    int set = epoll_create1(EPOLL_CLOEXEC);
    uint64_t first = (uint64_t)source << 32;
    connect_all(set, all, port, source, count);
    say("connected");
    wait_for_line();
    exchange(set, all, count, first, rounds);
    say("exchanged");
    /* Idle ones would go back to TCP before they are counted. */
    while (!is_line_there()) exchange(set, all, count, first, 2);
    wait_for_line();
    /* Some more after a pause, in which connections may have gone back to TCP. */
    exchange(set, all, count, first, (rounds + 3) / 4);
    for (int i = 0; i < count; i++) {
        char more;
        if (shutdown(all[i].fd, SHUT_WR)) fail_errno("shutdown");
        struct epoll_event event = {.events = 0};
        epoll_ctl(set, EPOLL_CTL_DEL, all[i].fd, &event);
        ssize_t got;
        while ((got = recv(all[i].fd, &more, 1, 0)) < 0 && errno == EAGAIN) usleep(1000);
        if (got != 0) fail("connection %d does not end: %zd", i, got);
        close(all[i].fd);
    }
    free(all);
    say("ok");
    return 0;
}

/* Starts a client whose input is the pipe that this gives. */
static int start_client(const char *program, int port, int number, int rounds, int output) {
    char port_text[16], source[16], rounds_text[16];
    int go[2];
    snprintf(port_text, sizeof port_text, "%d", port);
    snprintf(source, sizeof source, "%d", 2 + number % 200);
    snprintf(rounds_text, sizeof rounds_text, "%d", rounds);
    if (pipe2(go, O_CLOEXEC)) fail_errno("pipe");
    pid_t child = fork();
    if (child < 0) fail_errno("fork of process %d", number);
    if (child == 0) {
        dup2(go[0], 0);
        dup2(output, 1);
        execl(program, program, "clients", port_text, source, "1", rounds_text, (char *)NULL);
        fail_errno("exec");
    }
    close(go[0]);
    return go[1];
}

/* Waits until all say the word, and lets them go on. */
static void pass(FILE *said, const char *word, const int *go, int count) {
    char line[256];
    for (int i = 0; i < count; i++) {
        if (!fgets(line, sizeof line, said)) fail("a process ended");
        if (strncmp(line, word, strlen(word))) fail("a process says: %s", line);
    }
    say("%s", word);
    wait_for_line();
    for (int i = 0; i < count; i++)
        if (write(go[i], "\n", 1) != 1) fail_errno("write");
}

int processes(const char *program, int port, int count, int rounds) {
    int done[2], *go = calloc(count, sizeof *go);
    if (pipe2(done, O_CLOEXEC)) fail_errno("pipe");
    for (int i = 0; i < count; i++) go[i] = start_client(program, port, i, rounds, done[1]);
    close(done[1]);
    FILE *said = fdopen(done[0], "r");
    pass(said, "connected", go, count);
    pass(said, "exchanged", go, count);
    for (int i = 0; i < count; i++) {
        int status = 0;
        wait(&status);
        if (status) fail("a process ended with %d", status);
    }
    free(go);
    say("ok");
    return 0;
}
