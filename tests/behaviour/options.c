/* Socket options, ioctls and descriptor flags, and what they change. */
#include "bt.h"

#include <linux/errqueue.h>
#include <linux/sockios.h>

/* ---- time-outs ------------------------------------------------------------------------------ */

/* The call fails with EAGAIN, not before the time is over. */
#define TIMES_OUT(ms, call)                                                   \
  do {                                                                        \
    int64_t start_ = now_ms();                                                \
    ERR(call, EAGAIN);                                                        \
    CHECK(now_ms() - start_ >= (ms)-1);                                       \
  } while (0)

SAN_CASE(receive_timeout) {
  struct pair p = open_pair(V4);
  char byte;
  struct iovec iov = {&byte, 1};
  struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
  set_timeout(p.server, SO_RCVTIMEO, 40);
  TIMES_OUT(40, recv(p.server, &byte, 1, 0));
  TIMES_OUT(40, read(p.server, &byte, 1));
  TIMES_OUT(40, readv(p.server, &iov, 1));
  TIMES_OUT(40, recvmsg(p.server, &msg, 0));
  TIMES_OUT(40, recv(p.server, &byte, 1, MSG_PEEK));
  put(p.client, "x");
  get(p.server, "x");
  TIMES_OUT(40, recv(p.server, &byte, 1, 0));
  exercise(p.client, p.server);
}

static void timed_left(int fd) {
  char buffer[10];
  set_timeout(fd, SO_RCVTIMEO, 40);
  step_done(0);
  /* The data comes in time for a part of what was asked: WAITALL gives that part. */
  step_wait(1);
  EQ(recv(fd, buffer, 10, MSG_WAITALL), 3);
  TIMES_OUT(40, recv(fd, buffer, 10, MSG_WAITALL));
  set_timeout(fd, SO_RCVTIMEO, 0); /* for ever again */
  step_done(2);
  get(fd, "late");
  SYS(close(fd));
}
static void timed_right(int fd) {
  step_wait(0);
  put(fd, "abc");
  step_done(1);
  step_wait(2);
  sleep_ms(80);
  put(fd, "late");
  expect_eof(fd);
}
ENDS(receive_timeout_in_waitall, timed_left, timed_right)

SAN_CASE(send_timeout) {
  struct pair p = open_pair(V4);
  uint64_t n = fill(p.client, 0);
  set_timeout(p.client, SO_SNDTIMEO, 40);
  for (int by_write = 0; by_write < 2; by_write++) {
    ssize_t sent;
    int64_t start;
    do { /* the kernel's timers may still make room */
      start = now_ms();
      sent = by_write ? write(p.client, pattern(n), 1) : send(p.client, pattern(n), 1, 0);
      if (sent > 0) n += sent;
    } while (sent > 0);
    EQ(errno, EAGAIN);
    CHECK(now_ms() - start >= 39);
  }
  recv_pattern(p.server, 0, n);
  /* More than fits: the part that did is reported. */
  size_t size = 64 << 20;
  uint8_t *big = calloc(1, size);
  ssize_t part = send(p.client, big, size, 0);
  CHECK(part > 0 && part < (ssize_t)size);
  for (ssize_t got = 0; got < part;) got += SYS(recv(p.server, big, part - got, 0));
  expect_nothing(p.server);
  exercise(p.client, p.server);
}

SAN_CASE(timeout_values_read_back) {
  struct pair p = open_pair(V4);
  struct timeval t = {9, 9};
  socklen_t len = sizeof t;
  SYS(getsockopt(p.client, SOL_SOCKET, SO_RCVTIMEO, &t, &len));
  CHECK(t.tv_sec == 0 && t.tv_usec == 0);
  set_timeout(p.client, SO_RCVTIMEO, 1500);
  set_timeout(p.client, SO_SNDTIMEO, 2000);
  SYS(getsockopt(p.client, SOL_SOCKET, SO_RCVTIMEO, &t, &len));
  CHECK(t.tv_sec == 1 && t.tv_usec == 500000);
  SYS(getsockopt(p.client, SOL_SOCKET, SO_SNDTIMEO, &t, &len));
  CHECK(t.tv_sec == 2 && t.tv_usec == 0);
  t = (struct timeval){0, 1000000};
  ERR(setsockopt(p.client, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t), EDOM);
  ERR(setsockopt(p.client, SOL_SOCKET, SO_RCVTIMEO, &t, 3), EINVAL);
  exercise(p.client, p.server);
}

