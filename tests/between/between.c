/*
 * Connections between two hosts: every case has a server and a client, processes of their own that
 * meet at an address. What is expected is what TCP does; the program runs natively and under the
 * shim, over whatever provider leads to the address.
 *
 *     between ADDRESS [CASE...]           status 0: all passed
 *     between ADDRESS get PORT FILE       status 0: a web server there gives that file
 *     between ADDRESS ask PORT            one byte there and back
 *     between ADDRESS echo-once           says at which port, and echoes what one connection brings
 *
 * Without a case all run but the last ones: in three the connection goes to a program without the library, three print
 * figures, one streams until something breaks and prints what that was at either end, and one has many connections. An
 * address may be IPv4 or IPv6.
 */
#include "between.h"

enum { MANY = 20, BULK = 3000000 };

/* Much data both ways at once. */
static void *send_bulk(void *fd) {
    send_pattern(*(int *)fd, 0, BULK);
    CHECK(shutdown(*(int *)fd, SHUT_WR) == 0);
    return NULL;
}
static void bulk_both(int fd) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, send_bulk, &fd) == 0);
    CHECK(receive_pattern(fd, 0, BULK + 1) == BULK);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* The server speaks first. */
static void first_server(int fd) {
    send_pattern(fd, 0, 10);
    CHECK(receive_pattern(fd, 0, 20) == 20);
}
static void first_client(int fd) {
    CHECK(receive_pattern(fd, 0, 10) == 10);
    send_pattern(fd, 0, 20);
    CHECK(receive_pattern(fd, 0, 1) == 0);
}

/* What was sent before close arrives, however much is still on its way. */
static void unsent_server(int fd) { send_pattern(fd, 0, 600000); }
static void unsent_client(int fd) {
    sleep_ms(200);
    CHECK(receive_pattern(fd, 0, 700000) == 600000);
}

/* And before exit without close. */
static void exit_server(int fd) {
    send_pattern(fd, 0, 600000);
    exit(0);
}

/* A sender that is away is no reason for its data to stay. */
static void away_server(int fd) {
    send_pattern(fd, 0, 400000);
    for (int i = 0; i < 30; i++) sleep_ms(100);
    _exit(0);
}
static void away_client(int fd) { CHECK(receive_pattern(fd, 0, 400000) == 400000); }

/* Closing with data unread resets. */
static void unread_server(int fd) {
    meet(fd);
    CHECK(poll(&(struct pollfd){fd, POLLIN, 0}, 1, 10000) == 1);
}
static void unread_client(int fd) {
    meet(fd);
    send_pattern(fd, 0, 100);
    char byte;
    ssize_t n = recv(fd, &byte, 1, 0);
    CHECK(n == -1 && errno == ECONNRESET);
}

/* The same behind an end of the stream, while the other end waits for room. */
static void full_server(int fd) {
    meet(fd);
    sleep_ms(300);
    CHECK(shutdown(fd, SHUT_RDWR) == 0 && close(fd) == 0);
    sleep_ms(1000);
}
static void full_client(int fd) {
    static char piece[65536];
    meet(fd);
    while (send(fd, piece, sizeof piece, MSG_NOSIGNAL) > 0) {}
    CHECK(errno == EPIPE || errno == ECONNRESET);
}

/* A killed peer that has read everything ends the stream. */
static void killed_server(int fd) {
    meet(fd);
    sleep_ms(200);
    kill(getpid(), SIGKILL);
}
static void killed_client(int fd) {
    meet(fd);
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
}

/* Sending to a peer that is gone breaks the pipe. */
static void gone_server(int fd) { meet(fd); }
static void gone_client(int fd) {
    meet(fd);
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
    ssize_t n = 0;
    for (int i = 0; i < 100 && n >= 0; i++) {
        n = send(fd, "x", 1, MSG_NOSIGNAL);
        sleep_ms(10);
    }
    CHECK(n == -1 && (errno == EPIPE || errno == ECONNRESET));
}

