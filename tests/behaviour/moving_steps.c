/* An end that is killed at every system call of its connection's move from TCP to the SAN, and between them, while both ends send
 * and receive. The other end reads all that was sent, and then the end, as over TCP; nobody hangs. The process is traced
 * (ptrace), so no step is left out. */
#include "traced.h"

/* So many exchanges: in the last ones the connection is on the SAN for certain. */
enum { EXCHANGES = 20, LARGEST = 700 };

/* What every process of a round sees: bytes whose send returned, and that were about to be sent. */
enum { SENT, TRIED, GOT, ERROR, ROUND_VALUES };
#define VALUE(name) (bt_shared->value[name])

static bool victim_connects;
static bool between; /* at any instruction after a system call instead of at it */

static int piece(int i) { return 1 + i * 61 % LARGEST; }

/* Sends the next two pieces; false if nobody is there any more. */
static bool send_pieces(int fd, int i, uint64_t *at, bool counts) {
  for (int half = 0; half < 2; half++) {
    int length = piece(2 * i + half);
    if (counts) VALUE(TRIED) = (long)*at + length;
    for (int sent = 0; sent < length;) {
      ssize_t n = send(fd, pattern(*at + (uint64_t)sent), (size_t)(length - sent), MSG_NOSIGNAL);
      if (n < 0) {
        CHECK(errno == EPIPE || errno == ECONNRESET);
        return false;
      }
      sent += (int)n;
    }
    *at += (uint64_t)length;
    if (counts) VALUE(SENT) = (long)*at;
  }
  return true;
}
/* Receives up to this byte of the stream; false if it ends before. */
static bool receive_until(int fd, uint64_t *got, uint64_t until, int *error) {
  static uint8_t bytes[2 * LARGEST];
  while (*got < until) {
    ssize_t n = recv(fd, bytes, until - *got < sizeof bytes ? until - *got : sizeof bytes, 0);
    if (n <= 0) {
      *error = n < 0 ? errno : 0;
      return false;
    }
    check_pattern(bytes, *got, (size_t)n);
    *got += (uint64_t)n;
  }
  return true;
}
static uint64_t sent_after(int i) {
  uint64_t all = 0;
  for (int one = 0; one < 2 * (i + 1); one++) all += (uint64_t)piece(one);
  return all;
}

static void victim(int fd) {
  uint64_t at = 0, got = 0;
  int error;
  SYS(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
  raise(SIGSTOP);
  for (int i = 0; i < EXCHANGES; i++) {
    CHECK(send_pieces(fd, i, &at, true));
    CHECK(receive_until(fd, &got, sent_after(i), &error));
  }
  raise(SIGSTOP);
}
static void peer(int fd) {
  uint64_t at = 0, got = 0;
  int error = 0, i = 0;
  while (i < EXCHANGES && send_pieces(fd, i, &at, false) && receive_until(fd, &got, sent_after(i), &error)) i++;
  /* What is still to come, and then the end. */
  receive_until(fd, &got, UINT64_MAX, &error);
  VALUE(ERROR) = error;
  VALUE(GOT) = (long)got;
}

static pid_t start_end(int listener, union address *target, bool connects, end_fn *end) {
  pid_t pid = start_child();
  if (pid != 0) return pid;
  int fd = connects ? dial(target) : (int)SYS(accept(listener, NULL, NULL));
  SYS(close(listener));
  /* What the kernel holds back is lost with a reset, which a killed process with unread bytes leaves. */
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  end(fd);
  _exit(0);
}
/* A round (round_fn) after which the traced process is killed. */
static bool one_round(long at, long instructions) {
  for (int i = 0; i < ROUND_VALUES; i++) VALUE(i) = 0;
  union address target;
  int listener = listen_on(at % 3 ? V4 : V6, &target);
  pid_t pid = start_end(listener, &target, victim_connects, victim);
  pid_t other = start_end(listener, &target, !victim_connects, peer);
  SYS(close(listener));
  CHECK(wait_stopped(pid));
  enum reached reached = run_to(pid, at, instructions);
  kill_traced(pid);
  end_child(other);
  long got = VALUE(GOT), error = VALUE(ERROR);
  if (got < VALUE(SENT) || got > VALUE(TRIED) || (error != 0 && error != ECONNRESET))
    FAIL("step %ld+%ld: the peer got %ld of %ld to %ld, error %ld", at, instructions, got, VALUE(SENT), VALUE(TRIED), error);
  return reached != DONE_BEFORE;
}
static void all_steps(void) {
  if (between) {
    some_steps(one_round, 40);
    /* One that nobody kills: where the folder in /dev/shm has many names, all others may end before the move. */
    CHECK(!one_round(LONG_MAX, 0));
  } else
    for (long at = 0; one_round(at, 0); at++) {}
}

/* Mixed: the first rounds end before the move. */
#define STEPS(name, connects, between_)                                       \
  MIXED_CASE(name) {                                                          \
    victim_connects = connects, between = between_;                           \
    all_steps();                                                              \
  }
STEPS(the_connector_killed, true, false)
STEPS(the_connector_killed_between, true, true)
STEPS(the_acceptor_killed, false, false)
STEPS(the_acceptor_killed_between, false, true)