/* Time-outs set before the connection exists count for it. */
SAN_CASE(timeouts_set_before_connecting) {
  union address target;
  int listener = listen_on(V4, &target);
  set_timeout(listener, SO_RCVTIMEO, 40);
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  set_timeout(fd, SO_RCVTIMEO, 40);
  SYS(connect(fd, &target.any, sizeof target.v4));
  int server = SYS(accept(listener, NULL, NULL));
  char byte;
  for (int warm = 0; warm < 2; warm++) {
    TIMES_OUT(40, recv(fd, &byte, 1, 0));
    TIMES_OUT(40, recv(server, &byte, 1, 0)); /* inherited */
    warm_up_both(fd, server);
  }
  exercise(fd, server);
}

/* Each process that has the socket may set one, and it counts for all. */
SAN_CASE(timeout_that_a_child_set) {
  struct pair p = open_pair(V4);
  char byte;
  put(p.client, "x");
  get(p.server, "x");
  pid_t child = start_child();
  if (child == 0) {
    set_timeout(p.server, SO_RCVTIMEO, 40);
    _exit(0);
  }
  end_child(child);
  TIMES_OUT(40, recv(p.server, &byte, 1, 0));
  exercise(p.client, p.server);
}

/* What was connected before keeps it. */
SAN_CASE(timeout_of_a_socket_that_connects_again) {
  union address target;
  int listener = listen_on(V4, &target), fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  set_timeout(fd, SO_RCVTIMEO, 40);
  for (int round = 0; round < 2; round++) {
    char byte;
    SYS(connect(fd, &target.any, sizeof target.v4));
    int server = SYS(accept(listener, NULL, NULL));
    warm_up_both(fd, server);
    TIMES_OUT(40, recv(fd, &byte, 1, 0));
    SYS(connect(fd, &(struct sockaddr){.sa_family = AF_UNSPEC}, sizeof(struct sockaddr)));
    SYS(close(server));
  }
}

/* ---- low-water mark and buffer sizes -------------------------------------------------------- */

SAN_CASE(low_water_poll) {
  struct pair p = open_pair(V4);
  set_option(p.server, SOL_SOCKET, SO_RCVLOWAT, 10);
  EQ(get_option(p.server, SOL_SOCKET, SO_RCVLOWAT), 10);
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN}, got;
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event));
  put(p.client, "123456789");
  UNTIL(recv(p.server, (char[16]){0}, 16, MSG_PEEK | MSG_DONTWAIT) == 9);
  EQ(ready_now(p.server, POLLIN), 0);
  EQ(epoll_wait(set, &got, 1, 0), 0);
  put(p.client, "0");
  EQ(wait_for(p.server, POLLIN), POLLIN);
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  EQ(got.events, EPOLLIN);
  get(p.server, "123");
  EQ(ready_now(p.server, POLLIN), 0);
  /* Lowering it, or the end of the stream, makes the rest readable. */
  set_option(p.server, SOL_SOCKET, SO_RCVLOWAT, 7);
  EQ(wait_for(p.server, POLLIN), POLLIN);
  set_option(p.server, SOL_SOCKET, SO_RCVLOWAT, 100);
  EQ(ready_now(p.server, POLLIN), 0);
  SYS(shutdown(p.client, SHUT_WR));
  CHECK(wait_for(p.server, POLLIN) & POLLIN);
  get(p.server, "4567890");
}

/* Setting it makes an edge where that much is there, also if it was that before. */
SAN_CASE(low_water_makes_an_edge) {
  struct pair p = open_pair(V4);
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN | EPOLLET}, got;
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event));
  set_option(p.server, SOL_SOCKET, SO_RCVLOWAT, 1);
  EQ(epoll_wait(set, &got, 1, 0), 0);
  put(p.client, "12");
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  EQ(epoll_wait(set, &got, 1, 0), 0);
  set_option(p.server, SOL_SOCKET, SO_RCVLOWAT, 2);
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  set_option(p.server, SOL_SOCKET, SO_RCVLOWAT, 3);
  EQ(epoll_wait(set, &got, 1, 0), 0);
  SYS(close(set));
}

