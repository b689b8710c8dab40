/* Making connections: blocking and not, refused, bound, and what accept() hands out. */
#include "bt.h"
#include <net/if.h>
#include <sched.h>

static void echo_client(int fd) {
  put(fd, "hello"), get(fd, "hello");
  SYS(close(fd));
}
static void echo_server(int fd) {
  get(fd, "hello"), put(fd, "hello");
  expect_eof(fd);
  SYS(close(fd));
}
ENDS(echo, echo_client, echo_server)

SAN_CASE(echo_dual_threads) { run_threads(DUAL, echo_client, echo_server); }
SAN_CASE(echo_dual_processes) { run_processes(DUAL, echo_client, echo_server); }

/* connect() completes by itself, so one thread can do everything in turn. */
SAN_CASE(one_thread_sends_before_accept) {
  union address target;
  int listener = listen_on(V4, &target);
  int client = dial(&target);
  put(client, "early");
  int server = SYS(accept(listener, NULL, NULL));
  get(server, "early");
  warm_up_both(client, server);
  exercise(client, server);
}

CASE(one_thread_sends_and_closes_before_accept) {
  union address target;
  int listener = listen_on(V4, &target);
  int client = dial(&target);
  send_pattern(client, 0, 5000);
  SYS(close(client));
  int server = SYS(accept(listener, NULL, NULL));
  recv_pattern(server, 0, 5000);
  expect_eof(server);
}

SAN_CASE(many_clients_before_first_accept) {
  union address target;
  int listener = listen_on(V4, &target), client[50];
  for (int i = 0; i < 50; i++) {
    client[i] = dial(&target);
    send_pattern(client[i], i, 100);
  }
  for (int i = 0; i < 50; i++) {
    int server = SYS(accept(listener, NULL, NULL));
    union address from = peer_address(server), local = local_address(client[i]);
    CHECK(address_equal(&from, &local)); /* first in, first out */
    recv_pattern(server, i, 100);
    warm_up_both(client[i], server);
    exercise(server, client[i]);
    SYS(close(server));
  }
}

SAN_CASE(nonblocking_poll) {
  union address target;
  int listener = listen_on(V4, &target);
  int fd = SYS(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  if (connect(fd, &target.any, sizeof target.v4) < 0) EQ(errno, EINPROGRESS);
  EQ(wait_for(fd, POLLOUT), POLLOUT);
  EQ(get_option(fd, SOL_SOCKET, SO_ERROR), 0);
  int server = SYS(accept(listener, NULL, NULL));
  for (int warm = 0; warm < 2; warm++) {
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    expect_nothing(fd);
    warm_up_both(fd, server);
  }
  exercise(fd, server);
}

SAN_CASE(nonblocking_epoll) {
  union address target;
  int listener = listen_on(V6, &target);
  int fd = SYS(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0)), set = SYS(epoll_create1(0));
  if (connect(fd, &target.any, sizeof target.v6) < 0) EQ(errno, EINPROGRESS);
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u64 = 77}, got;
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  EQ(got.events, EPOLLOUT);
  EQ(got.data.u64, 77);
  EQ(get_option(fd, SOL_SOCKET, SO_ERROR), 0);
  exercise(fd, accept_warm_both(listener, fd));
}

/* An event loop registers first and connects then. */
SAN_CASE(epoll_before_connect) {
  union address target;
  int listener = listen_on(V4, &target);
  int fd = SYS(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.u64 = 5}, got;
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  EQ(epoll_wait(set, &got, 1, 0), 1);
  EQ(got.events, EPOLLOUT | EPOLLHUP); /* not connected yet */
  if (connect(fd, &target.any, sizeof target.v4) < 0) EQ(errno, EINPROGRESS);
  wait_revents(fd, POLLIN | POLLOUT, POLLOUT);
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  EQ(got.events, EPOLLOUT);
  int server = SYS(accept(listener, NULL, NULL));
  for (int warm = 0; warm < 2; warm++) {
    put(server, "x");
    wait_for(fd, POLLIN);
    EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
    EQ(got.events, EPOLLIN | EPOLLOUT);
    EQ(got.data.u64, 5);
    get(fd, "x");
    warm_up_both(fd, server);
  }
}

