/* Listeners: addresses, groups, several workers, and the flags of accepted sockets. */
#include "bt.h"

#include <ifaddrs.h>
#include <net/if.h>

/* ---- a listener of the program before --------------------------------------------------------- */

static void check_options(int fd) {
  EQ(get_option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
  EQ(get_option(fd, SOL_SOCKET, SO_OOBINLINE), 1);
}
PART(acceptor) {
  int fd = accept_warm(atoi(bt_arguments[0]));
  check_options(fd);
  get(fd, "ping"), put(fd, "pong");
  check_options(fd);
  SYS(close(fd));
}
SAN_CASE(options_of_an_inherited_listener) {
  union address target;
  int listener = listen_on(V4, &target);
  set_option(listener, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(listener, SOL_SOCKET, SO_OOBINLINE, 1);
  SYS(fcntl(listener, F_SETFD, 0));
  char number[16];
  snprintf(number, sizeof number, "%d", listener);
  pid_t pid = start_program("@acceptor", true, number, NULL);
  int client = dial_warm(&target);
  put(client, "ping"), get(client, "pong");
  expect_eof(client);
  SYS(close(client)), SYS(close(listener));
  end_child(pid);
}

/* ---- addresses --------------------------------------------------------------------------------- */

static void meet(const union address *listen_address, const union address *target) {
  int listener = listen_at(listen_address);
  union address bound = local_address(listener), to = *target;
  to.v4.sin_port = bound.v4.sin_port; /* same place in both families */
  int client = dial(&to), server = accept_warm_both(listener, client);
  union address from = peer_address(server), local = local_address(client);
  EQ(address_port(&from), address_port(&local));
  exercise(client, server);
  send_pattern(client, 0, 3000), recv_pattern(server, 0, 3000);
  SYS(close(client));
  expect_eof(server);
  SYS(close(server));
  SYS(close(listener));
}

SAN_CASE(other_loopback_addresses) {
  union address first = address_v4("127.0.0.2", 0), second = address_v4("127.200.1.77", 0);
  meet(&first, &first);
  meet(&second, &second);
}

SAN_CASE(wildcard_v4) {
  union address any = address_v4("0.0.0.0", 0), to = address_v4("127.0.0.1", 0);
  meet(&any, &to);
  to = address_v4("127.3.2.1", 0);
  meet(&any, &to);
  to = address_v4("0.0.0.0", 0); /* means this host */
  meet(&any, &to);
}

SAN_CASE(wildcard_v6) {
  union address any = address_v6("::", 0), to = address_v6("::1", 0);
  meet(&any, &to);
  to = address_v4("127.0.0.1", 0);
  meet(&any, &to);
  to = address_v6("::ffff:127.0.0.1", 0);
  meet(&any, &to);
}

SAN_CASE(v6_socket_to_v4_listener) {
  union address v4 = address_v4("127.0.0.1", 0), mapped = address_v6("::ffff:127.0.0.1", 0);
  meet(&v4, &mapped);
}

/* Every address the host has. */
SAN_CASE(all_local_addresses) {
  struct ifaddrs *list;
  SYS(getifaddrs(&list));
  int met = 0;
  for (struct ifaddrs *i = list; i; i = i->ifa_next) {
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP)) continue;
    union address a = {0};
    if (i->ifa_addr->sa_family == AF_INET)
      memcpy(&a, i->ifa_addr, sizeof a.v4);
    else if (i->ifa_addr->sa_family == AF_INET6)
      memcpy(&a, i->ifa_addr, sizeof a.v6);
    else
      continue;
    a.v4.sin_port = 0;
    meet(&a, &a);
    if (a.any.sa_family == AF_INET) {
      union address any = address_v4("0.0.0.0", 0);
      meet(&any, &a);
    }
    met++;
  }
  freeifaddrs(list);
  CHECK(met > 0);
}

