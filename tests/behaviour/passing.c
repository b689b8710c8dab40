/* Connections and listeners that messages take to other processes (SCM_RIGHTS). Connections go back to TCP for that; what a
 * listener accepts there comes to the SAN. */
#include "handed_on.h"
#include <dirent.h>

/* ---- messages ------------------------------------------------------------------------------- */

enum { MOST = 8, MUCH = 100 << 20 };

static ssize_t try_pass(int over, const int *fds, int count, const char *text, int flags) {
  _Alignas(8) char control[CMSG_SPACE(MOST * sizeof(int))] = {0};
  struct iovec iov = {(void *)text, strlen(text)};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
                           .msg_controllen = CMSG_SPACE((size_t)count * sizeof *fds)};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN((size_t)count * sizeof *fds);
  memcpy(CMSG_DATA(c), fds, (size_t)count * sizeof *fds);
  return sendmsg(over, &message, flags);
}
static void pass_all(int over, const int *fds, int count, const char *text) {
  EQ(try_pass(over, fds, count, text, 0), strlen(text));
}
static void pass(int over, int fd) { pass_all(over, &fd, 1, "f"); }

/* Receives with `room` bytes for control messages; returns how many descriptors came. */
static int take_some(int over, int *fds, size_t room, int flags, int *flags_seen, const char *text) {
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
static int take(int over) {
  int fds[MOST], seen;
  EQ(take_some(over, fds, CMSG_SPACE(sizeof(int)), MSG_CMSG_CLOEXEC, &seen, "f"), 1);
  EQ(seen, MSG_CMSG_CLOEXEC);
  EQ(fcntl(fds[0], F_GETFD), FD_CLOEXEC);
  return fds[0];
}
static void socket_pair(int ends[2]) { SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)); }
/* The program's own open descriptors. */
static int open_now(void) {
  DIR *all = opendir("/proc/self/fd");
  int count = 0;
  for (struct dirent *one; (one = readdir(all)) != NULL;) count += one->d_name[0] != '.' && atoi(one->d_name) < 800;
  closedir(all);
  return count;
}

/* ---- connections ---------------------------------------------------------------------------- */

/* Both use it in turn, as after fork. */
MIXED_CASE(both_go_on) {
  struct pair p = open_pair(V4);
  int ends[2], told[2];
  socket_pair(ends);
  SYS(pipe(told));
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(p.client)), SYS(close(p.server)), SYS(close(told[1]));
    int fd = take(ends[1]);
    char byte;
    while (SYS(read(told[0], &byte, 1)) == 1) get(fd, "to the child"), put(fd, "of the child");
    _exit(0);
  }
  SYS(close(told[0]));
  pass(ends[0], p.server);
  for (int i = 0; i < 200; i++) {
    exercise(p.client, p.server);
    put(p.client, "to the child");
    EQ(SYS(write(told[1], "", 1)), 1);
    get(p.client, "of the child");
  }
  SYS(close(told[1]));
  end_child(pid);
  send_pattern(p.client, 0, 300000);
  recv_pattern(p.server, 0, 300000);
  close_pair(&p);
}
MIXED_CASE(the_same_process) {
  struct pair p = open_pair(V4);
  int ends[2], before = open_now() + 2;
  socket_pair(ends);
  pass(ends[0], p.server);
  SYS(close(p.server));
  send_pattern(p.client, 0, 300000);
  p.server = take(ends[1]);
  recv_pattern(p.server, 0, 300000);
  int again;
  pass(ends[1], p.server);
  again = take(ends[0]);
  CHECK(again != p.server);
  exercise(p.client, again);
  SYS(close(again));
  EQ(open_now(), before);
  exercise(p.client, p.server);
  close_pair(&p);
}
static void *receive_much(void *fd) {
  recv_pattern(*(int *)fd, 0, MUCH);
  return NULL;
}
/* The peer became a program that never reads, with all buffers full. A server that does not block must get on: natively the
 * message goes at once. */
