/* epoll: sets, triggers, shared sets, and descriptors of every kind side by side. */
#include "bt.h"

#include <sys/eventfd.h>
#include <sys/timerfd.h>

static int new_set(void) { return SYS(epoll_create1(EPOLL_CLOEXEC)); }
static void add(int set, int fd, uint32_t events, uint64_t data) {
  struct epoll_event event = {.events = events, .data.u64 = data};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}
static void mod(int set, int fd, uint32_t events, uint64_t data) {
  struct epoll_event event = {.events = events, .data.u64 = data};
  SYS(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
}
static void del(int set, int fd) { SYS(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL)); }
/* Waits for one event and returns its mask; its data must be as given. */
static uint32_t next(int set, uint64_t data) {
  struct epoll_event got;
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  EQ(got.data.u64, data);
  return got.events;
}
static void none(int set) {
  struct epoll_event got;
  int n = SYS(epoll_wait(set, &got, 1, 10));
  if (n != 0) FAIL("unexpected event %#x", got.events);
}
/* The bytes have arrived, whatever is read or not before. */
static void arrived(int fd, int bytes) {
  int n;
  UNTIL(ioctl(fd, FIONREAD, &n) == 0 && n == bytes);
}

SAN_CASE(level_triggered) {
  struct pair p = open_pair(V4);
  int set = new_set();
  add(set, p.server, EPOLLIN, 0x1122334455667788);
  none(set);
  put(p.client, "ab");
  for (int i = 0; i < 3; i++) EQ(next(set, 0x1122334455667788), EPOLLIN);
  get(p.server, "a");
  EQ(next(set, 0x1122334455667788), EPOLLIN);
  get(p.server, "b");
  none(set);
  mod(set, p.server, EPOLLIN | EPOLLOUT, 7);
  EQ(next(set, 7), EPOLLOUT);
  put(p.client, "c");
  wait_for(p.server, POLLIN);
  EQ(next(set, 7), EPOLLIN | EPOLLOUT);
}

SAN_CASE(edge_triggered) {
  struct pair p = open_pair(V4);
  int set = new_set(), space = new_set();
  add(set, p.server, EPOLLIN | EPOLLET, 1);
  add(space, p.server, EPOLLOUT | EPOLLET, 2);
  EQ(next(space, 2), EPOLLOUT);
  none(set);
  put(p.client, "abc");
  EQ(next(set, 1), EPOLLIN);
  none(set); /* no second report without new data */
  get(p.server, "a");
  none(set);
  put(p.client, "d"); /* new data although old is unread */
  EQ(next(set, 1), EPOLLIN);
  none(set);
  get(p.server, "bcd");
  none(set);
  put(p.client, "e");
  EQ(next(set, 1), EPOLLIN);
  get(p.server, "e");
  none(space); /* data is no edge for who waits for space alone */
  SYS(shutdown(p.client, SHUT_WR));
  EQ(next(set, 1), EPOLLIN);
  none(set);
  EQ(next(space, 2), EPOLLOUT); /* the end is one for all */
}

SAN_CASE(edge_triggered_starts_with_what_is_there) {
  struct pair p = open_pair(V4);
  int set = new_set();
  put(p.client, "abc");
  arrived(p.server, 3);
  add(set, p.server, EPOLLIN | EPOLLOUT | EPOLLET, 1);
  EQ(next(set, 1), EPOLLIN | EPOLLOUT);
  none(set);
  mod(set, p.server, EPOLLIN | EPOLLET, 2); /* MOD arms it again */
  EQ(next(set, 2), EPOLLIN);
  none(set);
  del(set, p.server);
  add(set, p.server, EPOLLIN | EPOLLET, 3); /* and so does a new registration */
  EQ(next(set, 3), EPOLLIN);
  none(set);
}

SAN_CASE(edge_triggered_data_already_read) {
  struct pair p = open_pair(V4);
  int set = new_set();
  add(set, p.server, EPOLLIN | EPOLLET, 1);
  put(p.client, "abc");
  get(p.server, "abc"); /* before anybody asked the set */
  none(set);
  put(p.client, "d");
  EQ(next(set, 1), EPOLLIN);
}

