/* The way back to TCP that `sanctl detach` asks for, of ends that sleep, are killed, or have urgent data under way. */
#include "detaching.h"

#include <sys/ioctl.h>
#include <sys/syscall.h>

/* ---- ends that sleep ----------------------------------------------------------------------- */

static enum { IN_RECV, IN_POLL, IN_EPOLL } asleep_in;
static bool peer_is_elsewhere;
static int go_on[2];

static void asked_asleep(int fd) {
  put(fd, "begin"), get(fd, "begun");
  atomic_store(&bt_shared->value[0], getpid());
  if (asleep_in == IN_POLL) EQ(SYS(poll(&(struct pollfd){fd, POLLIN, 0}, 1, -1)), 1);
  if (asleep_in == IN_EPOLL) {
    int set = SYS(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN};
    SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    EQ(SYS(epoll_wait(set, &event, 1, -1)), 1);
    SYS(close(set));
  }
  get(fd, "wake up"), put(fd, "awake");
  expect_eof(fd);
  SYS(close(fd));
}
static void peer_of_asleep(int fd) {
  get(fd, "begin"), put(fd, "begun");
  /* On the connection too, or not there at all. */
  struct pollfd two[2] = {{go_on[0], POLLIN, 0}, {fd, POLLIN, 0}};
  EQ(SYS(poll(two, peer_is_elsewhere ? 1 : 2, -1)), 1);
  EQ(two[0].revents, POLLIN);
  char go;
  EQ(SYS(read(go_on[0], &go, 1)), 1);
  put(fd, "wake up"), get(fd, "awake");
  /* It is back on TCP before it ends. */
  EQ(SYS(read(go_on[0], &go, 1)), 1);
  SYS(close(fd));
}
/* Between hosts neither calls anything until the connection is back: a helper brings it. Else it goes back once it is used. */
static void detach_asleep(void) {
  SYS(pipe(go_on));
  pid_t asker = start_asker();
  pid_t both = start_child();
  if (both == 0) {
    SYS(close(ask[1]));
    run_processes(V4, asked_asleep, peer_of_asleep);
    _exit(0);
  }
  UNTIL(atomic_load(&bt_shared->value[0]));
  sleep_ms(30);
  pid_t asleep = (pid_t)atomic_load(&bt_shared->value[0]);
  bool has_helper = getenv("SANSHIM_PROVIDERS") != NULL;
  ask_for(asleep, has_helper);
  bool went_back = answered();
  CHECK(went_back || !has_helper);
  SYS(write(go_on[1], "!", 1));
  detach(asleep);
  SYS(write(go_on[1], "!", 1));
  end_child(both);
  end_asker(asker);
}
#define ASLEEP(name, where, elsewhere)                                        \
  MIXED_CASE(name) {                                                          \
    asleep_in = where, peer_is_elsewhere = elsewhere;                         \
    detach_asleep();                                                          \
  }
ASLEEP(asleep_in_recv, IN_RECV, false)
ASLEEP(asleep_in_poll, IN_POLL, false)
ASLEEP(asleep_in_epoll, IN_EPOLL, false)
ASLEEP(asleep_in_recv_peer_elsewhere, IN_RECV, true)
ASLEEP(asleep_in_poll_peer_elsewhere, IN_POLL, true)
ASLEEP(asleep_in_epoll_peer_elsewhere, IN_EPOLL, true)

/* ---- a registration made when the peer is back already -------------------------------------- */

static void back_first(int fd) {
  atomic_store(&bt_shared->value[0], getpid());
  while (!flag(2)) expect_nothing(fd), sleep_ms(1);
  UNTIL(flag(3));
  SYS(close(fd));
}
static void registers_then(int fd) {
  UNTIL(flag(2));
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  EQ(SYS(epoll_wait(set, &event, 1, 0)), 1);
  EQ(event.events, EPOLLOUT);
  EQ(SYS(epoll_wait(set, &event, 1, 0)), 0);
  set_flag(3, true);
  SYS(close(fd));
}
/* `waits`: until that end is back on TCP. */
static void ask_the_first(end_fn *first, end_fn *other, bool waits) {
  pid_t asker = start_asker();
  pid_t both = start_child();
  if (both == 0) {
    SYS(close(ask[1]));
    run_processes(V4, first, other);
    _exit(0);
  }
  UNTIL(atomic_load(&bt_shared->value[0]));
  ask_for((pid_t)atomic_load(&bt_shared->value[0]), waits);
  CHECK(answered() || !waits);
  set_flag(2, true);
  end_child(both);
  end_asker(asker);
}
static void asked_of_the_first(end_fn *first, end_fn *other) { ask_the_first(first, other, true); }
/* Its edge comes once. */
MIXED_CASE(an_edge_after_the_peer_is_back) { asked_of_the_first(back_first, registers_then); }

