/* What an older kernel does not have, here because a filter of system calls says so as that kernel would. It is put in by
 * instruction, so that the library goes on as if there were none. */
#include "bt.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* From now on these two system calls fail with this error. */
static void take_away(int one, int other, int error) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, one, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, other, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog filter = {sizeof code / sizeof code[0], code};
  EQ(past_libc(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  EQ(past_libc(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&filter, 0, 0), 0);
}

/* Before Linux 5.9 there is no close_range: closefrom closes one after the other. */
SAN_CASE(without_close_range) {
  struct pair p = open_pair(V4), other = open_pair(V4);
  take_away(SYS_close_range, SYS_close_range, ENOSYS);
  ERR(close_range(3, ~0u, 0), ENOSYS);
  exercise(p.client, p.server);
  exercise(other.client, other.server);
  int far_client = SYS(fcntl(p.client, F_DUPFD, 500)), far_server = SYS(fcntl(p.server, F_DUPFD, 500));
  closefrom(far_server);
  ERR(fcntl(far_server, F_GETFD), EBADF);
  exercise(far_client, p.server);
  int gap = SYS(dup(other.client));
  SYS(close(gap));
  closefrom(3);
  for (int fd = 3; fd < 600; fd++) ERR(fcntl(fd, F_GETFD), EBADF);
  p = open_pair(V4);
  exercise(p.client, p.server);
  closefrom(p.client);
}
/* Flags that no kernel knows close nothing. */
SAN_CASE(close_range_with_wrong_flags) {
  struct pair p = open_pair(V4);
  put(p.client, "unread");
  ERR(close_range(3, ~0u, 1 << 20), EINVAL);
  get(p.server, "unread");
  exercise(p.client, p.server);
}

/* Before Linux 6.5 no pipe can be read or written without waiting, where it may wait. splice can. */
SAN_CASE(splice_without_nowait) {
  struct pair p = open_pair(V4);
  int ends[2];
  SYS(pipe2(ends, O_CLOEXEC));
  take_away(SYS_preadv2, SYS_pwritev2, EOPNOTSUPP);
  /* From a pipe: what is there, and never more. */
  ERR(splice(ends[0], NULL, p.client, NULL, 1000, SPLICE_F_NONBLOCK), EAGAIN);
  EQ(write(ends[1], pattern(0), 10000), 10000);
  EQ(splice(ends[0], NULL, p.client, NULL, 4000, SPLICE_F_NONBLOCK), 4000);
  EQ(splice(ends[0], NULL, p.client, NULL, 60000, 0), 6000);
  ERR(splice(ends[0], NULL, p.client, NULL, 1000, SPLICE_F_NONBLOCK), EAGAIN);
  recv_pattern(p.server, 0, 10000);
  /* To a pipe that fills: as much as it takes. */
  set_nonblocking(p.client, true), set_nonblocking(p.server, true);
  uint64_t sent = 0, moved = 0;
  ssize_t n;
  while (sent < 200000 && (n = send(p.client, pattern(sent), 200000 - sent, 0)) > 0) sent += n;
  while ((n = splice(p.server, NULL, ends[1], NULL, 50000, SPLICE_F_NONBLOCK)) > 0) moved += n;
  CHECK(n == -1 && errno == EAGAIN);
  CHECK(moved > 0);
  ERR(splice(p.server, NULL, ends[1], NULL, 1, SPLICE_F_NONBLOCK), EAGAIN);
  static uint8_t bytes[200000];
  for (uint64_t got = 0; got < moved; got += n) {
    n = SYS(read(ends[0], bytes, sizeof bytes));
    check_pattern(bytes, got, n);
  }
  /* Nothing was lost between. */
  set_nonblocking(p.server, false);
  recv_pattern(p.server, moved, sent - moved);
}

/* The same where the process has no descriptor left. */
SAN_CASE(splice_without_nowait_or_descriptors) {
  struct pair p = open_pair(V4);
  int ends[2];
  SYS(pipe2(ends, O_CLOEXEC));
  take_away(SYS_preadv2, SYS_pwritev2, EOPNOTSUPP);
  SYS(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, 0}));
  ERR(splice(ends[0], NULL, p.client, NULL, 1000, SPLICE_F_NONBLOCK), EAGAIN);
  EQ(write(ends[1], pattern(0), 1000), 1000);
  EQ(splice(ends[0], NULL, p.client, NULL, 4000, SPLICE_F_NONBLOCK), 1000);
  int moved = 0;
  while (moved < 1000) moved += SYS(splice(p.server, NULL, ends[1], NULL, 1000, SPLICE_F_NONBLOCK));
  static uint8_t bytes[1000];
  EQ(read(ends[0], bytes, sizeof bytes), 1000);
  check_pattern(bytes, 0, 1000);
}
