/* Large blocked transfers that end early (a signal, a time-out, cancellation) while the other end goes
 * on. The program has its memory back at once: nothing lands in a receive's buffer any more, and of a
 * send's exactly what it reported arrives, whatever becomes of the buffer. */
#include "bt.h"
#include <setjmp.h>

enum { LARGE = 512 << 10, BUFFERS = 4, INTERRUPTIONS = 120, TIME_OUTS = 12, ROUNDS = 8 };
enum { OVER, TOTAL, CERTAIN, ACCEPTED };
enum { MARK_SIZE = 200000, MARK = 0xee, OWN = 0xc7 };

static unsigned below(unsigned limit) {
  static __thread unsigned state;
  if (state == 0) state = 2463534242u + (unsigned)gettid();
  state ^= state << 13, state ^= state >> 17, state ^= state << 5;
  return state % limit;
}
static void sleep_us(unsigned us) {
  struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000L};
  nanosleep(&t, NULL);
}

/* The program's own use of a buffer. */
static void own(uint8_t *buffer) { memset(buffer, OWN, LARGE); }
static void check_own(const uint8_t *buffer) {
  if (buffer[0] == OWN && memcmp(buffer, buffer + 1, LARGE - 1) == 0) return;
  size_t i = 0;
  while (buffer[i] == OWN) i++;
  FAIL("byte %zu of a buffer changed after the call that had it", i);
}

static void nothing(int number) { (void)number; }
static void *interrupter(void *arg) {
  for (int i = 0; i < INTERRUPTIONS; i++) {
    sleep_us(20 + below(700));
    EQ(pthread_kill(*(pthread_t *)arg, SIGUSR1), 0);
  }
  bt_shared->value[OVER] = 1;
  return NULL;
}
static void start_interrupting(pthread_t *thread) {
  static pthread_t self;
  self = pthread_self();
  handle_signal(SIGUSR1, nothing, 0);
  *thread = start_thread(interrupter, &self);
}

/* Moves data until it is over; calls may end early with this error, so often at least. */
typedef void transfers_fn(int fd, int error, int enough);
static void interrupted(int fd, transfers_fn *transfers) {
  pthread_t thread;
  start_interrupting(&thread);
  transfers(fd, EINTR, -1);
  end_thread(thread);
}
static void in_time(int fd, int option, transfers_fn *transfers) {
  set_timeout(fd, option, 1);
  transfers(fd, EAGAIN, TIME_OUTS);
}

/* ---- the ends that are not interrupted ---------------------------------------------------- */

/* Streams until it is over, with pauses in which the receiver waits. */
static void streaming(int fd, unsigned pause) {
  uint64_t at = 0;
  while (!bt_shared->value[OVER]) {
    size_t size = 1 + below(LARGE);
    for (size_t done = 0; done < size;)
      done += SYS(send(fd, pattern(at + done), size - done, MSG_NOSIGNAL));
    at += size;
    if (below(2)) sleep_us(below(pause));
  }
  bt_shared->value[TOTAL] = at;
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
  SYS(close(fd));
}
static void streams(int fd) { streaming(fd, 500); }
static void streams_slowly(int fd) { streaming(fd, 12000); }

/* Reads all, with pauses in which the sender waits. */
static void consuming(int fd, unsigned pause) {
  uint8_t *buffer = malloc(LARGE);
  uint64_t at = 0;
  ssize_t n;
  while ((n = SYS(recv(fd, buffer, 1 + below(LARGE), 0))) > 0) {
    check_pattern(buffer, at, n);
    at += n;
    if (below(4) == 0) sleep_us(below(pause));
  }
  EQ(at, bt_shared->value[TOTAL]);
  SYS(close(fd));
}
static void consumes(int fd) { consuming(fd, 1000); }
static void consumes_slowly(int fd) { consuming(fd, 15000); }

/* ---- receiving ---------------------------------------------------------------------------- */

/* Receives to the end; how often it was interrupted with this error. A buffer is looked at before its
 * next use, some receives later. */
