/* What the kernel makes of arguments, where a call comes by number or is refused: bad addresses, masks of another size, how
 * much time is left, numbers that no descriptor can have. libc's functions differ in some of it. */
#include "bt.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define RAW(name, ...) syscall(SYS_##name, __VA_ARGS__)
enum { MASK = 8 /* The kernel's size of a signal mask. */ };

/* What pselect6 takes a mask by. */
struct sized_mask {
  const void *at;
  size_t size;
};

/* A connection, an epoll set that has one end, and that end in a set of select's. */
struct watched {
  struct pair p;
  int set;
  struct pollfd one;
  fd_set in;
};
static struct watched watch(void) {
  struct watched w = {.p = open_pair(V4), .set = SYS(epoll_create1(EPOLL_CLOEXEC))};
  struct epoll_event event = {.events = EPOLLIN};
  SYS(epoll_ctl(w.set, EPOLL_CTL_ADD, w.p.server, &event));
  w.one = (struct pollfd){w.p.server, POLLIN, 0};
  FD_ZERO(&w.in);
  FD_SET(w.p.server, &w.in);
  return w;
}

/* ---- addresses and sizes --------------------------------------------------------------------- */

static void refused_by_number(struct watched *w, const struct timespec *still) {
  void *bad = bad_pointer();
  struct timespec time = *still;
  struct epoll_event got;
  uint64_t mask = 0;
  const int fd = w->p.server;
  struct sized_mask bad_mask = {bad, MASK}, large_mask = {&mask, 128}, none = {NULL, 128}, whole = {&mask, MASK};
  struct timespec negative = {-1, 0}, large = {0, 1000000000};
  struct timeval negative_us = {0, -1}, back_to_zero = {1, -1000000};
  ERR(RAW(select, fd + 1, &w->in, NULL, NULL, bad), EFAULT);
  ERR(RAW(select, fd + 1, &w->in, NULL, NULL, &negative_us), EINVAL);
  ERR(RAW(pselect6, fd + 1, &w->in, NULL, NULL, bad, NULL), EFAULT);
  ERR(RAW(pselect6, fd + 1, &w->in, NULL, NULL, &time, bad), EFAULT);
  ERR(RAW(pselect6, fd + 1, &w->in, NULL, NULL, &time, &bad_mask), EFAULT);
  ERR(RAW(pselect6, fd + 1, &w->in, NULL, NULL, &time, &large_mask), EINVAL);
  ERR(RAW(pselect6, fd + 1, &w->in, NULL, NULL, &negative, NULL), EINVAL);
  ERR(RAW(pselect6, fd + 1, &w->in, NULL, NULL, &large, NULL), EINVAL);
  ERR(RAW(ppoll, &w->one, 1, bad, NULL, MASK), EFAULT);
  ERR(RAW(ppoll, &w->one, 1, &time, bad, MASK), EFAULT);
  ERR(RAW(ppoll, &w->one, 1, &time, &mask, 128), EINVAL);
  ERR(RAW(ppoll, &w->one, 1, &time, &mask, 0), EINVAL);
  ERR(RAW(ppoll, &w->one, 1, &negative, NULL, MASK), EINVAL);
  ERR(RAW(ppoll, &w->one, 1, &large, NULL, MASK), EINVAL);
  ERR(RAW(ppoll, bad, 1, &time, NULL, MASK), EFAULT);
  ERR(RAW(poll, bad, 1, 1), EFAULT);
  ERR(RAW(epoll_pwait, w->set, &got, 1, 1, bad, MASK), EFAULT);
  ERR(RAW(epoll_pwait, w->set, &got, 1, 1, &mask, 128), EINVAL);
  ERR(RAW(epoll_pwait, w->set, &got, 0, 1, NULL, MASK), EINVAL);
  ERR(RAW(epoll_pwait2, w->set, &got, 1, bad, NULL, MASK), EFAULT);
  ERR(RAW(epoll_pwait2, w->set, &got, 1, &time, bad, MASK), EFAULT);
  ERR(RAW(epoll_pwait2, w->set, &got, 1, &time, &mask, 128), EINVAL);
  ERR(RAW(epoll_pwait2, w->set, &got, 1, &large, NULL, MASK), EINVAL);
  ERR(RAW(epoll_ctl, w->set, EPOLL_CTL_MOD, fd, bad), EFAULT);
  /* Nothing was taken from the sets, and these work. */
  CHECK(FD_ISSET(fd, &w->in));
  int ready = ready_now(fd, POLLIN) == POLLIN;
  EQ(RAW(ppoll, &w->one, 1, &time, NULL, 128), ready);
  EQ(RAW(ppoll, &w->one, 1, &time, &mask, MASK), ready);
  EQ(RAW(epoll_pwait, w->set, &got, 1, 0, NULL, 128), ready);
  EQ(RAW(epoll_pwait, w->set, &got, 1, 0, &mask, MASK), ready);
  fd_set in = w->in;
  EQ(RAW(pselect6, fd + 1, &in, NULL, NULL, &time, &none), ready);
  in = w->in;
  EQ(RAW(pselect6, fd + 1, &in, NULL, NULL, &time, &whole), ready);
  in = w->in;
  EQ(RAW(select, fd + 1, &in, NULL, NULL, &back_to_zero), ready);
  EQ(back_to_zero.tv_sec, 1);
}
SAN_CASE(waits_by_number_that_are_refused) {
  struct watched w = watch();
  const struct timespec none = {0, 0}, little = {0, 1000000}, much = {HANG_MS / 1000, 0};
  refused_by_number(&w, &none);
  refused_by_number(&w, &little);
  put(w.p.client, "x");
  wait_for(w.p.server, POLLIN);
  refused_by_number(&w, &none);
  refused_by_number(&w, &much);
}

