/* The way back to TCP while both ends go on: what is sent arrives once and in order, and nothing of
 * the library's among it. `sanctl detach` asks for it. */
#include "detaching.h"

#include <sys/syscall.h>

/* ---- two ends that stream ------------------------------------------------------------------ */

enum mode { BLOCKING, POLLED, LEVEL, EDGE };
static enum mode mode;
static unsigned left_pieces, right_pieces; /* largest piece each end sends */
static uint64_t length; /* sent after the last request was answered */

/* How much an end has to send: known only once the requests were answered. */
static bool is_last(uint64_t sent, uint64_t *end) {
  if (*end == 0 && flag(2)) *end = sent + length;
  return *end && sent >= *end;
}

struct flow {
  int fd, who;
  unsigned pieces, seed;
};

static void *write_all(void *of) {
  struct flow *f = of;
  uint64_t at = 0, end = 0;
  while (!is_last(at, &end)) {
    uint64_t n = 1 + next(&f->seed) % f->pieces;
    EQ(SYS(send(f->fd, pattern(at), n, MSG_NOSIGNAL)), n);
    at += n;
    if (next(&f->seed) % 64 == 0) sleep_ms(1);
  }
  atomic_store(&bt_shared->value[2 + f->who], (long)at);
  SYS(shutdown(f->fd, SHUT_WR));
  return NULL;
}
static void blocking_end(struct flow *f) {
  pthread_t writer = start_thread(write_all, f);
  static uint8_t bytes[1 << 17];
  unsigned seed = f->seed + 1;
  uint64_t at = 0;
  int short_reads = 0;
  for (;;) {
    size_t want = 1 + next(&seed) % (sizeof bytes - 1);
    int flags = next(&seed) % 4 == 0 ? MSG_WAITALL : 0;
    ssize_t n = SYS(recv(f->fd, bytes, want, flags));
    if (n == 0) break;
    short_reads += flags && (size_t)n < want;
    check_pattern(bytes, at, (size_t)n);
    at += (uint64_t)n;
    if (next(&seed) % 64 == 0) sleep_ms(1);
  }
  EQ(at, atomic_load(&bt_shared->value[2 + !f->who]));
  CHECK(short_reads <= 1); /* the last */
  end_thread(writer);
}

/* Waits, also through SIGSTOP and SIGCONT, which interrupt it without any handler. */
#define WAIT(call)                                                            \
  do {                                                                        \
    int n_;                                                                   \
    while ((n_ = (call)) < 0 && errno == EINTR) continue;                     \
    CHECK(n_ == 1);                                                           \
  } while (0)

/* One thread for both directions. */
static void event_end(struct flow *f) {
  static uint8_t bytes[1 << 17];
  set_nonblocking(f->fd, true);
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | (mode == EDGE ? (unsigned)EPOLLET : 0)};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, f->fd, &event));
  uint64_t sent = 0, got = 0, last = 0;
  bool ended = false, finished = false;
  unsigned ready = 0;
  for (unsigned turn = 0; !ended || !finished; turn++) {
    if (mode == POLLED) {
      struct pollfd one = {f->fd, (short)((ended ? 0 : POLLIN) | (finished ? 0 : POLLOUT)), 0};
      WAIT(poll(&one, 1, HANG_MS));
      ready = (unsigned)one.revents;
    } else if (mode == LEVEL || ready == 0) {
      if (mode == LEVEL && finished) {
        event.events = EPOLLIN;
        SYS(epoll_ctl(set, EPOLL_CTL_MOD, f->fd, &event));
      }
      WAIT(epoll_wait(set, &event, 1, HANG_MS));
      ready = event.events & (EPOLLIN | EPOLLOUT | EPOLLHUP);
    } else if (turn % 8 == 0 && epoll_wait(set, &event, 1, 0) == 1) {
      /* One that may send for ever would never hear that it has something to read. */
      ready |= event.events & (EPOLLIN | EPOLLOUT | EPOLLHUP);
    }
    /* In turns: an end that only sent, or only read, would never be done with what it has. */
    if (ready & (EPOLLIN | EPOLLHUP)) {
      ssize_t n = ended ? 0 : recv(f->fd, bytes, 1 + next(&f->seed) % (sizeof bytes - 1), 0);
      if (n < 0) EQ(errno, EAGAIN);
      if (n <= 0) ready &= ~(unsigned)(EPOLLIN | EPOLLHUP);
      ended = n == 0;
      if (n > 0) {
        check_pattern(bytes, got, (size_t)n);
        got += (uint64_t)n;
      }
    }
    if (ready & EPOLLOUT) {
      uint64_t n = 1 + next(&f->seed) % f->pieces;
      ssize_t done = is_last(sent, &last) ? 0 : send(f->fd, pattern(sent), n, MSG_NOSIGNAL);
      if (done < 0) EQ(errno, EAGAIN);
      if (done <= 0) ready &= ~(unsigned)EPOLLOUT;
      if (done > 0) sent += (uint64_t)done;
    }
    if (is_last(sent, &last) && !finished) {
      atomic_store(&bt_shared->value[2 + f->who], (long)sent);
      SYS(shutdown(f->fd, SHUT_WR));
      finished = true;
    }
  }
  EQ(got, atomic_load(&bt_shared->value[2 + !f->who]));
  SYS(close(set));
}