static void receive_all(int fd, int error, int enough) {
  uint8_t *buffers[BUFFERS];
  for (int i = 0; i < BUFFERS; i++) own(buffers[i] = malloc(LARGE));
  uint64_t at = 0;
  int interruptions = 0;
  for (unsigned turn = 0;; turn++) {
    uint8_t *buffer = buffers[turn % BUFFERS];
    check_own(buffer);
    ssize_t n = recv(fd, buffer, LARGE, turn % 8 < 2 ? MSG_WAITALL : 0);
    if (n < 0) {
      EQ(errno, error);
      if (++interruptions == enough) bt_shared->value[OVER] = 1;
    } else if (n == 0) {
      break;
    } else {
      check_pattern(buffer, at, n);
      at += n;
    }
    own(buffer);
  }
  EQ(at, bt_shared->value[TOTAL]);
  SYS(close(fd));
  for (int i = 0; i < BUFFERS; i++) check_own(buffers[i]);
}
static void receives_interrupted(int fd) { interrupted(fd, receive_all); }
ENDS(receive_interrupted_by_signals, streams, receives_interrupted)

static void receives_in_time(int fd) { in_time(fd, SO_RCVTIMEO, receive_all); }
ENDS(receive_that_times_out, streams_slowly, receives_in_time)

/* ---- sending ------------------------------------------------------------------------------ */

static void send_all(int fd, int error, int enough) {
  uint8_t *buffer = malloc(LARGE);
  uint64_t at = 0;
  int interruptions = 0;
  while (!bt_shared->value[OVER]) {
    size_t size = 1 + below(LARGE);
    memcpy(buffer, pattern(at), size);
    ssize_t n = send(fd, buffer, size, MSG_NOSIGNAL);
    int e = errno;
    own(buffer);
    if (n < 0) EQ(e, error);
    else at += n;
    if (n < (ssize_t)size && ++interruptions == enough) bt_shared->value[OVER] = 1;
  }
  bt_shared->value[TOTAL] = at;
  SYS(shutdown(fd, SHUT_WR));
  char byte;
  while (recv(fd, &byte, 1, 0) != 0) CHECK(errno == EINTR || errno == EAGAIN);
  SYS(close(fd));
  check_own(buffer);
}
static void sends_interrupted(int fd) { interrupted(fd, send_all); }
ENDS(send_interrupted_by_signals, sends_interrupted, consumes)

static void sends_in_time(int fd) { in_time(fd, SO_SNDTIMEO, send_all); }
ENDS(send_that_times_out, sends_in_time, consumes_slowly)

/* ---- beside another's send -------------------------------------------------------------------- */

enum { PIECE = 2000, MUCH = 128 << 20, BUSY = 100, GOT = ACCEPTED + 1, FIRST, SENT };

/* Takes a little at a time, never asleep, so that a transfer goes on and on, until it is over. */
static void trickles(int fd) {
  static uint8_t buffer[LARGE];
  struct timespec now, last;
  while (!bt_shared->value[OVER]) {
    bt_shared->value[GOT] += SYS(recv(fd, buffer, PIECE, 0));
    clock_gettime(CLOCK_MONOTONIC, &last);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - last.tv_sec) * 1000000000L + now.tv_nsec - last.tv_nsec < 5000);
  }
  while (SYS(recv(fd, buffer, sizeof buffer, 0)) > 0) {}
  SYS(close(fd));
}
static uint8_t much[MUCH];
static void *sends_much(void *arg) {
  bt_shared->value[FIRST] = 1;
  /* It may be late enough to see the other's time-out. */
  if (SYS(send(*(int *)arg, much, MUCH, MSG_NOSIGNAL)) == MUCH) bt_shared->value[SENT] = 1;
  return NULL;
}
static void is_over(int fd) {
  bt_shared->value[OVER] = 1;
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
  SYS(close(fd));
}
/* While a thread is in a send that waits, another one is in this, and does not wait for the first. */
static void beside(int fd, void (*second)(int fd)) {
  pthread_t first = start_thread(sends_much, &fd);
  UNTIL(bt_shared->value[FIRST] && bt_shared->value[GOT] > 50 * PIECE);
  second(fd);
  EQ(bt_shared->value[SENT], 0);
  bt_shared->value[OVER] = 1;
  end_thread(first);
  is_over(fd);
}
static void ends_early(int fd, int error) {
  ssize_t n = send(fd, much, MUCH, MSG_NOSIGNAL);
  if (n < 0) EQ(errno, error);
  CHECK(n < MUCH);
}

