/* Connections that may not come to the SAN, or are over before they could: acceptors without the library behind a
 * listener that has it, other users, what ends before it is accepted, ports used again; and worker groups. All bytes
 * arrive, and nothing is left behind. */
#include "bt.h"

#include <dirent.h>

static const char *number(int value) {
  static char text[8][16];
  static int next;
  char *t = text[next++ % 8];
  snprintf(t, 16, "%d", value);
  return t;
}

/* ---- a listener of ours, accepted from by a program without the library -------------------- */

/* So many exchanges that an end with the library tries to come to the SAN. */
enum { ROUNDS = 3, EXCHANGES = 20 };
static void answer_one(int listener, bool banner) {
  int fd = SYS(accept(listener, NULL, NULL));
  if (banner) put(fd, "banner");
  for (char hello[5]; SYS(recv(fd, hello, sizeof hello, MSG_WAITALL)) == sizeof hello; put(fd, "answer"))
    EQ(memcmp(hello, "hello", sizeof hello), 0);
  put(fd, "bye");
  SYS(close(fd));
}
/* Arguments: the listener; whether the acceptor speaks first. */
PART(acceptor) {
  for (;;) answer_one(atoi(bt_arguments[0]), atoi(bt_arguments[1]));
}

/* Waits for data as the case wants it. */
typedef void wait_fn(int fd);
static void wait_by_blocking(int fd) { (void)fd; }
static void wait_by_poll(int fd) {
  set_nonblocking(fd, true);
  CHECK(wait_for(fd, POLLIN) & POLLIN);
}
static void wait_by_select(int fd) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  struct timeval limit = {HANG_MS / 1000, 0};
  EQ(select(fd + 1, &set, NULL, NULL, &limit), 1);
}
static void wait_by_epoll(int fd) {
  set_nonblocking(fd, true);
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN}, got;
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  CHECK(got.events & EPOLLIN);
  SYS(close(set));
}
static void nothing(int number) { (void)number; }
static void wait_by_restarting(int fd) {
  (void)fd;
  handle_signal(SIGALRM, nothing, SA_RESTART);
  struct itimerval often = {{0, 5000}, {0, 5000}};
  SYS(setitimer(ITIMER_REAL, &often, NULL));
}
/* The same in programs that never sleep, because they only ask, or always find something to do. */
static void wait_by_asking(int fd) {
  char byte;
  set_nonblocking(fd, true);
  for (int64_t end = now_ms() + HANG_MS; recv(fd, &byte, 1, MSG_PEEK) < 0;) {
    EQ(errno, EAGAIN);
    CHECK(now_ms() < end);
  }
}
static void wait_by_counting(int fd) {
  int count = 0;
  for (int64_t end = now_ms() + HANG_MS; count == 0; SYS(ioctl(fd, FIONREAD, &count)))
    CHECK(now_ms() < end);
}
static void wait_by_busy_poll(int fd) {
  set_nonblocking(fd, true);
  struct pollfd one = {.fd = fd, .events = POLLIN | POLLOUT};
  for (int64_t end = now_ms() + HANG_MS; !(one.revents & POLLIN);) {
    EQ(poll(&one, 1, HANG_MS), 1);
    CHECK(now_ms() < end);
  }
}
static void wait_by_busy_epoll(int fd) {
  set_nonblocking(fd, true);
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT}, got = {0};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  for (int64_t end = now_ms() + HANG_MS; !(got.events & EPOLLIN);) {
    EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
    CHECK(now_ms() < end);
  }
  SYS(close(set));
}

static void converse(const union address *target, wait_fn *wait, bool banner) {
  int fd = dial(target);
  if (banner) wait(fd), get(fd, "banner");
  for (int i = 0; i < EXCHANGES; i++) {
    put(fd, "hello");
    wait(fd), get(fd, "answer");
  }
  SYS(shutdown(fd, SHUT_WR));
  wait(fd), get(fd, "bye");
  expect_eof(fd);
  SYS(close(fd));
}

static void plain_acceptor(wait_fn *wait, bool banner) {
  union address target;
  int listener = listen_on(V4, &target);
  SYS(fcntl(listener, F_SETFD, 0));
  pid_t pid = start_program("@acceptor", false, number(listener), number(banner));
  for (int i = 0; i < ROUNDS; i++) converse(&target, wait, banner);
  SYS(kill(pid, SIGKILL)), SYS(waitpid(pid, NULL, 0));
}
CASE(plain_acceptor_waits_blocking) { plain_acceptor(wait_by_blocking, false); }
CASE(plain_acceptor_waits_poll) { plain_acceptor(wait_by_poll, false); }
CASE(plain_acceptor_waits_select) { plain_acceptor(wait_by_select, false); }
CASE(plain_acceptor_waits_epoll) { plain_acceptor(wait_by_epoll, false); }
CASE(plain_acceptor_waits_restarting) { plain_acceptor(wait_by_restarting, false); }
CASE(plain_acceptor_waits_asking) { plain_acceptor(wait_by_asking, false); }
CASE(plain_acceptor_waits_counting) { plain_acceptor(wait_by_counting, false); }
CASE(plain_acceptor_waits_busy_poll) { plain_acceptor(wait_by_busy_poll, false); }
CASE(plain_acceptor_waits_busy_epoll) { plain_acceptor(wait_by_busy_epoll, false); }
CASE(plain_acceptor_speaks_blocking) { plain_acceptor(wait_by_blocking, true); }
CASE(plain_acceptor_speaks_epoll) { plain_acceptor(wait_by_epoll, true); }