/* ---- edges of one that reads less than there is ---------------------------------------------- */

static void sends_over_both(int fd) {
  atomic_store(&bt_shared->value[0], getpid());
  put(fd, "first");
  while (!flag(2)) expect_nothing(fd), sleep_ms(1);
  step_wait(0);
  put(fd, "second");
  step_done(1);
  UNTIL(flag(3));
  SYS(close(fd));
}
static void leaves_some_unread(int fd) {
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event event = {.events = EPOLLIN | EPOLLET};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  EQ(SYS(epoll_wait(set, &event, 1, HANG_MS)), 1);
  get(fd, "f");
  UNTIL(flag(2));
  /* Once more, if the connection goes back to TCP meanwhile: the kernel's set reports what is unread (docs/limitations.md). */
  int more = getenv("LD_PRELOAD") ? 1 : 0;
  more -= (int)SYS(epoll_wait(set, &event, 1, 0));
  CHECK(more >= 0);
  step_done(0), step_wait(1);
  EQ(SYS(epoll_wait(set, &event, 1, HANG_MS)), 1);
  CHECK(SYS(epoll_wait(set, &event, 1, 0)) <= more);
  get(fd, "irstsecond");
  set_flag(3, true);
  SYS(close(fd));
}
/* The peer's return is none, and what it sends afterwards is one. */
MIXED_CASE(an_edge_behind_what_is_unread) { asked_of_the_first(sends_over_both, leaves_some_unread); }

/* ---- a registration that was reported once --------------------------------------------------- */

static void ends_afterwards(int fd) {
  atomic_store(&bt_shared->value[0], getpid());
  put(fd, "x");
  while (!flag(2)) expect_nothing(fd), sleep_ms(1);
  step_wait(0);
  SYS(shutdown(fd, SHUT_WR));
  step_done(1);
  UNTIL(flag(3));
  SYS(close(fd));
}
static void is_told_once(int fd) {
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  EQ(SYS(epoll_wait(set, &event, 1, HANG_MS)), 1);
  get(fd, "x");
  while (!flag(2)) expect_nothing(fd), sleep_ms(1);
  step_done(0), step_wait(1);
  SYS(shutdown(fd, SHUT_WR));
  CHECK(wait_for(fd, 0) & POLLHUP);
  EQ(SYS(epoll_wait(set, &event, 1, 0)), 0);
  event.events = EPOLLIN | EPOLLONESHOT;
  ERR(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), EEXIST);
  for (int i = 0; i < 2; i++) {
    SYS(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    EQ(SYS(epoll_wait(set, &event, 1, 0)), 1);
    EQ(event.events, EPOLLIN | EPOLLHUP);
    event.events = EPOLLIN | EPOLLONESHOT;
  }
  SYS(epoll_ctl(set, EPOLL_CTL_DEL, fd, &event));
  ERR(epoll_ctl(set, EPOLL_CTL_DEL, fd, &event), ENOENT);
  set_flag(3, true);
  SYS(close(fd));
}
/* It stays silent, also of what is told of every other. */
MIXED_CASE(reported_once_before_the_return) { asked_of_the_first(ends_afterwards, is_told_once); }

/* ---- a peer that ends before, and does not look ------------------------------------------------ */

static int shuts;
static void reads_to_the_end(int fd) {
  get(fd, "last");
  step_wait(0);
  atomic_store(&bt_shared->value[0], getpid());
  UNTIL(flag(2));
  for (int i = 0; i < 3; i++) EQ(SYS(recv(fd, &(char){0}, 1, MSG_DONTWAIT)), 0);
  CHECK(wait_for(fd, POLLRDHUP) & POLLRDHUP);
  if (shuts == SHUT_WR) put(fd, "answer");
  set_flag(3, true);
  SYS(close(fd));
}
static void shuts_down_first(int fd) {
  put(fd, "last");
  SYS(shutdown(fd, shuts));
  step_done(0);
  UNTIL(flag(3));
  if (shuts == SHUT_WR) get(fd, "answer");
  SYS(close(fd));
}
/* The end of the stream stays what it is, although only the SAN knows of it. */
static void end_before(int how) {
  shuts = how;
  ask_the_first(reads_to_the_end, shuts_down_first, false);
}
MIXED_CASE(the_end_of_a_peer_that_does_not_look) { end_before(SHUT_WR); }
MIXED_CASE(both_ends_of_a_peer_that_does_not_look) { end_before(SHUT_RDWR); }

