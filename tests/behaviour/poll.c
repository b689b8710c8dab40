/* poll(), ppoll(), select() and pselect(). */
#include "bt.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

SAN_CASE(states_of_a_connection) {
  struct pair p = open_pair(V4);
  EQ(ready_now(p.server, POLLIN | POLLOUT), POLLOUT);
  EQ(ready_now(p.server, POLLIN), 0);
  EQ(ready_now(p.server, 0), 0);
  put(p.client, "x");
  wait_revents(p.server, POLLIN | POLLOUT, POLLIN | POLLOUT);
  EQ(ready_now(p.server, POLLOUT), POLLOUT);
  EQ(ready_now(p.server, POLLIN | POLLRDNORM), POLLIN | POLLRDNORM);
  EQ(ready_now(p.server, POLLWRNORM), POLLWRNORM);
  EQ(ready_now(p.server, POLLPRI), 0);
  get(p.server, "x");
  EQ(ready_now(p.server, POLLIN), 0);
  EQ(ready_now(-1, POLLIN), 0);
  EQ(ready_now(99999, POLLIN), POLLNVAL);
}

SAN_CASE(listener_is_readable) {
  union address target;
  int listener = listen_on(V4, &target);
  EQ(ready_now(listener, POLLIN | POLLOUT), 0);
  int client = dial(&target);
  EQ(wait_for(listener, POLLIN | POLLOUT), POLLIN);
  int server = SYS(accept(listener, NULL, NULL));
  EQ(ready_now(listener, POLLIN), 0);
  warm_up_both(client, server);
  exercise(client, server);
}

/* Every way to wait, blocked before the data comes. */
enum way { POLL, PPOLL, SELECT, PSELECT, WAYS };
static int wait_way(enum way way, int fd, int timeout_ms) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  struct timespec ts = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
  struct timeval tv = {timeout_ms / 1000, timeout_ms % 1000 * 1000L};
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  int n = way == POLL    ? poll(&p, 1, timeout_ms)
          : way == PPOLL ? ppoll(&p, 1, timeout_ms < 0 ? NULL : &ts, NULL)
          : way == SELECT
              ? select(fd + 1, &set, NULL, NULL, timeout_ms < 0 ? NULL : &tv)
              : pselect(fd + 1, &set, NULL, NULL, timeout_ms < 0 ? NULL : &ts, NULL);
  if (way == POLL || way == PPOLL)
    EQ(p.revents, n > 0 ? POLLIN : 0);
  else
    EQ(!!FD_ISSET(fd, &set), n > 0);
  return n;
}
static void waiting_end(int fd) {
  for (int round = 0; round < 3; round++)
    for (enum way way = 0; way < WAYS; way++) {
      step_done(0);
      EQ(wait_way(way, fd, round == 0 ? -1 : HANG_MS), 1);
      get(fd, "tick");
      int64_t start = now_ms();
      EQ(wait_way(way, fd, 20), 0);
      CHECK(now_ms() - start >= 19);
      EQ(wait_way(way, fd, 0), 0);
    }
  SYS(close(fd));
}
static void ticking_end(int fd) {
  for (int i = 0; i < 3 * WAYS; i++) {
    step_wait(0);
    sleep_ms(i % 3 * 2);
    put(fd, "tick");
  }
  expect_eof(fd);
}
ENDS(blocked_wait_then_data, waiting_end, ticking_end)

/* Waiting for room, in each way. */
static int wait_room(enum way way, int fd) {
  struct pollfd p = {.fd = fd, .events = POLLOUT};
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  return way == POLL     ? poll(&p, 1, HANG_MS)
         : way == PPOLL  ? ppoll(&p, 1, NULL, NULL)
         : way == SELECT ? select(fd + 1, NULL, &set, NULL, NULL)
                         : pselect(fd + 1, NULL, &set, NULL, NULL, NULL);
}
static void room_end(int fd) {
  uint64_t at = 0;
  for (enum way way = 0; way < WAYS; way++) {
    uint64_t n = fill(fd, at);
    at += n;
    atomic_store(&bt_shared->value[way], n);
    step_done(0);
    EQ(wait_room(way, fd), 1);
    CHECK(send(fd, pattern(at), 1, MSG_DONTWAIT) == 1);
    at++;
    step_wait(1);
  }
  SYS(close(fd));
}
static void making_room(int fd) {
  uint64_t at = 0;
  for (enum way way = 0; way < WAYS; way++) {
    step_wait(0);
    uint64_t n = atomic_load(&bt_shared->value[way]) + 1;
    recv_pattern(fd, at, n);
    at += n;
    step_done(1);
  }
  expect_eof(fd);
}
ENDS(blocked_wait_for_room, room_end, making_room)

