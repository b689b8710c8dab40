/* A peer that writes anything into the memory of a connection. Under the shim that may cost this one
 * connection whatever a peer can cost one: wrong bytes, an error, an end. Never the process, its other
 * connections, or a call that does not come back; what it writes may send a connection back to TCP, too. Natively there is no such memory. */
#include "bt.h"

#include <sys/mman.h>
#include <sys/syscall.h>

static uint64_t state;
/* SplitMix64. */
static uint64_t draw(void) {
  uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/* ---- the memory ----------------------------------------------------------------------------- */

static _Atomic uint32_t *words;
static size_t count;

static unsigned long known[256];

/* Calls `look` for each segment that is mapped, with its inode. */
static void each_segment(void look(unsigned long inode, unsigned long at, size_t bytes)) {
  char line[512], name[64];
  unsigned long from, to, inode;
  FILE *maps = fopen("/proc/self/maps", "r");
  CHECK(maps);
  while (fgets(line, sizeof line, maps)) {
    if (sscanf(line, "%lx-%lx %*s %*s %*s %lu %63s", &from, &to, &inode, name) < 4) continue;
    if (strcmp(name, "/memfd:sanshim") == 0) look(inode, from, to - from);
  }
  fclose(maps);
}
static bool is_known(unsigned long inode) {
  size_t i = 0;
  while (known[i] != 0 && known[i] != inode) i++;
  return known[i] != 0;
}
static void note(unsigned long inode, unsigned long at, size_t bytes) {
  (void)at, (void)bytes;
  size_t i = 0;
  while (known[i] != 0 && known[i] != inode) i++;
  CHECK(i + 1 < sizeof known / sizeof *known);
  known[i] = inode;
}
/* A second mapping, which stays when the library gives its own back. */
static void map_unknown(unsigned long inode, unsigned long at, size_t bytes) {
  if (words || is_known(inode)) return;
  void *mapped = mremap((void *)at, 0, bytes, MREMAP_MAYMOVE);
  CHECK(mapped != MAP_FAILED);
  words = mapped, count = bytes / sizeof *words;
}
/* Before a connection is made, and after. */
static void note_memory(void) {
  memset(known, 0, sizeof known);
  each_segment(note);
}
static void find_memory(void) { each_segment(map_unknown); }
static void forget_memory(void) {
  if (words) SYS(munmap((void *)words, count * sizeof *words));
  words = NULL;
}

/* Positions, counters and flags lie in the first kilobyte. */
static void scribble(void) {
  if (!words) return;
  /* The first line describes the memory, and was read long ago. */
  size_t at = 16 + draw() % (draw() % 4 ? 256 - 16 : count - 16);
  uint32_t old = words[at];
  switch (draw() % 6) {
  case 0: words[at] = (uint32_t)draw(); break;
  case 1: words[at] = 0; break;
  case 2: words[at] = UINT32_MAX; break;
  case 3: words[at] = old + 1; break;
  case 4: words[at] = old - (uint32_t)(draw() % 70000); break;
  default: words[at] = old ^ (1u << draw() % 32); break;
  }
}

/* ---- both ends in one thread ---------------------------------------------------------------- */

/* The memory between hosts is the process's own. A library that reads nonsense there may take nothing more from its
 * link, which the device tells its peer after its own time. */
static bool is_end(int e) { return e == ECONNRESET || (is_between_hosts() && e == ETIMEDOUT); }
static bool is_expected(int e) { return is_end(e) || e == EAGAIN || e == EPIPE || e == ENOTCONN || e == EINVAL; }
static void one_call(int fd, int set) {
  static char bytes[300000];
  size_t n = draw() % 3 ? draw() % 4000 : draw() % sizeof bytes;
  struct epoll_event event;
  struct pollfd one = {fd, POLLIN | POLLOUT | POLLPRI, 0};
  int value;
  long result = 0;
  switch (draw() % 12) {
  case 0: case 1: case 2: result = send(fd, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL); break;
  case 3: case 4: result = recv(fd, bytes, n, MSG_DONTWAIT); break;
  case 5: result = recv(fd, bytes, n, MSG_DONTWAIT | MSG_PEEK); break;
  case 6: result = recv(fd, NULL, n, MSG_DONTWAIT | MSG_TRUNC); break;
  case 7: SYS(ioctl(fd, FIONREAD, &value)); break;
  case 8: SYS(ioctl(fd, TIOCOUTQ, &value)); break;
  case 9: SYS(poll(&one, 1, 0)); break;
  case 10: SYS(epoll_wait(set, &event, 1, 0)); break;
  default: result = recv(fd, bytes, 1, MSG_DONTWAIT | MSG_OOB); break;
  }
  if (result < 0 && !is_expected(errno)) FAIL("a call fails with %s", strerrorname_np(errno));
}
/* What is left of the connection comes to an end. */
static void finish(struct pair *p) {
  static char bytes[65536];
  SYS(close(p->client));
  ssize_t n;
  while ((n = recv(p->server, bytes, sizeof bytes, 0)) > 0) {}
  if (n < 0) CHECK(is_end(errno));
  SYS(close(p->server));
}

static void corrupted_between_calls(uint64_t first) {
  struct pair bystander = open_pair(V4);
  exercise(bystander.client, bystander.server);
  for (uint64_t seed = first; seed < first + 40; seed++) {
    state = seed;
    note_memory();
    struct pair p = open_pair(V4);
    exercise(p.client, p.server);
    find_memory();
    int set = SYS(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
    SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event));
    for (int i = 0; i < 200; i++) {
      if (i > 20 && draw() % 4 == 0) scribble();
      one_call(draw() % 2 ? p.client : p.server, set);
    }
    SYS(close(set));
    finish(&p);
    forget_memory();
    exercise(bystander.client, bystander.server);
  }
  close_pair(&bystander);
}
MIXED_CASE(corrupted_between_calls_1) { corrupted_between_calls(1000); }
MIXED_CASE(corrupted_between_calls_2) { corrupted_between_calls(2000); }
MIXED_CASE(corrupted_between_calls_3) { corrupted_between_calls(3000); }

