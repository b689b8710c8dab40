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

int dial(const char *address, int port) {
    union address to;
    socklen_t length = parse(address, port, &to);
    int fd = socket(to.any.sa_family, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, &to.any, length) == 0);
    return fd;
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
