/* Connections that other programs get: by exec, posix_spawn, system and in messages. Whoever gets one
 * reads what was sent before and goes on, whether it runs under the shim or not. */
#include "bt.h"
#include <spawn.h>

extern char **environ;

/* One end of "ping" and "pong". */
static void exercise_as(int fd, bool first) {
  if (first) put(fd, "ping"), get(fd, "pong");
  else get(fd, "ping"), put(fd, "pong");
}

/* ---- a client that streams, and an echo that is started in the middle ------------------------ */

enum { BEFORE = 300000, READ = 1234, AFTER = 3000000 };

static void *send_rest(void *fd) {
  send_pattern(*(int *)fd, BEFORE, AFTER);
  SYS(shutdown(*(int *)fd, SHUT_WR));
  return NULL;
}
/* Sends much before the other program runs, and on while it does. */
static void client(int fd) {
  exercise_as(fd, true);
  send_pattern(fd, 0, BEFORE);
  step_done(0);
  step_wait(1);
  pthread_t sender = start_thread(send_rest, &fd);
  recv_pattern(fd, READ, BEFORE + AFTER - READ);
  expect_eof(fd);
  end_thread(sender);
  SYS(close(fd));
}
/* The same with one thread that waits by poll or epoll. */
static void waiting_client(int fd, bool epoll) {
  exercise_as(fd, true);
  send_pattern(fd, 0, BEFORE);
  set_nonblocking(fd, true);
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  step_done(0);
  uint64_t sent = BEFORE, got = READ;
  static uint8_t bytes[100000];
  for (;;) {
    struct pollfd one = {fd, (short)(POLLIN | (sent < BEFORE + AFTER ? POLLOUT : 0)), 0};
    CHECK((epoll ? SYS(epoll_wait(set, &event, 1, HANG_MS)) : SYS(poll(&one, 1, HANG_MS))) == 1);
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0) {
      check_pattern(bytes, got, (size_t)n);
      got += (uint64_t)n;
    }
    if (n == 0) break;
    EQ(errno, EAGAIN);
    while (sent < BEFORE + AFTER) {
      uint64_t left = BEFORE + AFTER - sent;
      n = send(fd, pattern(sent), left < 70000 ? left : 70000, MSG_NOSIGNAL);
      if (n < 0) break;
      sent += (uint64_t)n;
      if (sent == BEFORE + AFTER) SYS(shutdown(fd, SHUT_WR));
    }
  }
  EQ(got, BEFORE + AFTER);
  SYS(close(set));
  SYS(close(fd));
}
static void polling_client(int fd) { waiting_client(fd, false); }
static void epoll_client(int fd) { waiting_client(fd, true); }

/* The environment of a program that does not load the library. */
static char *bare[] = {"PATH=/usr/bin:/bin", NULL};

enum how { FORK, VFORK, SPAWN, SYSTEM, REPLACE };
static enum how how;
static bool shimmed;

static void become_cat(int fd) {
  dup2(fd, 0), dup2(fd, 1);
  close(fd);
  char *const argv[] = {"cat", NULL};
  execve("/bin/cat", argv, shimmed ? environ : bare);
  _exit(99);
}
static void server(int fd) {
  exercise_as(fd, false);
  step_wait(0);
  recv_pattern(fd, 0, READ);
  step_done(1);
  pid_t pid = -1;
  if (how == FORK) {
    pid = SYS(fork());
    if (pid == 0) become_cat(fd);
  } else if (how == VFORK) {
    pid = vfork();
    if (pid == 0) become_cat(fd);
  } else if (how == SPAWN) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    SYS(fcntl(fd, F_SETFD, FD_CLOEXEC));
    char *const argv[] = {"cat", NULL};
    EQ(posix_spawn(&pid, "/bin/cat", &actions, NULL, argv, shimmed ? environ : bare), 0);
    posix_spawn_file_actions_destroy(&actions);
  } else if (how == SYSTEM) {
    char command[64];
    snprintf(command, sizeof command, "%scat <&%d >&%d", shimmed ? "" : "LD_PRELOAD= ", fd, fd);
    EQ(system(command), 0);
  } else {
    become_cat(fd);
  }
  SYS(close(fd));
  if (pid > 0) end_child(pid);
}
#define HANDS_OVER(name, how_, client_)                                       \
  MIXED_CASE(name) {                                                          \
    how = how_;                                                               \
    run_processes(V4, client_, server);                                       \
  }                                                                           \
  MIXED_CASE(name##_to_the_shim) {                                              \
    how = how_, shimmed = true;                                               \
    run_processes(V6, client_, server);                                       \
  }