static void sends_to_who_closed(int fd) {
  put(fd, "unread");
  step_done(0), step_wait(1);
  atomic_store(&bt_shared->value[0], getpid());
  UNTIL(flag(2));
  ERR(send(fd, "x", 1, MSG_NOSIGNAL), ECONNRESET);
  ERR(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
  SYS(close(fd));
}
static void closes_with_unread(int fd) {
  step_wait(0);
  SYS(close(fd));
  step_done(1);
}
MIXED_CASE(the_reset_of_a_peer_that_closed) { ask_the_first(sends_to_who_closed, closes_with_unread, false); }

static void waits_for_more(int fd) {
  char bytes[3];
  put(fd, "unread");
  step_done(0), step_wait(1);
  atomic_store(&bt_shared->value[0], getpid());
  UNTIL(flag(2));
  EQ(recv(fd, bytes, 3, MSG_WAITALL), 1);
  ERR(recv(fd, bytes, 3, 0), ECONNRESET);
  SYS(close(fd));
}
static void closes_while_it_waits(int fd) {
  step_wait(0);
  put(fd, "c");
  step_done(1);
  UNTIL(flag(2));
  sleep_ms(20);
  SYS(close(fd));
}
MIXED_CASE(the_reset_of_a_peer_that_closes_afterwards) { ask_the_first(waits_for_more, closes_while_it_waits, false); }

static void has_both_ends(int unused) {
  SYS(close(unused));
  struct pair p = open_pair(V4);
  put(p.client, "c"), put(p.server, "s");
  atomic_store(&bt_shared->value[0], getpid());
  UNTIL(flag(2));
  struct pollfd two[] = {{p.client, POLLIN | POLLOUT, 0}, {p.server, POLLIN, 0}};
  EQ(SYS(poll(two, 2, 0)), 2);
  EQ(two[0].revents, POLLIN | POLLOUT);
  EQ(two[1].revents, POLLIN);
  get(p.client, "s"), get(p.server, "c");
}
static void only_closes(int fd) { SYS(close(fd)); }
/* The look that brings them back misses nothing. */
MIXED_CASE(both_ends_in_one_process) { ask_the_first(has_both_ends, only_closes, false); }

/* ---- a peer that is killed meanwhile ------------------------------------------------------- */

static void *send_until_it_fails(void *of) {
  int fd = *(int *)of;
  for (uint64_t at = 0;;) {
    ssize_t n = send(fd, pattern(at), 20000, MSG_NOSIGNAL);
    if (n < 0) {
      CHECK(errno == EPIPE || errno == ECONNRESET);
      return NULL;
    }
    at += (uint64_t)n;
  }
}
static void survivor(int fd) {
  atomic_store(&bt_shared->value[0], getpid());
  pthread_t sender = start_thread(send_until_it_fails, &fd);
  static uint8_t bytes[100000];
  uint64_t at = 0;
  ssize_t n;
  while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0) {
    check_pattern(bytes, at, (size_t)n);
    at += (uint64_t)n;
  }
  if (n < 0) EQ(errno, ECONNRESET);
  end_thread(sender);
  set_flag(3, true);
  SYS(close(fd));
}
static void victim(int fd) {
  atomic_store(&bt_shared->value[1], getpid());
  pthread_t sender = start_thread(send_until_it_fails, &fd);
  static uint8_t bytes[100000];
  uint64_t at = 0;
  for (;;) {
    ssize_t n = SYS(recv(fd, bytes, sizeof bytes, 0));
    check_pattern(bytes, at, (size_t)n);
    at += (uint64_t)n;
  }
  end_thread(sender);
}
MIXED_CASE(killed_on_the_way) {
  pid_t asker = start_asker();
  unsigned seed = (unsigned)now_ms();
  for (int round = 0; round < 8; round++) {
    for (int i = 0; i < 2; i++) atomic_store(&bt_shared->value[i], 0);
    for (int i = 3; i < 6; i++) set_flag(i, false);
    union address target;
    int listener = listen_on(V4, &target);
    pid_t other = start_child();
    if (other == 0) {
      SYS(close(ask[1]));
      /* Between hosts a server is found from its first look on, and this one alone then. */
      UNTIL(flag(4));
      EQ(SYS(poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 0)), 0);
      set_flag(5, true);
      int fd = accept_warm(listener);
      SYS(close(listener));
      victim(fd);
    }
    SYS(close(listener));
    set_flag(4, true);
    UNTIL(flag(5));
    pid_t one = start_child();
    if (one == 0) {
      SYS(close(ask[1]));
      survivor(dial_warm(&target));
      _exit(0);
    }
    UNTIL(atomic_load(&bt_shared->value[0]) && atomic_load(&bt_shared->value[1]));
    pid_t asked = (pid_t)atomic_load(&bt_shared->value[round % 2]);
    ask_for(asked, true);
    for (unsigned spin = next(&seed) % 4000; spin > 0; spin--) getppid();
    sleep_ms((int)(next(&seed) % 6));
    SYS(kill(other, SIGKILL));
    SYS(waitpid(other, NULL, 0));
    UNTIL(flag(3));
    end_child(one);
    answered();
  }
  end_asker(asker);
}

