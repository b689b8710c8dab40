/* Connections that messages take to a process which has hardly any descriptors left: it gets what the kernel has
 * room for, as ever, and that works. */
#include "passing.h"

/* Descriptors are left for `room` more. */
static void leave_room(int room, bool hard) {
  int taken[8];
  for (int i = 0; i < room; i++) taken[i] = SYS(dup(0));
  struct rlimit limit;
  SYS(getrlimit(RLIMIT_NOFILE, &limit));
  limit.rlim_cur = (rlim_t)taken[room - 1] + 1;
  if (hard) limit.rlim_max = limit.rlim_cur;
  SYS(setrlimit(RLIMIT_NOFILE, &limit));
  for (int i = 0; i < room; i++) SYS(close(taken[i]));
}

static int room;
static bool hard, looks_first;
static void to_a_crowded_one(int fd) {
  begin_closed_server(fd);
  int ends[2];
  socket_pair(ends);
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(fd)), SYS(close(ends[0]));
    receiver_ready(ends[1]);
    leave_room(room, hard);
    if (looks_first) {
      int got, seen;
      EQ(take_some(ends[1], &got, CMSG_SPACE(sizeof(int)), MSG_PEEK | MSG_CMSG_CLOEXEC, &seen, "f"), 1);
      EQ(seen, MSG_CMSG_CLOEXEC);
      SYS(close(got));
    }
    fd = take(ends[1]);
    /* No descriptor but its own was taken. */
    for (int left = 1; left < room; left++) SYS(dup(0));
    ERR(dup(0), EMFILE);
    echo(fd);
    _exit(0);
  }
  pass_to(pid, ends, fd);
}
/* Mixed, as all of these: without room for descriptors of ours a connection goes back to TCP. */
#define CROWDED(name, room_, hard_, looks)                                    \
  MIXED_CASE(name) {                                                          \
    anywhere = true, room = room_, hard = hard_, looks_first = looks;         \
    run_processes(V4, client, to_a_crowded_one);                              \
  }
CROWDED(room_for_one, 1, false, false)
CROWDED(room_for_two, 2, false, false)
CROWDED(room_for_three, 3, false, false)
CROWDED(room_for_one_and_never_more, 1, true, false)
CROWDED(room_for_two_and_never_more, 2, true, false)
CROWDED(room_for_one_looks_first, 1, false, true)
CROWDED(room_for_three_looks_first, 3, true, true)

/* Of several there is room for some; the others end. */
static void some_of_three(int room, int wanted) {
  struct pair p[3];
  int ends[2], fds[3];
  for (int i = 0; i < 3; i++) p[i] = open_pair(i % 2 ? V6 : V4), fds[i] = p[i].server;
  socket_pair(ends);
  pid_t pid = start_child();
  if (pid == 0) {
    int got[MOST], seen;
    for (int i = 0; i < 3; i++) close_pair(&p[i]);
    SYS(close(ends[0]));
    receiver_ready(ends[1]);
    leave_room(room, false);
    step_wait(0);
    EQ(take_some(ends[1], got, CMSG_SPACE(MOST * sizeof(int)), MSG_CMSG_CLOEXEC, &seen, "three"), wanted);
    EQ(seen & MSG_CTRUNC, wanted < 3 ? MSG_CTRUNC : 0);
    for (int i = 0; i < wanted; i++) {
      get(got[i], "unread"), put(got[i], "answer");
      recv_pattern(got[i], 0, 100000);
      send_pattern(got[i], 0, 100000);
      expect_eof(got[i]);
      SYS(close(got[i]));
    }
    _exit(0);
  }
  SYS(close(ends[1]));
  sender_ready(ends[0]);
  for (int i = 0; i < 3; i++) exercise(p[i].client, p[i].server), put(p[i].client, "unread");
  pass_all(ends[0], fds, 3, "three");
  for (int i = 0; i < 3; i++) SYS(close(fds[i]));
  step_done(0);
  for (int i = 0; i < 3; i++) {
    if (i < wanted) {
      get(p[i].client, "answer");
      send_pattern(p[i].client, 0, 100000);
      recv_pattern(p[i].client, 0, 100000);
      SYS(shutdown(p[i].client, SHUT_WR));
    }
    /* What the others sent was not read. */
    char byte;
    ssize_t n = recv(p[i].client, &byte, 1, 0);
    if (i < wanted) EQ(n, 0);
    else if (n != 0) EQ(errno, ECONNRESET);
    SYS(close(p[i].client));
  }
  end_child(pid);
}
MIXED_CASE(room_for_one_of_three) { some_of_three(1, 1); }
MIXED_CASE(room_for_two_of_three) { some_of_three(2, 2); }
MIXED_CASE(room_for_just_three) { some_of_three(3, 3); }
MIXED_CASE(room_for_five) { some_of_three(5, 3); }

