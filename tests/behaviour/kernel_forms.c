/* What the kernel makes of arguments, where a call comes by number or is refused: bad addresses, masks of another size, how
 * much time is left, numbers that no descriptor can have. libc's functions differ in some of it. */
#include "bt.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define RAW(name, ...) syscall(SYS_##name, __VA_ARGS__)

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