static void edge_reader(int fd) {
  int set = new_set();
  static uint8_t buffer[8192];
  uint64_t at = 0;
  set_nonblocking(fd, true);
  add(set, fd, EPOLLIN | EPOLLET | EPOLLRDHUP, 1);
  for (;;) {
    uint32_t events = next(set, 1);
    CHECK(events & EPOLLIN);
    ssize_t n;
    while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) {
      check_pattern(buffer, at, n);
      at += n;
    }
    if (n == 0) break;
    EQ(errno, EAGAIN);
  }
  EQ(at, 3000000);
}
static void bursts(int fd) {
  for (uint64_t at = 0, n = 1; at < 3000000; at += n, n = n * 2 % 300007) {
    if (n > 3000000 - at) n = 3000000 - at;
    send_pattern(fd, at, n);
    if (n < 1000) sleep_ms(1);
  }
  SYS(close(fd));
}
ENDS(edge_triggered_loop, bursts, edge_reader)

static void edge_writer(int fd) {
  int set = new_set();
  uint64_t at = 0;
  const uint64_t total = 20000000;
  set_nonblocking(fd, true);
  add(set, fd, EPOLLOUT | EPOLLET, 1);
  while (at < total) {
    EQ(next(set, 1), EPOLLOUT);
    ssize_t n;
    while (at < total && (n = send(fd, pattern(at), total - at < 100000 ? total - at : 100000, 0)) > 0)
      at += n;
    if (at < total) EQ(errno, EAGAIN);
  }
  SYS(close(fd));
}
static void slow_start_reader(int fd) {
  sleep_ms(20);
  recv_pattern(fd, 0, 10000000);
  sleep_ms(20);
  recv_pattern(fd, 10000000, 10000000);
  expect_eof(fd);
}
ENDS(edge_triggered_writer, edge_writer, slow_start_reader)

SAN_CASE(oneshot) {
  struct pair p = open_pair(V4);
  int set = new_set();
  add(set, p.server, EPOLLIN | EPOLLONESHOT, 1);
  put(p.client, "a");
  EQ(next(set, 1), EPOLLIN);
  none(set);
  put(p.client, "b");
  arrived(p.server, 2);
  none(set);
  mod(set, p.server, EPOLLIN | EPOLLONESHOT, 2);
  EQ(next(set, 2), EPOLLIN);
  none(set);
  get(p.server, "ab");
  mod(set, p.server, EPOLLIN | EPOLLONESHOT | EPOLLET, 3);
  none(set);
  put(p.client, "c");
  EQ(next(set, 3), EPOLLIN);
  SYS(close(p.client));
  wait_revents(p.server, POLLRDHUP, POLLRDHUP);
  none(set); /* disabled: not even a hang-up */
}

SAN_CASE(peer_closed_masks) {
  struct pair p = open_pair(V4);
  int set = new_set(), edge = new_set(), plain = new_set();
  add(set, p.server, EPOLLIN | EPOLLRDHUP, 1);
  add(edge, p.server, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 2);
  add(plain, p.server, EPOLLOUT, 3);
  EQ(next(edge, 2), EPOLLOUT);
  put(p.client, "x");
  arrived(p.server, 1);
  EQ(next(set, 1), EPOLLIN);
  EQ(next(edge, 2), EPOLLIN | EPOLLOUT);
  SYS(shutdown(p.client, SHUT_WR));
  wait_for(p.server, POLLRDHUP);
  EQ(next(set, 1), EPOLLIN | EPOLLRDHUP);
  EQ(next(edge, 2), EPOLLIN | EPOLLOUT | EPOLLRDHUP);
  EQ(next(plain, 3), EPOLLOUT);
  none(edge);
  get(p.server, "x");
  expect_eof(p.server);
  EQ(next(set, 1), EPOLLIN | EPOLLRDHUP);
  SYS(shutdown(p.server, SHUT_WR));
  UNTIL(ready_now(p.server, 0) == POLLHUP);
  EQ(next(plain, 3), EPOLLOUT | EPOLLHUP);
  EQ(next(set, 1), EPOLLIN | EPOLLRDHUP | EPOLLHUP);
}