/* libc hands the mask on to the kernel, whatever is ready. */
static void refused_masks(struct watched *w) {
  sigset_t *bad = bad_pointer();
  const struct timespec little = {0, 1000000};
  struct epoll_event got;
  ERR(ppoll(&w->one, 1, &little, bad), EFAULT);
  ERR(pselect(w->p.server + 1, &w->in, NULL, NULL, &little, bad), EFAULT);
  ERR(epoll_pwait(w->set, &got, 1, 1, bad), EFAULT);
  ERR(epoll_pwait2(w->set, &got, 1, &little, bad), EFAULT);
}
SAN_CASE(masks_that_are_not_there) {
  struct watched w = watch();
  refused_masks(&w);
  put(w.p.client, "x");
  wait_for(w.p.server, POLLIN);
  refused_masks(&w);
}

/* ---- the time that is left --------------------------------------------------------------------- */

enum { LONG_S = 1000 };
#define IS_LESS(time) ((time).tv_sec < LONG_S && (time).tv_sec > LONG_S / 2)
SAN_CASE(the_time_left_is_told_by_the_kernel_alone) {
  struct watched w = watch();
  const int fd = w.p.server;
  struct timespec little = {0, 2000000};
  struct timeval little_us = {0, 2000};
  fd_set in = w.in;
  EQ(RAW(ppoll, &w.one, 1, &little, NULL, MASK), 0);
  EQ(little.tv_nsec, 0);
  little.tv_nsec = 2000000;
  EQ(RAW(pselect6, fd + 1, &in, NULL, NULL, &little, NULL), 0);
  EQ(little.tv_nsec, 0);
  in = w.in;
  EQ(RAW(select, fd + 1, &in, NULL, NULL, &little_us), 0);
  EQ(little_us.tv_usec, 0);
  put(w.p.client, "x");
  wait_for(fd, POLLIN);
  struct timespec time = {LONG_S, 0};
  struct timeval time_us = {LONG_S - 2, 2000000};
  EQ(RAW(ppoll, &w.one, 1, &time, NULL, MASK), 1);
  CHECK(IS_LESS(time));
  in = w.in, time = (struct timespec){LONG_S, 0};
  EQ(RAW(pselect6, fd + 1, &in, NULL, NULL, &time, NULL), 1);
  CHECK(IS_LESS(time));
  in = w.in;
  EQ(RAW(select, fd + 1, &in, NULL, NULL, &time_us), 1);
  CHECK(IS_LESS(time_us));
  /* Not by libc's functions but select, nor by epoll_pwait2. */
  struct epoll_event got;
  time = (struct timespec){LONG_S, 0}, time_us = (struct timeval){LONG_S, 0};
  EQ(ppoll(&w.one, 1, &time, NULL), 1);
  in = w.in;
  EQ(pselect(fd + 1, &in, NULL, NULL, &time, NULL), 1);
  EQ(RAW(epoll_pwait2, w.set, &got, 1, &time, NULL, MASK), 1);
  EQ(time.tv_sec, LONG_S);
  in = w.in;
  EQ(select(fd + 1, &in, NULL, NULL, &time_us), 1);
  CHECK(IS_LESS(time_us));
}