static void in_time_alone(int fd) {
  set_timeout(fd, SO_SNDTIMEO, 50);
  ends_early(fd, EAGAIN);
  is_over(fd);
}
ENDS(send_that_times_out_although_it_goes_on, in_time_alone, trickles)

static void in_time_too(int fd) {
  set_timeout(fd, SO_SNDTIMEO, 50);
  ends_early(fd, EAGAIN);
}
static void second_in_time(int fd) { beside(fd, in_time_too); }
ENDS(second_send_that_times_out, second_in_time, trickles)

static void *interrupts(void *arg) {
  while (!bt_shared->value[OVER]) {
    sleep_us(1000);
    EQ(pthread_kill(*(pthread_t *)arg, SIGUSR1), 0);
  }
  return NULL;
}
static void interrupted_too(int fd) {
  pthread_t self = pthread_self();
  handle_signal(SIGUSR1, nothing, 0);
  pthread_t thread = start_thread(interrupts, &self);
  ends_early(fd, EINTR);
  pthread_cancel(thread);
  end_thread(thread);
}
static void second_interrupted(int fd) { beside(fd, interrupted_too); }
ENDS(second_send_that_is_interrupted, second_interrupted, trickles)

/* Who is told that it may send can, nearly always: else it would never come to rest. */
static void polls_too(int fd) {
  int vain = 0;
  for (int64_t end = now_ms() + 200; now_ms() < end && vain < BUSY;) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (SYS(poll(&p, 1, 20)) == 0) continue;
    if (send(fd, much, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) continue;
    EQ(errno, EAGAIN);
    vain++;
  }
  CHECK(vain < BUSY);
}
static void second_polls(int fd) { beside(fd, polls_too); }
ENDS(second_that_polls, second_polls, trickles)

/* ---- cancelled threads, killed processes, handlers that do not return ------------------------ */

enum { ALL = 6 << 20, THROWABLE = SENT + 1 };

struct cancelled {
  int fd;
  uint8_t *buffer;
  void (*transfer)(struct cancelled *c);
};
static _Atomic long *certain; /* bytes moved by calls that returned */
static void take_back(void *buffer) { own(buffer); }
static void receive_on(struct cancelled *c) {
  for (;;) {
    ssize_t n = SYS(recv(c->fd, c->buffer, LARGE, 0));
    if (n == 0) break;
    check_pattern(c->buffer, *certain, n);
    *certain += n;
  }
}
static void send_on(struct cancelled *c) {
  while (*certain < ALL) {
    size_t size = ALL - *certain < LARGE ? ALL - *certain : LARGE;
    memcpy(c->buffer, pattern(*certain), size);
    *certain += SYS(send(c->fd, c->buffer, size, MSG_NOSIGNAL));
  }
}
static void *transferring_thread(void *arg) {
  struct cancelled *c = arg;
  pthread_cleanup_push(take_back, c->buffer);
  c->transfer(c);
  pthread_cleanup_pop(1);
  return NULL;
}
/* Runs it in a thread that is cancelled in the middle, or in a process that is killed. */
typedef void end_early_fn(struct cancelled *c);
static void cancel(struct cancelled *c) {
  pthread_t thread = start_thread(transferring_thread, c);
  sleep_us(100 + below(4000));
  EQ(pthread_cancel(thread), 0);
  end_thread(thread);
}
static __thread sigjmp_buf away;
static void jump_away(int number) {
  (void)number;
  siglongjmp(away, 1);
}
static void hold_back(int how) {
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGUSR1);
  pthread_sigmask(how, &set, NULL);
}
static void *thrown_out_thread(void *arg) {
  struct cancelled *c = arg;
  if (sigsetjmp(away, 1) == 0) {
    bt_shared->value[THROWABLE] = 1;
    c->transfer(c);
  }
  own(c->buffer);
  hold_back(SIG_BLOCK); /* it may not have come yet */
  /* The thread is still there, and uses the memory. */
  for (int i = 0; i < 20; i++) sleep_us(100), check_own(c->buffer);
  return NULL;
}
static void throw_out(struct cancelled *c) {
  handle_signal(SIGUSR1, jump_away, 0);
  bt_shared->value[THROWABLE] = 0;
  pthread_t thread = start_thread(thrown_out_thread, c);
  UNTIL(bt_shared->value[THROWABLE]);
  sleep_us(below(4000));
  EQ(pthread_kill(thread, SIGUSR1), 0);
  end_thread(thread);
}
static void kill_process(struct cancelled *c) {
  pid_t child = start_child();
  if (child == 0) {
    c->transfer(c);
    _exit(0);
  }
  sleep_us(500 + below(5000));
  SYS(kill(child, SIGKILL));
  SYS(waitpid(child, NULL, 0));
}