/* Time-outs and signals end a wait as they do on TCP. */
static volatile sig_atomic_t signals;
static void on_signal(int number) { signals += number != 0; }
static void waits_server(int fd) {
    meet(fd);
    sleep_ms(3000);
    send_pattern(fd, 0, 1);
    CHECK(receive_pattern(fd, 0, 1) == 0);
}
static void interrupt_later(int flags) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, NULL, &timer) == 0);
    struct itimerspec in = {.it_value = {0, 100 * 1000000}};
    CHECK(timer_settime(timer, 0, &in, NULL) == 0);
}
static void waits_client(int fd) {
    char byte;
    meet(fd);
    struct timeval limit = {0, 50000}, none = {0, 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    CHECK(recv(fd, &byte, 1, 0) == -1 && errno == EAGAIN);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none) == 0);
    CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    interrupt_later(0);
    CHECK(recv(fd, &byte, 1, 0) == -1 && errno == EINTR && signals == 1);
    interrupt_later(SA_RESTART);
    CHECK(recv(fd, &byte, 1, 0) == 1 && signals == 2);
}

/* A handler exchanges a byte over one connection while what it interrupts does so over another. */
enum { EXCHANGES = 500, HANDLED = 200 };
static int nested_fd;
static timer_t nested_timer;
static void once_more(void) {
    struct itimerspec in = {.it_value = {0, 200000}};
    CHECK(timer_settime(nested_timer, 0, &in, NULL) == 0);
}
static void exchange_in_handler(int number) {
    char byte = (char)++signals;
    char back = byte;
    int error = errno;
    CHECK(number == SIGALRM && send(nested_fd, &byte, 1, MSG_NOSIGNAL) == 1);
    CHECK(recv(nested_fd, &back, 1, 0) == 1 && back == byte);
    once_more();
    errno = error;
}
static void nested_listener(int listener) {
    struct pollfd both[2];
    for (int i = 0; i < 2; i++) both[i] = (struct pollfd){accept_one(listener), POLLIN, 0};
    for (int open = 2; open > 0;) {
        CHECK(poll(both, 2, 10000) > 0);
        for (int i = 0; i < 2; i++) {
            char byte;
            if (both[i].fd < 0 || !both[i].revents) continue;
            ssize_t n = recv(both[i].fd, &byte, 1, 0);
            CHECK(n >= 0 && (n == 0 || send(both[i].fd, &byte, 1, MSG_NOSIGNAL) == 1));
            if (n == 0) both[i].fd = -1, open--;
        }
    }
}
static void nested_dialler(const char *address, int port) {
    int fd = dial(address, port);
    nested_fd = dial(address, port);
    struct sigaction action = {.sa_handler = exchange_in_handler};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(timer_create(CLOCK_MONOTONIC, NULL, &nested_timer) == 0);
    once_more();
    for (int i = 0; i < EXCHANGES || signals < HANDLED; i++) {
        char byte = (char)i, back;
        CHECK(send(fd, &byte, 1, MSG_NOSIGNAL) == 1);
        ssize_t n;
        int flags = i % 2 ? MSG_DONTWAIT : 0;
        while ((n = recv(fd, &back, 1, flags)) < 0) CHECK(errno == EAGAIN || errno == EINTR);
        CHECK(n == 1 && back == byte);
    }
    CHECK(signal(SIGALRM, SIG_IGN) != SIG_ERR && timer_delete(nested_timer) == 0);
    close(fd);
    close(nested_fd);
}