SAN_CASE(a_time_that_cannot_be_written_is_no_error) {
  struct watched w = watch();
  put(w.p.client, "x");
  wait_for(w.p.server, POLLIN);
  long *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  page[0] = LONG_S;
  SYS(mprotect(page, 4096, PROT_READ));
  fd_set in = w.in;
  EQ(RAW(ppoll, &w.one, 1, page, NULL, MASK), 1);
  EQ(RAW(pselect6, w.p.server + 1, &in, NULL, NULL, page, NULL), 1);
  EQ(RAW(select, w.p.server + 1, &in, NULL, NULL, page), 1);
  EQ(page[0], LONG_S);
}

static void interrupted(int number) { (void)number; }
static void *interrupt(void *arg) {
  wait_asleep(*(pid_t *)arg);
  SYS(tgkill(getpid(), *(pid_t *)arg, SIGUSR1));
  return NULL;
}
SAN_CASE(the_time_left_after_a_signal) {
  struct watched w = watch();
  handle_signal(SIGUSR1, interrupted, 0);
  pid_t self = gettid();
  for (int i = 0; i < 2; i++) {
    struct timespec time = {LONG_S, 0};
    uint64_t mask = 0;
    struct sized_mask whole = {&mask, MASK};
    fd_set in = w.in;
    pthread_t thread = start_thread(interrupt, &self);
    if (i == 0) ERR(RAW(ppoll, &w.one, 1, &time, &mask, MASK), EINTR);
    if (i == 1) ERR(RAW(pselect6, w.p.server + 1, &in, NULL, NULL, &time, &whole), EINTR);
    end_thread(thread);
    CHECK(IS_LESS(time));
  }
}

/* ---- what is refused changes nothing ------------------------------------------------------------- */

SAN_CASE(a_copy_that_is_refused_leaves_its_target) {
  struct pair p = open_pair(V4);
  int file = SYS(open("/dev/null", O_RDWR | O_CLOEXEC));
  EQ(dup2(p.server, 500), 500);
  SYS(close(p.server));
  ERR(dup3(file, 500, O_NONBLOCK), EINVAL);
  ERR(RAW(dup3, file, 500, O_NONBLOCK), EINVAL);
  ERR(dup3(500, 500, 0), EINVAL);
  ERR(dup2(file + 100, 500), EBADF);
  exercise(p.client, 500);
  struct rlimit limit, low;
  SYS(getrlimit(RLIMIT_NOFILE, &limit));
  low = limit, low.rlim_cur = 400;
  SYS(setrlimit(RLIMIT_NOFILE, &low));
  ERR(dup2(file, 500), EBADF);
  ERR(RAW(dup2, file, 500), EBADF);
  exercise(p.client, 500);
  SYS(setrlimit(RLIMIT_NOFILE, &limit));
  exercise(p.client, 500);
  EQ(dup2(file, 500), 500);
  expect_eof(p.client);
}