HANDS_OVER(fork_exec, FORK, client)
HANDS_OVER(vfork_exec, VFORK, client)
HANDS_OVER(spawn, SPAWN, client)
HANDS_OVER(shell, SYSTEM, client)
HANDS_OVER(fork_exec_polling, FORK, polling_client)
HANDS_OVER(vfork_exec_epoll, VFORK, epoll_client)

/* The connecting end hands over as well. */
MIXED_CASE(connector_execs) {
  how = FORK;
  run_processes(V4, server, client);
}

/* ---- through programs that leave the connection alone --------------------------------------- */

MIXED_CASE(a_helper_does_not_disturb) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  for (int i = 0; i < 5; i++) {
    EQ(system("true"), 0);
    exercise(p.client, p.server);
    pid_t pid = SYS(fork());
    if (pid == 0) {
      execl("/bin/sh", "sh", "-c", "/bin/true; /bin/true", (char *)NULL);
      _exit(99);
    }
    exercise(p.client, p.server);
    end_child(pid);
    exercise(p.client, p.server);
  }
  close_pair(&p);
}
MIXED_CASE(failed_exec) {
  struct pair p = open_pair(V4);
  send_pattern(p.client, 0, 50000);
  char *const argv[] = {"none", NULL};
  ERR(execv("/nowhere/none", argv), ENOENT);
  recv_pattern(p.server, 0, 50000);
  exercise(p.client, p.server);
  close_pair(&p);
}

/* ---- in messages ---------------------------------------------------------------------------- */

static void pass(int over, int fd) {
  char byte = 'f', control[CMSG_SPACE(sizeof fd)] = {0};
  struct iovec iov = {&byte, 1};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
                           .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
  EQ(SYS(sendmsg(over, &message, 0)), 1);
}
static int take(int over) {
  char byte, control[CMSG_SPACE(sizeof(int))];
  struct iovec iov = {&byte, 1};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
                           .msg_controllen = sizeof control};
  EQ(SYS(recvmsg(over, &message, MSG_CMSG_CLOEXEC)), 1);
  CHECK(!(message.msg_flags & MSG_CTRUNC));
  int fd;
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}
static void echo_all(int fd) {
  static char bytes[65536];
  ssize_t n;
  while ((n = SYS(recv(fd, bytes, sizeof bytes, 0))) > 0)
    for (ssize_t done = 0; done < n;) done += SYS(send(fd, bytes + done, (size_t)(n - done), MSG_NOSIGNAL));
  SYS(close(fd));
}

static int hops;
PART(worker) {
  int over = atoi(bt_arguments[0]);
  echo_all(take(over));
}
static void passing_server(int fd) {
  exercise_as(fd, false);
  step_wait(0);
  recv_pattern(fd, 0, READ);
  int over[2];
  SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, over));
  pid_t workers[4];
  int last = over[1];
  for (int hop = 1; hop < hops; hop++) {
    int next[2];
    SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, next));
    if ((workers[hop] = start_child()) == 0) {
      SYS(close(fd));
      int got = take(last);
      pass(next[0], got);
      SYS(close(got));
      _exit(0);
    }
    last = next[1];
  }
  char number[16];
  snprintf(number, sizeof number, "%d", last);
  int flags = SYS(fcntl(fd, F_GETFD));
  SYS(fcntl(fd, F_SETFD, FD_CLOEXEC));
  workers[0] = start_program("@worker", shimmed, number, NULL);
  SYS(fcntl(fd, F_SETFD, flags));
  step_done(1);
  pass(over[0], fd);
  SYS(close(fd));
  for (int i = 0; i < hops; i++) end_child(workers[i]);
}
#define PASSES(name, hops_, client_)                                          \
  MIXED_CASE(name) {                                                          \
    hops = hops_;                                                             \
    run_processes(V4, client_, passing_server);                               \
  }                                                                           \
  MIXED_CASE(name##_to_the_shim) {                                              \
    hops = hops_, shimmed = true;                                             \
    run_processes(V4, client_, passing_server);                               \
  }
PASSES(message, 1, client)
PASSES(message_three_hops, 3, client)
PASSES(message_polling, 1, polling_client)
