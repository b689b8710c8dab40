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

/* While a receive waits with much room, control of the connection goes to a child, which sends. */
enum { USES = 100 };
void moved_server(int fd) {
    meet(fd);
    receive_pieces(fd, 0, LARGE);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < USES; i++) {
            sleep_ms(3);
            CHECK(send(fd, "x", 1, MSG_NOSIGNAL) == 1);
        }
        /* The parent's again before this ends. */
        sleep_ms(300);
        exit(0);
    }
    memset(in, 0, sizeof in);
    CHECK(recv(fd, in + 1, PIECE, MSG_WAITALL) == PIECE);
    matches((size_t)TIMES * PIECE);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    receive_pieces(fd, (size_t)(TIMES + 1) * PIECE, LARGE);
    meet(fd);
}
void moved_client(int fd) {
    char uses[USES];
    meet(fd);
    send_pieces(fd, 0);
    CHECK(recv(fd, uses, USES, MSG_WAITALL) == USES);
    fill((size_t)TIMES * PIECE);
    CHECK(send(fd, out + 1, PIECE, MSG_NOSIGNAL) == PIECE);
    send_pieces(fd, (size_t)(TIMES + 1) * PIECE);
    meet(fd);
}

/* Memory that a device may not be able to use: read-only, a file's, a file's that has lost its end. And a receive into
 * memory that may not be written. What is sent arrives, and the rest is an error as on TCP. */
static unsigned char *mapped(int file, int protection, int flags) {
    void *at = mmap(NULL, PIECE, protection, flags, file, 0);
    CHECK(at != MAP_FAILED);
    return at;
}
void unfit_client(int fd) {
    int file = memfd_create("unfit", MFD_CLOEXEC);
    CHECK(file >= 0 && ftruncate(file, PIECE) == 0);
    unsigned char *shared = mapped(file, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (size_t i = 0; i < PIECE; i++) shared[i] = pattern(i);
    unsigned char *read_only = mapped(file, PROT_READ, MAP_SHARED), *own = mapped(file, PROT_READ, MAP_PRIVATE);
    unsigned char *all[] = {shared, read_only, own};
    meet(fd);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++) {
            sleep_ms(20);
            CHECK(send(fd, all[i], PIECE, MSG_NOSIGNAL) == PIECE);
        }
    }
    CHECK(ftruncate(file, PIECE / 2) == 0);
    /* The library believes for a moment that memory is there. */
    sleep_ms(500);
    ssize_t n = send(fd, shared, PIECE, MSG_NOSIGNAL);
    CHECK(n > 0 && n < PIECE);
    CHECK(send(fd, shared + PIECE / 4 * 3, 20000, MSG_NOSIGNAL) == -1 && errno == EFAULT);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    int32_t got;
    CHECK(recv(fd, &got, sizeof got, MSG_WAITALL) == sizeof got && got == n);
}
void unfit_server(int fd) {
    unsigned char *none = mapped(-1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS);
    meet(fd);
    for (int i = 0; i < 6; i++) {
        if (i == 4) CHECK(recv(fd, none, PIECE, 0) == -1 && errno == EFAULT);
        memset(in, 0, sizeof in);
        CHECK(recv(fd, in + 1, PIECE, MSG_WAITALL) == PIECE);
        matches(0);
    }
    int32_t got = receive_pattern(fd, 0, PIECE);
    CHECK(send(fd, &got, sizeof got, MSG_NOSIGNAL) == sizeof got);
}

/* A sender's call ends by a time-out while its peer is stopped, and all that it counts arrives. */
void stopped_server(int fd) {
    meet(fd);
    receive_pieces(fd, 0, LARGE);
    pid_t self = getpid(), child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        sleep_ms(16000);
        kill(self, SIGCONT);
        _exit(0);
    }
    meet(fd);
    raise(SIGSTOP);
    CHECK(receive_pattern(fd, 0, 64 * PIECE) > PIECE);
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
    CHECK(now.tv_sec - began.tv_sec <= 14);
    CHECK(at > PIECE && shutdown(fd, SHUT_WR) == 0);
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
}

/* Figures: MiB/s of writes into receives as large, once the connection has found the fastest way. */
enum { MIB = 1 << 20, FIRST = 8 * MIB, THEN = 40 * MIB };
static unsigned char much[4 * MIB];
static size_t mebibytes(void) {
    const char *size = getenv("BETWEEN_WRITE");
    size_t write = size ? strtoul(size, NULL, 10) : MIB;
    CHECK(write > 0 && write <= sizeof much);
    return write;
}
static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}
static void take_stream(int fd, size_t write) {
    while (recv(fd, much, write, 0) > 0) {}
    CHECK(send(fd, "m", 1, 0) == 1);
}
static void give_stream(int fd, size_t write) {
    for (size_t i = 0; i < FIRST / write; i++) CHECK(send(fd, much, write, 0) == (ssize_t)write);
    double start = seconds_of(CLOCK_MONOTONIC), worked = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t i = 0; i < THEN / write; i++) CHECK(send(fd, much, write, 0) == (ssize_t)write);
    char byte;
    CHECK(shutdown(fd, SHUT_WR) == 0 && recv(fd, &byte, 1, 0) == 1);
    double took = seconds_of(CLOCK_MONOTONIC) - start;
    worked = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - worked;
    printf("%zu KiB writes, MiB/s: %.1f, sender's processor: %.0f %%\n", write >> 10,
           THEN / write * write / (double)MIB / took, worked / took * 100);
    fflush(stdout);
}
void stream_server(int fd) { take_stream(fd, 64 << 10); }
void stream_client(int fd) { give_stream(fd, 64 << 10); }
void mebibytes_server(int fd) { take_stream(fd, mebibytes()); }
void mebibytes_client(int fd) { give_stream(fd, mebibytes()); }
