/* Connections and listeners that messages take to other processes (SCM_RIGHTS). Where the receiver runs under the
 * shim the bytes go on over the SAN; the descriptors that programs see are the kernel's in any case. */
#include "passing.h"

static int hops;
static void to_children(int fd) {
  begin_closed_server(fd);
  int first[2], last;
  socket_pair(first);
  last = first[1];
  pid_t children[8];
  for (int hop = 0; hop < hops; hop++) {
    int next[2];
    socket_pair(next);
    if ((children[hop] = start_child()) == 0) {
      SYS(close(fd));
      receiver_ready(last);
      if (hop + 1 < hops) sender_ready(next[0]);
      int got = take(last);
      if (hop + 1 == hops) echo(got);
      else pass(next[0], got);
      _exit(0);
    }
    SYS(close(last)), SYS(close(next[0]));
    last = next[1];
  }
  sender_ready(first[0]);
  pass(first[0], fd);
  SYS(close(fd));
  for (int i = 0; i < hops; i++) end_child(children[i]);
}
SAN_CASE(to_a_child) { hops = 1, run_processes(V4, client, to_children); }
SAN_CASE(over_four_hops) { hops = 4, run_processes(V6, client, to_children); }
SAN_CASE(the_connector_passes_it) { hops = 2, run_processes(V4, to_children, client); }

SAN_CASE(as_an_ordinary_user) {
  if (geteuid() == 0) {
    SYS(setresgid(65534, 65534, 65534));
    SYS(setresuid(65534, 65534, 65534));
  }
  hops = 4, run_processes(V4, client, to_children);
}

static void to_a_program(int fd) {
  begin_closed_server(fd);
  int ends[2];
  socket_pair(ends);
  pid_t pid = start_part("@echo_one", ends[1], shimmed);
  pass_to(pid, ends, fd);
}
SAN_CASE(to_a_program) { shimmed = true, run_processes(V4, client, to_a_program); }
MIXED_CASE(to_a_program_without) { anywhere = true, run_processes(V4, client, to_a_program); }

/* ---- named sockets -------------------------------------------------------------------------- */

