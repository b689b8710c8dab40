/* Much data from and into memory that the kernel cannot access all of, and while another send waits: what RDMA has to
 * leave to messages (S6), and what goes on meanwhile (S7). */
#include "bt.h"

#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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

/* ---- who lends memory that never comes ------------------------------------------------------ */

enum { LENT = 4 << 20, THERE = 2 * PAGE, UNABLE = 77 };
static uint8_t *lent;

/* Whoever touches the rest of what is lent waits for as long as this process likes. */
static bool never_comes(void) {
  int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
  int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
  if (faults < 0) faults = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC);
  struct uffdio_api api = {.api = UFFD_API};
  struct uffdio_register rest = {.range = {(uintptr_t)lent + THERE, LENT - THERE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
  if (faults < 0 || ioctl(faults, UFFDIO_API, &api) < 0) return false;
  SYS(madvise(lent + THERE, LENT - THERE, MADV_DONTNEED));
  SYS(ioctl(faults, UFFDIO_REGISTER, &rest));
  return true;
}
/* Its library lends what it sends. Argument: the port. */
PART(lender) {
  union address target = address_v4("127.0.0.1", atoi(bt_arguments[0]));
  lent = mmap(NULL, LENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  CHECK(lent != MAP_FAILED);
  int fd = dial_warm(&target);
  /* The library asks the kernel about this memory, and not again for a while. */
  EQ(send(fd, lent, LENT, MSG_NOSIGNAL), LENT);
  get(fd, "now");
  if (!never_comes()) _exit(UNABLE);
  for (;;) send(fd, lent, LENT, MSG_NOSIGNAL);
}
/* No call that may not wait does. */
MIXED_CASE(memory_that_never_comes) {
  enum { CALLS = 2000 };
  static uint8_t bytes[1 << 16];
  const char *own = getenv("SANSHIM_CONFIG");
  char port[16], before[PATH_MAX] = "";
  if (own) snprintf(before, sizeof before, "%s", own);
  FILE *file = fopen("lender.toml", "w");
  CHECK(file);
  fputs("[shm]\nrdma_threshold = 4096\n", file);
  fclose(file);
  union address target;
  int listener = listen_on(V4, &target);
  snprintf(port, sizeof port, "%d", address_port(&target));
  /* Whoever may access everybody's memory neither lends nor borrows. */
  prctl(PR_CAPBSET_DROP, 19 /* CAP_SYS_PTRACE */, 0, 0, 0);
  setenv("SANSHIM_CONFIG", "lender.toml", 1);
  pid_t pid = start_program("@lender", true, port, NULL);
  if (own) setenv("SANSHIM_CONFIG", before, 1);
  else unsetenv("SANSHIM_CONFIG");
  int fd = accept_warm(listener);
  for (long got = 0; got < LENT;) got += SYS(recv(fd, bytes, sizeof bytes, 0));
  put(fd, "now");
  for (int i = 0; i < CALLS; i++) {
    ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) sched_yield();
    else if (n <= 0) break;
  }
  SYS(kill(pid, SIGKILL));
  int status;
  SYS(waitpid(pid, &status, 0));
  SYS(close(fd));
  if (WIFEXITED(status) && WEXITSTATUS(status) == UNABLE) bt_skip("this machine has no user faults");
}