/* What the program set stays, and what it did not set is as it was, while its end tries to come to the SAN. */
CASE(options_stay_with_a_plain_acceptor) {
  union address target;
  int listener = listen_on(V4, &target);
  SYS(fcntl(listener, F_SETFD, 0));
  pid_t pid = start_program("@acceptor", false, number(listener), number(true));
  for (int on = 0; on < 2; on++) {
    int fd = dial(&target);
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, on);
    set_option(fd, IPPROTO_TCP, TCP_CORK, on);
    set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 1 + on);
    get(fd, "banner");
    EQ(get_option(fd, IPPROTO_TCP, TCP_NODELAY), on);
    EQ(get_option(fd, IPPROTO_TCP, TCP_CORK), on);
    EQ(get_option(fd, SOL_SOCKET, SO_RCVLOWAT), 1 + on);
    put(fd, "hello");
    set_option(fd, IPPROTO_TCP, TCP_CORK, 0);
    get(fd, "answer");
    for (int i = 0; i < EXCHANGES; i++) {
      EQ(get_option(fd, IPPROTO_TCP, TCP_NODELAY), on);
      EQ(get_option(fd, SOL_SOCKET, SO_RCVLOWAT), 1 + on);
      put(fd, "hello"), get(fd, "answer");
    }
    SYS(close(fd));
  }
  SYS(kill(pid, SIGKILL)), SYS(waitpid(pid, NULL, 0));
}

/* Nobody is left at the other end when they are accepted. */
PART(late_acceptor) {
  for (int i = 0; i < ROUNDS; i++) {
    int fd = SYS(accept(atoi(bt_arguments[0]), NULL, NULL));
    recv_pattern(fd, 0, 100000);
    expect_eof(fd);
    SYS(close(fd));
  }
}
static void gone_before_accept(bool preload, bool close_first) {
  union address target;
  int listener = listen_on(V4, &target);
  for (int i = 0; i < ROUNDS; i++) {
    pid_t pid = start_child();
    if (pid == 0) {
      int fd = dial(&target);
      send_pattern(fd, 0, 100000);
      if (close_first) SYS(close(fd));
      _exit(0);
    }
    end_child(pid);
  }
  SYS(fcntl(listener, F_SETFD, 0));
  end_child(start_program("@late_acceptor", preload, number(listener), NULL));
}
CASE(closed_before_a_plain_program_accepts) { gone_before_accept(false, true); }
CASE(exited_before_a_plain_program_accepts) { gone_before_accept(false, false); }
CASE(closed_before_a_started_program_accepts) { gone_before_accept(true, true); }

/* close() does not wait for whoever accepts, whatever was sent. */
CASE(filled_and_closed_before_accept) {
  union address target;
  int listener = listen_on(V4, &target);
  for (int small = 0; small < 2; small++) {
    int fd = dial(&target);
    if (small) set_option(fd, SOL_SOCKET, SO_SNDBUF, 4608);
    uint64_t sent = fill(fd, 0);
    SYS(close(fd));
    int server = SYS(accept(listener, NULL, NULL));
    recv_pattern(server, 0, sent);
    expect_eof(server);
    SYS(close(server));
  }
}

/* ---- an acceptor that may not share memory with the connector's user ----------------------- */

static void serve(int listener, bool banner) {
  for (int i = 0; i < ROUNDS; i++) answer_one(listener, banner);
}
static void become_another_user(void) {
  if (geteuid() != 0) bt_skip("another user's process needs root");
  /* Any user that is not the acceptor's. */
  SYS(setresgid(65534, 65534, 65534)), SYS(setresuid(65534, 65534, 65534));
}
static void other_user(wait_fn *wait, bool banner) {
  if (geteuid() != 0) bt_skip("another user's process needs root");
  union address target;
  int listener = listen_on(V4, &target);
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(listener));
    become_another_user();
    for (int i = 0; i < ROUNDS; i++) converse(&target, wait, banner);
    _exit(0);
  }
  serve(listener, banner);
  end_child(pid);
}
CASE(other_user_waits_blocking) { other_user(wait_by_blocking, false); }
CASE(other_user_waits_poll) { other_user(wait_by_poll, false); }
CASE(other_user_waits_select) { other_user(wait_by_select, false); }
CASE(other_user_waits_epoll) { other_user(wait_by_epoll, false); }
CASE(other_user_speaks_blocking) { other_user(wait_by_blocking, true); }
CASE(other_user_speaks_epoll) { other_user(wait_by_epoll, true); }

