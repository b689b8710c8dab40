/* What the areas share in which sanctl moves connections back to TCP: who asks it. Natively there is nothing to ask for. */
#ifndef DETACHING_H
#define DETACHING_H
#include "bt.h"

#define SHARED __attribute__((unused)) static

/* Conditions every process sees: 8 and up of the shared values. */
SHARED void set_flag(int flag, bool on) { atomic_store(&bt_shared->value[8 + flag], on); }
SHARED bool flag(int flag) { return atomic_load(&bt_shared->value[8 + flag]); }

static int ask[2], answer[2];

struct request {
  pid_t pid;
  bool waits;
};

/* What sanctl says of a request; true if all that was asked for went back. */
SHARED bool run_sanctl(pid_t pid, bool waits) {
  const char *library = getenv("LD_PRELOAD");
  if (!library || !*library) return true;
  char sanctl[PATH_MAX], number[16], said[256] = "";
  snprintf(sanctl, sizeof sanctl, "%.*s/sanctl", (int)(strrchr(library, '/') - library), library);
  snprintf(number, sizeof number, "%d", pid);
  int out[2];
  SYS(pipe2(out, O_CLOEXEC));
  pid_t child = SYS(fork());
  if (child == 0) {
    unsetenv("LD_PRELOAD");
    dup2(out[1], 1);
    dup2(open("/dev/null", O_WRONLY), 2); /* of processes that have ended */
    execl(sanctl, "sanctl", "detach", "--wait", waits ? "40000" : "0", number, "all", (char *)NULL);
    _exit(99);
  }
  SYS(close(out[1]));
  size_t at = 0;
  ssize_t n;
  while ((n = read(out[0], said + at, sizeof said - 1 - at)) > 0) at += (size_t)n;
  SYS(close(out[0]));
  SYS(waitpid(child, NULL, 0)); /* it fails where the process has ended */
  bool all = strstr(said, "went back to TCP.\n") || strstr(said, "on the SAN");
  if (!all && waits) fprintf(stderr, "%s", said);
  return all;
}

/* A process without connections asks for the others: their forks would share theirs. */
SHARED pid_t start_asker(void) {
  SYS(pipe(ask));
  SYS(pipe(answer));
  pid_t asker = start_child();
  if (asker != 0) return asker;
  SYS(close(ask[1]));
  struct request request;
  while (read(ask[0], &request, sizeof request) == sizeof request) {
    char done = run_sanctl(request.pid, request.waits);
    SYS(write(answer[1], &done, 1));
  }
  _exit(0);
}
SHARED void ask_for(pid_t pid, bool waits) {
  struct request request = {pid, waits};
  SYS(write(ask[1], &request, sizeof request));
}
SHARED bool answered(void) {
  char done = 0;
  EQ(SYS(read(answer[0], &done, 1)), 1);
  return done;
}
SHARED void detach(pid_t pid) {
  ask_for(pid, true);
  CHECK(answered());
}
SHARED void end_asker(pid_t asker) {
  SYS(close(ask[1]));
  end_child(asker);
}

SHARED unsigned next(unsigned *seed) { return *seed = *seed * 1103515245u + 12345u, *seed >> 8; }

#endif
