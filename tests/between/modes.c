/* Programs that send much at a time by blocking calls, and receive it in each of the ways that the sender's flow control
 * tells apart: in one large receive, in a small and then a large one, in small ones; and that change their behaviour. */
#include "between.h"

enum { PIECE = 200000, TIMES = 8, HEAD = 16, SMALL = 3000 };

enum behaviour { LARGE, SMALL_THEN_LARGE, SMALL_ONLY };

static unsigned char out[PIECE + 1], in[PIECE + 1];

static void fill(size_t at) {
    for (size_t i = 0; i < PIECE; i++) out[i + 1] = pattern(at + i);
}
static void matches(size_t at) {
    for (size_t i = 0; i < PIECE; i++) CHECK(in[i + 1] == pattern(at + i));
}

/* Not aligned, as a program's memory is. */
static void send_pieces(int fd, size_t at) {
    for (int i = 0; i < TIMES; i++, at += PIECE) {
        fill(at);
        /* The receiver's call comes first where it is to. */
        sleep_ms(20);
        CHECK(send(fd, out + 1, PIECE, MSG_NOSIGNAL) == PIECE);
        /* The memory is the program's own again. */
        memset(out, 0, sizeof out);
    }
}
static void receive_pieces(int fd, size_t at, enum behaviour how) {
    for (int i = 0; i < TIMES; i++, at += PIECE) {
        size_t got = 0;
        memset(in, 0, sizeof in);
        if (how == SMALL_THEN_LARGE) {
            CHECK(recv(fd, in + 1, HEAD, MSG_WAITALL) == HEAD);
            got = HEAD;
        }
        while (got < PIECE) {
            size_t room = how == SMALL_ONLY && PIECE - got > SMALL ? SMALL : PIECE - got;
            ssize_t n = recv(fd, in + 1 + got, room, how == SMALL_ONLY ? 0 : MSG_WAITALL);
            CHECK(n > 0);
            got += n;
        }
        matches(at);
    }
}

void large_server(int fd) {
    meet(fd);
    receive_pieces(fd, 0, LARGE);
    meet(fd);
}
void small_then_large_server(int fd) {
    meet(fd);
    receive_pieces(fd, 0, SMALL_THEN_LARGE);
    meet(fd);
}
void small_server(int fd) {
    meet(fd);
    receive_pieces(fd, 0, SMALL_ONLY);
    meet(fd);
}
void pieces_client(int fd) {
    meet(fd);
    send_pieces(fd, 0);
    meet(fd);
}

/* In mid-stream, and back. */
static const enum behaviour turns[] = {LARGE, SMALL_ONLY, SMALL_THEN_LARGE, LARGE};
enum { TURNS = sizeof turns / sizeof *turns };
void changing_server(int fd) {
    meet(fd);
    for (int i = 0; i < TURNS; i++) receive_pieces(fd, (size_t)i * TIMES * PIECE, turns[i]);
    meet(fd);
}
void changing_client(int fd) {
    meet(fd);
    for (int i = 0; i < TURNS; i++) send_pieces(fd, (size_t)i * TIMES * PIECE);
    meet(fd);
}

/* Both ends send and receive much, at once. */
static void *send_all(void *fd) {
    send_pieces(*(int *)fd, 0);
    return NULL;
}
void crossing(int fd) {
    pthread_t thread;
    meet(fd);
    CHECK(pthread_create(&thread, NULL, send_all, &fd) == 0);
    receive_pieces(fd, 0, LARGE);
    CHECK(pthread_join(thread, NULL) == 0);
    meet(fd);
}

/* A receive that waits with much room, and gives up: nothing comes into its memory afterwards. Then the memory is
 * another's. */
void gives_up_server(int fd) {
    struct timeval limit = {0, 30000}, none = {0, 0};
    meet(fd);
    for (size_t i = 0, at = 0; i < 2 * TIMES; i++, at += PIECE) {
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
        memset(in, 0xaa, sizeof in);
        ssize_t n = recv(fd, in + 1, PIECE, MSG_WAITALL);
        CHECK(n > 0 || (n == -1 && errno == EAGAIN));
        size_t got = n < 0 ? 0 : n;
        static unsigned char kept[PIECE + 1];
        memcpy(kept, in, sizeof kept);
        memset(in, 0x55, sizeof in);
        sleep_ms(5);
        for (size_t j = 0; j < sizeof in; j++) CHECK(in[j] == 0x55);
        memcpy(in, kept, sizeof kept);
        for (size_t j = got + 1; j < sizeof in && got == 0; j++) CHECK(in[j] == 0xaa);
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none) == 0);
        if (got < PIECE) CHECK(recv(fd, in + 1 + got, PIECE - got, MSG_WAITALL) == (ssize_t)(PIECE - got));
        matches(at);
    }
    meet(fd);
}
void gives_up_client(int fd) {
    meet(fd);
    for (size_t i = 0, at = 0; i < 2 * TIMES; i++, at += PIECE) {
        fill(at);
        sleep_ms(i % 4 * 12);
        CHECK(send(fd, out + 1, PIECE, MSG_NOSIGNAL) == PIECE);
        memset(out, 0, sizeof out);
    }
    meet(fd);
}

/* A sender's call ends by a time-out while its peer is stopped, and all that it counts arrives. */
void stopped_server(int fd) {
    meet(fd);
    receive_pieces(fd, 0, LARGE);
    pid_t self = getpid(), child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        sleep_ms(3000);
        kill(self, SIGCONT);
        _exit(0);
    }
    meet(fd);
    raise(SIGSTOP);
    size_t sent = 0;
    CHECK(receive_pattern(fd, 0, 64 * PIECE) > PIECE);
    (void)sent;
    CHECK(waitpid(child, NULL, 0) == child);
}
void stopped_client(int fd) {
    struct timeval limit = {0, 300000};
    struct timespec began, now;
    size_t at = 0;
    meet(fd);
    send_pieces(fd, 0);
    meet(fd);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
    sleep_ms(300);
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int i = 0; i < 60; i++) {
        fill(at);
        ssize_t n = send(fd, out + 1, PIECE, MSG_NOSIGNAL);
        CHECK(n > 0 || (n == -1 && errno == EAGAIN));
        memset(out, 0, sizeof out);
        if (n > 0) at += n;
        if (n < 0) break;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK(now.tv_sec - began.tv_sec <= 2);
    CHECK(at > PIECE && shutdown(fd, SHUT_WR) == 0);
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
}
