/* What a transfer costs where no side has to wait: no system call. Only the library promises that. */
#include "bt.h"
#include <sys/ptrace.h>

enum { CALLS, BEFORE, AFTER };
enum { ROUND_TRIPS = 10000, FEW = 100 };

/* One thread has both ends, so that neither ever waits, whatever else the machine does. */
static void talk_to_itself(void) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  bt_shared->value[BEFORE] = bt_shared->value[CALLS];
  for (int i = 0; i < ROUND_TRIPS; i++) {
    char there[64] = {(char)i}, back[64];
    EQ(send(p.client, there, sizeof there, 0), sizeof there);
    EQ(recv(p.server, back, sizeof back, 0), sizeof back);
    EQ(send(p.server, back, sizeof back, 0), sizeof back);
    EQ(recv(p.client, there, sizeof there, 0), sizeof there);
    EQ(there[0], (char)i);
  }
  bt_shared->value[AFTER] = bt_shared->value[CALLS];
}
/* Now and then the library asks the kernel whether the peer lives. */
SAN_CASE(no_system_call_for_a_message) {
  if (!getenv("LD_PRELOAD")) bt_skip("TCP makes one for each");
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
    raise(SIGSTOP);
    talk_to_itself();
    _exit(0);
  }
  int status;
  /* It stops where a call begins and where that ends. */
  while (SYS(waitpid(pid, &status, 0)), WIFSTOPPED(status)) {
    bt_shared->value[CALLS]++;
    SYS(ptrace(PTRACE_SYSCALL, pid, NULL, NULL));
  }
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(bt_shared->value[BEFORE] > 0);
  long calls = (bt_shared->value[AFTER] - bt_shared->value[BEFORE]) / 2;
  if (calls > FEW) FAIL("%ld system calls for %d messages", calls, 2 * ROUND_TRIPS);
}
