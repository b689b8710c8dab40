/* The checked entries that a program built with _FORTIFY_SOURCE calls: __read_chk, __recv_chk,
 * __recvfrom_chk, __poll_chk, __ppoll_chk, __fdelt_chk. The runner compiles this file that way. */
#include "bt.h"

#if !defined __OPTIMIZE__ || !defined _FORTIFY_SOURCE
#error "compile with -O2 -D_FORTIFY_SOURCE=2"
#endif

/* Lengths the compiler cannot know, for buffers whose size it does. */
static volatile size_t unknown = 0;
static size_t length(size_t n) { return n + unknown; }

static void checked_left(int fd) {
  char buffer[64];
  struct pollfd set[2] = {{fd, POLLIN, 0}, {-1, 0, 0}};
  struct timespec long_time = {HANG_MS / 1000, 0};
  for (int i = 0; i < 20; i++) {
    EQ(poll(set, length(2), HANG_MS), 1);
    EQ(set[0].revents, POLLIN);
    EQ(ppoll(set, length(2), &long_time, NULL), 1);
    EQ(recv(fd, buffer, length(2), MSG_PEEK), 2);
    EQ(recv(fd, buffer, length(2), 0), 2);
    EQ(memcmp(buffer, "ab", 2), 0);
    EQ(read(fd, buffer, length(2)), 2);
    EQ(memcmp(buffer, "cd", 2), 0);
    EQ(recvfrom(fd, buffer, length(2), 0, NULL, NULL), 2);
    EQ(memcmp(buffer, "ef", 2), 0);
    ERR(recv(fd, buffer, length(64), MSG_DONTWAIT), EAGAIN);
    put(fd, "next");
  }
  EQ(read(fd, buffer, length(64)), 0);
  EQ(recv(fd, buffer, length(64), 0), 0);
  EQ(recvfrom(fd, buffer, length(64), 0, NULL, NULL), 0);
}
static void checked_right(int fd) {
  for (int i = 0; i < 20; i++) {
    put(fd, "abcdef");
    get(fd, "next");
  }
  SYS(close(fd));
}
ENDS(checked_reads, checked_left, checked_right)

SAN_CASE(checked_select) {
  struct pair p = open_pair(V4);
  fd_set set;
  FD_ZERO(&set);
  FD_SET(p.server + (int)unknown, &set);
  put(p.client, "x");
  EQ(select(p.server + 1, &set, NULL, NULL, NULL), 1);
  CHECK(FD_ISSET(p.server + (int)unknown, &set));
  get(p.server, "x");
}

SAN_CASE(checked_blocked_poll) {
  struct pair p = open_pair(V4);
  struct pollfd set[1] = {{p.server, POLLIN, 0}};
  pid_t child = start_child();
  if (child == 0) {
    SYS(close(p.server));
    wait_asleep(getppid());
    put(p.client, "woken");
    _exit(0);
  }
  SYS(close(p.client));
  EQ(poll(set, length(1), -1), 1);
  get(p.server, "woken");
  end_child(child);
  expect_eof(p.server);
}

SAN_CASE(checked_errors) {
  struct pair p = open_pair(V4);
  char buffer[16];
  SYS(close(p.client));
  ERR(read(p.client, buffer, length(16)), EBADF);
  ERR(recv(p.client, buffer, length(16), 0), EBADF);
  ERR(recvfrom(p.client, buffer, length(16), 0, NULL, NULL), EBADF);
  ERR(pread(p.server, buffer, length(16), 0), ESPIPE);
}

/* The check itself still works: reading more than the buffer holds ends the process. */
static void overflow(int way, int fd) {
  char buffer[16];
  struct pollfd set[1] = {{fd, POLLIN, 0}};
  int null = open("/dev/null", O_WRONLY);
  dup2(null, STDERR_FILENO); /* the message of the C library is expected */
  signal(SIGABRT, SIG_DFL);
  if (way == 0 && read(fd, buffer, length(17)) < 0) _exit(1);
  if (way == 1) recv(fd, buffer, length(17), 0);
  if (way == 2) recvfrom(fd, buffer, length(17), 0, NULL, NULL);
  if (way == 3) poll(set, length(2), 0);
  if (way == 4) ppoll(set, length(2), NULL, NULL);
  _exit(0);
}
SAN_CASE(overflows_are_caught) {
  struct pair p = open_pair(V4);
  put(p.client, "x");
  for (int way = 0; way < 5; way++) {
    pid_t child = start_child();
    if (child == 0) overflow(way, p.server);
    int status;
    SYS(waitpid(child, &status, 0));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT) FAIL("way %d: status %#x", way, status);
  }
  get(p.server, "x");
}

SAN_CASE(checked_nonblocking_loop) {
  struct pair p = open_pair(V4);
  char buffer[4096];
  set_nonblocking(p.server, true);
  send_pattern(p.client, 0, 100000);
  SYS(shutdown(p.client, SHUT_WR));
  for (uint64_t at = 0;;) {
    ssize_t n = read(p.server, buffer, length(at % 2 ? 4096 : 777));
    if (n == 0) {
      EQ(at, 100000);
      break;
    }
    if (n < 0) {
      EQ(errno, EAGAIN);
      wait_for(p.server, POLLIN);
      continue;
    }
    check_pattern(buffer, at, n);
    at += n;
  }
}