SAN_CASE(nothing_to_wait_for) {
  int64_t start = now_ms();
  EQ(poll(NULL, 0, 20), 0);
  EQ(select(0, NULL, NULL, NULL, &(struct timeval){0, 20000}), 0);
  EQ(ppoll(NULL, 0, &(struct timespec){0, 20000000}, NULL), 0);
  CHECK(now_ms() - start >= 58);
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
}

SAN_CASE(poll_counts_and_clears) {
  struct pair a = open_pair(V4), b = open_pair(V6);
  put(a.client, "x");
  wait_for(a.server, POLLIN);
  struct pollfd set[5] = {{a.server, POLLIN, 0x7f}, {b.server, POLLIN, 0x7f}, {-1, POLLIN, 0x7f},
                          {b.client, POLLOUT, 0x7f}, {88888, POLLIN, 0x7f}};
  EQ(poll(set, 5, HANG_MS), 3);
  EQ(set[0].revents, POLLIN);
  EQ(set[1].revents, 0);
  EQ(set[2].revents, 0);
  EQ(set[3].revents, POLLOUT);
  EQ(set[4].revents, POLLNVAL);
  /* The same socket twice in one set. */
  struct pollfd twice[2] = {{a.server, POLLIN, 0}, {a.server, POLLOUT | POLLIN, 0}};
  EQ(poll(twice, 2, HANG_MS), 2);
  EQ(twice[0].revents, POLLIN);
  EQ(twice[1].revents, POLLIN | POLLOUT);
}

SAN_CASE(poll_errors) {
  struct pair p = open_pair(V4);
  ERR(poll(bad_pointer(), 1, 0), EFAULT);
  struct pollfd one = {p.client, POLLIN, 0};
  ERR(ppoll(&one, 1, &(struct timespec){-1, 0}, NULL), EINVAL);
  ERR(ppoll(&one, 1, &(struct timespec){0, 1000000000}, NULL), EINVAL);
  ERR(select(-1, NULL, NULL, NULL, &(struct timeval){0}), EINVAL);
  fd_set set;
  FD_ZERO(&set);
  FD_SET(p.client, &set);
  ERR(select(p.client + 1, &set, NULL, NULL, &(struct timeval){-1, 0}), EINVAL);
  ERR(select(p.client + 1, bad_pointer(), NULL, NULL, NULL), EFAULT);
  ERR(pselect(p.client + 1, &set, NULL, bad_pointer(), NULL, NULL), EFAULT);
  int closed = SYS(dup(p.client));
  SYS(close(closed));
  FD_ZERO(&set);
  FD_SET(closed, &set);
  ERR(select(closed + 1, &set, NULL, NULL, NULL), EBADF);
  struct rlimit limit;
  SYS(getrlimit(RLIMIT_NOFILE, &limit));
  if (limit.rlim_cur < 1 << 20) ERR(poll(&one, limit.rlim_cur + 1, 0), EINVAL);
  exercise(p.client, p.server);
}

SAN_CASE(select_masks) {
  struct pair a = open_pair(V4), b = open_pair(V4);
  put(a.client, "x");
  wait_for(a.server, POLLIN);
  fd_set in, out, error;
  FD_ZERO(&in); FD_ZERO(&out); FD_ZERO(&error);
  FD_SET(a.server, &in), FD_SET(b.server, &in);
  FD_SET(a.server, &out), FD_SET(b.server, &error), FD_SET(a.server, &error);
  EQ(select(b.server + 20, &in, &out, &error, NULL), 2);
  CHECK(FD_ISSET(a.server, &in) && !FD_ISSET(b.server, &in));
  CHECK(FD_ISSET(a.server, &out));
  CHECK(!FD_ISSET(a.server, &error) && !FD_ISSET(b.server, &error));
  /* The end of a stream is readable, a reset readable and writable. */
  SYS(close(b.client));
  FD_ZERO(&in); FD_SET(b.server, &in);
  EQ(select(b.server + 1, &in, NULL, NULL, NULL), 1);
  close_reset(a.client);
  FD_ZERO(&in); FD_ZERO(&out); FD_SET(a.server, &in), FD_SET(a.server, &out);
  EQ(select(a.server + 1, &in, &out, NULL, NULL), 2);
}