/* A listener goes on as well. */
MIXED_CASE(a_listener) {
  union address target;
  int listener = listen_on(V4, &target), ends[2];
  socket_pair(ends);
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(listener)), SYS(close(ends[0]));
    receiver_ready(ends[1]);
    leave_room(2, false);
    listener = take(ends[1]);
    for (int i = 0; i < 4; i++) {
      int fd = accept_warm(listener);
      get(fd, "ping"), put(fd, "pong");
      recv_pattern(fd, 0, TOTAL);
      SYS(close(fd));
    }
    _exit(0);
  }
  SYS(close(ends[1]));
  sender_ready(ends[0]);
  pass(ends[0], listener);
  SYS(close(listener));
  for (int i = 0; i < 4; i++) {
    int fd = dial_warm(&target);
    put(fd, "ping"), get(fd, "pong");
    send_pattern(fd, 0, TOTAL);
    expect_eof(fd);
    SYS(close(fd));
  }
  end_child(pid);
  /* One that uses the SAN. */
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  close_pair(&p);
}

/* Who waits for a message waits as ever. */
static void nothing(int number) { (void)number; }
SAN_CASE(waiting_for_a_message) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  int kinds[] = {SOCK_STREAM, SOCK_SEQPACKET};
  for (int i = 0; i < 2; i++) {
    int ends[2], seen, got[MOST];
    SYS(socketpair(AF_UNIX, kinds[i], 0, ends));
    ready(ends);
    _Alignas(8) char control[CMSG_SPACE(sizeof(int))];
    char byte;
    struct iovec iov = {&byte, 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ERR(recvmsg(ends[1], &message, MSG_DONTWAIT), EAGAIN);
    set_timeout(ends[1], SO_RCVTIMEO, 30);
    ERR(recvmsg(ends[1], &message, 0), EAGAIN);
    set_timeout(ends[1], SO_RCVTIMEO, 0);
    handle_signal(SIGALRM, nothing, 0);
    SYS(setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 30000}}, NULL));
    ERR(recvmsg(ends[1], &message, 0), EINTR);
    pid_t pid = start_child();
    if (pid == 0) {
      sleep_ms(20);
      put(ends[0], "w");
      sleep_ms(20);
      pass(ends[0], p.server);
      _exit(0);
    }
    EQ(take_some(ends[1], got, sizeof control, 0, &seen, "w"), 0);
    EQ(seen & MSG_CTRUNC, 0);
    int fd = take(ends[1]);
    exercise(p.client, fd);
    SYS(close(fd));
    end_child(pid);
    /* Its place to look at is what the program says, when there is one. */
    if (kinds[i] == SOCK_STREAM) {
      set_option(ends[1], SOL_SOCKET, SO_PEEK_OFF, 3);
      put(ends[0], "abc");
      message.msg_controllen = sizeof control;
      EQ(SYS(recvmsg(ends[1], &message, 0)), 1);
      EQ(byte, 'a');
    }
    SYS(close(ends[0]));
    if (kinds[i] == SOCK_STREAM) get(ends[1], "bc");
    message.msg_controllen = sizeof control;
    EQ(recvmsg(ends[1], &message, 0), 0);
    SYS(close(ends[1]));
  }
  exercise(p.client, p.server);
  close_pair(&p);
}