MIXED_CASE(behind_what_nobody_reads) {
  struct pair p = open_pair(V4);
  int ends[2], fd = p.server, becomes;
  socket_pair(ends);
  /* Buffers grow for a stream, beyond what the kernel takes at once. */
  pthread_t reader = start_thread(receive_much, &p.client);
  send_pattern(p.server, 0, MUCH);
  end_thread(reader);
  set_option(p.client, SOL_SOCKET, SO_RCVBUF, 2048);
  set_nonblocking(p.server, true);
  fill(p.server, 0);
  int told[2];
  SYS(pipe2(told, O_CLOEXEC));
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(p.server));
    SYS(fcntl(p.client, F_SETFD, 0));
    execlp("sleep", "sleep", "100", (char *)NULL);
    _exit(1);
  }
  SYS(close(p.client));
  SYS(close(told[1]));
  /* The child is the other program by then. */
  EQ(read(told[0], &becomes, 1), 0);
  fill(p.server, 0);
  errno = 0;
  if (try_pass(ends[0], &fd, 1, "f", 0) != 1) EQ(errno, EOPNOTSUPP);
  SYS(close(p.server));
  SYS(kill(pid, SIGKILL));
  SYS(waitpid(pid, NULL, 0));
}
/* With bytes unread. */
static void pass_both_ends(int ends[2]) {
  struct pair p = open_pair(V4);
  int fds[2] = {p.client, p.server}, got[MOST], seen;
  send_pattern(p.client, 0, 300000);
  pid_t pid = start_child();
  if (pid == 0) {
    close_pair(&p);
    EQ(take_some(ends[1], got, CMSG_SPACE(2 * sizeof(int)), 0, &seen, "both"), 2);
    EQ(seen, 0);
    EQ(fcntl(got[0], F_GETFD), 0);
    recv_pattern(got[1], 0, 300000);
    exercise(got[0], got[1]);
    _exit(0);
  }
  pass_all(ends[0], fds, 2, "both");
  close_pair(&p);
  end_child(pid);
}
MIXED_CASE(both_ends) {
  int ends[2];
  socket_pair(ends);
  pass_both_ends(ends);
}
MIXED_CASE(both_ends_over_datagrams) {
  int ends[2];
  SYS(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends));
  pass_both_ends(ends);
}
/* TCP takes what comes after an end has shut its receiving direction down, so that goes over TCP as well. */
MIXED_CASE(one_end_after_the_other_behind_a_shutdown) {
  struct pair p = open_pair(V4);
  int ends[2];
  socket_pair(ends);
  exercise(p.client, p.server);
  SYS(shutdown(p.client, SHUT_RD));
  send_pattern(p.server, 0, 3000);
  /* A receive does not wait for it. */
  for (int there = 0; there < 3000;) SYS(ioctl(p.client, FIONREAD, &there));
  recv_pattern(p.client, 0, 1);
  pass(ends[0], p.server), SYS(close(p.server)), p.server = take(ends[1]);
  pass(ends[0], p.client), SYS(close(p.client)), p.client = take(ends[1]);
  for (int there = 0; there < 2999;) SYS(ioctl(p.client, FIONREAD, &there));
  recv_pattern(p.client, 1, 2999);
  put(p.client, "the other way"), get(p.server, "the other way");
  close_pair(&p);
  SYS(close(ends[0])), SYS(close(ends[1]));
}
/* Nobody ever takes it: it ends when the message does. */
MIXED_CASE(nobody_takes_it) {
  struct pair p = open_pair(V4);
  int ends[2];
  socket_pair(ends);
  exercise(p.client, p.server);
  put(p.server, "last words");
  pass(ends[0], p.server);
  SYS(close(p.server));
  get(p.client, "last words");
  sleep_ms(20);
  expect_nothing(p.client);
  SYS(close(ends[1]));
  expect_eof(p.client);
  SYS(close(p.client));
}
MIXED_CASE(the_sender_is_killed) {
  struct pair p = open_pair(V4);
  int ends[2];
  socket_pair(ends);
  send_pattern(p.client, 0, 300000);
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(p.client));
    pass(ends[0], p.server);
    SYS(kill(getpid(), SIGKILL));
  }
  SYS(close(p.server));
  int status;
  EQ(SYS(waitpid(pid, &status, 0)), pid);
  p.server = take(ends[1]);
  recv_pattern(p.server, 0, 300000);
  exercise(p.client, p.server);
  SYS(close(p.server));
  expect_eof(p.client);
  SYS(close(p.client));
}
MIXED_CASE(several_messages_in_one_call) {
  enum { N = 5 };
  struct pair p[N];
  int ends[2];
  SYS(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
  struct mmsghdr messages[N];
  struct iovec iov[N];
  char bytes[N];
  _Alignas(8) char control[N][CMSG_SPACE(sizeof(int))] = {0};
  memset(messages, 0, sizeof messages);
  for (int i = 0; i < N; i++) {
    p[i] = open_pair(V4);
    bytes[i] = (char)('a' + i);
    iov[i] = (struct iovec){&bytes[i], 1};
    messages[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1, .msg_control = control[i],
                                          .msg_controllen = sizeof control[i]};
    struct cmsghdr *c = CMSG_FIRSTHDR(&messages[i].msg_hdr);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &p[i].server, sizeof(int));
  }
  EQ(SYS(sendmmsg(ends[0], messages, N, 0)), N);
  for (int i = 0; i < N; i++) {
    EQ(messages[i].msg_len, 1);
    SYS(close(p[i].server));
  }
  memset(bytes, 0, sizeof bytes), memset(control, 0, sizeof control);
  EQ(SYS(recvmmsg(ends[1], messages, 2, 0, NULL)), 2);
  struct timespec second = {1, 0};
  EQ(SYS(recvmmsg(ends[1], messages + 2, N - 2, MSG_WAITFORONE, &second)), N - 2);
  ERR(recvmmsg(ends[1], messages, 1, MSG_DONTWAIT, NULL), EAGAIN);
  for (int i = 0; i < N; i++) {
    EQ(bytes[i], 'a' + i);
    EQ(messages[i].msg_len, 1);
    memcpy(&p[i].server, CMSG_DATA(CMSG_FIRSTHDR(&messages[i].msg_hdr)), sizeof(int));
    exercise(p[i].client, p[i].server);
    close_pair(&p[i]);
  }
}

/* ---- listeners ------------------------------------------------------------------------------ */

static void listener_goes_on(enum family family, bool keeps) {
  union address target;
  int listener = listen_on(family, &target), ends[2];
  socket_pair(ends);
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(listener));
    listener = take(ends[1]);
    for (int i = 0; i < 4; i++) {
      int fd = accept_warm(listener);
      get(fd, "ping"), put(fd, "pong");
      recv_pattern(fd, 0, TOTAL);
      on_san(fd);
      SYS(close(fd));
    }
    _exit(0);
  }
  pass(ends[0], listener);
  if (!keeps) SYS(close(listener));
  for (int i = 0; i < 4; i++) {
    int fd = dial_warm(&target);
    put(fd, "ping"), get(fd, "pong");
    send_pattern(fd, 0, TOTAL);
    expect_eof(fd);
    on_san(fd);
    SYS(close(fd));
  }
  end_child(pid);
}
SAN_CASE(a_listener) { listener_goes_on(V4, false); }
SAN_CASE(a_listener_in_both) { listener_goes_on(DUAL, true); }