/* What closes after its shutdown has nothing new to tell. */
SAN_CASE(a_close_after_shutdown_is_no_edge) {
  static const uint32_t INTERESTS[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT | EPOLLRDHUP, EPOLLRDHUP};
  for (size_t i = 0; i < sizeof INTERESTS / sizeof *INTERESTS; i++) {
    uint32_t interest = INTERESTS[i];
    struct pair p = open_pair(V4);
    int set = new_set();
    struct epoll_event got;
    add(set, p.server, interest | EPOLLET, 1);
    if (interest & EPOLLOUT) EQ(next(set, 1), EPOLLOUT);
    none(set);
    SYS(shutdown(p.client, SHUT_WR));
    next(set, 1);
    none(set);
    SYS(close(p.client));
    int n = SYS(epoll_wait(set, &got, 1, 10));
    if (n != 0) FAIL("interest %#x: unexpected event %#x", interest, got.events);
    SYS(close(p.server));
    SYS(close(set));
  }
}

/* Of a killed peer the kernel alone knows. The set has something on the SAN all the time. */
SAN_CASE(an_end_is_told_beside_space) {
  struct pair p = open_pair(V4), other = open_pair(V4);
  int set = new_set();
  struct epoll_event got[4];
  add(set, other.server, EPOLLIN, 1);
  add(set, p.server, EPOLLIN | EPOLLOUT, 2);
  put(other.client, "x");
  put(p.server, "unread");
  arrived(other.server, 1);
  EQ(epoll_wait(set, got, 4, 0), 2);
  kill_holder(p.client);
  EQ(epoll_wait(set, got, 4, 0), 2);
  uint32_t told = got[got[0].data.u64 == 2 ? 0 : 1].events;
  EQ(told, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP);
}

/* Also of a connection that is over: then shutdown fails, and wakes. */
SAN_CASE(each_shutdown_is_an_edge) {
  struct pair p = open_pair(V4), over = open_pair(V4);
  int set = new_set();
  add(set, p.server, EPOLLOUT | EPOLLET, 1);
  EQ(next(set, 1), EPOLLOUT);
  none(set);
  for (int i = 0; i < 3; i++) {
    SYS(shutdown(p.server, SHUT_WR));
    EQ(next(set, 1), EPOLLOUT);
    /* TCP makes another edge when the peer acknowledges the end. */
    struct epoll_event got;
    UNTIL(epoll_wait(set, &got, 1, 10) == 0);
  }
  del(set, p.server);
  close_reset(over.client);
  UNTIL(ready_now(over.server, 0) & POLLERR);
  add(set, over.server, EPOLLOUT | EPOLLET, 2);
  EQ(next(set, 2), EPOLLOUT | EPOLLERR | EPOLLHUP);
  none(set);
  for (int i = 0; i < 3; i++) {
    ERR(shutdown(over.server, SHUT_WR), ENOTCONN);
    EQ(next(set, 2), EPOLLOUT | EPOLLERR | EPOLLHUP);
    none(set);
  }
}