static int unix_listener(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  strcpy(address.sun_path, path);
  int fd = SYS(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SYS(bind(fd, (struct sockaddr *)&address, sizeof address));
  SYS(listen(fd, 5));
  return fd;
}
static int unix_dial(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  strcpy(address.sun_path, path);
  int fd = SYS(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SYS(connect(fd, (struct sockaddr *)&address, sizeof address));
  return fd;
}
PART(dial_and_echo) {
  int over = unix_dial("socket");
  receiver_ready(over);
  echo(take(over));
}
static void to_who_connects(int fd) {
  begin_closed_server(fd);
  int listener = unix_listener("socket");
  pid_t pid = start_program("@dial_and_echo", shimmed, NULL, NULL);
  int over = SYS(accept(listener, NULL, NULL));
  sender_ready(over);
  pass(over, fd);
  SYS(close(fd));
  end_child(pid);
}
SAN_CASE(to_who_connects) { shimmed = true, run_processes(V4, client, to_who_connects); }
MIXED_CASE(to_who_connects_without) { anywhere = true, run_processes(V4, client, to_who_connects); }

PART(accept_and_echo) {
  int over = SYS(accept4(atoi(bt_arguments[0]), NULL, NULL, SOCK_CLOEXEC));
  if (bt_arguments[1] == NULL) receiver_ready(over);
  echo(take(over));
}
static bool at_once;
static void to_who_accepts(int fd) {
  begin_closed_server(fd);
  int listener = unix_listener("socket");
  char number[16];
  snprintf(number, sizeof number, "%d", listener);
  SYS(fcntl(listener, F_SETFD, 0));
  pid_t pid = start_program("@accept_and_echo", shimmed, number, at_once ? "at once" : NULL);
  SYS(close(listener));
  int over = unix_dial("socket");
  if (!at_once) sender_ready(over);
  pass(over, fd);
  SYS(close(fd));
  end_child(pid);
}
SAN_CASE(to_who_accepts) { shimmed = true, run_processes(V4, client, to_who_accepts); }
MIXED_CASE(to_who_accepts_without) { anywhere = true, run_processes(V4, client, to_who_accepts); }
/* It may not have accepted yet: then that is waited for, or it is TCP. */
MIXED_CASE(to_who_will_accept) { shimmed = anywhere = at_once = true, run_processes(V4, client, to_who_accepts); }
MIXED_CASE(to_who_will_accept_without) { anywhere = at_once = true, run_processes(V4, client, to_who_accepts); }

/* ---- sender and receiver -------------------------------------------------------------------- */

/* Both use it in turn, as after fork. */
SAN_CASE(both_go_on) {
  struct pair p = open_pair(V4);
  int ends[2], told[2];
  socket_pair(ends);
  SYS(pipe(told));
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(p.client)), SYS(close(p.server)), SYS(close(told[1]));
    receiver_ready(ends[1]);
    int fd = take(ends[1]);
    char byte;
    while (SYS(read(told[0], &byte, 1)) == 1) get(fd, "to the child"), put(fd, "of the child");
    on_san(fd);
    _exit(0);
  }
  SYS(close(told[0]));
  sender_ready(ends[0]);
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
  on_san(p.client);
  close_pair(&p);
}
SAN_CASE(the_same_process) {
  struct pair p = open_pair(V4);
  int ends[2], before = open_now() + 2;
  socket_pair(ends);
  ready(ends);
  ready((int[]){ends[1], ends[0]});
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
  on_san(p.client);
  close_pair(&p);
}
/* With bytes unread. */
static void pass_both_ends(int ends[2]) {
  struct pair p = open_pair(V4);
  int fds[2] = {p.client, p.server}, got[MOST], seen;
  send_pattern(p.client, 0, 300000);
  pid_t pid = start_child();
  if (pid == 0) {
    close_pair(&p);
    receiver_ready(ends[1]);
    EQ(take_some(ends[1], got, CMSG_SPACE(2 * sizeof(int)), 0, &seen, "both"), 2);
    EQ(seen, 0);
    EQ(fcntl(got[0], F_GETFD), 0);
    recv_pattern(got[1], 0, 300000);
    exercise(got[0], got[1]);
    if (!anywhere) on_san(got[0]);
    _exit(0);
  }
  sender_ready(ends[0]);
  pass_all(ends[0], fds, 2, "both");
  close_pair(&p);
  end_child(pid);
}
SAN_CASE(both_ends) {
  int ends[2];
  socket_pair(ends);
  pass_both_ends(ends);
}
/* Nobody knows who gets them: they go back to TCP. */
MIXED_CASE(both_ends_over_datagrams) {
  int ends[2];
  SYS(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends));
  anywhere = true;
  pass_both_ends(ends);
}
/* Nobody ever takes it: it ends when the message does. */
SAN_CASE(nobody_takes_it) {
  struct pair p = open_pair(V4);
  int ends[2];
  socket_pair(ends);
  ready(ends);
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
SAN_CASE(the_receiver_wants_no_descriptors) {
  struct pair p = open_pair(V4);
  int ends[2];
  socket_pair(ends);
  ready(ends);
  exercise(p.client, p.server);
  pass(ends[0], p.server);
  SYS(close(p.server));
  get(ends[1], "f");
  expect_eof(p.client);
  SYS(close(p.client));
}
SAN_CASE(the_sender_is_killed) {
  struct pair p = open_pair(V4);
  int ends[2];
  socket_pair(ends);
  ready(ends);
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
  on_san(p.client);
  SYS(close(p.server));
  expect_eof(p.client);
  SYS(close(p.client));
}

/* ---- what the receiver sees ----------------------------------------------------------------- */

static void with_room(size_t room, int came, bool cut) {
  struct pair p = open_pair(V4), q = open_pair(V4);
  int ends[2], fds[3] = {p.server, q.server, p.client}, got[MOST], seen;
  socket_pair(ends);
  ready(ends);
  pass_all(ends[0], fds, 3, "three");
  SYS(close(p.server)), SYS(close(q.server));
  int before = open_now();
  EQ(take_some(ends[1], got, room, 0, &seen, "three"), came);
  EQ(seen, cut ? MSG_CTRUNC : 0);
  EQ(open_now(), before + came);
  if (came > 0) exercise(p.client, got[0]);
  else expect_eof(p.client);
  if (came > 1) exercise(q.client, got[1]);
  else expect_eof(q.client);
  if (came > 2) exercise(got[2], got[0]);
  if (came > 0) on_san(p.client);
  for (int i = 0; i < came; i++) SYS(close(got[i]));
  SYS(close(p.client)), SYS(close(q.client));
}
SAN_CASE(room_for_all) { with_room(CMSG_SPACE(3 * sizeof(int)), 3, false); }
SAN_CASE(room_for_more) { with_room(CMSG_SPACE(MOST * sizeof(int)), 3, false); }
SAN_CASE(room_without_padding) { with_room(CMSG_LEN(3 * sizeof(int)), 3, false); }
SAN_CASE(room_for_two) { with_room(CMSG_SPACE(2 * sizeof(int)), 2, true); }
SAN_CASE(room_for_one) { with_room(CMSG_LEN(sizeof(int)) + 3, 1, true); }
SAN_CASE(room_for_a_header) { with_room(CMSG_LEN(0), 0, true); }
SAN_CASE(room_for_nothing) { with_room(0, 0, true); }

SAN_CASE(looked_at_first) {
  struct pair p = open_pair(V4);
  int ends[2], got[MOST], seen;
  socket_pair(ends);
  ready(ends);
  pass(ends[0], p.server);
  SYS(close(p.server));
  int before = open_now();
  for (int i = 0; i < 3; i++) {
    EQ(take_some(ends[1], got + i, CMSG_SPACE(sizeof(int)), MSG_PEEK, &seen, "f"), 1);
    exercise(p.client, got[i]);
  }
  SYS(close(got[0])), SYS(close(got[1])), SYS(close(got[2]));
  p.server = take(ends[1]);
  EQ(open_now(), before + 1);
  exercise(p.client, p.server);
  send_pattern(p.client, 0, 300000);
  recv_pattern(p.server, 0, 300000);
  on_san(p.client);
  SYS(close(p.server));
  expect_eof(p.client);
  SYS(close(p.client));
}
SAN_CASE(among_other_files) {
  struct pair p = open_pair(V4);
  int ends[2], got[MOST], seen, more[2];
  socket_pair(ends);
  ready(ends);
  SYS(pipe(more));
  int fds[4] = {more[0], p.server, more[1], p.server};
  pass_all(ends[0], fds, 4, "four");
  for (int i = 0; i < 3; i++) SYS(close(fds[i]));
  EQ(take_some(ends[1], got, CMSG_SPACE(MOST * sizeof(int)), 0, &seen, "four"), 4);
  EQ(SYS(write(got[2], "pipe", 4)), 4);
  char text[5] = {0};
  EQ(SYS(read(got[0], text, 4)), 4);
  CHECK(strcmp(text, "pipe") == 0);
  exercise(p.client, got[1]);
  SYS(close(got[1]));
  exercise(p.client, got[3]);
  on_san(p.client);
  SYS(close(got[3]));
  expect_eof(p.client);
}
SAN_CASE(several_messages_in_one_call) {
  enum { N = 5 };
  struct pair p[N];
  int ends[2];
  SYS(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
  ready(ends);
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
CASE(the_buffer_of_a_unix_socket_reads_as_ever) {
  int ends[2];
  socket_pair(ends);
  int fd = SYS(open("/proc/sys/net/core/rmem_default", O_RDONLY));
  char text[32] = {0};
  SYS(read(fd, text, sizeof text - 1));
  EQ(get_option(ends[0], SOL_SOCKET, SO_RCVBUF), atoi(text));
  set_option(ends[0], SOL_SOCKET, SO_RCVBUF, 50000);
  EQ(get_option(ends[0], SOL_SOCKET, SO_RCVBUF), 100000);
}
SAN_CASE(a_full_queue) {
  struct pair p = open_pair(V4);
  int ends[2];
  socket_pair(ends);
  ready(ends);
  set_nonblocking(ends[0], true);
  int passed = 0;
  while (passed < 100000 && try_pass(ends[0], &p.server, 1, "f", 0) == 1) passed++;
  EQ(errno, EAGAIN);
  CHECK(passed > 0 && passed < 100000);
  exercise(p.client, p.server);
  SYS(close(p.server));
  for (int i = 0; i < passed; i++) {
    int fd = take(ends[1]);
    if (i + 1 == passed) exercise(p.client, fd);
    SYS(close(fd));
  }
  expect_eof(p.client);
}

/* ---- listeners ------------------------------------------------------------------------------ */

static void listener_goes_on(enum family family, bool keeps) {
  union address target;
  int listener = listen_on(family, &target), ends[2];
  socket_pair(ends);
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(listener));
    receiver_ready(ends[1]);
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
  sender_ready(ends[0]);
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