/* What was sent last arrives, however the connector ends: with and without exchanges before. */
static void last_words_of_another_user(bool close_first) {
  if (geteuid() != 0) bt_skip("another user's process needs root");
  union address target;
  int listener = listen_on(V4, &target);
  for (int warm = 0; warm < 2; warm++) {
    pid_t pid = start_child();
    if (pid == 0) {
      SYS(close(listener));
      become_another_user();
      int fd = dial(&target);
      if (warm) warm_up(fd, true);
      put(fd, "last words");
      step_done(0), step_wait(1);
      if (close_first) SYS(close(fd));
      _exit(0);
    }
    if (!warm) step_wait(0);
    int fd = SYS(accept(listener, NULL, NULL));
    if (warm) warm_up(fd, false), step_wait(0);
    step_done(1);
    get(fd, "last words");
    expect_eof(fd);
    SYS(close(fd));
    end_child(pid);
  }
}
CASE(other_user_sends_and_closes) { last_words_of_another_user(true); }
CASE(other_user_sends_and_exits) { last_words_of_another_user(false); }

/* ---- ports and workers ---------------------------------------------------------------------- */

/* Where nobody else is: not at the address, and not at ports that the kernel chooses. */
static const char apart[] = "127.77.0.1";
/* Arguments: the port to connect from, the port to connect to. */
PART(from_port) {
  union address from = address_v4(apart, atoi(bt_arguments[0]));
  union address to = address_v4("127.0.0.1", atoi(bt_arguments[1]));
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  SYS(bind(fd, &from.any, sizeof from.v4));
  SYS(connect(fd, &to.any, sizeof to.v4));
  warm_up(fd, true);
  put(fd, "request"), get(fd, "ok");
  SYS(close(fd));
}
static void port_used_again(bool preload) {
  union address target, from = address_v4(apart, 10000 + getpid() % 20000);
  int listener = listen_on(V4, &target), fd = SYS(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  SYS(bind(fd, &from.any, sizeof from.v4));
  SYS(connect(fd, &target.any, sizeof target.v4));
  close_reset(fd);
  const char *to = number(address_port(&target));
  pid_t pid = start_program("@from_port", preload, number(address_port(&from)), to);
  char byte;
  int gone = SYS(accept(listener, NULL, NULL));
  ERR(recv(gone, &byte, 1, 0), ECONNRESET);
  int next = accept_warm(listener);
  get(next, "request"), put(next, "ok");
  expect_eof(next);
  end_child(pid);
}
CASE(port_used_again_by_a_plain_program) { port_used_again(false); }
SAN_CASE(port_used_again) { port_used_again(true); }

static int open_descriptors(pid_t pid) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
  DIR *folder = opendir(path);
  CHECK(folder != NULL);
  int count = 0;
  while (readdir(folder)) count++;
  closedir(folder);
  return count;
}
static int join_group(int port) {
  union address where = address_v4("127.0.0.1", port);
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
  SYS(bind(fd, &where.any, sizeof where.v4));
  SYS(listen(fd, 128));
  return fd;
}
/* Connections leave nothing behind in the workers that had them. */
SAN_CASE(reuseport_workers_keep_nothing) {
  enum { WORKERS = 2, CONNECTIONS = 150, ALLOWED = 40 };
  int first = join_group(0);
  union address target = local_address(first);
  pid_t worker[WORKERS];
  int before[WORKERS];
  for (int i = 0; i < WORKERS; i++) {
    worker[i] = start_child();
    if (worker[i] == 0) {
      SYS(close(first));
      int listener = join_group(address_port(&target));
      for (step_done(i);;) {
        int fd = accept_warm(listener);
        get(fd, "x"), put(fd, "y");
        SYS(close(fd));
      }
    }
  }
  SYS(close(first));
  for (int i = 0; i < WORKERS; i++) step_wait(i), before[i] = open_descriptors(worker[i]);
  for (int i = 0; i < CONNECTIONS; i++) {
    int fd = dial_warm(&target);
    put(fd, "x"), get(fd, "y");
    expect_eof(fd);
    SYS(close(fd));
  }
  for (int i = 0; i < WORKERS; i++) {
    int grown = open_descriptors(worker[i]) - before[i];
    if (grown > ALLOWED) FAIL("worker %d has %d descriptors more than before", i, grown);
    SYS(kill(worker[i], SIGKILL)), SYS(waitpid(worker[i], NULL, 0));
  }
}