/* ---- a signal ------------------------------------------------------------------------------ */

static ssize_t all_got;
static void *receive_all(void *fd) {
  char bytes[100];
  atomic_store(&bt_shared->value[0], (long)SYS(syscall(SYS_gettid)));
  all_got = recv(*(int *)fd, bytes, sizeof bytes, MSG_WAITALL);
  return NULL;
}
static void no_more(int number) { (void)number; }
/* A receive that slept over the SAN, and goes on over TCP, sleeps there as any other. */
MIXED_CASE(a_signal_ends_a_receive_that_goes_on) {
  pid_t asker = start_asker();
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  handle_signal(SIGUSR1, no_more, 0);
  pthread_t thread = start_thread(receive_all, &p.client);
  UNTIL(atomic_load(&bt_shared->value[0]));
  pid_t tid = (pid_t)atomic_load(&bt_shared->value[0]);
  wait_asleep(tid);
  put(p.server, "over the SAN");
  wait_asleep(tid);
  /* On one host each end goes back once it is used. */
  ask_for(getpid(), false);
  answered();
  put(p.server, " and");
  sleep_ms(5);
  detach(getpid());
  put(p.server, " TCP");
  int left = 1;
  while (left > 0) sleep_ms(1), SYS(ioctl(p.client, FIONREAD, &left));
  sleep_ms(5);
  wait_asleep(tid);
  EQ(pthread_kill(thread, SIGUSR1), 0);
  end_thread(thread);
  EQ(all_got, strlen("over the SAN and TCP"));
  close_pair(&p);
  end_asker(asker);
}

/* ---- urgent data --------------------------------------------------------------------------- */

/* Asked before, while and after urgent data is on its way: that keeps its place, and goes back as well. So many
 * exchanges are without. */
static int plain;
static void urgent_sender(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  atomic_store(&bt_shared->value[0], getpid());
  put(fd, "begin"), get(fd, "begun");
  for (int i = 0; !flag(2) || i % 10; i++) {
    send_pattern(fd, (uint64_t)i * 5000, 5000);
    if (i >= plain) EQ(SYS(send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL)), 1);
    put(fd, "behind");
    get(fd, "got it");
  }
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
  SYS(close(fd));
}
static void urgent_receiver(int fd) {
  atomic_store(&bt_shared->value[1], getpid());
  get(fd, "begin"), put(fd, "begun");
  for (int i = 0;; i++) {
    char byte;
    if (SYS(recv(fd, &byte, 1, MSG_PEEK)) == 0) break;
    recv_pattern(fd, (uint64_t)i * 5000, 5000);
    if (i >= plain) {
      wait_for(fd, POLLPRI);
      EQ(SYS(recv(fd, &byte, 1, MSG_OOB)), 1);
      EQ(byte, '!');
    }
    get(fd, "behind"), put(fd, "got it");
  }
  SYS(close(fd));
}
static void urgent_data(int who) {
  pid_t asker = start_asker();
  for (int round = 0; round < 6; round++) {
    for (int i = 0; i < 2; i++) atomic_store(&bt_shared->value[i], 0);
    set_flag(2, false);
    plain = round * 40;
    pid_t both = start_child();
    if (both == 0) {
      SYS(close(ask[1]));
      run_processes(round % 2 ? V4 : V6, urgent_sender, urgent_receiver);
      _exit(0);
    }
    UNTIL(atomic_load(&bt_shared->value[0]) && atomic_load(&bt_shared->value[1]));
    sleep_ms(round % 3);
    for (int side = 0; side < 2; side++)
      if (who >> side & 1) detach((pid_t)atomic_load(&bt_shared->value[side]));
    set_flag(2, true);
    end_child(both);
  }
  end_asker(asker);
}
MIXED_CASE(urgent_data_sender) { urgent_data(1); }
MIXED_CASE(urgent_data_receiver) { urgent_data(2); }
MIXED_CASE(urgent_data_both) { urgent_data(3); }
