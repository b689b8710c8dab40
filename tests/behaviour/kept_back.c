/* Connections that another program inherits and cannot get, for their peers are gone with something untold, and other processes have
 * them as well. In their place the program finds connections that are over: nothing else gets their numbers. */
#include "bt.h"
#include <spawn.h>

extern char **environ;

static void inherit(int fd) { SYS(fcntl(fd, F_SETFD, 0)); }

/* An end whose peer was killed behind what it sent, and which a child has, too. */
struct left {
  int fd;
  pid_t relative;
};
static struct left left_behind(const char *sent) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t peer = start_child();
  if (peer == 0) {
    SYS(close(listener));
    int fd = dial_warm(&target);
    put(fd, sent);
    raise(SIGKILL);
  }
  int fd = accept_warm(listener);
  SYS(close(listener));
  int status;
  EQ(SYS(waitpid(peer, &status, 0)), peer);
  CHECK(wait_for(fd, POLLIN) & POLLIN);
  pid_t relative = start_child();
  if (relative == 0)
    for (;;) pause();
  return (struct left){fd, relative};
}
static void end_left(struct left one) {
  SYS(kill(one.relative, SIGKILL));
  int status;
  EQ(SYS(waitpid(one.relative, &status, 0)), one.relative);
  SYS(close(one.fd));
}
/* All of it is there still, for who had it before. */
static void read_left(struct left one) {
  get(one.fd, "unread");
  expect_eof(one.fd);
  end_left(one);
}

/* Arguments: the number, and what was sent, which TCP brings. */
PART(finds_it_over) {
  int fd = atoi(bt_arguments[0]);
  int type = 0;
  socklen_t size = sizeof type;
  SYS(getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size));
  EQ(type, SOCK_STREAM);
  CHECK(SYS(open("/dev/null", O_RDONLY)) != fd);
  char bytes[64];
  ssize_t n = recv(fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0) EQ(errno, ECONNRESET);
  else EQ((size_t)n, strlen(bt_arguments[1]));
}
/* Argument: a number at which there is nothing. */
PART(finds_it_closed) {
  int fd = atoi(bt_arguments[0]);
  ERR(fcntl(fd, F_GETFD), EBADF);
  int type = 0;
  socklen_t size = sizeof type;
  SYS(getsockopt(0, SOL_SOCKET, SO_TYPE, &type, &size));
}

static char number[16];
static char *const *looks(const char *part, int fd) {
  static char *argv[5];
  snprintf(number, sizeof number, "%d", fd);
  argv[0] = "kept_back", argv[1] = (char *)part, argv[2] = number, argv[3] = "unread";
  return argv;
}

static void by_exec(bool vforks) {
  struct left one = left_behind("unread");
  inherit(one.fd);
  char *const *argv = looks("@finds_it_over", one.fd);
  pid_t pid = vforks ? vfork() : start_child();
  if (pid == 0) {
    execv("/proc/self/exe", argv);
    _exit(99);
  }
  end_child(pid);
  get(one.fd, "unread");
  end_left(one);
}
SAN_CASE(by_exec_of_a_fork_child) { by_exec(false); }
SAN_CASE(by_exec_of_a_vfork_child) { by_exec(true); }

SAN_CASE(by_posix_spawn) {
  struct left one = left_behind("unread");
  inherit(one.fd);
  pid_t pid;
  EQ(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, looks("@finds_it_over", one.fd), environ), 0);
  end_child(pid);
  read_left(one);
}
/* A file action puts it elsewhere, and the program has the other number not. */
SAN_CASE(by_a_file_action) {
  struct left one = left_behind("unread");
  SYS(fcntl(one.fd, F_SETFD, FD_CLOEXEC));
  for (int way = 0; way < 2; way++) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, one.fd, 0);
    char *const *argv = looks(way ? "@finds_it_over" : "@finds_it_closed", way ? 0 : one.fd);
    pid_t pid;
    EQ(posix_spawnp(&pid, "/proc/self/exe", &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    end_child(pid);
  }
  read_left(one);
}
/* The program goes on with what it has where the other one did not come to be. */
SAN_CASE(by_an_exec_that_fails) {
  struct left one = left_behind("unread");
  inherit(one.fd);
  char *const argv[] = {"none", NULL};
  ERR(execv("/nowhere/none", argv), ENOENT);
  pid_t pid;
  EQ(posix_spawn(&pid, "/nowhere/none", NULL, NULL, argv, environ), ENOENT);
  EQ(fcntl(one.fd, F_GETFD), 0);
  read_left(one);
}

/* Argument: a connection whose peer ended the stream and answered a byte with a reset. */
PART(finds_a_broken_pipe) {
  int fd = atoi(bt_arguments[0]);
  ERR(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
  expect_eof(fd);
}
/* Of a connection that this process alone has: what the library knows of it the image hears from the kernel. */
SAN_CASE(a_broken_pipe_goes_along) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t pid = start_child();
  if (pid == 0) {
    int fd = accept_warm(listener);
    CHECK(wait_for(fd, POLLRDHUP) & POLLRDHUP);
    EQ(send(fd, "x", 1, MSG_NOSIGNAL), 1);
    wait_for(fd, POLLERR);
    inherit(fd);
    execv("/proc/self/exe", looks("@finds_a_broken_pipe", fd));
    _exit(99);
  }
  SYS(close(listener));
  SYS(close(dial_warm(&target)));
  end_child(pid);
}