/* Many connections in one epoll set, edge- and level-triggered. */
static int epoll_one(int fd) {
    char buffer[3000];
    ssize_t n;
    while ((n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)) > 0)
        CHECK(send(fd, buffer, n, MSG_NOSIGNAL) == n);
    CHECK(n == 0 || errno == EAGAIN);
    if (n == 0) close(fd);
    return n == 0;
}
static void epoll_listener(int listener) {
    int set = epoll_create1(EPOLL_CLOEXEC), ended = 0;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
    for (int accepted = 0; ended < MANY;) {
        struct epoll_event events[8];
        int n = epoll_wait(set, events, 8, 60000);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                int one = accept_one(listener);
                CHECK(fcntl(one, F_SETFL, O_NONBLOCK) == 0);
                event.events = EPOLLIN | EPOLLRDHUP | (accepted++ % 2 ? EPOLLET : 0);
                event.data.fd = one;
                CHECK(epoll_ctl(set, EPOLL_CTL_ADD, one, &event) == 0);
                continue;
            }
            ended += epoll_one(fd);
        }
    }
    close(set);
}
static void epoll_dialler(const char *address, int port) {
    int fds[MANY];
    for (int i = 0; i < MANY; i++) fds[i] = dial(address, port);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < MANY; i++) send_pattern(fds[i], round + i, 1 + (round * 977 + i) % 2900);
        for (int i = 0; i < MANY; i++) {
            size_t size = 1 + (round * 977 + i) % 2900;
            CHECK(poll(&(struct pollfd){fds[i], POLLIN, 0}, 1, 60000) == 1);
            CHECK(receive_pattern(fds[i], round + i, size) == size);
        }
    }
    for (int i = 0; i < MANY; i++) close(fds[i]);
}

/* Non-blocking connects, with poll for their end. */
static void nonblocking_dialler(const char *address, int port) {
    union address to;
    const socklen_t size = parse(address, port, &to);
    for (int i = 0; i < MANY; i++) {
        int fd = socket(to.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK, 0), error = 0;
        socklen_t length = sizeof error;
        CHECK(connect(fd, &to.any, size) == 0 || errno == EINPROGRESS);
        CHECK(poll(&(struct pollfd){fd, POLLOUT, 0}, 1, 60000) == 1);
        CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
        CHECK(fcntl(fd, F_SETFL, 0) == 0);
        settle(fd, 1);
        CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
        send_pattern(fd, 0, 100);
        CHECK(poll(&(struct pollfd){fd, POLLIN, 0}, 1, 60000) == 1);
        CHECK(receive_pattern(fd, 0, 100) == 100);
        close(fd);
    }
}