static void end(int fd, int who) {
  atomic_store(&bt_shared->value[who], getpid());
  struct flow f = {fd, who, who ? right_pieces : left_pieces, (unsigned)(getpid() * 7 + who)};
  if (mode == BLOCKING)
    blocking_end(&f);
  else
    event_end(&f);
  /* Both stay until the requests were answered. */
  UNTIL(flag(2));
  if (mode != BLOCKING) set_nonblocking(fd, false);
  SYS(close(fd));
}
static void left_end(int fd) { end(fd, 0); }
static void right_end(int fd) { end(fd, 1); }

/* (A blocking send that is stopped may return early, natively too: these ends do not block.)
 * Stops both ends again and again, wherever they are, until the requests were answered. */
static bool stops;
static pid_t start_stopper(void) {
  if (!stops) return -1;
  pid_t stopper = start_child();
  if (stopper != 0) return stopper;
  unsigned seed = (unsigned)now_ms();
  while (!flag(4)) {
    pid_t pid = (pid_t)atomic_load(&bt_shared->value[next(&seed) % 2]);
    SYS(kill(pid, SIGSTOP));
    sleep_ms(next(&seed) % 8);
    SYS(kill(pid, SIGCONT));
    sleep_ms(next(&seed) % 3);
  }
  _exit(0);
}

/* Bit 0: the left end is asked, bit 1: the right one. */
static void stream_and_detach(int who) {
  pid_t asker = start_asker();
  pid_t streaming = start_child();
  if (streaming == 0) {
    SYS(close(ask[1]));
    run_processes(who & 1 ? V4 : V6, left_end, right_end);
    _exit(0);
  }
  UNTIL(atomic_load(&bt_shared->value[0]) && atomic_load(&bt_shared->value[1]));
  unsigned seed = (unsigned)now_ms();
  sleep_ms(next(&seed) % 20);
  pid_t stopper = start_stopper();
  for (int side = 0; side < 2; side++)
    if (who >> side & 1) {
      detach((pid_t)atomic_load(&bt_shared->value[side]));
      if (next(&seed) % 2) sleep_ms(next(&seed) % 4);
    }
  set_flag(4, true);
  if (stops) end_child(stopper);
  set_flag(2, true);
  end_child(streaming);
  end_asker(asker);
}

/* Here and below: mixed, because to go back to TCP is what every case is about. */
#define STREAMS(name, mode_, who, left_, right_, length_)                     \
  MIXED_CASE(name) {                                                          \
    mode = mode_, left_pieces = left_, right_pieces = right_, length = length_; \
    stream_and_detach(who);                                                   \
  }
STREAMS(large_blocking_connector, BLOCKING, 1, 300000, 300000, 6 << 20)
STREAMS(large_blocking_acceptor, BLOCKING, 2, 300000, 300000, 6 << 20)
STREAMS(large_blocking_both, BLOCKING, 3, 300000, 300000, 6 << 20)
STREAMS(small_blocking_connector, BLOCKING, 1, 300, 300, 1 << 20)
STREAMS(small_blocking_both, BLOCKING, 3, 900, 900, 1 << 20)
STREAMS(mixed_blocking_both, BLOCKING, 3, 700, 200000, 2 << 20)
STREAMS(large_polled_connector, POLLED, 1, 100000, 100000, 6 << 20)
STREAMS(small_polled_both, POLLED, 3, 900, 900, 1 << 20)
STREAMS(large_level_acceptor, LEVEL, 2, 100000, 100000, 6 << 20)
STREAMS(small_level_both, LEVEL, 3, 900, 900, 1 << 20)
STREAMS(large_edge_connector, EDGE, 1, 100000, 100000, 6 << 20)
STREAMS(mixed_edge_both, EDGE, 3, 900, 100000, 2 << 20)

#define STOPPED(name, mode_, who, left_, right_)                              \
  MIXED_CASE(name) {                                                          \
    stops = true, mode = mode_, left_pieces = left_, right_pieces = right_;   \
    length = 1 << 20;                                                         \
    stream_and_detach(who);                                                   \
  }
STOPPED(stopped_level_both, LEVEL, 3, 700, 200000)
STOPPED(stopped_polled_connector, POLLED, 1, 100000, 900)
STOPPED(stopped_edge_acceptor, EDGE, 2, 900, 100000)