CASE(v6only_refuses_v4) {
  union address any = address_v6("::", 0);
  int listener = SYS(socket(AF_INET6, SOCK_STREAM, 0));
  set_option(listener, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  SYS(bind(listener, &any.any, sizeof any.v6));
  start_listening(listener, 5);
  union address bound = local_address(listener), to = address_v4("127.0.0.1", address_port(&bound));
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  ERR(connect(fd, &to.any, sizeof to.v4), ECONNREFUSED);
}

/* listen() without bind(): the kernel picks a port. */
SAN_CASE(listen_unbound) {
  int listener = SYS(socket(AF_INET, SOCK_STREAM, 0));
  start_listening(listener, 5);
  union address to = local_address(listener);
  CHECK(address_port(&to) != 0);
  to.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = dial(&to);
  exercise(fd, accept_warm_both(listener, fd));
}

SAN_CASE(listen_again_changes_backlog) {
  union address target;
  int listener = listen_on(V4, &target);
  start_listening(listener, 3);
  int fd = dial(&target);
  SYS(listen(listener, 50));
  exercise(fd, accept_warm_both(listener, fd));
}

SAN_CASE(several_listeners) {
  union address target[20];
  int listener[20], client[20];
  for (int i = 0; i < 20; i++) listener[i] = listen_on(i % 3, &target[i]);
  for (int i = 0; i < 20; i++) client[i] = dial(&target[i]);
  for (int i = 19; i >= 0; i--) {
    int server = SYS(accept(listener[i], NULL, NULL));
    union address from = peer_address(server), local = local_address(client[i]);
    EQ(address_port(&from), address_port(&local));
    warm_up_both(client[i], server);
    exercise(client[i], server);
  }
}

/* A specific address and the wildcard on one port: the specific one gets its clients. */
SAN_CASE(specific_beside_wildcard) {
  union address first = address_v4("127.0.0.9", 0);
  int specific = SYS(socket(AF_INET, SOCK_STREAM, 0)), wild = SYS(socket(AF_INET, SOCK_STREAM, 0));
  set_option(specific, SOL_SOCKET, SO_REUSEPORT, 1);
  set_option(wild, SOL_SOCKET, SO_REUSEPORT, 1);
  /* The port is free for the one address; another program may have it for the wildcard. */
  union address any;
  for (int tries = 0;; tries++) {
    SYS(bind(specific, &first.any, sizeof first.v4));
    first = local_address(specific);
    any = address_v4("0.0.0.0", address_port(&first));
    if (bind(wild, &any.any, sizeof any.v4) == 0) break;
    CHECK(errno == EADDRINUSE && tries < 50);
    SYS(close(specific));
    specific = SYS(socket(AF_INET, SOCK_STREAM, 0));
    set_option(specific, SOL_SOCKET, SO_REUSEPORT, 1);
    first = address_v4("127.0.0.9", 0);
  }
  start_listening(specific, 5);
  start_listening(wild, 5);
  union address other = address_v4("127.0.0.8", address_port(&first));
  int to_wild = dial(&other), to_specific = dial(&first);
  exercise(to_specific, accept_warm_both(specific, to_specific));
  exercise(to_wild, accept_warm_both(wild, to_wild));
}

/* Workers with a listener of their own on one port. */
SAN_CASE(reuseport_group) {
  enum { WORKERS = 3, CLIENTS = 30 };
  union address where = address_v4("127.0.0.1", 0);
  int listener[WORKERS];
  for (int i = 0; i < WORKERS; i++) {
    listener[i] = SYS(socket(AF_INET, SOCK_STREAM, 0));
    set_option(listener[i], SOL_SOCKET, SO_REUSEPORT, 1);
    SYS(bind(listener[i], &where.any, sizeof where.v4));
    SYS(listen(listener[i], 100));
    where = local_address(listener[i]);
  }
  pid_t worker[WORKERS];
  for (int i = 0; i < WORKERS; i++) {
    worker[i] = start_child();
    if (worker[i] != 0) continue;
    for (int j = 0; j < WORKERS; j++)
      if (j != i) SYS(close(listener[j]));
    for (;;) {
      int fd = accept_warm(listener[i]);
      get(fd, "ping"), put(fd, "pong");
      expect_eof(fd);
      SYS(close(fd));
    }
  }
  for (int i = 0; i < WORKERS; i++) SYS(close(listener[i]));
  int fd[CLIENTS];
  for (int i = 0; i < CLIENTS; i++) fd[i] = dial(&where);
  for (int i = 0; i < CLIENTS; i++) {
    warm_up(fd[i], true);
    put(fd[i], "ping"), get(fd[i], "pong");
    SYS(close(fd[i]));
  }
  for (int i = 0; i < WORKERS; i++) SYS(kill(worker[i], SIGKILL)), SYS(waitpid(worker[i], NULL, 0));
}

/* Workers that inherit one listener. */
static void prefork(enum family family, int workers, int clients) {
  union address target;
  int listener = listen_on(family, &target);
  pid_t worker[8];
  for (int i = 0; i < workers; i++) {
    worker[i] = start_child();
    if (worker[i] != 0) continue;
    for (;;) {
      int fd = accept_warm(listener);
      get(fd, "ping"), put(fd, "pong");
      SYS(close(fd));
    }
  }
  SYS(close(listener));
  for (int i = 0; i < clients; i++) {
    int fd = dial_warm(&target);
    put(fd, "ping"), get(fd, "pong");
    expect_eof(fd);
    SYS(close(fd));
  }
  int fd[16];
  for (int i = 0; i < 16; i++) fd[i] = dial(&target);
  for (int i = 0; i < 16; i++) warm_up(fd[i], true), put(fd[i], "ping"), get(fd[i], "pong");
  for (int i = 0; i < workers; i++) SYS(kill(worker[i], SIGKILL)), SYS(waitpid(worker[i], NULL, 0));
}
SAN_CASE(prefork_one_worker) { prefork(V4, 1, 20); }
SAN_CASE(prefork_four_workers) { prefork(V4, 4, 100); }
SAN_CASE(prefork_dual_stack) { prefork(DUAL, 2, 50); }

/* Workers with an epoll set each on the shared listener: the loser of a race gets EAGAIN. */
SAN_CASE(prefork_epoll_nonblocking) {
  union address target;
  int listener = listen_on(V4, &target);
  set_nonblocking(listener, true);
  pid_t worker[3];
  for (int i = 0; i < 3; i++) {
    worker[i] = start_child();
    if (worker[i] != 0) continue;
    int set = SYS(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | (i ? EPOLLEXCLUSIVE : 0), .data.fd = listener};
    SYS(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
    for (;;) {
      struct epoll_event got;
      EQ(epoll_wait(set, &got, 1, -1), 1);
      int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
      if (fd < 0) {
        EQ(errno, EAGAIN);
        continue;
      }
      warm_up(fd, false);
      get(fd, "ping"), put(fd, "pong");
      SYS(close(fd));
    }
  }
  for (int round = 0; round < 10; round++) {
    int fd[10];
    for (int i = 0; i < 10; i++) fd[i] = dial(&target);
    for (int i = 0; i < 10; i++) {
      warm_up(fd[i], true);
      put(fd[i], "ping"), get(fd[i], "pong");
      SYS(close(fd[i]));
    }
  }
  for (int i = 0; i < 3; i++) SYS(kill(worker[i], SIGKILL)), SYS(waitpid(worker[i], NULL, 0));
}

static void *accepting_thread(void *arg) {
  int listener = *(int *)arg;
  for (;;) {
    int fd = accept_warm(listener);
    char byte;
    if (recv(fd, &byte, 1, 0) != 1) FAIL("no byte");
    if (byte == 'q') return NULL;
    EQ(send(fd, &byte, 1, 0), 1);
    SYS(close(fd));
  }
}
SAN_CASE(threads_accept_on_one_listener) {
  union address target;
  int listener = listen_on(V4, &target);
  pthread_t thread[4];
  for (int i = 0; i < 4; i++) thread[i] = start_thread(accepting_thread, &listener);
  for (int i = 0; i < 100; i++) {
    int fd = dial_warm(&target);
    put(fd, "x"), get(fd, "x");
    SYS(close(fd));
  }
  for (int i = 0; i < 4; i++) put(dial_warm(&target), "q");
  for (int i = 0; i < 4; i++) end_thread(thread[i]);
}

SAN_CASE(accepted_flags) {
  union address target;
  int listener = listen_on(V4, &target);
  set_nonblocking(listener, true);
  SYS(fcntl(listener, F_SETFD, FD_CLOEXEC));
  const int flags[] = {0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC};
  for (int i = 0; i < 5; i++) {
    int client = dial(&target);
    wait_for(listener, POLLIN);
    /* Nothing is inherited from the listener: the last round uses accept(). */
    int want = i < 4 ? flags[i] : 0;
    int fd = i < 4 ? SYS(accept4(listener, NULL, NULL, want)) : SYS(accept(listener, NULL, NULL));
    for (int warm = 0; warm < 2; warm++) {
      EQ(!!(fcntl(fd, F_GETFL) & O_NONBLOCK), !!(want & SOCK_NONBLOCK));
      EQ(!!(fcntl(fd, F_GETFD) & FD_CLOEXEC), !!(want & SOCK_CLOEXEC));
      /* Who does not block, and never waits, stays on TCP. */
      EQ(ready_now(fd, POLLIN), 0);
      warm_up_both(client, fd);
    }
    exercise(client, fd);
    if (want & SOCK_NONBLOCK) {
      char byte;
      ERR(recv(fd, &byte, 1, 0), EAGAIN);
    }
    SYS(close(client)), SYS(close(fd));
  }
  ERR(accept(listener, NULL, NULL), EAGAIN);
  ERR(accept4(listener, NULL, NULL, 0x10), EINVAL);
}

/* Options set on the listener are those of the accepted socket. */
SAN_CASE(accepted_options_inherited) {
  union address target;
  int listener = listen_on(V4, &target);
  set_option(listener, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(listener, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(listener, SOL_SOCKET, SO_RCVLOWAT, 3);
  int client = dial(&target), server = SYS(accept(listener, NULL, NULL));
  for (int warm = 0; warm < 2; warm++) {
    EQ(get_option(server, IPPROTO_TCP, TCP_NODELAY), 1);
    EQ(get_option(server, SOL_SOCKET, SO_KEEPALIVE), 1);
    EQ(get_option(server, SOL_SOCKET, SO_RCVLOWAT), 3);
    EQ(get_option(server, SOL_SOCKET, SO_ACCEPTCONN), 0);
    EQ(get_option(listener, SOL_SOCKET, SO_ACCEPTCONN), 1);
    warm_up_both(client, server);
  }
  exercise(client, server);
}

CASE(listener_errors) {
  union address target;
  int listener = listen_on(V4, &target);
  char byte;
  ERR(recv(listener, &byte, 1, 0), ENOTCONN);
  ERR(send(listener, "x", 1, MSG_NOSIGNAL), EPIPE);
  ERR(connect(listener, &target.any, sizeof target.v4), EISCONN);
  int second = SYS(socket(AF_INET, SOCK_STREAM, 0));
  ERR(bind(second, &target.any, sizeof target.v4), EADDRINUSE);
  ERR(accept(-1, NULL, NULL), EBADF);
  int fd[2];
  SYS(pipe(fd));
  ERR(accept(fd[0], NULL, NULL), ENOTSOCK);
  set_timeout(listener, SO_RCVTIMEO, 30);
  int64_t start = now_ms();
  ERR(accept(listener, NULL, NULL), EAGAIN);
  CHECK(now_ms() - start >= 29);
}

/* accept waits for the first data, wherever that is; apache listens so. */
static void deferred(bool after) {
  union address target;
  int listener = listen_on(V4, &target);
  if (after) {
    set_option(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, 30);
  } else {
    int first = SYS(socket(AF_INET, SOCK_STREAM, 0));
    set_option(first, IPPROTO_TCP, TCP_DEFER_ACCEPT, 30);
    start_listening(first, 8);
    target = local_address(first);
    target.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    SYS(close(listener));
    listener = first;
  }
  int client = dial(&target);
  put(client, "first");
  int server = SYS(accept(listener, NULL, NULL));
  get(server, "first");
  warm_up_both(client, server);
  exercise(client, server);
  SYS(close(client));
  SYS(close(server));
  SYS(close(listener));
}
SAN_CASE(deferred_before_listen) { deferred(false); }
SAN_CASE(deferred_after_listen) { deferred(true); }

/* A client that is gone before accept(): the connection is still handed out. */
CASE(client_reset_before_accept) {
  union address target;
  int listener = listen_on(V4, &target);
  close_reset(dial(&target));
  int fd = SYS(accept(listener, NULL, NULL));
  char byte;
  ERR(recv(fd, &byte, 1, 0), ECONNRESET);
}

/* A listener closed with connections in its queue resets them. */
CASE(listener_closed_with_queue) {
  union address target;
  int listener = listen_on(V4, &target), client = dial(&target);
  SYS(close(listener));
  char byte;
  ERR(recv(client, &byte, 1, 0), ECONNRESET);
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  ERR(connect(fd, &target.any, sizeof target.v4), ECONNREFUSED);
}

/* shutdown() ends a listener; a thread blocked in accept() is told. */
static void *blocked_accept(void *arg) {
  int listener = *(int *)arg;
  atomic_store(&bt_shared->value[0], gettid());
  ERR(accept(listener, NULL, NULL), EINVAL);
  return NULL;
}
CASE(listener_shut_down) {
  union address target;
  int listener = listen_on(V4, &target);
  pthread_t thread = start_thread(blocked_accept, &listener);
  UNTIL(atomic_load(&bt_shared->value[0]) != 0);
  wait_asleep(atomic_load(&bt_shared->value[0]));
  SYS(shutdown(listener, SHUT_RD));
  end_thread(thread);
}

/* The same two addresses and ports, again and again. */
SAN_CASE(same_four_tuple_again) {
  union address target, source = address_v4("127.0.0.1", 0);
  int listener = listen_on(V4, &target);
  for (int i = 0; i < 20; i++) {
    int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    SYS(bind(fd, &source.any, sizeof source.v4));
    source = local_address(fd);
    SYS(connect(fd, &target.any, sizeof target.v4));
    int server = accept_warm_both(listener, fd);
    exercise(fd, server);
    send_pattern(fd, i, 700), recv_pattern(server, i, 700);
    if (i % 2) {
      close_reset(fd); /* no TIME_WAIT: the port is free at once */
      char byte;
      ERR(recv(server, &byte, 1, 0), ECONNRESET);
      SYS(close(server));
    } else {
      SYS(close(server)); /* the TIME_WAIT side is the server */
      expect_eof(fd);
      close_reset(fd);
    }
  }
}

/* A port is taken over by a new listener while old connections go on. */
SAN_CASE(listener_replaced) {
  union address target = address_v4("127.0.0.1", 0);
  int listener = listen_at(&target), old_client = (target = local_address(listener), dial(&target));
  int old_server = accept_warm_both(listener, old_client);
  SYS(close(listener));
  listener = listen_at(&target);
  int client = dial(&target), server = accept_warm_both(listener, client);
  exercise(client, server);
  exercise(old_client, old_server);
}

static void sequence_client(int fd) {
  union address target = peer_address(fd);
  step_wait(0);
  SYS(close(fd));
  for (int i = 0; i < 300; i++) {
    target.v4.sin_port = htons(atomic_load(&bt_shared->value[1]));
    fd = dial_warm(&target);
    send_pattern(fd, i, 64);
    recv_pattern(fd, i, 64);
    SYS(close(fd));
  }
}
static void sequence_server(int fd) {
  union address target;
  int listener = listen_on(V4, &target);
  atomic_store(&bt_shared->value[1], address_port(&target));
  step_done(0);
  expect_eof(fd);
  SYS(close(fd));
  for (int i = 0; i < 300; i++) {
    fd = accept_warm(listener);
    recv_pattern(fd, i, 64);
    send_pattern(fd, i, 64);
    expect_eof(fd);
    SYS(close(fd));
  }
}
SAN_CASE(three_hundred_in_turn_threads) { run_threads(V4, sequence_client, sequence_server); }
SAN_CASE(three_hundred_in_turn_processes) { run_processes(V4, sequence_client, sequence_server); }