/* A figure: microseconds one way of 64 bytes. */
enum { ROUNDS = 1000 };
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}
static void latency_client(int fd) {
    char bytes[64] = {0};
    double start = 0;
    for (int i = -50; i < ROUNDS; i++) {
        if (i == 0) start = seconds();
        CHECK(send(fd, bytes, sizeof bytes, 0) == sizeof bytes);
        CHECK(recv(fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
    }
    printf("64-byte round trips, microseconds one way: %.1f\n", (seconds() - start) / ROUNDS / 2 * 1e6);
    fflush(stdout);
}
/* A stream without an end, of bytes that are checked, and not too many: what it ends with. */
static void told(const char *who, ssize_t result, double start) {
    printf("%s: %s after %.0f s\n", who, result == 0 ? "end" : strerror(errno), seconds() - start);
    fflush(stdout);
}
static void cut_server(int fd) {
    static unsigned char piece[65536];
    double start = seconds();
    size_t at = 0;
    ssize_t n;
    while ((n = recv(fd, piece, sizeof piece, 0)) > 0) {
        for (ssize_t i = 0; i < n; i++) CHECK(piece[i] == pattern(at + i));
        at += n;
    }
    told("receiver", n, start);
}
static void cut_client(int fd) {
    static unsigned char piece[20000];
    double start = seconds();
    size_t at = 0;
    ssize_t n;
    do {
        for (size_t i = 0; i < sizeof piece; i++) piece[i] = pattern(at + i);
        n = send(fd, piece, sizeof piece, MSG_NOSIGNAL);
        at += n;
        sleep_ms(5);
    } while (n > 0);
    told("sender", n, start);
}

enum { SPECIAL = 9 };
static const struct {
    const char *name;
    void (*server)(int fd), (*client)(int fd);
    void (*listener)(int listener);
    void (*dialler)(const char *address, int port);
} cases[] = {
    {"echo", echo_server, echo_client, NULL, NULL},
    {"bulk", bulk_both, bulk_both, NULL, NULL},
    {"first", first_server, first_client, NULL, NULL},
    {"unsent", unsent_server, unsent_client, NULL, NULL},
    {"exit", exit_server, unsent_client, NULL, NULL},
    {"away", away_server, away_client, NULL, NULL},
    {"unread", unread_server, unread_client, NULL, NULL},
    {"full", full_server, full_client, NULL, NULL},
    {"killed", killed_server, killed_client, NULL, NULL},
    {"gone", gone_server, gone_client, NULL, NULL},
    {"forked", forked_server, forked_client, NULL, NULL},
    {"waits", waits_server, waits_client, NULL, NULL},
    {"nested", NULL, NULL, nested_listener, nested_dialler},
    {"epoll", NULL, NULL, epoll_listener, epoll_dialler},
    {"nonblocking", NULL, NULL, epoll_listener, nonblocking_dialler},
    {"large", large_server, pieces_client, NULL, NULL},
    {"small-large", small_then_large_server, pieces_client, NULL, NULL},
    {"small", small_server, pieces_client, NULL, NULL},
    {"changing", changing_server, changing_client, NULL, NULL},
    {"crossing", crossing, crossing, NULL, NULL},
    {"gives-up", gives_up_server, gives_up_client, NULL, NULL},
    {"moved", moved_server, moved_client, NULL, NULL},
    {"unfit", unfit_server, unfit_client, NULL, NULL},
    {"stopped", stopped_server, stopped_client, NULL, NULL},
    {"orphan", orphan_server, orphan_client, NULL, NULL},
    {"lent", lent_server, lent_client, NULL, NULL},
    {"turns", turns_server, turns_client, NULL, NULL},
    {"quits", NULL, NULL, quits_listener, quits_dialler},
    {"heir", NULL, NULL, heir_listener, heir_dialler},
    {"prefork", NULL, NULL, prefork_listener, prefork_dialler},
    {"widowed", widowed_server, widowed_client, NULL, NULL},
    {"handed", handed_server, handed_client, NULL, NULL},
    {"passed", passed_server, handed_client, NULL, NULL},
    {"computes", computes_server, computes_client, NULL, NULL},
    {"latency", echo_server, latency_client, NULL, NULL},
    {"stream", stream_server, stream_client, NULL, NULL},
    {"mebibytes", mebibytes_server, mebibytes_client, NULL, NULL},
    {"cut", cut_server, cut_client, NULL, NULL},
    {"many", NULL, NULL, many_listener, many_dialler},
};

static void serve(size_t which, const char *address, int tell) {
    union address at;
    socklen_t length = parse(address, 0, &at);
    int listener = socket(at.any.sa_family, SOCK_STREAM, 0);
    CHECK(bind(listener, &at.any, length) == 0 && listen(listener, 64) == 0);
    CHECK(getsockname(listener, &at.any, &length) == 0);
    int port = ntohs(at.any.sa_family == AF_INET6 ? at.v6.sin6_port : at.v4.sin_port);
    if (cases[which].listener) {
        CHECK(write(tell, &port, sizeof port) == sizeof port);
        cases[which].listener(listener);
        return;
    }
    CHECK(write(tell, &port, sizeof port) == sizeof port);
    int fd = accept_one(listener);
    cases[which].server(fd);
    close(fd);
}

static int run(size_t which, const char *address) {
    int pipes[2], port = 0, status, failed = 0;
    CHECK(pipe2(pipes, O_CLOEXEC) == 0);
    pid_t server = fork();
    CHECK(server >= 0);
    if (server == 0) {
        alarm(120);
        serve(which, address, pipes[1]);
        exit(0);
    }
    close(pipes[1]);
    pid_t client = fork();
    CHECK(client >= 0);
    if (client == 0) {
        alarm(120);
        CHECK(read(pipes[0], &port, sizeof port) == sizeof port);
        if (cases[which].dialler) {
            cases[which].dialler(address, port);
        } else {
            int fd = dial(address, port);
            cases[which].client(fd);
            close(fd);
        }
        exit(0);
    }
    close(pipes[0]);
    CHECK(waitpid(client, &status, 0) == client);
    failed |= status != 0;
    if (failed) kill(server, SIGTERM);
    CHECK(waitpid(server, &status, 0) == server);
    int kills_itself = cases[which].server == killed_server || cases[which].server == widowed_server;
    failed |= status != 0 && !(kills_itself && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    printf("%s: %s\n", cases[which].name, failed ? "FAILED" : "ok");
    fflush(stdout);
    return failed;
}

/* A web server's /NAME is what the file of that name holds, each time it is asked over one connection. */
enum { REQUESTS = 100 };
static int get(const char *address, int port, const char *path) {
    static char expected[1 << 20], got[2 << 20];
    int file = open(path, O_RDONLY), fd = dial_only(address, port), differs = 0;
    CHECK(file >= 0);
    ssize_t length = read(file, expected, sizeof expected), n;
    CHECK(length > 0);
    for (int i = 0; i < REQUESTS; i++) {
        char request[4096], *body = NULL;
        size_t all = 0;
        int size = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", strrchr(path, '/'));
        CHECK(send(fd, request, size, MSG_NOSIGNAL) == size);
        while (body == NULL || all < (size_t)(body - got) + length) {
            CHECK((n = recv(fd, got + all, sizeof got - 1 - all, 0)) > 0);
            all += n;
            got[all] = 0;
            if (body == NULL && (body = strstr(got, "\r\n\r\n")) != NULL) body += 4;
        }
        differs |= memcmp(body, expected, length) != 0;
        /* Between hosts the ends meet in the background. */
        sleep_ms(20);
    }
    return differs;
}

/* One request, as short as can be. */
static int ask_once(const char *address, int port) {
    int fd = dial_only(address, port);
    char byte = 'a';
    CHECK(send(fd, &byte, 1, MSG_NOSIGNAL) == 1 && recv(fd, &byte, 1, 0) == 1 && byte == 'a');
    return close(fd);
}

/* Says where, and echoes what one connection brings. */
static int echo_once(const char *address) {
    union address at;
    socklen_t length = parse(address, 0, &at);
    int listener = socket(at.any.sa_family, SOCK_STREAM, 0);
    CHECK(bind(listener, &at.any, length) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, &at.any, &length) == 0);
    printf("%d\n", ntohs(at.v4.sin_port));
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    echo_server(fd);
    return 0;
}

int main(int count, char **arguments) {
    int failed = 0;
    if (count < 2) return 2;
    if (count == 3 && strcmp(arguments[1], "relay") == 0) return relay(arguments[2]);
    computes_prepare();
    if (count == 5 && strcmp(arguments[2], "get") == 0)
        return get(arguments[1], atoi(arguments[3]), arguments[4]);
    if (count == 4 && strcmp(arguments[2], "ask") == 0)
        return ask_once(arguments[1], atoi(arguments[3]));
    if (count == 3 && strcmp(arguments[2], "echo-once") == 0) return echo_once(arguments[1]);
    const size_t all = sizeof cases / sizeof *cases;
    for (size_t i = 0; i < all; i++) {
        int wanted = count == 2 && i < all - SPECIAL;
        for (int a = 2; a < count; a++) wanted |= strcmp(arguments[a], cases[i].name) == 0;
        if (wanted) failed |= run(i, arguments[1]);
    }
    return failed;
}