SAN_CASE(nonblocking_set_after_connect) {
  struct pair p = open_pair(V4);
  set_nonblocking(p.client, true);
  char byte;
  ERR(recv(p.client, &byte, 1, 0), EAGAIN);
  set_nonblocking(p.client, false);
  put(p.server, "x");
  get(p.client, "x");
}

CASE(refused_blocking) {
  union address target;
  SYS(close(listen_on(V4, &target)));
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  ERR(connect(fd, &target.any, sizeof target.v4), ECONNREFUSED);
  EQ(get_option(fd, SOL_SOCKET, SO_ERROR), 0);
  ERR(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
}

CASE(refused_nonblocking) {
  union address target;
  SYS(close(listen_on(V6, &target)));
  int fd = SYS(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0));
  int result = connect(fd, &target.any, sizeof target.v6);
  EQ(result, -1);
  if (errno == ECONNREFUSED) return;
  EQ(errno, EINPROGRESS);
  short events = wait_for(fd, POLLOUT);
  EQ(events, POLLOUT | POLLERR | POLLHUP);
  EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
  EQ(get_option(fd, SOL_SOCKET, SO_ERROR), 0);
}

/* After a refusal the same socket may try again. */
SAN_CASE(refused_then_accepted) {
  union address target;
  int listener = listen_on(V4, &target);
  SYS(close(listener));
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  ERR(connect(fd, &target.any, sizeof target.v4), ECONNREFUSED);
  listener = listen_at(&target);
  SYS(connect(fd, &target.any, sizeof target.v4));
  exercise(fd, accept_warm_both(listener, fd));
}

SAN_CASE(bound_source) {
  union address target, source = address_v4("127.0.0.5", 0);
  int listener = listen_on(V4, &target);
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  SYS(bind(fd, &source.any, sizeof source.v4));
  int port = (source = local_address(fd), address_port(&source));
  SYS(connect(fd, &target.any, sizeof target.v4));
  union address from = {0};
  socklen_t len = sizeof from;
  int server = SYS(accept(listener, &from.any, &len));
  EQ(len, sizeof from.v4);
  EQ(address_port(&from), port);
  EQ(from.v4.sin_addr.s_addr, inet_addr("127.0.0.5"));
  warm_up_both(fd, server);
  exercise(fd, server);
}

SAN_CASE(names_of_both_ends) {
  for (enum family family = V4; family <= V6; family++) {
    struct pair p = open_pair(family);
    union address a = local_address(p.client), b = peer_address(p.server);
    union address c = peer_address(p.client), d = local_address(p.server);
    CHECK(address_equal(&a, &b));
    CHECK(address_equal(&c, &d));
    CHECK(!address_equal(&a, &c));
    close_pair(&p);
  }
}

SAN_CASE(dual_stack_names_are_mapped) {
  struct pair p = open_pair(DUAL);
  union address from = peer_address(p.server), local = local_address(p.client);
  EQ(from.any.sa_family, AF_INET6);
  CHECK(IN6_IS_ADDR_V4MAPPED(&from.v6.sin6_addr));
  EQ(address_port(&from), address_port(&local));
  exercise(p.client, p.server);
}

SAN_CASE(truncated_peer_name) {
  union address target, from;
  int listener = listen_on(V4, &target);
  int fd = dial(&target);
  memset(&from, 0x55, sizeof from);
  socklen_t len = 4;
  int server = SYS(accept(listener, &from.any, &len));
  EQ(len, sizeof from.v4);
  EQ(((unsigned char *)&from)[4], 0x55);
  warm_up_both(fd, server);
  exercise(fd, server);
}

SAN_CASE(connected_twice) {
  union address target;
  int listener = listen_on(V4, &target);
  int fd = dial(&target);
  ERR(connect(fd, &target.any, sizeof target.v4), EISCONN);
  exercise(fd, accept_warm_both(listener, fd));
  ERR(connect(fd, &target.any, sizeof target.v4), EISCONN);
}

