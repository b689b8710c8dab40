/* A thread that takes long to come out of the kernel after its wake-up must not lose it to another
 * thread, or process, that looks at the same socket meanwhile. What keeps it there is a stop: with that
 * no processor has to be kept busy, and the order of events is certain. */
#include "bt.h"
#include <sys/ptrace.h>

enum { WRITER, READER };
enum { HELD_MS = 40 };

static void wait_writable(int fd) {
  bt_shared->value[WRITER] = gettid();
  CHECK(wait_for(fd, POLLOUT) & POLLOUT);
  step_done(0);
}
static void wait_readable(int fd) {
  bt_shared->value[READER] = gettid();
  CHECK(wait_for(fd, POLLIN) & POLLIN);
}
static void *writer_thread(void *arg) {
  wait_writable(*(int *)arg);
  return NULL;
}

/* The two sleep on a full socket. */
static uint64_t start_sleepers(int fd, bool threads, pid_t *writer) {
  set_nonblocking(fd, true);
  uint64_t sent = fill(fd, 0);
  bt_shared->value[2] = sent;
  *writer = 0;
  if (threads) {
    static int shared_fd;
    shared_fd = fd;
    start_thread(writer_thread, &shared_fd);
  } else if ((*writer = start_child()) == 0) {
    wait_writable(fd);
    _exit(0);
  }
  return sent;
}

static char state_of(pid_t pid) {
  char path[64], text[512] = "";
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  FILE *file = fopen(path, "r");
  CHECK(file != NULL);
  CHECK(fgets(text, sizeof text, file) != NULL);
  fclose(file);
  return strrchr(text, ')')[2];
}
static void stop(pid_t tid, bool thread) {
  if (!thread) {
    SYS(kill(tid, SIGSTOP));
    UNTIL(state_of(tid) == 'T');
    return;
  }
  if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0) bt_skip("this machine does not let a parent trace its child");
  SYS(ptrace(PTRACE_INTERRUPT, tid, NULL, NULL));
  SYS(waitpid(tid, NULL, __WALL));
}
static void go_on(pid_t tid, bool thread) {
  if (thread) SYS(ptrace(PTRACE_DETACH, tid, NULL, NULL));
  else SYS(kill(tid, SIGCONT));
}

static void slow_sleeper(bool threads) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t child = start_child();
  if (child == 0) {
    int fd = dial_warm(&target);
    pid_t writer;
    start_sleepers(fd, threads, &writer);
    wait_readable(fd);
    get(fd, "and the reader");
    if (writer != 0) end_child(writer);
    _exit(0);
  }
  int fd = accept_warm(listener);
  UNTIL(bt_shared->value[WRITER] != 0 && bt_shared->value[READER] != 0);
  pid_t writer = bt_shared->value[WRITER];
  wait_asleep(writer);
  wait_asleep(bt_shared->value[READER]);
  stop(writer, threads);
  /* Both are woken, once; the reader, for which there is nothing, looks and sleeps again. */
  recv_pattern(fd, 0, bt_shared->value[2]);
  sleep_ms(HELD_MS);
  go_on(writer, threads);
  step_wait(0);
  put(fd, "and the reader");
  end_child(child);
}
SAN_CASE(slow_sleeper_thread) { slow_sleeper(true); }
SAN_CASE(slow_sleeper_process) { slow_sleeper(false); }

/* ---- several threads asleep on one set ------------------------------------------------------------ */

static void *wait_on_set(void *set) {
  struct epoll_event event;
  bt_shared->value[0] = gettid();
  SYS(epoll_wait(*(int *)set, &event, 1, -1));
  return NULL;
}
static pthread_t start_asleep_on(int *set) {
  bt_shared->value[0] = 0;
  pthread_t thread = start_thread(wait_on_set, set);
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep(bt_shared->value[0]);
  return thread;
}
/* One that is cancelled leaves the others as they were. */
SAN_CASE(cancelled_beside_another_on_a_set) {
  for (int who = 0; who < 2; who++) {
    struct pair p = open_pair(V4);
    int set = SYS(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN};
    SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event));
    pthread_t sleeping[2] = {start_asleep_on(&set), start_asleep_on(&set)};
    EQ(pthread_cancel(sleeping[who]), 0);
    EQ(pthread_join(sleeping[who], NULL), 0);
    put(p.client, "x");
    end_thread(sleeping[!who]);
    get(p.server, "x");
    SYS(close(set));
    close_pair(&p);
  }
}
