/* The same operations through syscall(), as language runtimes and libraries do it. */
#include "bt.h"

#include <linux/time_types.h>
#include <sys/syscall.h>

#define RAW(name, ...) syscall(SYS_##name, __VA_ARGS__)

static void raw_left(int fd) {
  static uint8_t buffer[8192];
  struct iovec iov[2] = {{buffer, 100}, {buffer + 100, 900}};
  struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
  EQ(RAW(sendto, fd, pattern(0), 1000, 0, NULL, 0), 1000);
  EQ(RAW(write, fd, pattern(1000), 1000), 1000);
  memcpy(buffer, pattern(2000), 1000);
  EQ(RAW(writev, fd, iov, 2), 1000);
  EQ(RAW(sendmsg, fd, &msg, MSG_NOSIGNAL), 1000);
  expect_eof(fd);
  SYS(RAW(close, fd));
}
static void raw_right(int fd) {
  static uint8_t buffer[8192];
  uint64_t at = 0;
  struct pollfd p = {fd, POLLIN, 0};
  for (int i = 0; at < 3000; i++) {
    EQ(RAW(poll, &p, 1, HANG_MS), 1);
    struct iovec iov = {buffer, 300};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    long n = i % 4 == 0   ? RAW(read, fd, buffer, 300)
             : i % 4 == 1 ? RAW(recvfrom, fd, buffer, 300, 0, NULL, NULL)
             : i % 4 == 2 ? RAW(readv, fd, &iov, 1)
                          : RAW(recvmsg, fd, &msg, 0);
    CHECK(n > 0);
    CHECK(at + n <= 4000);
    if (at + n > 3000) {
      /* The last thousand repeats the third. */
      check_pattern(buffer, at, 3000 - at);
      check_pattern(buffer + 3000 - at, 2000, at + n - 3000);
    } else {
      check_pattern(buffer, at, n);
    }
    at += n;
  }
  recv_pattern(fd, 2000 + at - 3000, 4000 - at);
  SYS(RAW(shutdown, fd, SHUT_WR));
  SYS(RAW(close, fd));
}
ENDS(raw_transfer, raw_left, raw_right)