SAN_CASE(peer_reset_masks) {
  struct pair p = open_pair(V4);
  int set = new_set(), empty = new_set();
  add(set, p.server, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 1);
  add(empty, p.server, 0, 2);
  close_reset(p.client);
  EQ(next(empty, 2), EPOLLERR | EPOLLHUP);
  EQ(next(set, 1), EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
  char byte;
  ERR(recv(p.server, &byte, 1, 0), ECONNRESET);
  EQ(next(set, 1), EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLRDHUP);
}

SAN_CASE(control_errors) {
  struct pair p = open_pair(V4);
  int set = new_set();
  struct epoll_event event = {.events = EPOLLIN};
  ERR(epoll_ctl(set, EPOLL_CTL_MOD, p.server, &event), ENOENT);
  ERR(epoll_ctl(set, EPOLL_CTL_DEL, p.server, &event), ENOENT);
  add(set, p.server, EPOLLIN, 1);
  ERR(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event), EEXIST);
  ERR(epoll_ctl(set, 99, p.server, &event), EINVAL);
  ERR(epoll_ctl(set, EPOLL_CTL_ADD, p.client, bad_pointer()), EFAULT);
  ERR(epoll_ctl(set, EPOLL_CTL_ADD, -1, &event), EBADF);
  ERR(epoll_ctl(-1, EPOLL_CTL_ADD, p.client, &event), EBADF);
  ERR(epoll_ctl(p.client, EPOLL_CTL_ADD, p.server, &event), EINVAL);
  ERR(epoll_ctl(set, EPOLL_CTL_ADD, set, &event), EINVAL);
  int file = SYS(open("/proc/self/exe", O_RDONLY));
  ERR(epoll_ctl(set, EPOLL_CTL_ADD, file, &event), EPERM);
  event.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT;
  ERR(epoll_ctl(set, EPOLL_CTL_ADD, p.client, &event), EINVAL);
  add(set, p.client, EPOLLIN | EPOLLEXCLUSIVE, 4);
  event.events = EPOLLIN;
  ERR(epoll_ctl(set, EPOLL_CTL_MOD, p.client, &event), EINVAL);
  ERR(epoll_wait(set, &event, 0, 0), EINVAL);
  volatile int negative = -1;
  ERR(epoll_wait(set, &event, negative, 0), EINVAL);
  ERR(epoll_wait(p.client, &event, 1, 0), EINVAL);
  ERR(epoll_wait(-1, &event, 1, 0), EBADF);
  put(p.client, "x");
  wait_for(p.server, POLLIN);
  ERR(epoll_wait(set, bad_pointer(), 1, HANG_MS), EFAULT);
  EQ(next(set, 1), EPOLLIN);
  del(set, p.server);
  none(set);
}

/* The user's data comes back as it was given, next to descriptors of other kinds. */
static void *put_later(void *fd) {
  sleep_ms(20);
  put(*(int *)fd, "x");
  return NULL;
}
/* The program may go on using the rest. */
SAN_CASE(the_array_is_written_only_where_an_event_is) {
  struct pair p = open_pair(V4);
  struct epoll_event all[4], before[4];
  memset(all, 0x5a, sizeof all), memcpy(before, all, sizeof all);
  int set = new_set();
  add(set, p.server, 0, 7);
  pthread_t writer = start_thread(put_later, &p.client);
  EQ(SYS(epoll_wait(set, all, 4, 100)), 0);
  CHECK(memcmp(all, before, sizeof all) == 0);
  end_thread(writer);
  mod(set, p.server, EPOLLIN, 7);
  EQ(SYS(epoll_wait(set, all, 4, HANG_MS)), 1);
  CHECK(memcmp(all + 1, before + 1, sizeof all - sizeof *all) == 0);
  SYS(close(set));
  close_pair(&p);
}

SAN_CASE(user_data_of_every_kind) {
  struct pair p = open_pair(V4), q = open_pair(V6);
  int set = new_set(), pipes[2], event = SYS(eventfd(0, 0)), udp = SYS(socket(AF_INET, SOCK_DGRAM, 0));
  int timer = SYS(timerfd_create(CLOCK_MONOTONIC, 0));
  SYS(pipe(pipes));
  add(set, p.server, EPOLLIN, ~0ull);
  add(set, q.server, EPOLLIN, 0);
  add(set, pipes[0], EPOLLIN, (uint64_t)p.server);
  add(set, event, EPOLLIN, 1ull << 63);
  add(set, timer, EPOLLIN, 0xdeadbeefcafef00d);
  add(set, udp, EPOLLIN, 3);
  none(set);
  put(p.client, "x"), put(q.client, "y");
  SYS(write(pipes[1], "p", 1));
  SYS(write(event, &(uint64_t){1}, 8));
  struct itimerspec soon = {.it_value = {0, 1000000}};
  SYS(timerfd_settime(timer, 0, &soon, NULL));
  wait_for(timer, POLLIN), wait_for(p.server, POLLIN), wait_for(q.server, POLLIN);
  struct epoll_event got[10];
  EQ(epoll_wait(set, got, 10, HANG_MS), 5);
  const uint64_t want[5] = {~0ull, 0, p.server, 1ull << 63, 0xdeadbeefcafef00d};
  for (int i = 0; i < 5; i++) {
    int found = 0;
    for (int j = 0; j < 5; j++)
      if (got[j].data.u64 == want[i]) found += got[j].events == EPOLLIN;
    EQ(found, 1);
  }
}

