/* Makes the connections of a plan, between processes that tell each other the port. */
#include "plans.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>

/* Where listeners are: here, or where the variable PLANS_ADDRESS says. */
static in_addr_t place(void) {
    const char *address = getenv("PLANS_ADDRESS");
    return address ? inet_addr(address) : htonl(INADDR_LOOPBACK);
}
static int listen_(_Atomic int *port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = place()};
    socklen_t n = sizeof a;
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(l, (void *)&a, n) || listen(l, 8) || getsockname(l, (void *)&a, &n)) perror("listen"), exit(2);
    *port = ntohs(a.sin_port);
    return l;
}
static int without_delay(int fd) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}
int make_connection(_Atomic int *port, int listens, int *listener) {
    if (listens) {
        if (*listener < 0) return *listener = listen_(port), -1;
        int fd = accept4(*listener, 0, 0, SOCK_CLOEXEC);
        close(*listener);
        return without_delay(fd);
    }
    while (*port == 0) rest(50);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = place(), .sin_port = htons((uint16_t)*port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (void *)&a, sizeof a)) perror("connect"), exit(2);
    return without_delay(fd);
}

void warm_up(int fd, int begins) {
    char byte = 'w';
    for (int i = 0; i < 100; i++) {
        if (begins && send(fd, &byte, 1, MSG_NOSIGNAL) != 1) return;
        if (recv(fd, &byte, 1, 0) != 1) return;
        if (!begins && send(fd, &byte, 1, MSG_NOSIGNAL) != 1) return;
    }
}

int pass_to_oneself(int fd) {
    int pair[2];
    char byte = 0;
    union { struct cmsghdr head; char room[CMSG_SPACE(sizeof(int))]; } control = {0};
    struct iovec one = {&byte, 1};
    struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return NO_SOCKETS;
    control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof(int));
    int error = sendmsg(pair[0], &m, 0) == 1 ? 0 : errno;
    if (!error && recvmsg(pair[1], &m, MSG_CMSG_CLOEXEC) == 1 && !(m.msg_flags & MSG_CTRUNC)) {
        int got;
        memcpy(&got, CMSG_DATA(&control.head), sizeof got);
        close(got);
    }
    close(pair[0]), close(pair[1]);
    return error;
}