/* ---- request and answer -------------------------------------------------------------------- */

static void answering(int fd) {
  char byte;
  while (SYS(recv(fd, &byte, 1, 0)) == 1) EQ(SYS(send(fd, &byte, 1, MSG_NOSIGNAL)), 1);
  SYS(close(fd));
}
static void asking(int fd) {
  atomic_store(&bt_shared->value[0], getpid());
  for (unsigned i = 0; !flag(0) || i % 100; i++) {
    char byte = (char)(i * 31), back;
    EQ(SYS(send(fd, &byte, 1, MSG_NOSIGNAL)), 1);
    EQ(SYS(recv(fd, &back, 1, 0)), 1);
    EQ(back, byte);
  }
  expect_nothing(fd);
  SYS(close(fd));
}
MIXED_CASE(ping_pong) {
  pid_t asker = start_asker();
  for (int round = 0; round < 8; round++) {
    atomic_store(&bt_shared->value[0], 0);
    set_flag(0, false);
    pid_t both = start_child();
    if (both == 0) {
      SYS(close(ask[1]));
      run_processes(V4, round % 2 ? asking : answering, round % 2 ? answering : asking);
      _exit(0);
    }
    UNTIL(atomic_load(&bt_shared->value[0]));
    sleep_ms(round * 3);
    detach((pid_t)atomic_load(&bt_shared->value[0]));
    set_flag(0, true);
    end_child(both);
  }
  end_asker(asker);
}

/* ---- what the kernel counts ------------------------------------------------------------------ */

enum { SMALL = 100, TIMES = 100 };

/* The bytes that the kernel has sent and received on the connection, which the library does not get to tell. */
static uint64_t counted_by_kernel(int fd) {
  enum { RECEIVED = 16, SENT = 25, WORDS };
  uint64_t info[WORDS] = {0};
  socklen_t length = sizeof info;
  EQ(past_libc(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)info, (long)&length), 0);
  return info[RECEIVED] + info[SENT];
}
/* The answer repeats what the request says of the time after. */
static bool exchange_small(int fd, bool is_first, int pause_us, bool goes_on) {
  char message[SMALL] = {goes_on};
  if (is_first) usleep((useconds_t)pause_us);
  if (is_first) EQ(SYS(send(fd, message, SMALL, MSG_NOSIGNAL)), SMALL);
  EQ(SYS(recv(fd, message, SMALL, MSG_WAITALL)), SMALL);
  if (!is_first) EQ(SYS(send(fd, message, SMALL, MSG_NOSIGNAL)), SMALL);
  return message[0];
}
/* On the SAN, awake and asleep, and back on TCP. */
static void count_bytes(int fd, bool is_first) {
  enum { ON_TCP = 2 * SMALL * TIMES };
  const uint64_t on_san = getenv("LD_PRELOAD") ? 0 : ON_TCP;
  for (int i = 0; i < TIMES; i++) exchange_small(fd, is_first, 0, true);
  uint64_t at_first = counted_by_kernel(fd);
  for (int i = 0; i < TIMES; i++) exchange_small(fd, is_first, 1000, true);
  EQ(counted_by_kernel(fd) - at_first, on_san);
  if (is_first) set_flag(5, true);
  uint64_t meanwhile = 2 * SMALL;
  while (exchange_small(fd, is_first, 100, !flag(6))) meanwhile += 2 * SMALL;
  uint64_t back = counted_by_kernel(fd);
  CHECK(back - at_first <= on_san + meanwhile);
  for (int i = 0; i < TIMES; i++) exchange_small(fd, is_first, 0, true);
  EQ(counted_by_kernel(fd) - back, ON_TCP);
  /* The kernel counts a FIN, too. */
  atomic_fetch_add(&bt_shared->value[1], 1);
  UNTIL(atomic_load(&bt_shared->value[1]) == 2);
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
  SYS(close(fd));
}
static void count_as_first(int fd) {
  atomic_store(&bt_shared->value[0], getpid());
  count_bytes(fd, true);
}
static void count_as_second(int fd) { count_bytes(fd, false); }

MIXED_CASE(no_byte_of_ours_is_on_the_connection) {
  pid_t asker = start_asker();
  pid_t both = start_child();
  if (both == 0) {
    SYS(close(ask[1]));
    run_processes(V4, count_as_first, count_as_second);
    _exit(0);
  }
  UNTIL(flag(5));
  detach((pid_t)atomic_load(&bt_shared->value[0]));
  set_flag(6, true);
  end_child(both);
  end_asker(asker);
}

/* ---- a peer that does nothing -------------------------------------------------------------- */

/* ---- a sender that waits for room ------------------------------------------------------------- */