/* More ready than asked for: each gets its turn. */
SAN_CASE(fewer_slots_than_events) {
  enum { N = 20 };
  struct pair p[N];
  int set = new_set(), seen[N] = {0};
  for (int i = 0; i < N; i++) {
    p[i] = open_pair(V4);
    add(set, p[i].server, EPOLLIN, i);
    put(p[i].client, "x");
    wait_for(p[i].server, POLLIN);
  }
  for (int round = 0; round < N; round++) {
    struct epoll_event got[3];
    int n = SYS(epoll_wait(set, got, 3, HANG_MS));
    CHECK(n >= 1 && n <= 3);
    for (int i = 0; i < n; i++) seen[got[i].data.u64]++;
  }
  for (int i = 0; i < N; i++) CHECK(seen[i] > 0);
}

/* A socket that always has data starves neither a pipe nor a plain timer. */
static _Atomic bool stop_flood;
static void *flood(void *arg) {
  static uint8_t data[4096];
  while (!stop_flood) send((int)(intptr_t)arg, data, sizeof data, MSG_NOSIGNAL);
  return NULL;
}
SAN_CASE(busy_socket_starves_nobody) {
  struct pair p = open_pair(V4), quiet = open_pair(V4);
  int set = new_set(), pipes[2], timer = SYS(timerfd_create(CLOCK_MONOTONIC, 0));
  static uint8_t buffer[4096];
  SYS(pipe(pipes));
  add(set, p.server, EPOLLIN, 1);
  add(set, pipes[0], EPOLLIN, 2);
  add(set, timer, EPOLLIN, 3);
  add(set, quiet.server, EPOLLIN, 4);
  struct itimerspec soon = {.it_value = {0, 20000000}};
  SYS(timerfd_settime(timer, 0, &soon, NULL));
  pthread_t thread = start_thread(flood, (void *)(intptr_t)p.client);
  bool seen[5] = {false};
  int64_t end = now_ms() + HANG_MS;
  while (!seen[2] || !seen[3] || !seen[4]) {
    CHECK(now_ms() < end);
    struct epoll_event got;
    EQ(epoll_wait(set, &got, 1, HANG_MS), 1); /* one slot: the busy one must not keep it */
    int which = got.data.u64;
    seen[which] = true;
    if (which == 1) SYS(recv(p.server, buffer, sizeof buffer, MSG_DONTWAIT));
    if (which == 2 || which == 3) SYS(read(which == 2 ? pipes[0] : timer, buffer, 8));
    if (which == 3) SYS(write(pipes[1], "p", 1));
    if (which == 2) put(quiet.client, "x");
  }
  stop_flood = true;
  SYS(shutdown(p.server, SHUT_RDWR));
  SYS(close(p.server));
  end_thread(thread);
}
SAN_CASE(writable_sockets_starve_nobody) {
  enum { N = 3 };
  struct pair pairs[N];
  int set = new_set(), pipes[2];
  SYS(pipe(pipes));
  for (int i = 0; i < N; i++) {
    pairs[i] = open_pair(V4);
    add(set, pairs[i].client, EPOLLOUT, i);
  }
  add(set, pipes[0], EPOLLIN, N);
  EQ(write(pipes[1], "p", 1), 1);
  int seen[N + 1] = {0}, missing = N + 1;
  for (int64_t end = now_ms() + HANG_MS; missing > 0;) {
    struct epoll_event got;
    CHECK(now_ms() < end);
    EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
    missing -= seen[got.data.u64]++ == 0;
  }
  /* Nor does the pipe, where each call is long after the one before. */
  for (int i = 0; i <= N; i++) seen[i] = 0;
  for (int i = 0; i < 8 * (N + 1); i++) {
    struct epoll_event got;
    EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
    seen[got.data.u64]++;
    sleep_ms(1);
  }
  for (int i = 0; i <= N; i++) CHECK(seen[i] > 0);
  /* One event of each at most, whatever came first. */
  for (int i = 0; i < 100; i++) {
    struct epoll_event got[N + 2];
    int n = SYS(epoll_wait(set, got, i % 2 ? N + 2 : 1, HANG_MS)), twice[N + 1] = {0};
    for (int k = 0; k < n; k++) EQ(twice[got[k].data.u64]++, 0);
    if (i % 2) CHECK(n >= 1);
    if (i % 7 == 0) sleep_ms(1);
  }
}