static void low_water_left(int fd) {
  set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 6);
  bt_shared->value[0] = gettid();
  step_done(0);
  char buffer[16];
  /* A blocking recv() waits for the mark. */
  EQ(recv(fd, buffer, 16, 0), 6);
  CHECK(memcmp(buffer, "abcdef", 6) == 0);
  /* But not for more than was asked. */
  step_done(1);
  EQ(recv(fd, buffer, 2, 0), 2);
  /* And the end of the stream ends the wait. */
  EQ(recv(fd, buffer, 16, 0), 1);
  SYS(close(fd));
}
static void low_water_right(int fd) {
  step_wait(0);
  /* Linux does not wake a reader that already took "abc" for less than the mark: let it wait first. */
  wait_asleep(bt_shared->value[0]);
  put(fd, "abc");
  sleep_ms(20);
  put(fd, "def");
  step_wait(1);
  put(fd, "ghi");
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
}
ENDS(low_water_recv, low_water_left, low_water_right)

SAN_CASE(buffer_sizes) {
  struct pair p = open_pair(V4);
  set_option(p.client, SOL_SOCKET, SO_SNDBUF, 20000);
  set_option(p.server, SOL_SOCKET, SO_RCVBUF, 30000);
  EQ(get_option(p.client, SOL_SOCKET, SO_SNDBUF), 40000); /* the kernel doubles it */
  EQ(get_option(p.server, SOL_SOCKET, SO_RCVBUF), 60000);
  send_pattern(p.client, 0, 15000), recv_pattern(p.server, 0, 15000);
  exercise(p.client, p.server);
}

static void small_send_buffer(int fd) {
  set_option(fd, SOL_SOCKET, SO_SNDBUF, 1);
  send_pattern(fd, 0, 1 << 20);
  SYS(close(fd));
}
static void one_megabyte(int fd) {
  recv_pattern(fd, 0, 1 << 20);
  expect_eof(fd);
}
ENDS(smallest_send_buffer, small_send_buffer, one_megabyte)

/* Two who both send first, and then read. TCP has room for it at the peer's. */
SAN_CASE(what_a_small_send_buffer_sends_is_taken_at_once) {
  enum { MUCH = 40000 };
  struct pair p = open_pair(V4);
  set_option(p.client, SOL_SOCKET, SO_SNDBUF, 4096);
  set_option(p.server, SOL_SOCKET, SO_SNDBUF, 4096);
  for (int i = 0; i < 3; i++) {
    send_pattern(p.client, 0, MUCH), send_pattern(p.server, 0, MUCH);
    recv_pattern(p.client, 0, MUCH), recv_pattern(p.server, 0, MUCH);
  }
  close_pair(&p);
}

static void small_receive_buffer(int fd) {
  set_option(fd, SOL_SOCKET, SO_RCVBUF, 1);
  step_done(0);
  recv_pattern(fd, 0, 16384);
  expect_eof(fd);
}
static void sixteen_kilobytes(int fd) {
  step_wait(0);
  send_pattern(fd, 0, 16384);
  SYS(close(fd));
}
ENDS(smallest_receive_buffer, small_receive_buffer, sixteen_kilobytes)

/* A sender with a small buffer against a reader that does not read: bounded, not swallowed. */
SAN_CASE(buffers_bound_what_is_in_flight) {
  union address target = address_v4("127.0.0.1", 0);
  int listener = SYS(socket(AF_INET, SOCK_STREAM, 0));
  set_option(listener, SOL_SOCKET, SO_RCVBUF, 65536);
  SYS(bind(listener, &target.any, sizeof target.v4));
  start_listening(listener, 1);
  target = local_address(listener);
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  set_option(fd, SOL_SOCKET, SO_SNDBUF, 65536);
  SYS(connect(fd, &target.any, sizeof target.v4));
  int server = accept_warm_both(listener, fd);
  uint64_t n = fill(fd, 0);
  CHECK(n > 0 && n < 4 << 20);
  recv_pattern(server, 0, n);
  exercise(fd, server);
}

