/* What one process does to another one after the other is seen in that order by who waits for all of it in one call: over
 * connections on the SAN and on TCP, listeners, closes, pipes, eventfds and signalfds. In each round the peer does two things,
 * and whoever sees the second has seen the first, or sees it in the same call. */
#include "bt.h"

#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>

enum { ROUNDS = 60, PINGS = 30, PAUSE_MS = 3 };

/* ---- the other thing: what the peer does besides sending a message -------------------------------- */

/* `server` is watched; the peer acts on `client`. */
struct other {
  int client, server;
  union address target; /* the listener's */
  pid_t pid;            /* the watcher's */
};
struct kind {
  /* Before the fork. */
  void (*make)(struct other *);
  /* At both ends, before the rounds. */
  void (*meet)(struct other *, bool is_server);
  /* At both ends, before each round. The server's descriptor may be another one from then on. */
  void (*prepare)(struct other *, bool is_server);
  /* With each ping. */
  void (*keep_busy)(struct other *, bool is_server);
  void (*act)(struct other *);
  void (*take)(struct other *);
};

static void make_listener(struct other *o) { o->server = listen_on(V4, &o->target), o->client = -1; }
/* At once, also where the byte before is not acknowledged. */
static void send_byte(struct other *o) {
  set_option(o->client, IPPROTO_TCP, TCP_NODELAY, 1);
  put(o->client, "x");
}
static void take_byte(struct other *o) { get(o->server, "x"); }

static void replace_listener(struct other *o, bool is_server, bool warm) {
  int listener = o->server;
  if (is_server) {
    o->server = warm ? accept_warm(listener) : (int)SYS(accept(listener, NULL, NULL));
    SYS(close(listener));
  } else {
    o->client = warm ? dial_warm(&o->target) : dial(&o->target);
  }
}
/* A connection that has a stream stays on TCP. */
static void meet_on_tcp(struct other *o, bool is_server) {
  replace_listener(o, is_server, false);
  CHECK(fdopen(is_server ? o->server : o->client, "r+"));
}
static void meet_on_the_san(struct other *o, bool is_server) { replace_listener(o, is_server, true); }
static const struct kind tcp = {make_listener, meet_on_tcp, NULL, NULL, send_byte, take_byte};

/* Written and read by number. */
static void send_byte_by_number(struct other *o) {
  set_option(o->client, IPPROTO_TCP, TCP_NODELAY, 1);
  EQ(syscall(SYS_write, o->client, "x", 1), 1);
}
static const struct kind numbered = {make_listener, meet_on_tcp, NULL, NULL, send_byte_by_number, take_byte};

/* Another connection on the SAN, that has little to do, or as much. */
static const struct kind quiet = {make_listener, meet_on_the_san, NULL, NULL, send_byte, take_byte};
static void exchange(struct other *o, bool is_server) {
  if (is_server) get(o->server, "?"), put(o->server, "!");
  else put(o->client, "?"), get(o->client, "!");
}
static const struct kind busy = {make_listener, meet_on_the_san, NULL, exchange, send_byte, take_byte};

/* A new connection; the last one ends before the round. */
static void close_last(struct other *o, bool is_server) {
  if (is_server || o->client < 0) return;
  SYS(close(o->client));
}
static void connect_anew(struct other *o) { o->client = dial(&o->target); }
static void accept_and_close(struct other *o) { SYS(close(SYS(accept(o->server, NULL, NULL)))); }
static const struct kind listener = {make_listener, NULL, close_last, NULL, connect_anew, accept_and_close};

/* The end of one, on TCP or on the SAN. */
static int spare_listener;
static void make_spare(struct other *o) { make_listener(o), spare_listener = o->server, o->server = -1; }
static void replace(struct other *o, bool is_server, bool warm) {
  if (!is_server) {
    o->client = warm ? dial_warm(&o->target) : dial(&o->target);
    return;
  }
  if (o->server >= 0) SYS(close(o->server));
  o->server = warm ? accept_warm(spare_listener) : (int)SYS(accept(spare_listener, NULL, NULL));
}
static void replace_on_tcp(struct other *o, bool is_server) { replace(o, is_server, false); }
static void replace_on_the_san(struct other *o, bool is_server) { replace(o, is_server, true); }
static void close_it(struct other *o) { SYS(close(o->client)); }
static void shut_down(struct other *o) { SYS(shutdown(o->client, SHUT_WR)), SYS(close(o->client)); }
static void take_end(struct other *o) { expect_eof(o->server); }
static const struct kind close_on_tcp = {make_spare, NULL, replace_on_tcp, NULL, close_it, take_end};
static const struct kind close_on_san = {make_spare, NULL, replace_on_the_san, NULL, close_it, take_end};
static const struct kind shutdown_on_san = {make_spare, NULL, replace_on_the_san, NULL, shut_down, take_end};