/* A set inside a set inside poll(). */
SAN_CASE(nested_sets) {
  struct pair p = open_pair(V4);
  int inner = new_set(), outer = new_set();
  add(inner, p.server, EPOLLIN, 11);
  add(outer, inner, EPOLLIN, 22);
  none(outer);
  EQ(ready_now(inner, POLLIN), 0);
  put(p.client, "x");
  EQ(next(outer, 22), EPOLLIN);
  EQ(wait_for(outer, POLLIN), POLLIN);
  EQ(wait_for(inner, POLLIN), POLLIN);
  EQ(next(inner, 11), EPOLLIN);
  EQ(next(outer, 22), EPOLLIN);
  get(p.server, "x");
  none(outer);
  EQ(ready_now(outer, POLLIN), 0);
}

/* Blocked on the outer set when the data for the inner one comes. */
static void nested_waiter(int fd) {
  int inner = new_set(), outer = new_set();
  add(inner, fd, EPOLLIN | EPOLLET, 1);
  add(outer, inner, EPOLLIN, 2);
  for (int i = 0; i < 5; i++) {
    step_done(0);
    if (i % 2) {
      EQ(wait_for(inner, POLLIN), POLLIN);
    } else {
      EQ(next(outer, 2), EPOLLIN);
    }
    EQ(next(inner, 1), EPOLLIN);
    get(fd, "tick");
  }
  SYS(close(fd));
}
static void nested_ticker(int fd) {
  for (int i = 0; i < 5; i++) {
    step_wait(0);
    sleep_ms(5);
    put(fd, "tick");
  }
  expect_eof(fd);
}
ENDS(nested_sets_blocked, nested_waiter, nested_ticker)

SAN_CASE(several_sets_on_one_socket) {
  struct pair p = open_pair(V4);
  int level = new_set(), edge = new_set(), once = new_set();
  add(level, p.server, EPOLLIN, 1);
  add(edge, p.server, EPOLLIN | EPOLLET, 2);
  add(once, p.server, EPOLLIN | EPOLLONESHOT, 3);
  for (int i = 0; i < 3; i++) {
    put(p.client, "x");
    EQ(next(level, 1), EPOLLIN);
    EQ(next(edge, 2), EPOLLIN);
    none(edge);
    if (i == 0) EQ(next(once, 3), EPOLLIN);
    none(once);
    EQ(next(level, 1), EPOLLIN);
    get(p.server, "x");
    none(level);
  }
}

/* One side of the same connection in each of two sets of one process. */
SAN_CASE(both_ends_in_one_set) {
  struct pair p = open_pair(V4);
  int set = new_set();
  add(set, p.client, EPOLLIN, 1);
  add(set, p.server, EPOLLIN, 2);
  for (int i = 0; i < 200; i++) {
    put(p.client, "ping");
    EQ(next(set, 2), EPOLLIN);
    get(p.server, "ping");
    put(p.server, "pong");
    EQ(next(set, 1), EPOLLIN);
    get(p.client, "pong");
  }
  none(set);
}

SAN_CASE(duplicates_in_a_set) {
  struct pair p = open_pair(V4);
  int set = new_set(), copy = SYS(dup(p.server));
  add(set, p.server, EPOLLIN, 1);
  add(set, copy, EPOLLIN, 2);
  put(p.client, "x");
  arrived(p.server, 1);
  struct epoll_event got[4];
  EQ(epoll_wait(set, got, 4, HANG_MS), 2);
  EQ(got[0].data.u64 + got[1].data.u64, 3);
  /* A closed number stays registered as long as a copy of the description is open. */
  SYS(close(p.server));
  EQ(epoll_wait(set, got, 4, HANG_MS), 2);
  get(copy, "x");
  EQ(epoll_wait(set, got, 4, 0), 0);
  exercise(copy, p.client);
  del(set, copy);
  put(p.client, "y");
  EQ(next(set, 1), EPOLLIN);
  SYS(close(copy));
  none(set);
}