/* Linux leaves the time that was not slept. */
SAN_CASE(select_updates_its_timeout) {
  struct pair p = open_pair(V4);
  fd_set set;
  struct timeval t = {0, 20000};
  FD_ZERO(&set);
  FD_SET(p.server, &set);
  EQ(select(p.server + 1, &set, NULL, NULL, &t), 0);
  CHECK(t.tv_sec == 0 && t.tv_usec == 0);
  put(p.client, "x");
  t = (struct timeval){40, 0};
  FD_SET(p.server, &set);
  EQ(select(p.server + 1, &set, NULL, NULL, &t), 1);
  CHECK(t.tv_sec <= 40 && t.tv_sec >= 1);
  /* pselect and ppoll do not. */
  struct timespec ts = {0, 5000000};
  get(p.server, "x");
  FD_SET(p.server, &set);
  EQ(pselect(p.server + 1, &set, NULL, NULL, &ts, NULL), 0);
  EQ(ts.tv_nsec, 5000000);
}

/* A program with its own larger set may select beyond FD_SETSIZE. */
SAN_CASE(select_beyond_1024) {
  struct rlimit limit;
  SYS(getrlimit(RLIMIT_NOFILE, &limit));
  limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
  SYS(setrlimit(RLIMIT_NOFILE, &limit));
  if (limit.rlim_cur < 1600) bt_skip("fewer than 1600 descriptors allowed");
  struct pair p = open_pair(V4);
  int fd = SYS(fcntl(p.server, F_DUPFD, 1500));
  SYS(close(p.server));
  unsigned long bits[2048 / (8 * sizeof(long))], want[sizeof bits / sizeof bits[0]];
  memset(bits, 0, sizeof bits);
  bits[fd / (8 * sizeof(long))] = 1ul << fd % (8 * sizeof(long));
  memcpy(want, bits, sizeof bits);
  EQ(select(fd + 1, (fd_set *)bits, NULL, NULL, &(struct timeval){0, 1000}), 0);
  EQ(bits[fd / (8 * sizeof(long))], 0);
  put(p.client, "x");
  memcpy(bits, want, sizeof bits);
  EQ(select(fd + 1, (fd_set *)bits, NULL, NULL, NULL), 1);
  CHECK(memcmp(bits, want, sizeof bits) == 0);
  get(fd, "x");
  exercise(fd, p.client);
}

static _Atomic int hits;
static void count_hit(int number) {
  (void)number;
  hits++;
}
/* The mask of ppoll and pselect lets a blocked signal through only while they wait. */
SAN_CASE(masks_let_a_pending_signal_in) {
  struct pair p = open_pair(V4);
  sigset_t block, open_mask;
  handle_signal(SIGUSR1, count_hit, SA_RESTART);
  sigemptyset(&block), sigaddset(&block, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &block, &open_mask);
  raise(SIGUSR1);
  struct pollfd one = {p.server, POLLIN, 0};
  EQ(poll(&one, 1, 10), 0);
  EQ(hits, 0);
  ERR(ppoll(&one, 1, NULL, &open_mask), EINTR);
  EQ(hits, 1);
  raise(SIGUSR1);
  fd_set set;
  FD_ZERO(&set);
  FD_SET(p.server, &set);
  ERR(pselect(p.server + 1, &set, NULL, NULL, NULL, &open_mask), EINTR);
  EQ(hits, 2);
  struct {
    const sigset_t *mask;
    size_t size;
  } raw_mask = {&open_mask, 8};
  raise(SIGUSR1);
  ERR(syscall(SYS_pselect6, p.server + 1, &set, NULL, NULL, NULL, &raw_mask), EINTR);
  EQ(hits, 3);
  int epoll = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN};
  SYS(epoll_ctl(epoll, EPOLL_CTL_ADD, p.server, &event));
  raise(SIGUSR1);
  EQ(epoll_wait(epoll, &event, 1, 10), 0);
  ERR(epoll_pwait(epoll, &event, 1, -1, &open_mask), EINTR);
  EQ(hits, 4);
  raise(SIGUSR1);
  ERR(epoll_pwait2(epoll, &event, 1, NULL, &open_mask), EINTR);
  EQ(hits, 5);
  exercise(p.client, p.server);
}