/* ---- while calls are under way, from another process ---------------------------------------- */

/* Talks sense for a while, then writes anything, and ends. */
static void hostile_peer(const union address *target, uint64_t seed) {
  state = seed;
  alarm(20);
  note_memory();
  int fd = dial_warm(target);
  put(fd, "ping"), get(fd, "pong");
  find_memory();
  set_nonblocking(fd, true);
  static char bytes[65536];
  for (int i = 0; i < 2000; i++) {
    if (words) {
      for (int k = 0; k < 4; k++) scribble();
    }
    /* Its own calls may do what they like. */
    if (i % 3 == 0) send(fd, bytes, draw() % sizeof bytes, MSG_NOSIGNAL);
    if (i % 3 == 1) recv(fd, bytes, sizeof bytes, 0);
  }
  kill(getpid(), SIGKILL);
}
static void *serve(void *arg) {
  int fd = *(int *)arg;
  static _Thread_local char bytes[65536];
  ssize_t n;
  while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0) {}
  if (n < 0) CHECK(is_end(errno));
  /* On TCP, where it may have brought the connection, a writer with a peer that closed without having made room
   * learns of that after a minute. */
  if (shutdown(fd, SHUT_RDWR) < 0) EQ(errno, ENOTCONN);
  return NULL;
}
static void *produce(void *arg) {
  int fd = *(int *)arg;
  static _Thread_local char bytes[100000];
  while (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) > 0) {}
  CHECK(errno == EPIPE || is_end(errno));
  return NULL;
}
MIXED_CASE(corrupted_while_calls_wait) {
  struct pair bystander = open_pair(V4);
  union address target;
  int listener = listen_on(V4, &target);
  for (uint64_t seed = 1; seed <= 12; seed++) {
    pid_t pid = start_child();
    if (pid == 0) hostile_peer(&target, seed);
    int fd = accept_warm(listener);
    get(fd, "ping"), put(fd, "pong");
    pthread_t reader = start_thread(serve, &fd), writer = start_thread(produce, &fd);
    int status;
    EQ(SYS(waitpid(pid, &status, 0)), pid);
    CHECK(WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGALRM));
    end_thread(reader), end_thread(writer);
    SYS(close(fd));
    exercise(bystander.client, bystander.server);
  }
  close_pair(&bystander);
}

/* ---- while calls are made that do not wait --------------------------------------------------- */

static int64_t cpu_ms(void) {
  struct timespec now;
  SYS(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now));
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
static long sleeps(void) {
  struct rusage usage;
  SYS(getrusage(RUSAGE_THREAD, &usage));
  return usage.ru_nvcsw;
}
/* Writes as fast as it can, until it is killed. */
static void scribbling_peer(const union address *target, uint64_t seed) {
  state = seed;
  alarm(40);
  note_memory();
  int fd = dial_warm(target);
  put(fd, "ping"), get(fd, "pong");
  find_memory();
  if (!words) pause();
  for (;;) scribble();
}
/* In this process and in ones that it forks. None of them sleeps, whatever the peer writes, nor takes long: a call looks a
 * few times, or copies what there is. */
MIXED_CASE(corrupted_while_calls_do_not_wait) {
  enum { SEEDS = 6, CALLS = 1500, RELATIVES = 100, MOST_CALL_MS = 200 };
  struct pair bystander = open_pair(V4);
  union address target;
  int listener = listen_on(V4, &target);
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    pid_t pid = start_child();
    if (pid == 0) scribbling_peer(&target, seed);
    int fd = accept_warm(listener), set = SYS(epoll_create1(0));
    get(fd, "ping"), put(fd, "pong");
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
    SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    state = 1000 * seed;
    long slept = 0;
    for (int i = 1; i <= CALLS; i++) {
      if (i % RELATIVES == 0) {
        pid_t relative = start_child();
        if (relative == 0) {
          for (int k = 0; k < 20; k++) one_call(fd, set);
          _exit(0);
        }
        end_child(relative);
      }
      long before = sleeps();
      int64_t worked = cpu_ms();
      one_call(fd, set);
      slept += sleeps() - before;
      CHECK(cpu_ms() - worked < MOST_CALL_MS);
    }
    if (slept > CALLS / 10) FAIL("%ld sleeps in %d calls that do not wait (seed %d)", slept, CALLS, (int)seed);
    SYS(kill(pid, SIGKILL)), SYS(waitpid(pid, NULL, 0));
    SYS(close(set)), SYS(close(fd));
    exercise(bystander.client, bystander.server);
  }
  close_pair(&bystander);
}