SAN_CASE(closed_inside_a_set) {
  struct pair p = open_pair(V4);
  int set = new_set();
  add(set, p.server, EPOLLIN, 1);
  put(p.client, "x");
  wait_for(p.server, POLLIN);
  int number = p.server;
  SYS(close(p.server));
  none(set);
  /* The number comes back with another connection: no old registration clings to it. */
  struct pair q = open_pair(V4);
  if (q.server != number) {
    EQ(dup2(q.server, number), number);
    SYS(close(q.server));
    q.server = number;
  }
  put(q.client, "y"), put(q.server, "z");
  wait_for(q.server, POLLIN), wait_for(q.client, POLLIN);
  none(set);
  add(set, q.server, EPOLLIN, 9);
  EQ(next(set, 9), EPOLLIN);
  get(q.server, "y");
  none(set);
}

SAN_CASE(set_closed_and_made_again) {
  struct pair p = open_pair(V4);
  for (int i = 0; i < 50; i++) {
    int set = new_set();
    add(set, p.server, EPOLLIN, i);
    put(p.client, "x");
    EQ(next(set, i), EPOLLIN);
    get(p.server, "x");
    SYS(close(set));
  }
  int set = new_set(), copy = SYS(dup(set));
  SYS(close(set));
  add(copy, p.server, EPOLLIN, 5);
  put(p.client, "x");
  EQ(next(copy, 5), EPOLLIN);
}

SAN_CASE(listener_in_a_set) {
  union address target;
  int listener = listen_on(DUAL, &target), set = new_set();
  set_nonblocking(listener, true);
  add(set, listener, EPOLLIN | EPOLLET, 1);
  for (int i = 0; i < 5; i++) {
    int a = dial(&target), b = dial(&target);
    EQ(next(set, 1), EPOLLIN);
    wait_for(listener, POLLIN);
    exercise(a, accept_warm_both(listener, a));
    exercise(b, accept_warm_both(listener, b));
    ERR(accept(listener, NULL, NULL), EAGAIN);
  }
}

SAN_CASE(timeouts_are_kept) {
  struct pair p = open_pair(V4);
  int set = new_set();
  struct epoll_event got;
  add(set, p.server, EPOLLIN, 1);
  exercise(p.client, p.server);
  int64_t start = now_ms();
  EQ(epoll_wait(set, &got, 1, 30), 0);
  CHECK(now_ms() - start >= 29);
  start = now_ms();
  EQ(epoll_pwait(set, &got, 1, 30, NULL), 0);
  CHECK(now_ms() - start >= 29);
  start = now_ms();
  EQ(epoll_pwait2(set, &got, 1, &(struct timespec){0, 30500000}, NULL), 0);
  CHECK(now_ms() - start >= 30);
  EQ(epoll_pwait2(set, &got, 1, &(struct timespec){0, 0}, NULL), 0);
  ERR(epoll_pwait2(set, &got, 1, &(struct timespec){0, 1000000000}, NULL), EINVAL);
  put(p.client, "x");
  EQ(epoll_pwait2(set, &got, 1, NULL, NULL), 1);
  EQ(epoll_pwait2(set, &got, 1, &(struct timespec){50, 0}, NULL), 1);
  EQ(epoll_pwait(set, &got, 1, -1, NULL), 1);
}

CASE(all_that_is_ready_at_once) {
  enum { MANY = 200 };
  struct epoll_event got[MANY + 8];
  int set = new_set();
  for (int i = 0; i < MANY; i++) {
    /* Ready by itself, and of the kernel alone. */
    add(set, SYS(socket(AF_INET, SOCK_DGRAM, 0)), EPOLLOUT, i);
    EQ(epoll_wait(set, got, MANY + 8, 0), i + 1);
  }
  EQ(epoll_wait(set, got, MANY - 1, HANG_MS), MANY - 1);
}
