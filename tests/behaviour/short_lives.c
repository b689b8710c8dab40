/* Connections that begin, are watched and end, while a signal handler does the same in the middle of it, or throws its
 * thread out. What comes afterwards is as if no signal had been. */
#include "bt.h"
#include <setjmp.h>

enum { ROUNDS = 1500, HIGHEST = 128, STOPS = 0 };

static union address target;
static int listener, set;
/* Handlers that have come to their end, and those of them that did something. */
static _Atomic int handled, hits;

static void watch(int fd, uint64_t data) {
  struct epoll_event event = {.events = EPOLLOUT, .data.u64 = data};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  event.events = EPOLLIN;
  SYS(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
}

/* What the set reports of this datum; the set may hold others. */
static uint32_t reported(uint64_t data) {
  struct epoll_event events[16];
  int n = SYS(epoll_wait(set, events, 16, 0));
  for (int i = 0; i < n; i++)
    if (events[i].data.u64 == data) return events[i].events;
  return 0;
}

/* poll is not restarted after a handler. */
static bool is_readable(int fd, int timeout) {
  struct pollfd p = {fd, POLLIN, 0};
  int n;
  do n = poll(&p, 1, timeout);
  while (n < 0 && errno == EINTR);
  return SYS(n) > 0;
}

/* A whole connection of a thread's own listener, with one message. It is the thread's alone: what a handler does in the
 * middle of it is another one. */
static void live(int at, uint64_t data) {
  int client = dial(&target);
  int server = SYS(accept(at, NULL, NULL));
  watch(server, data);
  put(client, "x");
  CHECK(is_readable(server, -1));
  EQ(reported(data), EPOLLIN);
  get(server, "x");
  SYS(epoll_ctl(set, EPOLL_CTL_DEL, server, NULL));
  EQ(reported(data), 0);
  int again = SYS(dup(server));
  watch(server, data);
  SYS(close(server));
  put(again, "y");
  SYS(close(again));
  get(client, "y");
  expect_eof(client);
  SYS(close(client));
}

/* Each signal comes a moment after the last handler has returned: a thread that always finds the next one would never
 * get on. */
static void *storm(void *arg) {
  while (bt_shared->value[STOPS] == 0) {
    int so_far = handled;
    EQ(pthread_kill(*(pthread_t *)arg, SIGUSR1), 0);
    while (handled == so_far && bt_shared->value[STOPS] == 0) usleep(20);
    usleep(20);
  }
  return NULL;
}
static pthread_t start_storm(void) {
  static pthread_t self;
  self = pthread_self();
  return start_thread(storm, &self);
}

/* Where all that was comes to: one that moves, watched by the set, and goes. */
static void expect_order(void) {
  for (int i = 0; i < 3; i++) {
    int client = dial(&target);
    int server = SYS(accept(listener, NULL, NULL));
    watch(server, 7);
    warm_up_both(client, server);
    EQ(reported(7), 0);
    put(client, "x");
    struct epoll_event event;
    EQ(SYS(epoll_wait(set, &event, 1, -1)), 1);
    EQ(event.data.u64, 7);
    get(server, "x");
    exercise(client, server);
    SYS(epoll_ctl(set, EPOLL_CTL_DEL, server, NULL));
    SYS(close(client));
    SYS(close(server));
  }
}

static void set_up(void) {
  listener = listen_on(V4, &target);
  set = SYS(epoll_create1(0));
  /* libc looks functions up when they are first called, which no handler may interrupt. */
  live(listener, 1);
  /* Between hosts the first connection has the library open a device, whose descriptors have other numbers for a moment:
   * who closes all numbers, as below, must not meet that. */
  expect_order();
}

/* In the handler: everything but blocking. */
static void live_in_handler(int number) {
  (void)number;
  int saved = errno;
  static union address where;
  static int own = -1;
  if (own < 0) own = listen_on(V4, &where);
  int client = dial(&where);
  int server = SYS(accept(own, NULL, NULL));
  struct epoll_event event = {.events = EPOLLOUT, .data.u64 = 2};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, server, &event));
  if (hits % 2) SYS(epoll_ctl(set, EPOLL_CTL_DEL, server, NULL));
  put(server, "z");
  SYS(close(server));
  get(client, "z");
  SYS(close(client));
  errno = saved;
  hits++, handled++;
}
MIXED_CASE(handlers_begin_and_end_connections) {
  set_up();
  handle_signal(SIGUSR1, live_in_handler, SA_RESTART);
  pthread_t thread = start_storm();
  for (int i = 0; i < ROUNDS; i++) live(listener, 1);
  bt_shared->value[STOPS] = 1;
  end_thread(thread);
  CHECK(hits > 0);
  expect_order();
}

