/* A load generator: each of N connections sends a request and waits for its answer, again and again, for a time.
   Answers all have the length of the first. IDLE connections beside them ask once, before. With a RATE so many requests
   a second are made, one connection after the other. Says in JSON how many there were, how long they took, and what
   processor time that cost, here and in the process SERVER: connecting is not among it. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* As percentiles.py has them. */
static const double PARTS[] = {1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 99.99};
enum { STEP_NS = 100, STEPS = 10000000, LARGEST = 65536 };

struct connection {
    int fd;
    size_t have;
    double since;
    int waits;
};

static unsigned steps[STEPS];
static char answer[LARGEST];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* What a process has spent, or this one if it is 0. */
static double processor(pid_t pid) {
    struct timespec time;
    clockid_t clock;
    if ((errno = clock_getcpuclockid(pid, &clock)) || clock_gettime(clock, &time) < 0) fail("the server's clock");
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* A number is a port of 127.0.0.1, anything else a path. */
static int connected(const char *address) {
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct sockaddr_in remote = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char *end;
    unsigned long port = strtoul(address, &end, 10);
    int fd, one = 1;
    if (*end) {
        strncpy(local.sun_path, address, sizeof local.sun_path - 1);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&local, sizeof local) < 0) fail("connect");
    } else {
        remote.sin_port = htons(port);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&remote, sizeof remote) < 0) fail("connect");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    return fd;
}

static void ask(struct connection *each, const char *request, size_t length) {
    each->have = 0;
    each->waits = 1;
    each->since = now();
    if (send(each->fd, request, length, MSG_NOSIGNAL) != (ssize_t)length) fail("send");
}

/* All that comes for one request: until nothing more does for a while. */
static size_t length_of_answer(const char *address, const char *request) {
    struct timeval patience = {.tv_usec = 100000};
    int fd = connected(address);
    size_t total = 0;
    ssize_t got;
    if (send(fd, request, strlen(request), MSG_NOSIGNAL) < 0) fail("send");
    if ((got = recv(fd, answer, sizeof answer, 0)) <= 0) fail("the first answer");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    do total += got;
    while (total < sizeof answer && (got = recv(fd, answer + total, sizeof answer - total, 0)) > 0);
    close(fd);
    return total;
}

static double percentile(unsigned long long count, double part) {
    unsigned long long below = 0;
    size_t step = 0;
    while (step < STEPS - 1 && (below += steps[step]) < count * part / 100) step++;
    return step * STEP_NS / 1e3;
}

/* The middle and the 99th, and of the others those that ten requests took longer than. */
static void print_percentiles(unsigned long long count) {
    const char *comma = "";
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        double part = PARTS[i];
        if (part != 50 && part != 99 && count * (100 - part) < 1000) continue;
        printf("%s\"%g\": %f", comma, part, percentile(count, part));
        comma = ", ";
    }
}

/* Readable as often as requests are due. */
static int metronome(double rate) {
    struct itimerspec every = {0};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    every.it_interval.tv_sec = rate > 1 ? 0 : 1;
    every.it_interval.tv_nsec = rate > 1 ? 1e9 / rate : 0;
    every.it_value = every.it_interval;
    if (timer < 0 || timerfd_settime(timer, 0, &every, NULL) < 0) fail("timerfd");
    return timer;
}

/* Connections that have asked once. */
static void open_idle(const char *address, const char *request, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int fd = connected(address);
        if (send(fd, request, strlen(request), MSG_NOSIGNAL) < 0) fail("send");
        if (recv(fd, answer, sizeof answer, 0) <= 0) fail("recv");
    }
}

/* The next connection that does not wait for an answer asks; 0 if all do. */
static int ask_next(struct connection *all, size_t count, const char *request, size_t length) {
    static size_t next;
    for (size_t tried = 0; tried < count; tried++) {
        struct connection *each = &all[next++ % count];
        if (!each->waits) return ask(each, request, length), 1;
    }
    return 0;
}

int main(int arguments, char **argument) {
    if (arguments < 5) {
        fprintf(stderr, "exchange PORT|PATH CONNECTIONS SECONDS REQUEST [FIRST [IDLE [RATE [SERVER]]]]\n");
        return 2;
    }
    const char *address = argument[1], *request = argument[4];
    size_t count = atoi(argument[2]), length = strlen(request), expected;
    size_t idle = arguments > 6 ? atoi(argument[6]) : 0;
    double rate = arguments > 7 ? atof(argument[7]) : 0;
    pid_t server = arguments > 8 ? atoi(argument[8]) : 0;
    struct rlimit descriptors = {1 << 16, 1 << 16};
    setrlimit(RLIMIT_NOFILE, &descriptors);
    struct connection *all = calloc(count, sizeof *all);
    int set = epoll_create1(0);
    unsigned long long requests = 0;
    if (arguments > 5 && *argument[5]) length_of_answer(address, argument[5]);
    expected = length_of_answer(address, request);
    open_idle(address, request, idle);
    for (size_t i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        all[i].fd = connected(address);
        fcntl(all[i].fd, F_SETFL, O_NONBLOCK);
        if (epoll_ctl(set, EPOLL_CTL_ADD, all[i].fd, &event) < 0) fail("epoll_ctl");
    }
    struct epoll_event due = {.events = EPOLLIN};
    int timer = rate > 0 ? metronome(rate) : -1;
    if (timer >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, timer, &due) < 0) fail("epoll_ctl");
    double own = processor(0), servers = processor(server), start = now(), end = start + atof(argument[3]), time = start;
    for (size_t i = 0; i < count && timer < 0; i++) ask(&all[i], request, length);
    while (time < end) {
        struct epoll_event ready[64];
        int found = epoll_wait(set, ready, 64, 1000);
        if (found < 0 && errno != EINTR) fail("epoll_wait");
        if (found == 0) return fprintf(stderr, "no answer for a second\n"), 1;
        for (int i = 0; i < found; i++) {
            struct connection *each = ready[i].data.ptr;
            unsigned long long ticks = 0;
            if (!each) {
                if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN) fail("read");
                while (ticks-- > 0 && ask_next(all, count, request, length));
                continue;
            }
            ssize_t got = recv(each->fd, answer, sizeof answer, 0);
            if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
            if (got <= 0) fail("recv");
            if ((each->have += got) > expected) return fprintf(stderr, "an answer of another length\n"), 1;
            if (each->have < expected) continue;
            time = now();
            size_t step = (time - each->since) * 1e9 / STEP_NS;
            steps[step < STEPS ? step : STEPS - 1]++;
            requests++;
            each->waits = 0;
            if (timer < 0) ask(each, request, length);
        }
    }
    double spent = processor(0) - own;
    printf("{\"requests\": %llu, \"seconds\": %f, \"cpu\": %f, \"percentiles_us\": {", requests, time - start, spent);
    print_percentiles(requests);
    putchar('}');
    if (server) printf(", \"server_cpu\": %f", processor(server) - servers);
    puts("}");
    return 0;
}