static void forbid_close_range(void) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_close_range, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof code[0], code};
  EQ(past_libc(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  EQ(past_libc(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program, 0, 0), 0);
}
SAN_CASE(a_range_that_is_not_closed_stays) {
  struct pair p = open_pair(V4);
  ERR(close_range(p.server, p.server, 8), EINVAL);
  ERR(close_range(p.server, p.server - 1, 0), EINVAL);
  exercise(p.client, p.server);
  /* As on Linux before 5.9. */
  forbid_close_range();
  ERR(close_range(p.server, p.server, 0), ENOSYS);
  ERR(RAW(close_range, p.server, p.server, 0), ENOSYS);
  exercise(p.client, p.server);
  EQ(dup2(p.server, 90), 90);
  SYS(close(p.server));
  closefrom(80);
  ERR(fcntl(90, F_GETFD), EBADF);
  expect_eof(p.client);
}

/* ---- answers that libc changes ----------------------------------------------------------------------- */

SAN_CASE(an_owner_by_number) {
  struct pair p = open_pair(V4);
  SYS(fcntl(p.server, F_SETOWN, -getpgrp()));
  EQ(fcntl(p.server, F_GETOWN), -getpgrp());
  long kernels = past_libc(SYS_fcntl, p.server, F_GETOWN, 0, 0, 0);
  EQ(kernels, -getpgrp());
  /* To syscall() it looks like an error. */
  if (kernels > -4096) kernels = -1;
  EQ(RAW(fcntl, p.server, F_GETOWN), kernels);
}
SAN_CASE(requests_with_more_bits) {
  struct pair p = open_pair(V4);
  put(p.client, "abc");
  wait_for(p.server, POLLIN);
  int value = 0;
  SYS(ioctl(p.server, 0x100000000 | FIONREAD, &value));
  EQ(value, 3);
  value = 1;
  SYS(RAW(ioctl, p.server, 0x100000000 | FIONBIO, &value));
  get(p.server, "abc");
  char byte;
  ERR(read(p.server, &byte, 1), EAGAIN);
}

/* ---- transfers ------------------------------------------------------------------------------------------ */

SAN_CASE(addresses_that_are_not_there) {
  struct pair p = open_pair(V4);
  void *bad = bad_pointer();
  char byte, place[200] = {0};
  struct iovec one = {&byte, 1};
  socklen_t length = -1;
  ERR(sendto(p.client, "x", 1, 0, bad, 16), EFAULT);
  ERR(sendto(p.client, "x", 1, 0, (void *)place, -1), EINVAL);
  ERR(sendto(p.client, "x", 1, 0, (void *)place, sizeof place), EINVAL);
  EQ(sendto(p.client, "x", 1, 0, (void *)place, 16), 1);
  EQ(sendto(p.client, "x", 1, 0, bad, 0), 1);
  EQ(sendto(p.client, "x", 1, 0, NULL, -1), 1);
  struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_name = bad, .msg_namelen = 16};
  ERR(sendmsg(p.client, &message, 0), EFAULT);
  message.msg_name = place, message.msg_namelen = -1;
  ERR(sendmsg(p.client, &message, 0), EINVAL);
  /* The bytes are taken before the address is seen to have no place. */
  UNTIL(ioctl(p.server, FIONREAD, &length) == 0 && length == 3);
  ERR(recvfrom(p.server, &byte, 1, 0, (void *)place, bad), EFAULT);
  ERR(recvfrom(p.server, &byte, 1, 0, (void *)place, NULL), EFAULT);
  length = -1;
  ERR(recvfrom(p.server, &byte, 1, 0, (void *)place, &length), EINVAL);
  expect_nothing(p.server);
  put(p.client, "xxxx");
  UNTIL(ioctl(p.server, FIONREAD, &length) == 0 && length == 4);
  length = 5;
  EQ(recvfrom(p.server, &byte, 1, 0, bad, &length), 1);
  EQ(length, 0);
  EQ(recvfrom(p.server, &byte, 1, 0, NULL, bad), 1);
  ERR(recvmsg(p.server, &message, 0), EINVAL);
  message.msg_namelen = 16;
  EQ(recvmsg(p.server, &message, 0), 1);
  EQ(message.msg_namelen, 0);
  message.msg_name = NULL, message.msg_namelen = 7;
  EQ(recvmsg(p.server, &message, 0), 1);
  EQ(message.msg_namelen, 7);
  put(p.client, "x");
  /* A flag of the kernel's for 32-bit programs. */
  const int compat = 1 << 31;
  struct mmsghdr several = {.msg_hdr = message};
  ERR(sendmsg(p.client, &message, compat), EINVAL);
  ERR(recvmsg(p.server, &message, compat), EINVAL);
  ERR(sendmmsg(p.client, &several, 1, compat), EINVAL);
  ERR(recvmmsg(p.server, &several, 1, compat, NULL), EINVAL);
  get(p.server, "x");
  expect_nothing(p.server);
}

