/* Signal handlers that change what is watched: they run in a thread that waits on an epoll set, at any instruction of its
 * call. */
#include "bt.h"
#include <sys/syscall.h>

enum { PAIRS = 24, INTERVAL_NS = 70000, ROUNDS = 400 };

static struct pair pairs[PAIRS];
static int set;
static _Atomic int victim;

/* Every end is ready all the time, so a wait looks at all of them and returns. */
static void open_ready_pairs(void) {
  set = SYS(epoll_create1(0));
  for (int i = 0; i < PAIRS; i++) {
    pairs[i] = open_pair(V4);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
    SYS(epoll_ctl(set, EPOLL_CTL_ADD, pairs[i].server, &event));
    put(pairs[i].client, "x");
  }
}
static void wait_once(void) {
  struct epoll_event events[PAIRS + 1];
  int n = epoll_wait(set, events, PAIRS + 1, 0);
  if (n < 0) EQ(errno, EINTR);
}

/* Signals this thread at that interval. */
static timer_t start_timer(void (*handler)(int)) {
  timer_t timer;
  struct sigevent to = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
  to._sigev_un._tid = gettid();
  handle_signal(SIGUSR1, handler, SA_RESTART);
  SYS(timer_create(CLOCK_MONOTONIC, &to, &timer));
  struct timespec each = {0, INTERVAL_NS};
  SYS(timer_settime(timer, 0, &(struct itimerspec){each, each}, NULL));
  return timer;
}

/* The handler closes an end that its thread waits on. */
static void close_one(int number) {
  (void)number;
  int error = errno;
  if (victim >= 0) {
    if (close(pairs[victim].server) != 0) abort();
    victim = -1;
  }
  errno = error;
}
SAN_CASE(close_what_is_waited_on) {
  open_ready_pairs();
  victim = -1;
  timer_t timer = start_timer(close_one);
  for (int round = 0; round < ROUNDS; round++) {
    int at = round % PAIRS;
    victim = at;
    while (victim >= 0) wait_once();
    SYS(close(pairs[at].client));
    /* The next connection is in no set, whatever the library reuses for it. */
    pairs[at] = open_pair(V4);
    put(pairs[at].client, "x");
    EQ(wait_for(pairs[at].server, POLLIN), POLLIN);
    struct epoll_event events[PAIRS + 1];
    int n = SYS(epoll_wait(set, events, PAIRS + 1, 0));
    for (int i = 0; i < n; i++)
      if (events[i].data.u32 == (uint32_t)at) FAIL("round %d: an event of what the handler closed", round);
    EQ(n, PAIRS - 1);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)at};
    SYS(epoll_ctl(set, EPOLL_CTL_ADD, pairs[at].server, &event));
  }
  SYS(timer_delete(timer));
}
