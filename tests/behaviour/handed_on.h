/* What the areas share that hand a connection on to another program, by exec, by a command or in a message:
 * a client that streams before, while and after, and an echo. */
#ifndef HANDED_ON_H
#define HANDED_ON_H
#include "bt.h"

#define SHARED __attribute__((unused)) static

enum { BEFORE = 200000, READ = 1234, AFTER = 2000000, TOTAL = BEFORE + AFTER };

SHARED void *send_rest(void *fd) {
  send_pattern(*(int *)fd, BEFORE, AFTER);
  SYS(shutdown(*(int *)fd, SHUT_WR));
  return NULL;
}
/* Sends much before the connection is handed on, and on while it is; gets all back but what was read. */
SHARED void client(int fd) {
  put(fd, "ping"), get(fd, "pong");
  send_pattern(fd, 0, BEFORE);
  step_done(0);
  step_wait(1);
  pthread_t sender = start_thread(send_rest, &fd);
  recv_pattern(fd, READ, TOTAL - READ);
  expect_eof(fd);
  end_thread(sender);
  SYS(close(fd));
}
SHARED void begin_server(int fd) {
  get(fd, "ping"), put(fd, "pong");
  step_wait(0);
  recv_pattern(fd, 0, READ);
  step_done(1);
}
SHARED void echo_all(int fd) {
  static char bytes[65536];
  ssize_t n;
  while ((n = SYS(recv(fd, bytes, sizeof bytes, 0))) > 0)
    for (ssize_t done = 0; done < n;) done += SYS(send(fd, bytes + done, (size_t)(n - done), MSG_NOSIGNAL));
}

#endif