/* The handler changes and ends the very socket that its thread is at. */
static _Atomic int victim = -1;
static void end_it(int number) {
  (void)number;
  int saved = errno, fd = victim;
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 3};
  if (fd >= 0) {
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    if (hits % 3 == 0) {
      SYS(close(fd));
      victim = -1;
    }
    hits++;
  }
  errno = saved;
  handled++;
}
MIXED_CASE(handlers_end_what_is_being_watched) {
  set_up();
  handle_signal(SIGUSR1, end_it, SA_RESTART);
  pthread_t thread = start_storm();
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  for (int i = 0; i < ROUNDS; i++) {
    int client = dial(&target), server = SYS(accept(listener, NULL, NULL));
    victim = server;
    for (int j = 0; j < 4; j++) {
      struct epoll_event event = {.events = EPOLLIN, .data.u64 = 4};
      epoll_ctl(set, EPOLL_CTL_ADD, server, &event);
      epoll_ctl(set, EPOLL_CTL_MOD, server, &event);
      epoll_ctl(set, EPOLL_CTL_DEL, server, NULL);
    }
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (victim >= 0) SYS(close(server));
    victim = -1;
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    expect_eof(client);
    SYS(close(client));
  }
  bt_shared->value[STOPS] = 1;
  end_thread(thread);
  CHECK(hits > 0);
  expect_order();
}

/* The handler does not come back: what was open then the program closes, and goes on. */
static sigjmp_buf away;
static volatile sig_atomic_t may_jump;
static void jump_away(int number) {
  (void)number;
  handled++;
  if (!may_jump) return;
  may_jump = 0;
  hits++;
  siglongjmp(away, 1);
}
MIXED_CASE(thrown_out_of_beginnings_and_ends) {
  set_up();
  int lowest = SYS(dup(set));
  SYS(close(lowest));
  handle_signal(SIGUSR1, jump_away, SA_RESTART);
  pthread_t thread = start_storm();
  for (volatile int i = 0; i < ROUNDS; i++) {
    if (sigsetjmp(away, 1) == 0) {
      may_jump = 1;
      for (int j = 0; j < 20; j++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = 5};
        int client = socket(AF_INET, SOCK_STREAM, 0);
        connect(client, &target.any, address_len(&target));
        int server = accept(listener, NULL, NULL);
        epoll_ctl(set, EPOLL_CTL_ADD, server, &event);
        event.events = EPOLLIN | EPOLLOUT;
        epoll_ctl(set, EPOLL_CTL_MOD, server, &event);
        epoll_ctl(set, EPOLL_CTL_DEL, server, NULL);
        close(server);
        close(client);
      }
      may_jump = 0;
    }
    for (int fd = lowest; fd < HIGHEST; fd++) close(fd);
    /* One that connected, and that nobody accepted. */
    while (is_readable(listener, 0)) SYS(close(SYS(accept(listener, NULL, NULL))));
  }
  bt_shared->value[STOPS] = 1;
  end_thread(thread);
  CHECK(hits > 0);
  expect_order();
}