/* Made by syscall() from beginning to end. */
SAN_CASE(raw_set_up) {
  union address target = address_v4("127.0.0.1", 0);
  int listener = SYS(RAW(socket, AF_INET, SOCK_STREAM, 0));
  SYS(RAW(bind, listener, &target, sizeof target.v4));
  SYS(RAW(listen, listener, 10));
  target = local_address(listener);
  int client = SYS(RAW(socket, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  if (RAW(connect, client, &target, sizeof target.v4) < 0) EQ(errno, EINPROGRESS);
  int server = SYS(RAW(accept4, listener, NULL, NULL, SOCK_CLOEXEC));
  wait_for(client, POLLOUT);
  warm_up_both(client, server);
  exercise(client, server);
  int second = dial(&target);
  server = SYS(RAW(accept, listener, NULL, NULL));
  warm_up_both(second, server);
  exercise(second, server);
}

SAN_CASE(raw_and_library_calls_mixed) {
  struct pair p = open_pair(V4);
  char byte;
  for (int i = 0; i < 100; i++) {
    EQ(i % 2 ? RAW(write, p.client, "x", 1) : write(p.client, "x", 1), 1);
    wait_for(p.server, POLLIN);
    EQ(i % 3 ? RAW(read, p.server, &byte, 1) : read(p.server, &byte, 1), 1);
  }
  ERR(RAW(recvfrom, p.server, &byte, 1, MSG_DONTWAIT, NULL, NULL), EAGAIN);
  set_nonblocking(p.server, true);
  ERR(RAW(read, p.server, &byte, 1), EAGAIN);
  SYS(RAW(fcntl, p.server, F_SETFL, 0));
  put(p.client, "x"), get(p.server, "x");
  SYS(RAW(ioctl, p.server, FIONBIO, &(int){1}));
  ERR(read(p.server, &byte, 1), EAGAIN);
}

SAN_CASE(raw_copies) {
  struct pair p = open_pair(V4);
  int copy = SYS(RAW(dup, p.server)), other = SYS(RAW(fcntl, p.client, F_DUPFD, 50));
  SYS(RAW(close, p.server)), SYS(RAW(close, p.client));
  exercise(copy, other);
  EQ(RAW(dup3, copy, 60, O_CLOEXEC), 60);
  SYS(RAW(close, copy));
  exercise(60, other);
  SYS(RAW(close_range, 60, 60, 0));
  expect_eof(other);
}

SAN_CASE(raw_waiting) {
  struct pair p = open_pair(V4);
  int set = SYS(RAW(epoll_create1, EPOLL_CLOEXEC));
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0xabcdef}, got;
  SYS(RAW(epoll_ctl, set, EPOLL_CTL_ADD, p.server, &event));
  EQ(RAW(epoll_pwait, set, &got, 1, 0, NULL, 8), 0);
  put(p.client, "x");
  EQ(RAW(epoll_pwait, set, &got, 1, HANG_MS, NULL, 8), 1);
  EQ(got.data.u64, 0xabcdef);
  struct timespec t = {HANG_MS / 1000, 0};
  EQ(RAW(epoll_pwait2, set, &got, 1, &t, NULL, 8), 1);
  struct pollfd one = {p.server, POLLIN, 0};
  EQ(RAW(ppoll, &one, 1, &t, NULL, 8), 1);
  fd_set in;
  FD_ZERO(&in);
  FD_SET(p.server, &in);
  EQ(RAW(pselect6, p.server + 1, &in, NULL, NULL, &t, NULL), 1);
  get(p.server, "x");
  EQ(RAW(epoll_pwait, set, &got, 1, 10, NULL, 8), 0);
#ifdef SYS_epoll_create
  SYS(close(set));
  set = SYS(RAW(epoll_create, 1));
  SYS(RAW(epoll_ctl, set, EPOLL_CTL_ADD, p.server, &event));
  put(p.client, "y");
  EQ(RAW(epoll_wait, set, &got, 1, HANG_MS), 1);
  get(p.server, "y");
#endif
#ifdef SYS_epoll_wait
  EQ(RAW(epoll_wait, set, &got, 1, 10), 0);
#endif
}

SAN_CASE(raw_options_and_names) {
  struct pair p = open_pair(V4);
  int one = 1, value = 0;
  socklen_t len = sizeof value;
  SYS(RAW(setsockopt, p.client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
  SYS(RAW(getsockopt, p.client, IPPROTO_TCP, TCP_NODELAY, &value, &len));
  EQ(value, 1);
  union address a, b = local_address(p.client);
  len = sizeof a;
  SYS(RAW(getpeername, p.server, &a, &len));
  CHECK(address_equal(&a, &b));
  exercise(p.client, p.server);
}

/* Calls that have nothing to do with sockets pass through with all their arguments. */
CASE(raw_unrelated_calls) {
  EQ(RAW(getpid, 0), getpid());
  EQ(RAW(gettid, 0), gettid());
  int fd = SYS(RAW(openat, AT_FDCWD, "/dev/zero", O_RDONLY, 0));
  /* Six arguments. */
  void *m = (void *)RAW(mmap, NULL, 4096, 3 /* READ|WRITE */, 2 /* PRIVATE */, fd, 0);
  CHECK(m != (void *)-1);
  EQ(*(volatile char *)m, 0);
  ERR(RAW(close, -1), EBADF);
  ERR(syscall(99999), ENOSYS);
}

/* A child that ends by a raw exit_group leaves the connections to its parent. */
SAN_CASE(raw_exit_of_a_child) {
  struct pair p = open_pair(V4);
  pid_t child = start_child();
  if (child == 0) {
    RAW(exit_group, 0);
    __builtin_unreachable();
  }
  end_child(child);
  exercise(p.client, p.server);
}