static void make_pipe(struct other *o) {
  int ends[2];
  SYS(pipe(ends));
  o->server = ends[0], o->client = ends[1];
}
static void write_byte(struct other *o) { EQ(write(o->client, "x", 1), 1); }
static void read_byte(struct other *o) {
  char byte;
  EQ(read(o->server, &byte, 1), 1);
}
static const struct kind pipes = {make_pipe, NULL, NULL, NULL, write_byte, read_byte};

static void make_eventfd(struct other *o) { o->client = o->server = SYS(eventfd(0, EFD_NONBLOCK)); }
static void raise_eventfd(struct other *o) { SYS(eventfd_write(o->client, 1)); }
static void take_eventfd(struct other *o) {
  eventfd_t value;
  SYS(eventfd_read(o->server, &value));
  EQ(value, 1);
}
static const struct kind eventfds = {make_eventfd, NULL, NULL, NULL, raise_eventfd, take_eventfd};

static void make_signalfd(struct other *o) {
  sigset_t mask;
  sigemptyset(&mask), sigaddset(&mask, SIGUSR1);
  SYS(sigprocmask(SIG_BLOCK, &mask, NULL));
  o->server = SYS(signalfd(-1, &mask, 0)), o->client = -1;
}
static void send_signal(struct other *o) { SYS(kill(o->pid, SIGUSR1)); }
static void take_signal(struct other *o) {
  struct signalfd_siginfo info;
  EQ(read(o->server, &info, sizeof info), sizeof info);
}
static const struct kind signals = {make_signalfd, NULL, NULL, NULL, send_signal, take_signal};

/* ---- waiting -------------------------------------------------------------------------------------------- */

/* The kernel's poll and select look at one descriptor after the other. So they are given the second first. */
enum { LOW = 500, HIGH = 501 };

typedef void wait_fn(int first, int second, bool seen[2]);
static int set = -1;
static int members[2] = {-1, -1};
/* The set has the two, whatever it had before. */
static void watch(int first, int second, uint32_t how) {
  if (set < 0) set = SYS(epoll_create1(0));
  int now[2] = {first, second};
  for (int i = 0; i < 2; i++) {
    if (members[i] == now[i]) continue;
    struct epoll_event event = {.events = EPOLLIN | how, .data.u32 = (uint32_t)i};
    SYS(epoll_ctl(set, EPOLL_CTL_ADD, now[i], &event));
    members[i] = now[i];
  }
}
static void take_events(int timeout, bool seen[2]) {
  struct epoll_event got[4];
  int n;
  do n = (int)SYS(epoll_wait(set, got, 4, timeout));
  while (n == 0);
  for (int i = 0; i < n; i++) {
    CHECK(!seen[got[i].data.u32]); /* once in a call */
    seen[got[i].data.u32] = true;
  }
}
static void by_epoll(int first, int second, bool seen[2]) {
  watch(first, second, 0), take_events(HANG_MS, seen);
}
static void by_edges(int first, int second, bool seen[2]) {
  watch(first, second, EPOLLET), take_events(HANG_MS, seen);
}
static void by_looks(int first, int second, bool seen[2]) { watch(first, second, 0), take_events(0, seen); }
static void by_poll(int first, int second, bool seen[2]) {
  struct pollfd both[2] = {{second, POLLIN, 0}, {first, POLLIN, 0}};
  CHECK(SYS(poll(both, 2, HANG_MS)) > 0);
  seen[0] = both[1].revents != 0, seen[1] = both[0].revents != 0;
}
static void by_select(int first, int second, bool seen[2]) {
  fd_set in;
  FD_ZERO(&in);
  FD_SET(first, &in);
  FD_SET(second, &in);
  CHECK(second < first && SYS(select(first + 1, &in, NULL, NULL, NULL)) > 0);
  seen[0] = FD_ISSET(first, &in), seen[1] = FD_ISSET(second, &in);
}

/* ---- the rounds ------------------------------------------------------------------------------------------ */

static int move(int fd, int to) {
  if (fd < 0 || fd == to) return fd;
  SYS(dup2(fd, to)), SYS(close(fd));
  return to;
}

static void call(void (*step)(struct other *, bool), struct other *o, bool is_server) {
  if (step) step(o, is_server);
}

