/* Much data from and into memory that the kernel cannot access all of, and while another send waits: what RDMA has to
 * leave to messages (S6), and what goes on meanwhile (S7). */
#include "bt.h"

#include <sys/mman.h>
#include <sys/syscall.h>

enum { PAGE = 4096, MANY = 512 << 10, HOLE = 192 << 10, ROUNDS = 8 };

/* MANY bytes, but one page in the middle has that protection. */
static uint8_t *memory_with_a_hole(int protection) {
  uint8_t *at = mmap(NULL, MANY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(at != MAP_FAILED);
  SYS(mprotect(at + HOLE, PAGE, protection));
  return at;
}

/* ---- a send --------------------------------------------------------------------------------- */

/* What was sent of each round is what the call says, and the stream goes on behind it. */
static void sends_from_a_hole(int fd) {
  uint8_t *from = memory_with_a_hole(PROT_NONE);
  uint64_t at = 0;
  for (int round = 0; round < ROUNDS; round++) {
    memcpy(from, pattern(at), HOLE);
    ssize_t n;
    uint64_t done = 0;
    while ((n = send(fd, from + done, MANY - done, MSG_NOSIGNAL)) > 0) CHECK((done += n) <= HOLE);
    EQ(n, -1);
    EQ(errno, EFAULT);
    send_pattern(fd, at + done, MANY - done);
    at += MANY;
  }
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
}
static void receives_rounds(int fd) {
  recv_pattern(fd, 0, (uint64_t)ROUNDS * MANY);
  expect_eof(fd);
  SYS(close(fd));
}
ENDS(s6_a_send_of_memory_that_is_not_all_there_sends_what_it_says, sends_from_a_hole, receives_rounds)

/* ---- a receive ------------------------------------------------------------------------------ */

/* What cannot be stored stays to be received. */
static void receives_around(int fd, int protection) {
  uint8_t *to = memory_with_a_hole(protection);
  for (uint64_t at = 0; at < (uint64_t)ROUNDS * MANY; at += MANY) {
    ssize_t n;
    uint64_t done = 0;
    while ((n = recv(fd, to + done, MANY - done, 0)) > 0) CHECK((done += n) <= HOLE);
    EQ(n, -1);
    EQ(errno, EFAULT);
    check_pattern(to, at, done);
    recv_pattern(fd, at + done, MANY - done);
  }
  expect_eof(fd);
  munmap(to, MANY);
}
static void receives_around_read_only(int fd) { receives_around(fd, PROT_READ), SYS(close(fd)); }
static void receives_around_no_access(int fd) { receives_around(fd, PROT_NONE), SYS(close(fd)); }
static void sends_rounds(int fd) {
  send_pattern(fd, 0, (uint64_t)ROUNDS * MANY);
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
}
ENDS(s6_a_receive_into_memory_that_is_read_only_loses_nothing, sends_rounds, receives_around_read_only)
ENDS(s6_a_receive_into_memory_that_is_not_all_there_loses_nothing, sends_rounds, receives_around_no_access)

/* ---- another send --------------------------------------------------------------------------- */

enum { MORE = 32 << 20 };
static _Atomic pid_t waiting;
static void *sends_more(void *arg) {
  waiting = syscall(SYS_gettid);
  send_pattern(*(int *)arg, 0, MORE);
  return NULL;
}

/* More than the buffers hold is sent to nobody: its sender waits, and nothing else does. */
SAN_CASE(s7_a_send_that_waits_holds_up_no_other_connection) {
  struct pair first = open_pair(V4), second = open_pair(V4);
  pthread_t thread = start_thread(sends_more, &first.client);
  UNTIL(waiting != 0);
  wait_asleep(waiting);
  for (int round = 0; round < 20; round++) exercise(second.client, second.server);
  pthread_t other = start_thread(sends_more, &second.client);
  recv_pattern(second.server, 0, MORE);
  end_thread(other);
  /* Nor the other direction of its own. */
  send_pattern(first.server, 5, 100000);
  recv_pattern(first.client, 5, 100000);
  recv_pattern(first.server, 0, MORE);
  end_thread(thread);
}
