/* Corners where programs were once treated differently from TCP: epoll over forks and half-closes,
 * limits of the process, options read back, and connections that other programs must not get. */
#include "bt.h"

#include <spawn.h>
#include <sys/mman.h>

static int watch(int fd, uint32_t events) {
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event event = {.events = events, .data.fd = fd};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  return set;
}
static int watch_also(int set, int fd, uint32_t events) {
  struct epoll_event event = {.events = events, .data.fd = fd};
  return SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

/* ---- epoll ---------------------------------------------------------------------------------- */

/* A set that watches a busy and a cold connection; a fork child closes its copies of both, which
 * must change nothing for the parent. */
static void cold_connection(bool by_range) {
  struct pair hot = open_pair(V4), cold = open_pair(V4);
  int set = watch(hot.server, EPOLLIN);
  watch_also(set, cold.server, EPOLLIN);
  struct epoll_event got;
  for (int i = 0; i < 300; i++) {
    put(hot.client, "p");
    EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
    EQ(got.data.fd, hot.server);
    get(hot.server, "p");
  }
  pid_t pid = start_child();
  if (pid == 0) {
    if (by_range) {
      SYS(close_range(3, ~0u, 0));
    } else {
      SYS(close(hot.server)), SYS(close(cold.server));
    }
    _exit(0);
  }
  end_child(pid);
  pid = start_child();
  if (pid == 0) {
    /* The set sleeps before the cold connection's first byte comes. */
    wait_asleep(getppid());
    put(cold.client, "first");
    _exit(0);
  }
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  EQ(got.data.fd, cold.server);
  get(cold.server, "first");
  end_child(pid);
}
SAN_CASE(child_closes_what_the_set_watches) { cold_connection(false); }
SAN_CASE(child_closes_all_and_the_set_goes_on) { cold_connection(true); }

MIXED_CASE(urgent_byte_is_reported_until_read) {
  struct pair p = open_pair(V4);
  int set = watch(p.server, EPOLLIN | EPOLLPRI);
  struct epoll_event got;
  char byte = 0;
  EQ(send(p.client, "!", 1, MSG_OOB), 1);
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  CHECK(got.events & EPOLLPRI);
  EQ(recv(p.server, &byte, 1, MSG_OOB), 1);
  EQ(byte, '!');
  for (int i = 0; i < 10; i++) EQ(epoll_wait(set, &got, 1, i), 0);
  put(p.client, "plain");
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  EQ(got.events, EPOLLIN);
  get(p.server, "plain");
}

SAN_CASE(room_after_shutdown_for_reading) {
  struct pair p = open_pair(V4);
  set_nonblocking(p.server, true);
  SYS(shutdown(p.server, SHUT_RD));
  uint64_t sent = fill(p.server, 0);
  int set = watch(p.server, EPOLLOUT);
  struct epoll_event got;
  EQ(epoll_wait(set, &got, 1, 0), 0);
  pid_t pid = start_child();
  if (pid == 0) {
    wait_asleep(getppid());
    recv_pattern(p.client, 0, sent);
    _exit(0);
  }
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  CHECK(got.events & EPOLLOUT);
  end_child(pid);
}

/* ---- splice --------------------------------------------------------------------------------- */

SAN_CASE(splice_does_not_wait_for_the_pipe) {
  struct pair p = open_pair(V4);
  int pipes[2];
  SYS(pipe(pipes));
  ERR(splice(pipes[0], NULL, p.client, NULL, 4096, SPLICE_F_NONBLOCK), EAGAIN);
  EQ(fcntl(pipes[0], F_GETFL) & O_NONBLOCK, 0);
  /* More than a pipe holds. */
  enum { SENT = 300000 };
  pid_t pid = start_child();
  if (pid == 0) {
    send_pattern(p.client, 0, SENT);
    _exit(0);
  }
  uint64_t moved = 0, read_back = 0;
  set_nonblocking(p.server, true); /* the flag concerns the pipe alone */
  static char buffer[65536];
  while (read_back < SENT) {
    wait_for(p.server, POLLIN);
    ssize_t n;
    while ((n = splice(p.server, NULL, pipes[1], NULL, SENT, SPLICE_F_NONBLOCK)) > 0) moved += n;
    CHECK(n < 0 && errno == EAGAIN);
    while (read_back < moved) {
      n = SYS(read(pipes[0], buffer, sizeof buffer));
      check_pattern(buffer, read_back, n);
      read_back += n;
    }
  }
  EQ(moved, SENT);
  end_child(pid);
  /* A full pipe takes nothing, and nothing is lost. */
  set_nonblocking(pipes[1], true);
  while (write(pipes[1], buffer, sizeof buffer) > 0) continue;
  set_nonblocking(pipes[1], false);
  set_nonblocking(p.server, false);
  put(p.client, "kept");
  wait_for(p.server, POLLIN);
  ERR(splice(p.server, NULL, pipes[1], NULL, 4, SPLICE_F_NONBLOCK), EAGAIN);
  get(p.server, "kept");
}

/* ---- limits and addresses ------------------------------------------------------------------- */

/* Too little for a segment: the connection has to do without, and nobody is killed for it. */
CASE(file_size_limit) {
  struct rlimit limit = {64 << 10, 64 << 10};
  SYS(setrlimit(RLIMIT_FSIZE, &limit));
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  pid_t pid = start_child();
  if (pid == 0) {
    send_pattern(p.client, 0, 500000);
    _exit(0);
  }
  recv_pattern(p.server, 0, 500000);
  end_child(pid);
}

SAN_CASE(buffer_at_the_end_of_the_address_space) {
  struct pair p = open_pair(V4);
  void *volatile last = (void *)(uintptr_t)-256;
  send_pattern(p.client, 0, 8192);
  ERR(recv(p.server, last, 8192, 0), EFAULT);
  ERR(send(p.server, last, 8192, MSG_NOSIGNAL), EFAULT);
  recv_pattern(p.server, 0, 8192);
  exercise(p.client, p.server);
}

/* ---- options -------------------------------------------------------------------------------- */

SAN_CASE(no_delay_and_cork_as_set) {
  union address target;
  int listener = listen_on(V4, &target);
  struct pair p = {.client = dial(&target)};
  p.server = accept_warm_both(listener, p.client);
  const int option[] = {TCP_NODELAY, TCP_CORK}, end[] = {p.client, p.server};
  for (int i = 0; i < 4; i++) {
    int fd = end[i / 2], name = option[i % 2];
    EQ(get_option(fd, IPPROTO_TCP, name), 0);
    set_option(fd, IPPROTO_TCP, name, 1);
    EQ(get_option(fd, IPPROTO_TCP, name), 1);
    set_option(fd, IPPROTO_TCP, name, 0);
    EQ(get_option(fd, IPPROTO_TCP, name), 0);
    exercise(p.client, p.server);
  }
  /* Set before there is a connection. */
  set_option(listener, IPPROTO_TCP, TCP_NODELAY, 1);
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SYS(connect(fd, &target.any, sizeof target.v4));
  int server = SYS(accept(listener, NULL, NULL));
  for (int warm = 0; warm < 2; warm++) {
    EQ(get_option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
    EQ(get_option(server, IPPROTO_TCP, TCP_NODELAY), 1);
    warm_up_both(fd, server);
  }
  exercise(fd, server);
}

/* From the moment connect() returns, although TCP may not be connected yet. */
SAN_CASE(no_delay_while_connecting) {
  union address target;
  int listener = listen_on(V4, &target);
  for (int on = 0; on < 2; on++) {
    int fd = SYS(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, on);
    set_option(fd, SOL_SOCKET, SO_OOBINLINE, on);
    if (connect(fd, &target.any, sizeof target.v4) != 0) EQ(errno, EINPROGRESS);
    EQ(get_option(fd, IPPROTO_TCP, TCP_NODELAY), on);
    EQ(get_option(fd, SOL_SOCKET, SO_OOBINLINE), on);
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, !on);
    EQ(get_option(fd, IPPROTO_TCP, TCP_NODELAY), !on);
    int server = SYS(accept(listener, NULL, NULL));
    wait_for(fd, POLLOUT);
    set_nonblocking(fd, false);
    EQ(get_option(fd, IPPROTO_TCP, TCP_NODELAY), !on);
    warm_up_both(fd, server);
    EQ(get_option(fd, IPPROTO_TCP, TCP_NODELAY), !on);
    EQ(get_option(fd, SOL_SOCKET, SO_OOBINLINE), on);
    exercise(fd, server);
  }
}

/* A mark the peer can never reach with what it may have in flight: poll must not wait for it. */
static void below_the_mark(int fd) {
  set_option(fd, SOL_SOCKET, SO_SNDBUF, 4608);
  step_wait(0);
  send_pattern(fd, 0, 200000);
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
}
static void marked(int fd) {
  set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 60000);
  step_done(0);
  set_nonblocking(fd, true);
  static char buffer[200000];
  uint64_t at = 0;
  for (ssize_t n = 1; n != 0;) {
    CHECK(wait_for(fd, POLLIN) & POLLIN);
    n = recv(fd, buffer, sizeof buffer, 0);
    if (n < 0) {
      EQ(errno, EAGAIN);
      continue;
    }
    check_pattern(buffer, at, n);
    at += n;
  }
  EQ(at, 200000);
  SYS(close(fd));
}
ENDS(low_water_beyond_the_send_buffer, below_the_mark, marked)