/* ---- plain options -------------------------------------------------------------------------- */

SAN_CASE(kind_of_socket) {
  struct pair p = open_pair(V4), six = open_pair(V6);
  EQ(get_option(p.client, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
  EQ(get_option(p.client, SOL_SOCKET, SO_DOMAIN), AF_INET);
  EQ(get_option(six.server, SOL_SOCKET, SO_DOMAIN), AF_INET6);
  EQ(get_option(p.server, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
  EQ(get_option(p.server, SOL_SOCKET, SO_ACCEPTCONN), 0);
  EQ(get_option(p.server, SOL_SOCKET, SO_ERROR), 0);
  struct stat s;
  SYS(fstat(p.client, &s));
  CHECK(S_ISSOCK(s.st_mode));
  EQ(isatty(p.client), 0);
  exercise(p.client, p.server);
}

SAN_CASE(tcp_options) {
  struct pair p = open_pair(V4);
  set_option(p.client, IPPROTO_TCP, TCP_NODELAY, 1);
  EQ(get_option(p.client, IPPROTO_TCP, TCP_NODELAY), 1);
  set_option(p.client, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(p.client, IPPROTO_TCP, TCP_KEEPIDLE, 33);
  set_option(p.client, IPPROTO_TCP, TCP_KEEPINTVL, 7);
  set_option(p.client, IPPROTO_TCP, TCP_KEEPCNT, 3);
  EQ(get_option(p.client, SOL_SOCKET, SO_KEEPALIVE), 1);
  EQ(get_option(p.client, IPPROTO_TCP, TCP_KEEPIDLE), 33);
  EQ(get_option(p.client, IPPROTO_TCP, TCP_KEEPINTVL), 7);
  EQ(get_option(p.client, IPPROTO_TCP, TCP_KEEPCNT), 3);
  set_option(p.client, IPPROTO_TCP, TCP_QUICKACK, 1);
  set_option(p.client, IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
  EQ(get_option(p.client, IPPROTO_TCP, TCP_USER_TIMEOUT), 5000);
  set_option(p.client, IPPROTO_IP, IP_TOS, 0x10);
  EQ(get_option(p.client, IPPROTO_IP, IP_TOS), 0x10);
  CHECK(get_option(p.client, IPPROTO_TCP, TCP_MAXSEG) > 0);
  ERR(setsockopt(p.client, IPPROTO_TCP, 9999, &(int){1}, sizeof(int)), ENOPROTOOPT);
  ERR(setsockopt(p.client, SOL_SOCKET, SO_KEEPALIVE, bad_pointer(), sizeof(int)), EFAULT);
  exercise(p.client, p.server);
}

/* Keep-alive over an idle time longer than it takes to give up must not end the connection. */
SAN_CASE(keep_alive_of_an_idle_connection) {
  struct pair p = open_pair(V4);
  set_option(p.client, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(p.client, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(p.client, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(p.client, IPPROTO_TCP, TCP_KEEPCNT, 1);
  sleep_ms(2500);
  EQ(ready_now(p.client, POLLIN | POLLOUT), POLLOUT);
  exercise(p.client, p.server);
}

SAN_CASE(tcp_info) {
  struct pair p = open_pair(V4);
  struct tcp_info info;
  socklen_t len = sizeof info;
  exercise(p.client, p.server);
  SYS(getsockopt(p.client, IPPROTO_TCP, TCP_INFO, &info, &len));
  EQ(info.tcpi_state, TCP_ESTABLISHED);
  SYS(shutdown(p.client, SHUT_WR));
  expect_eof(p.server);
  SYS(getsockopt(p.server, IPPROTO_TCP, TCP_INFO, &info, &len));
  EQ(info.tcpi_state, TCP_CLOSE_WAIT);
  put(p.server, "still"), get(p.client, "still");
  SYS(getsockopt(p.client, IPPROTO_TCP, TCP_INFO, &info, &len));
  EQ(info.tcpi_state, TCP_FIN_WAIT2);
  SYS(shutdown(p.server, SHUT_WR));
  expect_eof(p.client);
  for (int end = 0; end < 2; end++)
    UNTIL(getsockopt(end ? p.server : p.client, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
          info.tcpi_state == TCP_CLOSE);
}

SAN_CASE(linger_values) {
  struct pair p = open_pair(V4);
  struct linger l = {9, 9};
  socklen_t len = sizeof l;
  SYS(getsockopt(p.client, SOL_SOCKET, SO_LINGER, &l, &len));
  EQ(l.l_onoff, 0);
  l = (struct linger){1, 5};
  SYS(setsockopt(p.client, SOL_SOCKET, SO_LINGER, &l, sizeof l));
  l = (struct linger){0};
  SYS(getsockopt(p.client, SOL_SOCKET, SO_LINGER, &l, &len));
  CHECK(l.l_onoff == 1 && l.l_linger == 5);
  exercise(p.client, p.server);
}

/* SO_ERROR hands out an error once. */
SAN_CASE(error_is_read_once) {
  struct pair p = open_pair(V4);
  close_reset(p.client);
  CHECK(wait_for(p.server, POLLIN) & POLLERR);
  EQ(get_option(p.server, SOL_SOCKET, SO_ERROR), ECONNRESET);
  EQ(get_option(p.server, SOL_SOCKET, SO_ERROR), 0);
  expect_eof(p.server);
}

/* ---- counting bytes ------------------------------------------------------------------------- */

SAN_CASE(bytes_to_read) {
  struct pair p = open_pair(V4);
  int n = -1;
  SYS(ioctl(p.server, FIONREAD, &n));
  EQ(n, 0);
  put(p.client, "abc");
  put(p.client, "defg");
  UNTIL(ioctl(p.server, FIONREAD, &n) == 0 && n == 7);
  get(p.server, "ab");
  SYS(ioctl(p.server, FIONREAD, &n));
  EQ(n, 5);
  SYS(ioctl(p.server, SIOCINQ, &n));
  EQ(n, 5);
  get(p.server, "cdefg");
  send_pattern(p.client, 0, 40000);
  UNTIL(ioctl(p.server, FIONREAD, &n) == 0 && n == 40000);
  recv_pattern(p.server, 0, 40000);
  SYS(close(p.client));
  expect_eof(p.server);
  SYS(ioctl(p.server, FIONREAD, &n));
  EQ(n, 0);
  ERR(ioctl(p.server, FIONREAD, bad_pointer()), EFAULT);
}

SAN_CASE(bytes_not_taken) {
  struct pair p = open_pair(V4);
  int n = -1;
  SYS(ioctl(p.client, SIOCOUTQ, &n));
  EQ(n, 0);
  uint64_t sent = fill(p.client, 0);
  SYS(ioctl(p.client, SIOCOUTQ, &n));
  CHECK(n > 0 && (uint64_t)n <= sent);
  recv_pattern(p.server, 0, sent);
  UNTIL(ioctl(p.client, SIOCOUTQ, &n) == 0 && n == 0);
}

SAN_CASE(at_mark) {
  struct pair p = open_pair(V4);
  int mark = -1;
  put(p.client, "abc");
  wait_for(p.server, POLLIN);
  SYS(ioctl(p.server, SIOCATMARK, &mark));
  EQ(mark, 0);
  EQ(sockatmark(p.server), 0);
  get(p.server, "abc");
}

/* ---- O_NONBLOCK by every route -------------------------------------------------------------- */

static void expect_blocking(struct pair *p, bool blocking) {
  char byte;
  EQ(!(fcntl(p->server, F_GETFL) & O_NONBLOCK), blocking);
  if (!blocking) {
    ERR(recv(p->server, &byte, 1, 0), EAGAIN);
    ERR(read(p->server, &byte, 1), EAGAIN);
    return;
  }
  set_timeout(p->server, SO_RCVTIMEO, 20);
  TIMES_OUT(20, recv(p->server, &byte, 1, 0));
  TIMES_OUT(20, read(p->server, &byte, 1));
}

SAN_CASE(nonblocking_by_fcntl_and_ioctl) {
  struct pair p = open_pair(V4);
  expect_blocking(&p, true);
  set_nonblocking(p.server, true), expect_blocking(&p, false);
  set_nonblocking(p.server, false), expect_blocking(&p, true);
  SYS(ioctl(p.server, FIONBIO, &(int){1})), expect_blocking(&p, false);
  SYS(ioctl(p.server, FIONBIO, &(int){0})), expect_blocking(&p, true);
  exercise(p.client, p.server);
}

SAN_CASE(nonblocking_through_a_duplicate) {
  struct pair p = open_pair(V4);
  int copy = SYS(dup(p.server));
  set_nonblocking(copy, true), expect_blocking(&p, false);
  SYS(ioctl(copy, FIONBIO, &(int){0})), expect_blocking(&p, true);
  set_nonblocking(copy, true);
  SYS(close(copy));
  expect_blocking(&p, false);
}

/* The flag belongs to the description, which a forked child shares. */
SAN_CASE(nonblocking_by_a_child) {
  struct pair p = open_pair(V4);
  expect_blocking(&p, true);
  pid_t child = start_child();
  if (child == 0) {
    set_nonblocking(p.server, true);
    _exit(0);
  }
  end_child(child);
  expect_blocking(&p, false);
  child = start_child();
  if (child == 0) {
    SYS(ioctl(p.server, FIONBIO, &(int){0}));
    _exit(0);
  }
  end_child(child);
  expect_blocking(&p, true);
  exercise(p.client, p.server);
}

/* ---- zero-copy sends ------------------------------------------------------------------------ */

/* The kernel says which sends it is done with. */
static void expect_done_with(int fd, uint32_t first, uint32_t last) {
  while (first <= last) {
    char control[128];
    struct msghdr msg = {.msg_control = control, .msg_controllen = sizeof control};
    struct pollfd error = {.fd = fd};
    EQ(poll(&error, 1, 5000), 1);
    SYS(recvmsg(fd, &msg, MSG_ERRQUEUE));
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    CHECK(c != NULL);
    const struct sock_extended_err *e = (const void *)CMSG_DATA(c);
    EQ(e->ee_origin, SO_EE_ORIGIN_ZEROCOPY);
    EQ(e->ee_info, first);
    first = e->ee_data + 1;
  }
}

/* The option alone changes nothing. */
SAN_CASE(zero_copy_allowed) {
  struct pair p = open_pair(V4);
  SYS(setsockopt(p.client, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int)));
  warm_up_both(p.client, p.server);
  exercise(p.client, p.server);
}

static void zero_copy(bool allowed_later, bool blocks) {
  struct pair p = open_pair(V4);
  struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
  int set = SYS(epoll_create1(0));
  if (!allowed_later) SYS(setsockopt(p.client, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int)));
  warm_up_both(p.client, p.server);
  if (allowed_later) SYS(setsockopt(p.client, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int)));
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.client, &event));
  put(p.client, "before");
  for (int i = 0; i < 20; i++) {
    /* Programs take another error than EAGAIN for the connection's end. */
    while (send(p.client, "in place", 8, MSG_ZEROCOPY | (blocks ? 0 : MSG_DONTWAIT)) < 0) {
      CHECK(!blocks && errno == EAGAIN);
      EQ(epoll_wait(set, &event, 1, 5000), 1);
    }
    get(p.server, i == 0 ? "beforein place" : "in place");
    put(p.server, "answer");
    get(p.client, "answer");
  }
  expect_done_with(p.client, 0, 19);
  SYS(close(set));
  exercise(p.client, p.server);
}
CASE(zero_copy_sends) { zero_copy(false, true); }
CASE(zero_copy_sends_that_do_not_wait) { zero_copy(false, false); }
CASE(zero_copy_allowed_on_the_san) { zero_copy(true, true); }

/* Without SO_ZEROCOPY the flag means nothing. */
SAN_CASE(zero_copy_flag_alone) {
  struct pair p = open_pair(V4);
  warm_up_both(p.client, p.server);
  EQ(send(p.client, "copied", 6, MSG_ZEROCOPY), 6);
  get(p.server, "copied");
  exercise(p.client, p.server);
}