static void sends_all(int fd) {
  for (uint64_t at = 0; at < ALL;) {
    size_t size = ALL - at < LARGE ? ALL - at : LARGE;
    at += SYS(send(fd, pattern(at), size, MSG_NOSIGNAL));
    if (below(2)) sleep_us(below(500));
  }
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
  SYS(close(fd));
}
/* What an ended receive had taken is lost, as with TCP; the rest is whole. */
static void receives(int fd, end_early_fn *end_early) {
  static uint8_t buffer[LARGE], rest[ALL];
  own(buffer);
  certain = &bt_shared->value[CERTAIN];
  *certain = 0;
  end_early(&(struct cancelled){fd, buffer, receive_on});
  size_t got = 0;
  ssize_t n;
  while ((n = SYS(recv(fd, rest + got, sizeof rest - got, 0))) > 0) got += n;
  CHECK(*certain + got <= ALL && *certain + got + LARGE >= ALL);
  check_pattern(rest, ALL - got, got);
  check_own(buffer);
  SYS(close(fd));
}
static void receives_cancelled(int fd) { receives(fd, cancel); }
static void receives_thrown_out(int fd) { receives(fd, throw_out); }
static void receives_killed(int fd) { receives(fd, kill_process); }
/* What an ended send had sent arrives, then what is sent after it. */
static void sends(int fd, end_early_fn *end_early) {
  static uint8_t buffer[LARGE], mark[MARK_SIZE];
  memset(mark, MARK, sizeof mark);
  own(buffer);
  certain = &bt_shared->value[CERTAIN];
  *certain = 0;
  end_early(&(struct cancelled){fd, buffer, send_on});
  for (size_t done = 0; done < MARK_SIZE;)
    done += SYS(send(fd, mark + done, MARK_SIZE - done, MSG_NOSIGNAL));
  if (below(2)) {
    SYS(shutdown(fd, SHUT_WR));
    expect_eof(fd);
  }
  UNTIL(bt_shared->value[ACCEPTED]); /* what is closed before that is TCP's */
  check_own(buffer);
  SYS(close(fd));
}
static void sends_cancelled(int fd) { sends(fd, cancel); }
static void sends_thrown_out(int fd) { sends(fd, throw_out); }
static void sends_killed(int fd) { sends(fd, kill_process); }
static void receives_all(int fd) {
  static uint8_t all[ALL + MARK_SIZE + 1];
  size_t got = 0;
  bt_shared->value[ACCEPTED] = 1;
  ssize_t n;
  while ((n = SYS(recv(fd, all + got, sizeof all - got < LARGE ? sizeof all - got : LARGE, 0))) > 0) {
    got += n;
    if (below(2)) sleep_us(below(500));
  }
  CHECK(got >= MARK_SIZE);
  size_t sent = got - MARK_SIZE, known = bt_shared->value[CERTAIN];
  CHECK(sent >= known && sent <= known + LARGE);
  check_pattern(all, 0, sent);
  for (size_t i = sent; i < got; i++) EQ(all[i], MARK);
  SYS(close(fd));
}

#define ENDED_EARLY(name, run, left, right)                                   \
  SAN_CASE(name) {                                                            \
    for (int round = 0; round < ROUNDS; round++) {                            \
      bt_shared->value[ACCEPTED] = 0;                                         \
      run(V4, left, right);                                                   \
    }                                                                         \
  }