SAN_CASE(splices_that_are_refused) {
  struct pair p = open_pair(V4);
  loff_t offset = 0, *bad = bad_pointer();
  int ends[2];
  SYS(pipe(ends));
  put(p.client, "abcd");
  EQ(write(ends[1], "efgh", 4), 4);
  wait_for(p.server, POLLIN);
  const unsigned unknown = 0x100;
  ERR(splice(ends[0], NULL, p.client, NULL, 4, unknown), EINVAL);
  ERR(splice(p.server, NULL, ends[1], NULL, 4, unknown), EINVAL);
  EQ(splice(ends[0], NULL, p.client, NULL, 0, unknown), 0);
  EQ(splice(p.server, NULL, p.client, NULL, 0, 0), 0);
  ERR(splice(p.server, NULL, p.client, NULL, 4, 0), EINVAL);
  ERR(splice(ends[0], NULL, p.client, bad, 4, 0), EFAULT);
  ERR(splice(p.server, bad, ends[1], NULL, 4, 0), EFAULT);
  ERR(splice(ends[0], NULL, p.client, &offset, 4, 0), EINVAL);
  ERR(splice(ends[0], &offset, p.client, NULL, 4, 0), ESPIPE);
  get(p.server, "abcd");
  expect_nothing(p.server);
}

/* Of flags that came later the kernel says which it has. */
SAN_CASE(flags_of_later_kernels) {
  struct pair p = open_pair(V4);
  int unix_ends[2];
  SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, unix_ends));
  set_nonblocking(p.server, true);
  for (int flags = 0; flags < 0x400; flags += 0x10) {
    char byte = 'x';
    struct iovec one = {&byte, 1};
    errno = 0;
    ssize_t want = pwritev2(unix_ends[0], &one, 1, -1, flags);
    int why = want < 0 ? errno : 0;
    errno = 0;
    ssize_t n = pwritev2(p.client, &one, 1, -1, flags);
    if (n != want || (n < 0 && errno != why)) FAIL("pwritev2 with %#x gives %zd, want %zd %d", flags, n, want, why);
    if (want > 0) get(p.server, "x"), get(unix_ends[1], "x");
    /* There is nothing, if it is asked. */
    ERR(preadv2(unix_ends[1], &one, 1, -1, flags), errno);
    why = errno;
    ERR(preadv2(p.server, &one, 1, -1, flags), why);
  }
}
/* Without SIGPIPE, from Linux 6.18 on. */
SAN_CASE(writes_without_a_signal) {
  enum { RWF_NOSIGNAL_ = 0x100 };
  struct pair p = open_pair(V4);
  char byte = 'x';
  struct iovec one = {&byte, 1};
  int unix_ends[2];
  SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_ends));
  if (pwritev2(unix_ends[0], &one, 1, -1, RWF_NOSIGNAL_) < 0) bt_skip("the kernel is older");
  SYS(shutdown(p.client, SHUT_WR));
  expect_eof(p.server);
  ERR(pwritev2(p.client, &one, 1, -1, RWF_NOSIGNAL_), EPIPE);
}

SAN_CASE(more_events_than_there_can_be) {
  struct watched w = watch();
  put(w.p.client, "x");
  wait_for(w.p.server, POLLIN);
  static struct epoll_event got[4];
  /* Not as the compiler knows it, which sees that the array is shorter. */
  int (*volatile wait)(int, struct epoll_event *, int, int) = epoll_wait;
  const int most = INT_MAX / (int)sizeof *got;
  ERR(wait(w.set, got, INT_MAX, 0), EINVAL);
  ERR(wait(w.set, got, most + 1, 0), EINVAL);
  ERR(RAW(epoll_wait, w.set, got, INT_MAX, 0), EINVAL);
  EQ(wait(w.set, got, most, 0), 1);
}
