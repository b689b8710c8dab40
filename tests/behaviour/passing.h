/* What the cases of passing.c and passing_later.c share: messages with descriptors, and programs that get a
 * connection and echo. */
#ifndef PASSING_H
#define PASSING_H
#include "handed_on.h"
#include <dirent.h>
#include <stddef.h>
#include <sys/un.h>

/* ---- messages ------------------------------------------------------------------------------- */

enum { MOST = 8 };

SHARED ssize_t try_pass(int over, const int *fds, int count, const char *text, int flags) {
  _Alignas(8) char control[CMSG_SPACE(MOST * sizeof(int))] = {0};
  struct iovec iov = {(void *)text, strlen(text)};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
                           .msg_controllen = CMSG_SPACE((size_t)count * sizeof *fds)};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN((size_t)count * sizeof *fds);
  memcpy(CMSG_DATA(c), fds, (size_t)count * sizeof *fds);
  return sendmsg(over, &message, flags);
}
SHARED void pass_all(int over, const int *fds, int count, const char *text) {
  EQ(try_pass(over, fds, count, text, 0), strlen(text));
}
SHARED void pass(int over, int fd) { pass_all(over, &fd, 1, "f"); }

/* Receives with `room` bytes for control messages; returns how many descriptors came. */
SHARED int take_some(int over, int *fds, size_t room, int flags, int *flags_seen, const char *text) {
  _Alignas(8) char control[CMSG_SPACE(MOST * sizeof(int))];
  char bytes[64] = {0};
  memset(control, 0x55, sizeof control);
  struct iovec iov = {bytes, sizeof bytes};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
  EQ(SYS(recvmsg(over, &message, flags)), strlen(text));
  CHECK(strcmp(bytes, text) == 0);
  *flags_seen = message.msg_flags;
  for (size_t i = room; i < sizeof control; i++) EQ(control[i], 0x55);
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  if (c == NULL) return 0;
  EQ(c->cmsg_level, SOL_SOCKET);
  EQ(c->cmsg_type, SCM_RIGHTS);
  size_t length = c->cmsg_len - CMSG_LEN(0);
  EQ(length % sizeof(int), 0);
  EQ(message.msg_controllen, CMSG_SPACE(length) < room ? CMSG_SPACE(length) : room);
  memcpy(fds, CMSG_DATA(c), length);
  return (int)(length / sizeof(int));
}
SHARED int take(int over) {
  int fds[MOST], seen;
  EQ(take_some(over, fds, CMSG_SPACE(sizeof(int)), MSG_CMSG_CLOEXEC, &seen, "f"), 1);
  EQ(seen, MSG_CMSG_CLOEXEC);
  EQ(fcntl(fds[0], F_GETFD), FD_CLOEXEC);
  return fds[0];
}
/* Only to one who is known to wait for messages it goes over the SAN: one without meaning is taken first. */
SHARED void receiver_ready(int over) {
  SYS(close(take(over)));
  EQ(SYS(send(over, "r", 1, MSG_NOSIGNAL)), 1);
}
SHARED void sender_ready(int over) {
  pass(over, 2);
  get(over, "r");
}
/* Where sender and receiver are one. */
SHARED void ready(const int ends[2]) {
  pass(ends[0], 2);
  receiver_ready(ends[1]);
  get(ends[0], "r");
}
/* As take(), in a program that came after the message: beside the descriptor there may be others. */
SHARED int take_first(int over) {
  int fds[MOST], seen;
  CHECK(take_some(over, fds, CMSG_SPACE(MOST * sizeof(int)), MSG_CMSG_CLOEXEC, &seen, "f") >= 1);
  return fds[0];
}
/* To a process that has the other end and asks; until it has ended. */
SHARED void pass_to(pid_t pid, const int ends[2], int fd) {
  SYS(close(ends[1]));
  sender_ready(ends[0]);
  pass(ends[0], fd);
  SYS(close(fd));
  end_child(pid);
}
SHARED void socket_pair(int ends[2]) { SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)); }
/* The program's own open descriptors. */
SHARED int open_now(void) {
  DIR *all = opendir("/proc/self/fd");
  int count = 0;
  for (struct dirent *one; (one = readdir(all)) != NULL;) count += one->d_name[0] != '.' && atoi(one->d_name) < 800;
  closedir(all);
  return count;
}

/* ---- whoever gets the connection echoes ------------------------------------------------------- */

SHARED bool shimmed;

SHARED void begin_closed_server(int fd) {
  SYS(fcntl(fd, F_SETFD, FD_CLOEXEC));
  begin_server(fd);
}
SHARED void echo(int fd) {
  echo_all(fd);
  SYS(close(fd));
}
PART(echo_one) {
  int over = atoi(bt_arguments[0]);
  receiver_ready(over);
  echo(take(over));
}
PART(echo_at_once) { echo(take(atoi(bt_arguments[0]))); }
PART(echo_first) { echo(take_first(atoi(bt_arguments[0]))); }

/* Starts a program that gets one over `over`, the end of a pair, which it inherits. */
SHARED pid_t start_part(const char *part, int over, bool shimmed) {
  char number[16];
  snprintf(number, sizeof number, "%d", over);
  SYS(fcntl(over, F_SETFD, 0));
  pid_t pid = start_program(part, shimmed, number, NULL);
  SYS(fcntl(over, F_SETFD, FD_CLOEXEC));
  return pid;
}

#endif