static void act_in_order(const struct kind *kind, struct other *o, int line, bool other_first) {
  set_option(line, IPPROTO_TCP, TCP_NODELAY, 1);
  call(kind->meet, o, false);
  for (int round = 0; round < ROUNDS; round++) {
    call(kind->prepare, o, false);
    /* What is quiet has time to be so. */
    if (round % 4 == 3) sleep_ms(PAUSE_MS);
    for (int i = 0; i < PINGS; i++) {
      put(line, "p"), get(line, "p");
      call(kind->keep_busy, o, false);
    }
    if (other_first) kind->act(o);
    put(line, "m");
    if (!other_first) kind->act(o);
    get(line, "d");
  }
}

static void see_in_order(const struct kind *kind, struct other *o, int line, bool other_first, wait_fn *wait) {
  call(kind->meet, o, true);
  int others = other_first ? HIGH : LOW;
  for (int round = 0; round < ROUNDS; round++) {
    if (kind->prepare == replace_on_tcp || kind->prepare == replace_on_the_san) members[!other_first] = -1;
    call(kind->prepare, o, true);
    o->server = move(o->server, others);
    for (int i = 0; i < PINGS; i++) {
      bool seen[2] = {false, false};
      wait(other_first ? o->server : line, other_first ? line : o->server, seen);
      CHECK(seen[other_first] && !seen[!other_first]);
      get(line, "p"), put(line, "p");
      call(kind->keep_busy, o, true);
    }
    for (bool had_first = false, had_second = false; !had_second;) {
      bool seen[2] = {false, false};
      wait(other_first ? o->server : line, other_first ? line : o->server, seen);
      had_first |= seen[0], had_second = seen[1];
      if (had_second && !had_first) FAIL("round %d: the second was seen without the first", round);
      if (seen[!other_first]) kind->take(o);
      if (seen[other_first]) get(line, "m");
    }
    put(line, "d");
  }
}

static void in_order(const struct kind *kind, bool other_first, wait_fn *wait) {
  if (is_between_hosts()) bt_skip("between hosts nothing orders two connections");
  struct rlimit limit;
  SYS(getrlimit(RLIMIT_NOFILE, &limit));
  if (limit.rlim_cur <= HIGH) bt_skip("too few descriptors");
  union address target;
  int door = listen_on(V4, &target);
  struct other o = {.client = -1, .server = -1, .pid = getpid()};
  kind->make(&o);
  pid_t peer = start_child();
  if (peer == 0) {
    act_in_order(kind, &o, dial_warm(&target), other_first);
    _exit(0);
  }
  int line = move(SYS(accept(door, NULL, NULL)), other_first ? LOW : HIGH);
  warm_up(line, false);
  see_in_order(kind, &o, line, other_first, wait);
  SYS(close(line));
  end_child(peer);
}

