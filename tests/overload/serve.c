/* One process that sends back what it receives, on however many connections. */
#include "overload.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static void accept_all(int set, int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EAGAIN || errno == ECONNABORTED)) return;
        if (fd < 0) fail_errno("accept");
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) fail_errno("epoll_ctl");
    }
}

static void echo(int fd) {
    char data[4096];
    ssize_t got = recv(fd, data, sizeof data, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got < 0 && errno != ECONNRESET) fail_errno("recv");
    if (got <= 0) {
        close(fd);
        return;
    }
    /* An exchange is smaller than any buffer. */
    ssize_t sent = send(fd, data, got, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
        close(fd);
    else if (sent < 0)
        fail_errno("send");
    else if (sent != got)
        fail("sent %zd of %zd bytes", sent, got);
}

int serve(int listener) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    fcntl(listener, F_SETFL, O_NONBLOCK);
    if (set < 0) fail_errno("epoll_create1");
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[256];
    epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(set, ready, 256, -1);
        if (count < 0 && errno != EINTR) fail_errno("epoll_wait");
        for (int i = 0; i < count; i++)
            if (ready[i].data.fd == listener)
                accept_all(set, listener);
            else
                echo(ready[i].data.fd);
    }
}