/* A mix of kinds: none hides another. */
SAN_CASE(mixed_descriptors) {
  struct pair p = open_pair(V4);
  int pipes[2], event = SYS(eventfd(0, 0)), timer = SYS(timerfd_create(CLOCK_MONOTONIC, 0));
  int udp = SYS(socket(AF_INET, SOCK_DGRAM, 0));
  SYS(pipe(pipes));
  struct pollfd set[5] = {{p.server, POLLIN, 0}, {pipes[0], POLLIN, 0}, {event, POLLIN, 0},
                          {timer, POLLIN, 0}, {udp, POLLOUT | POLLIN, 0}};
  EQ(poll(set, 5, 0), 1);
  EQ(set[4].revents, POLLOUT);
  set[4].events = POLLIN;
  EQ(poll(set, 5, 10), 0);
  SYS(write(pipes[1], "p", 1));
  EQ(poll(set, 5, HANG_MS), 1);
  EQ(set[1].revents, POLLIN);
  uint64_t one = 1;
  SYS(write(event, &one, 8));
  EQ(poll(set, 5, HANG_MS), 2);
  put(p.client, "x");
  wait_for(p.server, POLLIN);
  EQ(poll(set, 5, HANG_MS), 3);
  struct itimerspec soon = {.it_value = {0, 1000000}};
  SYS(timerfd_settime(timer, 0, &soon, NULL));
  wait_for(timer, POLLIN);
  EQ(poll(set, 5, HANG_MS), 4);
  for (int i = 0; i < 4; i++) EQ(set[i].revents, POLLIN);
  get(p.server, "x");
  EQ(poll(set, 5, HANG_MS), 3);
  EQ(set[0].revents, 0);
}

/* A wait over an idle connection ends when something else happens. */
static void *write_pipe(void *arg) {
  UNTIL(atomic_load(&bt_shared->value[0]) != 0);
  wait_asleep(atomic_load(&bt_shared->value[0]));
  SYS(write((int)(intptr_t)arg, "p", 1));
  return NULL;
}
SAN_CASE(other_descriptor_ends_the_wait) {
  struct pair p = open_pair(V4);
  int pipes[2];
  char byte;
  SYS(pipe(pipes));
  exercise(p.client, p.server);
  for (int round = 0; round < 2; round++) {
    atomic_store(&bt_shared->value[0], 0);
    pthread_t thread = start_thread(write_pipe, (void *)(intptr_t)pipes[1]);
    struct pollfd set[2] = {{p.server, POLLIN, 0}, {pipes[0], POLLIN, 0}};
    fd_set in;
    FD_ZERO(&in); FD_SET(p.server, &in), FD_SET(pipes[0], &in);
    atomic_store(&bt_shared->value[0], gettid());
    if (round == 0) {
      EQ(poll(set, 2, -1), 1);
      EQ(set[1].revents, POLLIN);
    } else {
      EQ(select(100, &in, NULL, NULL, NULL), 1);
      CHECK(FD_ISSET(pipes[0], &in));
    }
    EQ(read(pipes[0], &byte, 1), 1);
    end_thread(thread);
  }
  exercise(p.client, p.server);
}

/* Many connections in one poll set, each reported when its turn comes. */
SAN_CASE(two_hundred_sockets) {
  enum { N = 200 };
  static struct pair p[N];
  static struct pollfd set[N];
  for (int i = 0; i < N; i++) {
    p[i] = open_pair(V4);
    set[i] = (struct pollfd){p[i].server, POLLIN, 0};
  }
  EQ(poll(set, N, 0), 0);
  for (int i = 0; i < N; i++) {
    int j = i * 77 % N;
    put(p[j].client, "x");
    EQ(poll(set, N, HANG_MS), 1);
    EQ(set[j].revents, POLLIN);
    get(p[j].server, "x");
  }
  for (int i = 0; i < N; i++) put(p[i].client, "y");
  UNTIL(poll(set, N, 0) == N);
}

/* Of a killed peer the kernel alone knows; another connection is ready all the time. */
static void tell_end_beside(int timeout) {
  struct pair p = open_pair(V4), other = open_pair(V4);
  struct pollfd fds[] = {{other.server, POLLIN, 0}, {p.server, POLLIN, 0}};
  put(other.client, "x");
  wait_for(other.server, POLLIN);
  EQ(poll(fds, 2, timeout), 1);
  kill_holder(p.client);
  UNTIL(poll(fds, 2, timeout) == 2);
  EQ(fds[0].revents, POLLIN);
  EQ(fds[1].revents, POLLIN);
}
SAN_CASE(an_end_is_told_beside_what_is_ready) {
  tell_end_beside(0);
  tell_end_beside(-1);
}

/* Nothing more is to come of a connection that ended behind this end's own shutdown: who waits for urgent data rests. */
SAN_CASE(rest_behind_both_ends) {
  struct pair p = open_pair(V4);
  SYS(close(p.client));
  wait_for(p.server, POLLRDHUP);
  SYS(shutdown(p.server, SHUT_RD));
  struct rusage before, after;
  SYS(getrusage(RUSAGE_THREAD, &before));
  struct pollfd one = {p.server, POLLPRI, 0};
  EQ(poll(&one, 1, 320), 0);
  SYS(getrusage(RUSAGE_THREAD, &after));
  /* Looks that grow rarer are fewer than thirty; those each millisecond would be ten times as many. */
  CHECK(after.ru_nvcsw - before.ru_nvcsw < 60);
}
