#include "overload.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static void print_line(const char *form, va_list list, const char *why) {
    vprintf(form, list);
    printf(why ? ": %s\n" : "\n", why);
    fflush(stdout);
}

void fail(const char *form, ...) {
    va_list list;
    va_start(list, form);
    print_line(form, list, NULL);
    va_end(list);
    _exit(1);
}

void fail_errno(const char *form, ...) {
    const char *why = strerror(errno);
    va_list list;
    va_start(list, form);
    print_line(form, list, why);
    va_end(list);
    _exit(1);
}

void say(const char *form, ...) {
    va_list list;
    va_start(list, form);
    print_line(form, list, NULL);
    va_end(list);
}

void wait_for_line(void) {
    char letter = 0;
    while (letter != '\n')
        if (read(0, &letter, 1) != 1) exit(0);
}

int is_line_there(void) {
    struct pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, 0) != 0;
}

void allow_descriptors(size_t wanted) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < wanted) limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < wanted) fail("RLIMIT_NOFILE allows %zu descriptors, not %zu", (size_t)limit.rlim_cur, wanted);
}

int listen_here(int backlog) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, backlog) ||
        getsockname(listener, (struct sockaddr *)&address, &size))
        fail_errno("listen");
    say("port %d", ntohs(address.sin_port));
    return listener;
}

int connect_from(int port, int source, int flags) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0), on = 1;
    if (fd < 0) fail_errno("socket");
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000 + source)};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    /* The port is chosen with the peer's address in mind: there are not as many ports as connections. */
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&from, sizeof from)) fail_errno("bind");
    if (connect(fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS) fail_errno("connect");
    return fd;
}