/* ---- other programs ------------------------------------------------------------------------- */

/* A connection as another program's standard input and output. */
MIXED_CASE(spawn_with_a_connection) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, p.server, 0);
  posix_spawn_file_actions_adddup2(&actions, p.server, 1);
  char *const argv[] = {"cat", NULL};
  pid_t pid;
  int e = posix_spawnp(&pid, "cat", &actions, NULL, argv, environ);
  EQ(e, 0);
  SYS(close(p.server));
  put(p.client, "hello"), get(p.client, "hello");
  SYS(shutdown(p.client, SHUT_WR));
  expect_eof(p.client);
  end_child(pid);
}

/* Arguments: how many descriptors there are to try, and where to tell how many worked; the numbers
 * follow each other from 10. */
enum { MANY = 300, FIRST = 400 };
PART(tries) {
  long written = 0;
  for (int i = 0; i < MANY; i++) {
    ssize_t n = send(FIRST + i, "x", 1, MSG_NOSIGNAL);
    written += n == 1;
  }
  EQ(write(atoi(bt_arguments[0]), &written, sizeof written), sizeof written);
}
/* A program that inherits connections by exec can use them all. Mixed: it is one without the library. */
MIXED_CASE(exec_with_hundreds_of_connections) {
  struct rlimit limit;
  SYS(getrlimit(RLIMIT_NOFILE, &limit));
  limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
  SYS(setrlimit(RLIMIT_NOFILE, &limit));
  if (limit.rlim_cur < 2048) bt_skip("needs 2048 descriptors");
  static int server[MANY];
  union address target;
  int listener = listen_on(V4, &target), pipes[2];
  SYS(pipe(pipes));
  for (int i = 0; i < MANY; i++) {
    int client = dial(&target);
    server[i] = SYS(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    warm_up_both(client, server[i]);
    /* Out of the way of the numbers used below. */
    int high = SYS(fcntl(server[i], F_DUPFD_CLOEXEC, FIRST + MANY + 10));
    SYS(close(server[i]));
    server[i] = high;
    EQ(dup2(client, FIRST + i), FIRST + i);
    SYS(close(client));
  }
  char where[16];
  snprintf(where, sizeof where, "%d", pipes[1]);
  pid_t pid = start_program("@tries", false, where, NULL);
  long written = -1, arrived = 0;
  EQ(read(pipes[0], &written, sizeof written), sizeof written);
  end_child(pid);
  EQ(written, MANY);
  for (int i = 0; i < MANY; i++) {
    char byte;
    /* TCP may hold it back until what went before is acknowledged. */
    wait_for(server[i], POLLIN);
    arrived += recv(server[i], &byte, 1, MSG_DONTWAIT) == 1;
  }
  EQ(arrived, written);
  for (int i = 0; i < MANY; i += 50) exercise(FIRST + i, server[i]);
}

/* ---- a rate ------------------------------------------------------------------------------------ */

static uint64_t bytes_received(int fd) {
  /* The C library's struct tcp_info ends before this one; in the kernel's it is at byte 128. */
  enum { BYTES_RECEIVED = 128 / sizeof(uint64_t) };
  uint64_t info[32] = {0};
  socklen_t len = sizeof info;
  SYS(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len));
  return info[BYTES_RECEIVED];
}

