/* What the parts of `between` share: streams of a pattern, addresses, an echo; and the cases of forks.c, handing.c and
 * modes.c. */
#ifndef BETWEEN_H
#define BETWEEN_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            int error = errno;                                                                     \
            fprintf(stderr, "%s:%d: %s [errno: %s]\n", __FILE__, __LINE__, #condition,             \
                    strerror(error));                                                              \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

unsigned char pattern(size_t i);
void send_pattern(int fd, size_t from, size_t length);
/* Receives so much of the pattern and checks it; stops at the end of the stream. */
size_t receive_pattern(int fd, size_t from, size_t length);
void sleep_ms(long ms);
/* An address of either family, and its length. */
socklen_t parse(const char *address, int port, union address *to);
/* Both ends exchange bytes until none goes over TCP any more, under the shim, for as long as that can take. */
void settle(int fd, int first);
int dial_only(const char *address, int port);
/* Those that both settle. */
int dial(const char *address, int port);
int accept_one(int listener);
/* Both ends have arrived at this point; over the connection itself. */
void meet(int fd);
/* Messages of all sizes go back and forth, then both ends half-close. */
void echo_server(int fd);
void echo_client(int fd);
/* As echo_client(), without its end; the bytes it was. */
size_t echo_client_half(int fd);

void forked_server(int fd);
void forked_client(int fd);
void orphan_server(int fd);
void orphan_client(int fd);
void lent_server(int fd);
void lent_client(int fd);
void turns_server(int fd);
void turns_client(int fd);
void quits_listener(int listener);
void quits_dialler(const char *address, int port);
void heir_listener(int listener);
void heir_dialler(const char *address, int port);
void widowed_server(int fd);
void widowed_client(int fd);
void prefork_listener(int listener);
void prefork_dialler(const char *address, int port);

int relay(const char *how);
void handed_server(int fd);
void handed_client(int fd);
void passed_server(int fd);
void computes_prepare(void);
void computes_server(int fd);
void computes_client(int fd);

void large_server(int fd);
void small_then_large_server(int fd);
void small_server(int fd);
void pieces_client(int fd);
void changing_server(int fd);
void changing_client(int fd);
void crossing(int fd);
void gives_up_server(int fd);
void gives_up_client(int fd);
void moved_server(int fd);
void moved_client(int fd);
void unfit_server(int fd);
void unfit_client(int fd);
void stream_server(int fd);
void stream_client(int fd);
void mebibytes_server(int fd);
void mebibytes_client(int fd);
void many_listener(int listener);
void many_dialler(const char *address, int port);
void stopped_server(int fd);
void stopped_client(int fd);

#endif