/* ---- who says that he sends in the victim's stead ------------------------------------------- */

/* Where the connector says what it has done, and that it went back to TCP; where its own direction has its word, and that it left;
 * and which thread sends in the acceptor's stead. */
enum { FINISHED = 276, RETURNED = 8, OWN_DIRECTION = 280 + 4, LEFT = 1u << 31, STANDS_IN = 344 };
/* Where the acceptor's direction has its word, and bits of its upper half: what was sent is to come again over TCP; the
 * receiver is sending it. */
enum { DIRECTION = 664 + 4, RECALLED = 1u << 30, CLAIMED = 1u << 27 };

/* For ever. Calls that wait find no room and do not spin; others return at once. */
MIXED_CASE(claimed_for_ever) {
  enum { LIMIT_MS = 400, FEW = 20 };
  note_memory();
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  find_memory();
  if (!words) return close_pair(&p);
  atomic_fetch_or(&words[DIRECTION / 4], RECALLED | CLAIMED);
  atomic_fetch_or(&words[FINISHED / 4], RETURNED);
  long slept = sleeps();
  ERR(send(p.server, "x", 1, MSG_DONTWAIT), EAGAIN);
  EQ(ready_now(p.server, POLLOUT), 0);
  CHECK(sleeps() - slept < FEW);
  set_timeout(p.server, SO_SNDTIMEO, LIMIT_MS);
  int64_t worked = cpu_ms();
  ERR(send(p.server, "x", 1, 0), EAGAIN);
  struct pollfd one = {p.server, POLLOUT, 0};
  EQ(SYS(poll(&one, 1, LIMIT_MS)), 0);
  CHECK(cpu_ms() - worked < LIMIT_MS / 2);
  slept = sleeps();
  SYS(close(p.server));
  CHECK(sleeps() - slept < FEW);
  SYS(close(p.client));
  forget_memory();
}

/* A peer that says so, and sends no more itself: the end of its stream is there for ever. */
static void claim(const union address *target, bool lives) {
  note_memory();
  int fd = dial_warm(target);
  put(fd, "ping"), get(fd, "pong");
  find_memory();
  if (words) {
    words[STANDS_IN / 4] = 1; /* the first process lives */
    atomic_fetch_or(&words[DIRECTION / 4], RECALLED | CLAIMED);
    atomic_fetch_or(&words[OWN_DIRECTION / 4], LEFT);
    atomic_fetch_or(&words[FINISHED / 4], RETURNED);
  }
  step_done(0);
  if (!lives) kill(getpid(), SIGKILL);
  /* Past the hooks, by a process that cannot know of the session. */
  pid_t other = start_child();
  if (other == 0) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_shutdown), "D"(fd), "S"(SHUT_WR) : "rcx", "r11", "memory");
    _exit(result == 0 ? 0 : 1);
  }
  end_child(other);
  step_done(1);
  pause();
}
MIXED_CASE(claimed_by_one_that_sends_no_more) {
  enum { LIMIT_MS = 1000 };
  union address target;
  int listener = listen_on(V4, &target);
  pid_t pid = start_child();
  if (pid == 0) claim(&target, true);
  int fd = accept_warm(listener);
  get(fd, "ping"), put(fd, "pong");
  step_wait(0), step_wait(1);
  static char bytes[1 << 20];
  while (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {}
  EQ(errno, EAGAIN);
  set_timeout(fd, SO_SNDTIMEO, LIMIT_MS);
  int64_t worked = cpu_ms();
  ERR(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), EAGAIN);
  CHECK(cpu_ms() - worked < LIMIT_MS / 10);
  SYS(kill(pid, SIGKILL)), SYS(waitpid(pid, NULL, 0));
  SYS(close(fd));
}
/* One that is gone is one, whichever thread it named: TCP tells that at the second send, and so do we. */
MIXED_CASE(claimed_by_one_that_is_gone) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t pid = start_child();
  if (pid == 0) claim(&target, false);
  int fd = accept_warm(listener);
  get(fd, "ping"), put(fd, "pong");
  SYS(waitpid(pid, NULL, 0));
  set_timeout(fd, SO_SNDTIMEO, 10000);
  int64_t worked = cpu_ms();
  while (send(fd, "x", 1, MSG_NOSIGNAL) > 0) {}
  CHECK(errno == EPIPE || errno == ECONNRESET);
  CHECK(cpu_ms() - worked < 1000);
  SYS(close(fd));
}