/* A second connect() tells how a non-blocking one went: EALREADY or 0 once, then EISCONN. */
SAN_CASE(connect_polled_by_connect) {
  union address target;
  int listener = listen_on(V4, &target);
  int fd = SYS(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  if (connect(fd, &target.any, sizeof target.v4) < 0) EQ(errno, EINPROGRESS);
  wait_for(fd, POLLOUT);
  int again = connect(fd, &target.any, sizeof target.v4);
  if (again < 0) EQ(errno, EISCONN);
  ERR(connect(fd, &target.any, sizeof target.v4), EISCONN);
  exercise(fd, accept_warm_both(listener, fd));
}

/* The queue of the listener is full: connect() stays in progress until accept() makes room. */
CASE(full_backlog_nonblocking) {
  union address where = address_v4("127.0.0.1", 0);
  int listener = SYS(socket(AF_INET, SOCK_STREAM, 0)), fd[8];
  SYS(bind(listener, &where.any, sizeof where.v4));
  SYS(listen(listener, 1));
  where = local_address(listener);
  for (int i = 0; i < 4; i++) {
    fd[i] = SYS(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    if (connect(fd[i], &where.any, sizeof where.v4) < 0) EQ(errno, EINPROGRESS);
  }
  EQ(ready_now(fd[3], POLLOUT), 0);
  ERR(connect(fd[3], &where.any, sizeof where.v4), EALREADY);
  char byte;
  ERR(recv(fd[3], &byte, 1, 0), EAGAIN);
  for (int i = 0; i < 4; i++) {
    int server = SYS(accept(listener, NULL, NULL));
    union address from = peer_address(server);
    int j = 0;
    for (union address local; j < 4; j++)
      if (local = local_address(fd[j]), address_equal(&local, &from)) break;
    CHECK(j < 4);
    wait_for(fd[j], POLLOUT);
    EQ(get_option(fd[j], SOL_SOCKET, SO_ERROR), 0);
    exercise(fd[j], server);
  }
}

/* The same of a blocking one, which waits: until SO_SNDTIMEO, a signal, or room. */
static int full_listener(union address *where) {
  *where = address_v4("127.0.0.1", 0);
  int listener = SYS(socket(AF_INET, SOCK_STREAM, 0));
  SYS(bind(listener, &where->any, sizeof where->v4));
  SYS(listen(listener, 0));
  *where = local_address(listener);
  for (int i = 0; i < 2; i++) {
    int fd = SYS(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    if (connect(fd, &where->any, sizeof where->v4) < 0) EQ(errno, EINPROGRESS);
  }
  return listener;
}
static void nothing(int number) { (void)number; }
/* And each such time again: the first may come before connect() begins. */
static void interrupt_after(long us, int flags) {
  handle_signal(SIGALRM, nothing, flags);
  SYS(setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = us, .it_interval.tv_usec = us}, NULL));
}
static int connect_to(const union address *where, int time_out) {
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  if (time_out) set_timeout(fd, SO_SNDTIMEO, time_out);
  int result = connect(fd, &where->any, sizeof where->v4), e = errno;
  SYS(setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL));
  SYS(close(fd));
  errno = e;
  return result;
}
CASE(full_backlog_until_a_time_out) {
  union address where;
  full_listener(&where);
  ERR(connect_to(&where, 30), EINPROGRESS);
}
CASE(full_backlog_until_a_signal) {
  union address where;
  full_listener(&where);
  for (int i = 0; i < 8; i++) {
    interrupt_after(i % 2 ? 150 : 20000, 0);
    ERR(connect_to(&where, i & 2 ? HANG_MS : 0), EINTR);
    interrupt_after(i % 2 ? 150 : 20000, SA_RESTART);
    ERR(connect_to(&where, HANG_MS), EINTR);
  }
}
static void *connect_and_wait(void *where) {
  bt_shared->value[0] = gettid();
  connect_to(where, 0);
  return NULL;
}
CASE(full_backlog_until_a_cancellation) {
  union address where;
  full_listener(&where);
  pthread_t thread = start_thread(connect_and_wait, &where);
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep((pid_t)bt_shared->value[0]);
  EQ(pthread_cancel(thread), 0);
  void *value;
  EQ(pthread_join(thread, &value), 0);
  CHECK(value == PTHREAD_CANCELED);
}
static void *accept_later(void *listener) {
  sleep_ms(50);
  for (int i = 0; i < 2; i++) SYS(accept(*(int *)listener, NULL, NULL));
  return NULL;
}
CASE(full_backlog_until_there_is_room) {
  union address where;
  int listener = full_listener(&where);
  pthread_t thread = start_thread(accept_later, &listener);
  interrupt_after(10000, SA_RESTART);
  EQ(connect_to(&where, 0), 0);
  end_thread(thread);
}

