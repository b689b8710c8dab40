/* Connections that go to a program without the library, in the middle of use: what was sent arrives once, in order. */
#include "between.h"
#include <sys/mman.h>

enum { UNREAD = 20000, READ = 1000, FLOOD = 2000000 };

/* This program is started anew, without the library, as `relay`: it echoes what it reads from its standard input, which
 * is the connection, or a socket over which that comes. */
static pid_t start_relay(int fd, const char *how) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        unsetenv("LD_PRELOAD");
        CHECK(dup2(fd, 0) == 0);
        execl("/proc/self/exe", "between", "relay", how, (char *)NULL);
        _exit(99);
    }
    return child;
}
static int receive_descriptor(int over) {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec one = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    CHECK(recvmsg(over, &message, 0) == 1 && CMSG_FIRSTHDR(&message) != NULL);
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}
static void send_descriptor(int over, int fd) {
    char byte = 'd', control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec one = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(over, &message, 0) == 1);
}
/* `counted`: only reads what was sent before. */
int relay(const char *how) {
    int fd = strcmp(how, "passed") == 0 ? receive_descriptor(0) : 0;
    if (strcmp(how, "counted") == 0) {
        CHECK(receive_pattern(fd, READ, UNREAD - READ) == UNREAD - READ);
    } else {
        echo_server(fd);
    }
    return 0;
}
static void end_relay(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* While both directions are busy. */
static void *send_flood(void *fd) {
    send_pattern(*(int *)fd, 0, FLOOD);
    CHECK(shutdown(*(int *)fd, SHUT_WR) == 0);
    return NULL;
}
void handed_client(int fd) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, send_flood, &fd) == 0);
    CHECK(receive_pattern(fd, 0, FLOOD + 1) == FLOOD);
    CHECK(pthread_join(thread, NULL) == 0);
}
static void echo_some(int fd) {
    char bytes[4096];
    for (int i = 0; i < 50; i++) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        CHECK(n > 0 && send(fd, bytes, n, MSG_NOSIGNAL) == n);
    }
}
void handed_server(int fd) {
    echo_some(fd);
    pid_t child = start_relay(fd, "inherited");
    close(fd);
    end_relay(child);
}
void passed_server(int fd) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(fcntl(pair[0], F_SETFD, FD_CLOEXEC) == 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
    pid_t child = start_relay(pair[1], "passed");
    close(pair[1]);
    echo_some(fd);
    send_descriptor(pair[0], fd);
    close(fd);
    end_relay(child);
}

/* The peer makes no call until the other program has all that it had sent. */
static volatile int *is_read;
void computes_prepare(void) {
    is_read = mmap(NULL, sizeof *is_read, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(is_read != MAP_FAILED);
}
void computes_client(int fd) {
    send_pattern(fd, 0, UNREAD);
    CHECK(receive_pattern(fd, 0, 1) == 1);
    while (!*is_read) {}
    CHECK(receive_pattern(fd, 1, 2) == 1);
}
void computes_server(int fd) {
    CHECK(receive_pattern(fd, 0, READ) == READ);
    send_pattern(fd, 0, 1);
    pid_t child = start_relay(fd, "counted");
    end_relay(child);
    *is_read = 1;
    send_pattern(fd, 1, 1);
}