ENDED_EARLY(receive_cancelled_threads, run_threads, sends_all, receives_cancelled)
ENDED_EARLY(receive_cancelled_processes, run_processes, sends_all, receives_cancelled)
ENDED_EARLY(receive_thrown_out_of, run_processes, sends_all, receives_thrown_out)
ENDED_EARLY(receive_killed, run_processes, sends_all, receives_killed)
ENDED_EARLY(send_cancelled_threads, run_threads, sends_cancelled, receives_all)
ENDED_EARLY(send_cancelled_processes, run_processes, sends_cancelled, receives_all)
ENDED_EARLY(send_thrown_out_of, run_processes, sends_thrown_out, receives_all)
ENDED_EARLY(send_killed, run_processes, sends_killed, receives_all)

/* ---- handlers that do not return, again and again ------------------------------------------- */

/* At any moment, also in the middle of a copy. What the interrupted call had moved is lost to the program, nothing
 * else; on a busy machine that can be all that is received until the handlers end. */
enum { LEVELS = 200, SLICE = 30000, LEVEL = 4 * SLICE };
static volatile int times_thrown_out;
/* The signals come less and less often. So whole levels go through on a slow machine, too. */
static void *throws(void *arg) {
  pthread_t thread = *(pthread_t *)arg;
  while (!bt_shared->value[OVER]) {
    pthread_kill(thread, SIGUSR1);
    sleep_us(200 + times_thrown_out / 4);
  }
  return NULL;
}
/* Calls the function again and again, until it is not thrown out. */
static void thrown_out_again_and_again(void (*fn)(int fd), int fd) {
  static pthread_t self, thread;
  self = pthread_self();
  handle_signal(SIGUSR1, jump_away, 0);
  hold_back(SIG_BLOCK);
  thread = start_thread(throws, &self);
  if (sigsetjmp(away, 0)) times_thrown_out++;
  hold_back(SIG_UNBLOCK);
  fn(fd);
  hold_back(SIG_BLOCK);
  bt_shared->value[OVER] = 1;
  end_thread(thread);
}
static void send_levels(int fd) {
  static uint8_t bytes[SLICE];
  static volatile uint8_t level;
  for (; level < LEVELS; level++) {
    memset(bytes, level, sizeof bytes);
    for (int sent = 0; sent < LEVEL; sent += SLICE) SYS(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL));
  }
}
static void sends_levels(int fd) { send_levels(fd), SYS(close(fd)); }
static void sends_levels_thrown_out(int fd) { thrown_out_again_and_again(send_levels, fd), SYS(close(fd)); }

static size_t came[LEVELS];
/* Counts what one call receives and whether the stream ever falls: the first level of the call, -1 at the end. */
static int receive_slice(int fd) {
  static uint8_t bytes[SLICE], last;
  ssize_t n = SYS(recv(fd, bytes, sizeof bytes, 0));
  for (ssize_t i = 0; i < n; came[last = bytes[i++]]++) CHECK(bytes[i] >= last && bytes[i] < LEVELS);
  return n > 0 ? bytes[0] : -1;
}
static void receive_half(int fd) {
  int level = 0;
  while (level >= 0 && level < LEVELS / 2) level = receive_slice(fd);
}
/* All that is left comes: of the levels after the one that is begun every byte. */
static void receives_levels(int fd) {
  int begun = receive_slice(fd);
  CHECK(begun >= 0 && begun < LEVELS - 1);
  while (receive_slice(fd) >= 0);
  for (int level = begun + 1; level < LEVELS; level++) CHECK(came[level] >= LEVEL);
  size_t all = 0;
  for (int level = 0; level < LEVELS; level++) all += came[level];
  CHECK(all + (size_t)times_thrown_out * SLICE >= (size_t)LEVELS * LEVEL);
  SYS(close(fd));
}
static void receives_levels_thrown_out(int fd) { thrown_out_again_and_again(receive_half, fd), receives_levels(fd); }
ENDS(thrown_out_of_receives_at_any_moment, sends_levels, receives_levels_thrown_out)
ENDS(thrown_out_of_sends_at_any_moment, sends_levels_thrown_out, receives_levels)
