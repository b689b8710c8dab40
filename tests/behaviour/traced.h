/* A process that is run step by step (ptrace), to be ended at any of them. */
#ifndef TRACED_H
#define TRACED_H
#include "bt.h"
#include <sys/ptrace.h>

/* One round with the traced process ended `instructions` after step `at`; false if it was done before that step. */
typedef bool round_fn(long at, long instructions);

static bool wait_stopped(pid_t pid) {
  int status;
  EQ(SYS(waitpid(pid, &status, __WALL)), pid);
  if (WIFEXITED(status) || WIFSIGNALED(status)) FAIL("the traced process ended: %#x", status);
  return WSTOPSIG(status) == SIGSTOP;
}
/* Lets the traced process go on to its next stop; false if it is the last one. */
static bool step(pid_t pid, int request) {
  SYS(ptrace(request, pid, NULL, 0));
  return !wait_stopped(pid);
}
enum reached { DONE_BEFORE, DONE_AFTER, UNDER_WAY };
/* Runs a process that is stopped up to `instructions` after its system call `at`. */
static enum reached run_to(pid_t pid, long at, long instructions) {
  SYS(ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
  for (long i = 0; i < at; i++)
    if (!step(pid, PTRACE_SYSCALL)) return DONE_BEFORE;
  for (long i = 0; i < instructions; i++)
    if (!step(pid, PTRACE_SINGLESTEP)) return DONE_AFTER;
  return UNDER_WAY;
}
static void kill_traced(pid_t pid) {
  int status;
  SYS(kill(pid, SIGKILL));
  EQ(SYS(waitpid(pid, &status, __WALL)), pid);
}
/* Rounds at any instructions. */
static void some_steps(round_fn *round, int rounds) {
  unsigned seed = (unsigned)now_ms();
  long most = 600;
  for (int i = 0; i < rounds; i++) {
    seed = seed * 1103515245u + 12345u;
    long at = (long)((seed >> 8) % (unsigned)most);
    /* Few system calls are further from the next one; a fourth of the rounds stays near. */
    long instructions = (long)((seed >> 16) % (i % 4 ? 1200 : 40));
    if (!round(at, instructions)) most = at > 10 ? at : 10;
  }
}
#endif