/* Only the kernel keeps a rate: set on one that moved, or on the listener. */
MIXED_CASE(a_rate_that_the_program_sets) {
  unsigned rate = 50000000;
  struct pair p = open_pair(V4);
  SYS(setsockopt(p.client, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
  exercise(p.client, p.server);
  uint64_t before = bytes_received(p.server);
  send_pattern(p.client, 0, 10000);
  recv_pattern(p.server, 0, 10000);
  EQ(bytes_received(p.server) - before, 10000);

  union address target;
  int listener = listen_on(V4, &target);
  SYS(setsockopt(listener, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
  int client = dial(&target), server = SYS(accept(listener, NULL, NULL));
  for (int i = 0; i < 100; i++) exercise(client, server);
  before = bytes_received(client);
  send_pattern(server, 0, 10000);
  recv_pattern(client, 0, 10000);
  EQ(bytes_received(client) - before, 10000);
}

/* ---- a preload list that the library cannot work behind ------------------------------------- */

PART(on_tcp) {
  struct pair p = open_pair(V4);
  uint64_t before = bytes_received(p.server);
  exercise(p.client, p.server);
  EQ(bytes_received(p.server) - before, 4);
}
/* It says so, and the program runs as if it were not there. */
CASE(preloaded_after_the_c_library) {
  const char *list = getenv("LD_PRELOAD");
  int words = SYS(memfd_create("words", MFD_CLOEXEC)), stderr_copy = SYS(dup(STDERR_FILENO));
  if (list) {
    char text[PATH_MAX + 32];
    snprintf(text, sizeof text, "libc.so.6:%s", list);
    SYS(setenv("LD_PRELOAD", text, 1));
  }
  SYS(dup2(words, STDERR_FILENO));
  pid_t pid = start_program("@on_tcp", true, NULL, NULL);
  SYS(dup2(stderr_copy, STDERR_FILENO));
  end_child(pid);
  char said[4096];
  ssize_t n = SYS(pread(words, said, sizeof said - 1, 0));
  said[n] = 0;
  EQ(strstr(said, "LD_PRELOAD") != NULL, list != NULL);
}

/* A process that may write to no file any more, as sshd's before it knows the user, is not ended by the log. */
SAN_CASE(no_file_may_grow) {
  struct pair before = open_pair(V4);
  exercise(before.client, before.server);
  struct rlimit none = {0, 0};
  SYS(setrlimit(RLIMIT_FSIZE, &none));
  struct pair after = open_pair(V6);
  exercise(after.client, after.server);
  exercise(before.server, before.client);
}