#define IN_ORDER(kind, wait)                                                              \
  MIXED_CASE(kind##_before_a_message_##wait) { in_order(&kind, true, wait); }             \
  MIXED_CASE(kind##_after_a_message_##wait) { in_order(&kind, false, wait); }
#define BY_ALL(kind)                                                                      \
  IN_ORDER(kind, by_epoll)                                                                \
  IN_ORDER(kind, by_edges)                                                                \
  IN_ORDER(kind, by_looks)                                                                \
  IN_ORDER(kind, by_poll)                                                                 \
  IN_ORDER(kind, by_select)

BY_ALL(tcp)
BY_ALL(quiet)
BY_ALL(busy)
BY_ALL(listener)
BY_ALL(pipes)
IN_ORDER(numbered, by_epoll)
IN_ORDER(eventfds, by_epoll)
IN_ORDER(eventfds, by_poll)
IN_ORDER(signals, by_epoll)
IN_ORDER(close_on_tcp, by_epoll)
IN_ORDER(close_on_san, by_epoll)
IN_ORDER(close_on_san, by_edges)
IN_ORDER(shutdown_on_san, by_epoll)

/* ---- the order within an answer ----------------------------------------------------------------------- */

/* A thread sleeps on a set, on the processor of the thread that acts. So both things have often come when it wakes. The
 * set tells them in the order in which they came. */
enum { SLEEPS = 100 };
struct sleeper {
  int line, pipe, done;
  bool pipe_first;
  _Atomic pid_t thread;
};
static void *sees_the_order(void *of) {
  struct sleeper *s = of;
  bool first = s->pipe_first;
  set = SYS(epoll_create1(0));
  s->thread = gettid();
  watch(s->line, s->pipe, 0);
  for (int round = 0; round < SLEEPS; round++) {
    for (int seen = 0; seen < 2;) {
      struct epoll_event got[4];
      int n = (int)SYS(epoll_wait(set, got, 4, HANG_MS));
      CHECK(n > 0);
      for (int i = 0; i < n; i++, seen++) {
        EQ(got[i].data.u32, seen == 0 ? first : !first);
        char byte;
        if (got[i].data.u32) EQ(read(s->pipe, &byte, 1), 1);
        else get(s->line, "m");
      }
    }
    EQ(write(s->done, "d", 1), 1);
  }
  return NULL;
}
static void order_of_an_answer(bool pipe_first) {
  struct pair p = open_pair(V4);
  int ends[2], done[2];
  SYS(pipe(ends)), SYS(pipe(done));
  set_option(p.client, IPPROTO_TCP, TCP_NODELAY, 1);
  for (int i = 0; i < PINGS; i++) exercise(p.client, p.server);
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(sched_getcpu(), &here);
  SYS(sched_setaffinity(0, sizeof here, &here));
  struct sleeper sleeper = {p.server, ends[0], done[1], pipe_first, 0};
  pthread_t thread = start_thread(sees_the_order, &sleeper);
  for (int round = 0; round < SLEEPS; round++) {
    while (!sleeper.thread) sleep_ms(1);
    wait_asleep(sleeper.thread);
    if (pipe_first) EQ(write(ends[1], "x", 1), 1);
    put(p.client, "m");
    if (!pipe_first) EQ(write(ends[1], "x", 1), 1);
    char byte;
    EQ(read(done[0], &byte, 1), 1);
  }
  end_thread(thread);
  close_pair(&p);
}
MIXED_CASE(a_message_before_a_pipe_in_an_answer) { order_of_an_answer(false); }
MIXED_CASE(a_pipe_before_a_message_in_an_answer) { order_of_an_answer(true); }

/* ---- an end behind a message -------------------------------------------------------------------------- */

/* The peer sends over one connection and exits, which ends another: who hears of the end has the message. */
SAN_CASE(a_message_before_an_exit) {
  for (int round = 0; round < 10; round++) {
    union address target[2];
    int listener[2], server[2];
    for (int i = 0; i < 2; i++) listener[i] = listen_on(V4, &target[i]);
    pid_t peer = start_child();
    if (peer == 0) {
      int plain = dial(&target[0]), client = dial_warm(&target[1]);
      SYS(shutdown(plain, SHUT_RD));
      step_wait(round);
      SYS(send(client, (char[8192]){0}, 8192, MSG_NOSIGNAL));
      _exit(0);
    }
    server[0] = (int)SYS(accept(listener[0], NULL, NULL));
    server[1] = accept_warm(listener[1]);
    int set = SYS(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event events[3] = {{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP}, {.events = EPOLLIN | EPOLLET}};
    for (int i = 0; i < 2; i++) {
      events[i].data.u32 = (uint32_t)i;
      SYS(epoll_ctl(set, EPOLL_CTL_ADD, server[i], &events[i]));
    }
    for (int i = 0; i < 3; i++) EQ(SYS(epoll_wait(set, events, 3, 0)), 1);
    step_done(round);
    end_child(peer);
    int count = (int)SYS(epoll_wait(set, events, 3, 0));
    if (count == 1) {
      /* The message came first, and may be told first. */
      EQ(events[0].data.u32, 1);
      sleep_ms(1);
      count = (int)SYS(epoll_wait(set, events, 3, 0));
      int tells_end = 0;
      for (int i = 0; i < count; i++) tells_end |= events[i].data.u32 == 0 && events[i].events & EPOLLRDHUP;
      CHECK(tells_end);
    } else {
      EQ(count, 2);
    }
    for (int i = 0; i < 2; i++) SYS(close(server[i])), SYS(close(listener[i]));
    SYS(close(set));
  }
}

/* A wait had no room for more than the connection's event before: the next one tells of it again, wherever it is by then. */
SAN_CASE(a_close_behind_a_full_wait) {
  union address target;
  int listener = listen_on(V4, &target);
  for (int round = 0; round < 15; round++) {
    pid_t peer = start_child();
    if (peer == 0) {
      int client = dial_warm(&target);
      put(client, "unread");
      step_wait(2 * round);
      SYS(shutdown(client, SHUT_WR));
      SYS(close(client));
      step_done(2 * round + 1);
      _exit(0);
    }
    int server = accept_warm(listener), set = SYS(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
    SYS(epoll_ctl(set, EPOLL_CTL_ADD, server, &event));
    wait_for(server, POLLIN);
    for (int i = 0; i < 3; i++) {
      sleep_ms(1);
      EQ(SYS(epoll_wait(set, &event, 1, -1)), 1);
    }
    step_done(2 * round), step_wait(2 * round + 1);
    EQ(SYS(epoll_wait(set, &event, 1, 0)), 1);
    EQ(event.events, EPOLLIN | EPOLLOUT);
    end_child(peer);
    SYS(close(server)), SYS(close(set));
  }
  SYS(close(listener));
}