enum { UPLOAD = 8 << 20, SENDER = 0 };

static void *uploads(void *fd) {
  bt_shared->value[SENDER] = gettid();
  /* In pieces of which none is worth a copy by the kernel, which would keep the connection where it is. */
  for (uint64_t at = 0; at < UPLOAD; at += 1024) send_pattern(*(int *)fd, at, 1024);
  SYS(shutdown(*(int *)fd, SHUT_WR));
  return NULL;
}
/* Another thread takes the connection back meanwhile, and the peer reads, and sends nothing. */
MIXED_CASE(waiting_for_room) {
  pid_t asker = start_asker();
  struct pair p = open_pair(V4);
  pid_t reader = start_child();
  if (reader == 0) {
    SYS(close(p.client));
    while (!flag(0)) sleep_ms(1);
    recv_pattern(p.server, 0, UPLOAD);
    expect_eof(p.server);
    _exit(0);
  }
  SYS(close(p.server));
  pthread_t sender = start_thread(uploads, &p.client);
  UNTIL(bt_shared->value[SENDER] != 0);
  wait_asleep((pid_t)bt_shared->value[SENDER]);
  ask_for(getpid(), false);
  answered();
  for (int i = 0; i < 50; i++, sleep_ms(1)) expect_nothing(p.client);
  set_flag(0, true);
  end_thread(sender);
  end_child(reader);
  end_asker(asker);
  SYS(close(p.client));
}

/* It need not call anything: what it sent before is there, and what it is sent waits for it. */
static void passive(int fd) {
  send_pattern(fd, 0, 50000);
  set_flag(0, true);
  UNTIL(flag(1)); /* without a call on the socket */
  recv_pattern(fd, 0, 100000);
  send_pattern(fd, 50000, 50000);
  expect_eof(fd);
  SYS(close(fd));
}
static void active(int fd) {
  UNTIL(flag(0));
  send_pattern(fd, 0, 50000);
  recv_pattern(fd, 0, 20000);
  atomic_store(&bt_shared->value[0], getpid());
  /* Used while the request comes in. */
  for (uint64_t at = 20000; at < 50000 || !flag(2);) {
    if (at < 50000) recv_pattern(fd, at, 100), at += 100;
    else expect_nothing(fd);
    sleep_ms(1);
  }
  send_pattern(fd, 50000, 50000);
  set_flag(1, true);
  recv_pattern(fd, 50000, 50000);
  SYS(close(fd));
}
MIXED_CASE(passive_peer) {
  pid_t asker = start_asker();
  pid_t both = start_child();
  if (both == 0) {
    SYS(close(ask[1]));
    run_processes(V4, active, passive);
    _exit(0);
  }
  UNTIL(atomic_load(&bt_shared->value[0]));
  detach((pid_t)atomic_load(&bt_shared->value[0]));
  set_flag(2, true);
  end_child(both);
  end_asker(asker);
}

/* ---- an end that two processes share ------------------------------------------------------- */

/* One process reads and its child writes; either is asked, both follow. */
static bool child_is_asked;
static void shared_end(int fd) {
  struct flow f = {fd, 0, left_pieces, (unsigned)getpid()};
  pid_t writer = start_child();
  if (writer == 0) {
    if (child_is_asked) atomic_store(&bt_shared->value[0], getpid());
    write_all(&f);
    _exit(0);
  }
  if (!child_is_asked) atomic_store(&bt_shared->value[0], getpid());
  static uint8_t bytes[100000];
  uint64_t at = 0;
  ssize_t n;
  while ((n = SYS(recv(fd, bytes, sizeof bytes, 0))) > 0) {
    check_pattern(bytes, at, (size_t)n);
    at += (uint64_t)n;
  }
  EQ(at, atomic_load(&bt_shared->value[3]));
  end_child(writer);
  SYS(close(fd));
}
static void shared(bool child, int who) {
  mode = BLOCKING, left_pieces = 50000, right_pieces = 3000, length = 2 << 20;
  child_is_asked = child;
  pid_t asker = start_asker();
  pid_t streaming = start_child();
  if (streaming == 0) {
    SYS(close(ask[1]));
    run_processes(V4, shared_end, right_end);
    _exit(0);
  }
  UNTIL(atomic_load(&bt_shared->value[0]) && atomic_load(&bt_shared->value[1]));
  for (int side = 0; side < 2; side++)
    if (who >> side & 1) detach((pid_t)atomic_load(&bt_shared->value[side]));
  set_flag(2, true);
  end_child(streaming);
  end_asker(asker);
}
MIXED_CASE(shared_reader_is_asked) { shared(false, 1); }
MIXED_CASE(shared_writer_is_asked) { shared(true, 1); }
MIXED_CASE(shared_end_follows) { shared(false, 2); }
