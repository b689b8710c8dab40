#include "between.h"

unsigned char pattern(size_t i) { return (unsigned char)(i * 2654435761u >> 13); }

void send_pattern(int fd, size_t from, size_t length) {
    unsigned char piece[65536];
    while (length > 0) {
        size_t n = length < sizeof piece ? length : sizeof piece;
        for (size_t i = 0; i < n; i++) piece[i] = pattern(from + i);
        ssize_t sent = send(fd, piece, n, MSG_NOSIGNAL);
        CHECK(sent > 0);
        from += sent;
        length -= sent;
    }
}

size_t receive_pattern(int fd, size_t from, size_t length) {
    unsigned char piece[65536];
    size_t got = 0;
    while (got < length) {
        size_t n = length - got < sizeof piece ? length - got : sizeof piece;
        ssize_t received = recv(fd, piece, n, 0);
        CHECK(received >= 0);
        if (received == 0) break;
        for (ssize_t i = 0; i < received; i++) CHECK(piece[i] == pattern(from + got + i));
        got += received;
    }
    return got;
}

void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&time, &time) == -1 && errno == EINTR) {}
}

socklen_t parse(const char *address, int port, union address *to) {
    memset(to, 0, sizeof *to);
    if (inet_pton(AF_INET6, address, &to->v6.sin6_addr) == 1) {
        to->v6.sin6_family = AF_INET6;
        to->v6.sin6_port = htons(port);
        return sizeof to->v6;
    }
    CHECK(inet_pton(AF_INET, address, &to->v4.sin_addr) == 1);
    to->v4.sin_family = AF_INET;
    to->v4.sin_port = htons(port);
    return sizeof to->v4;
}

int dial_only(const char *address, int port) {
    union address to;
    socklen_t length = parse(address, port, &to);
    int fd = socket(to.any.sa_family, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, &to.any, length) == 0);
    return fd;
}

int dial(const char *address, int port) {
    int fd = dial_only(address, port);
    settle(fd, 1);
    return fd;
}

int accept_one(int listener) {
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    settle(fd, 0);
    return fd;
}

static unsigned long long bytes_over_tcp(int fd) {
    /* libc's struct tcp_info ends before tcpi_bytes_acked and tcpi_bytes_received. */
    uint64_t info[17] = {0};
    socklen_t length = sizeof info;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length) == 0);
    return info[15] + info[16];
}

static void exchange(int fd, char byte) {
    char back = 0;
    CHECK(send(fd, &byte, 1, MSG_NOSIGNAL) == 1 && recv(fd, &back, 1, 0) == 1 && back == byte);
}

void settle(int fd, int first) {
    enum { LIMIT_MS = 3000, QUIET = 3 };
    if (!first) {
        char byte;
        do CHECK(recv(fd, &byte, 1, 0) == 1 && send(fd, &byte, 1, MSG_NOSIGNAL) == 1);
        while (byte != 'e');
        return;
    }
    unsigned long long before = 0;
    for (int ms = 0, quiet = 0; getenv("LD_PRELOAD") && ms < LIMIT_MS && quiet < QUIET; ms++) {
        exchange(fd, 's');
        unsigned long long bytes = bytes_over_tcp(fd);
        quiet = bytes == before ? quiet + 1 : 0;
        before = bytes;
        sleep_ms(1);
    }
    exchange(fd, 'e');
}

void meet(int fd) {
    char byte = 'm';
    CHECK(send(fd, &byte, 1, MSG_NOSIGNAL) == 1 && recv(fd, &byte, 1, 0) == 1 && byte == 'm');
}

void echo_server(int fd) {
    char buffer[65536];
    ssize_t n;
    while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) {
        for (ssize_t sent = 0, m; sent < n; sent += m)
            CHECK((m = send(fd, buffer + sent, n - sent, MSG_NOSIGNAL)) > 0);
    }
    CHECK(n == 0);
}
size_t echo_client_half(int fd) {
    size_t at = 0;
    for (size_t size = 1; size < 100000; size = size * 3 + 1) {
        send_pattern(fd, at, size);
        CHECK(receive_pattern(fd, at, size) == size);
        at += size;
    }
    return at;
}
void echo_client(int fd) {
    size_t at = echo_client_half(fd);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK(receive_pattern(fd, at, 1) == 0);
}