CASE(errors_before_connecting) {
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  char byte;
  union address a;
  socklen_t len = sizeof a;
  ERR(recv(fd, &byte, 1, 0), ENOTCONN);
  ERR(read(fd, &byte, 1), ENOTCONN);
  ERR(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
  ERR(shutdown(fd, SHUT_WR), ENOTCONN);
  ERR(getpeername(fd, &a.any, &len), ENOTCONN);
  ERR(accept(fd, NULL, NULL), EINVAL);
  union address unix_like = {.any.sa_family = AF_UNIX};
  ERR(connect(fd, &unix_like.any, sizeof unix_like.v4), EAFNOSUPPORT);
  ERR(connect(fd, &unix_like.any, 1), EINVAL);
  ERR(connect(fd, bad_pointer(), sizeof unix_like.v4), EFAULT);
  ERR(connect(-1, &unix_like.any, sizeof unix_like.v4), EBADF);
  ERR(connect(0x7fffffff, &unix_like.any, sizeof unix_like.v4), EBADF);
}

/* AF_UNSPEC dissolves a connection; the socket can be connected anew. */
SAN_CASE(dissolved_and_connected_again) {
  union address target;
  int listener = listen_on(V4, &target);
  int fd = dial(&target);
  int first = accept_warm_both(listener, fd);
  exercise(fd, first);
  struct sockaddr none = {.sa_family = AF_UNSPEC};
  SYS(connect(fd, &none, sizeof none));
  char byte;
  EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ECONNRESET);
  ERR(recv(fd, &byte, 1, 0), ENOTCONN);
  ERR(recv(first, &byte, 1, 0), ECONNRESET);
  SYS(connect(fd, &target.any, sizeof target.v4));
  exercise(fd, accept_warm_both(listener, fd));
}

/* A network of its own, in which listeners take bytes in the first segment; false where this user may have none. */
static int enter_fast_network(void) {
  if (unshare(CLONE_NEWNET) < 0) return 0;
  int any = SYS(socket(AF_INET, SOCK_DGRAM, 0));
  struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
  SYS(ioctl(any, SIOCSIFFLAGS, &loopback));
  SYS(close(any));
  int fast = SYS(open("/proc/sys/net/ipv4/tcp_fastopen", O_WRONLY));
  EQ(write(fast, "3", 1), 1);
  SYS(close(fast));
  return 1;
}

/* The first connection brings the client a cookie, and from then on the first segment has bytes of the stream: a direction turns to
   the SAN behind them. */
static void first_segment(int by_connect) {
  int is_fast = enter_fast_network(), length = 16;
  union address target;
  int listener = listen_on(V4, &target);
  SYS(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &length, sizeof length));
  for (int i = 0; i < 4; i++) {
    int client = SYS(socket(AF_INET, SOCK_STREAM, 0));
    if (by_connect) {
      SYS(setsockopt(client, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &by_connect, sizeof by_connect));
      SYS(connect(client, &target.any, sizeof target.v4));
      put(client, "early bytes");
    } else {
      EQ(sendto(client, "early bytes", 11, MSG_FASTOPEN, &target.any, sizeof target.v4), 11);
    }
    int server = SYS(accept(listener, NULL, NULL));
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    get(server, "early ");
    SYS(getsockopt(client, IPPROTO_TCP, TCP_INFO, &info, &size));
    EQ(!!(info.tcpi_options & TCPI_OPT_SYN_DATA), is_fast && i > 0);
    get(server, "bytes");
    warm_up_both(client, server);
    send_pattern(client, i, 50000);
    recv_pattern(server, i, 50000);
    exercise(client, server);
    SYS(close(client));
    expect_eof(server);
    SYS(close(server));
  }
}

SAN_CASE(bytes_in_the_first_segment_by_connect) { first_segment(1); }
CASE(bytes_in_the_first_segment_by_sendto) { first_segment(0); }

CASE(other_socket_kinds_are_untouched) {
  int udp = SYS(socket(AF_INET, SOCK_DGRAM, 0)), pair[2];
  union address where = address_v4("127.0.0.1", 0);
  SYS(bind(udp, &where.any, sizeof where.v4));
  where = local_address(udp);
  int from = SYS(socket(AF_INET, SOCK_DGRAM, 0));
  SYS(connect(from, &where.any, sizeof where.v4));
  put(from, "datagram"), get(udp, "datagram");
  SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
  exercise(pair[0], pair[1]);
  ERR(listen(udp, 1), EOPNOTSUPP);
}
