/* Connections and listeners that processes share. */
#include "between.h"

/* The server that forks for each connection. */
void forked_server(int fd) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        echo_server(fd);
        send_pattern(fd, 0, 1000);
        _exit(0);
    }
    close(fd);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}
void forked_client(int fd) {
    send_pattern(fd, 0, 100000);
    CHECK(receive_pattern(fd, 0, 100000) == 100000);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK(receive_pattern(fd, 0, 2000) == 1000);
}

/* The child goes on with a connection whose process has ended. */
void orphan_server(int fd) {
    meet(fd);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return;
    echo_server(fd);
    send_pattern(fd, 0, 600000);
    exit(0);
}
void orphan_client(int fd) {
    meet(fd);
    sleep_ms(500);
    echo_client_half(fd);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK(receive_pattern(fd, 0, 700000) == 600000);
}

/* The parent goes on where its child stopped. */
void lent_server(int fd) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 100; i++) {
            CHECK(receive_pattern(fd, i, 10) == 10);
            send_pattern(fd, i, 10);
        }
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    echo_server(fd);
}
void lent_client(int fd) {
    for (int i = 0; i < 100; i++) {
        send_pattern(fd, i, 10);
        CHECK(receive_pattern(fd, i, 10) == 10);
    }
    sleep_ms(2000);
    echo_client(fd);
}

/* The process with control is killed while a relative and the peer sleep on the connection. Over a fabric both hear of that. */
void widowed_server(int fd) {
    int asleep[2];
    CHECK(pipe2(asleep, O_CLOEXEC) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct epoll_event event = {.events = EPOLLIN};
        int set = epoll_create1(EPOLL_CLOEXEC);
        CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        /* A set looks at its connection a few times before it relies on the ring. */
        for (int i = 0; i < 5; i++) CHECK(epoll_wait(set, &event, 1, 10) == 0);
        CHECK(write(asleep[1], "s", 1) == 1);
        CHECK(epoll_wait(set, &event, 1, -1) == 1);
        exit(0);
    }
    char byte;
    CHECK(read(asleep[0], &byte, 1) == 1);
    sleep_ms(300);
    kill(getpid(), SIGKILL);
}
/* Natively nothing happens until the child closes. */
void widowed_client(int fd) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    char byte;
    if (poll(&one, 1, 20000) == 1) CHECK(recv(fd, &byte, 1, 0) <= 0);
}

/* Parent and child of the server, of the client too, have the connection in turn. */
enum { SWAPS = 6, USES = 60 };
static void take_turns(int fd, int server) {
    int turns[2][2];
    char byte = 't';
    for (int i = 0; i < 2; i++) CHECK(pipe2(turns[i], O_CLOEXEC) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    const int us = child == 0;
    size_t out = 0, in = 0;
    for (int swap = 0; swap < SWAPS; swap++) {
        if (swap % 2 == us) {
            if (swap > 0) CHECK(read(turns[us][0], &byte, 1) == 1);
            for (int use = 0; use < USES; use++) {
                size_t size = 1 + (size_t)use * 331 % 5000;
                if (server) CHECK(receive_pattern(fd, in, size) == size);
                send_pattern(fd, out, size);
                if (!server) CHECK(receive_pattern(fd, in, size) == size);
                out += size;
                in += size;
            }
            if (swap + 1 < SWAPS) CHECK(write(turns[!us][1], &byte, 1) == 1);
        } else {
            for (int use = 0; use < USES; use++) {
                out += 1 + (size_t)use * 331 % 5000;
                in += 1 + (size_t)use * 331 % 5000;
            }
        }
    }
    if (us) exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}
void turns_server(int fd) { take_turns(fd, 1); }
void turns_client(int fd) { take_turns(fd, 0); }

/* A process closes what it has just begun to use often; its child goes on. */
enum { CONNECTIONS = 20, OFTEN = 40 };
static void bounce(int fd) {
    for (int i = 0; i < OFTEN; i++) {
        CHECK(receive_pattern(fd, i, 10) == 10);
        send_pattern(fd, i, 10);
    }
}
void quits_listener(int listener) {
    for (int i = 0; i < CONNECTIONS; i++) {
        int turns[2][2], status;
        char byte = 't';
        for (int j = 0; j < 2; j++) CHECK(pipe2(turns[j], O_CLOEXEC) == 0);
        int fd = accept_one(listener);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            bounce(fd);
            CHECK(write(turns[0][1], &byte, 1) == 1 && read(turns[1][0], &byte, 1) == 1);
            echo_server(fd);
            exit(0);
        }
        CHECK(read(turns[0][0], &byte, 1) == 1);
        bounce(fd);
        close(fd);
        CHECK(write(turns[1][1], &byte, 1) == 1);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        for (int j = 0; j < 4; j++) close(turns[j / 2][j % 2]);
    }
}
void quits_dialler(const char *address, int port) {
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = dial(address, port);
        for (int use = 0; use < 2 * OFTEN; use++) {
            send_pattern(fd, use % OFTEN, 10);
            CHECK(receive_pattern(fd, use % OFTEN, 10) == 10);
        }
        echo_client(fd);
        close(fd);
    }
}

/* A child of a process with a connection makes one of its own. */
void heir_listener(int listener) {
    int first = accept_one(listener);
    meet(first);
    int second = accept_one(listener);
    echo_server(second);
    close(second);
    echo_server(first);
    close(first);
}
void heir_dialler(const char *address, int port) {
    int first = dial(address, port), status;
    meet(first);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int second = dial(address, port);
        echo_client(second);
        close(second);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    echo_client(first);
    close(first);
}

/* Several processes accept from one listener; while each has a connection the next goes to another. */
enum { WORKERS = 3, TURNS = 10 };
void prefork_listener(int listener) {
    for (int i = 0; i < WORKERS; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child > 0) continue;
        for (int turn = 0; turn < TURNS; turn++) {
            int fd = accept_one(listener);
            pid_t own = getpid();
            CHECK(send(fd, &own, sizeof own, MSG_NOSIGNAL) == sizeof own);
            echo_server(fd);
            close(fd);
        }
        exit(0);
    }
    for (int i = 0; i < WORKERS; i++) {
        int status;
        CHECK(wait(&status) > 0 && status == 0);
    }
}
void prefork_dialler(const char *address, int port) {
    for (int turn = 0; turn < TURNS; turn++) {
        int fds[WORKERS];
        pid_t workers[WORKERS];
        for (int i = 0; i < WORKERS; i++) {
            fds[i] = dial(address, port);
            CHECK(recv(fds[i], &workers[i], sizeof workers[i], MSG_WAITALL) == sizeof workers[i]);
            for (int other = 0; other < i; other++) CHECK(workers[other] != workers[i]);
        }
        for (int i = 0; i < WORKERS; i++) echo_client(fds[i]);
        for (int i = 0; i < WORKERS; i++) close(fds[i]);
    }
}
