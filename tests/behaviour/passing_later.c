/* Connections that messages take to processes which become another program, or get the Unix socket itself, while they
 * are on their way. */
#include "passing.h"
#include <sys/syscall.h>

/* ---- receivers without the library that come later ------------------------------------------- */

/* The message is in the queue already when its receiver becomes another program. */
static void queued_before_exec(int fd) {
  begin_closed_server(fd);
  int ends[2];
  socket_pair(ends);
  ready(ends);
  pass(ends[0], fd);
  SYS(close(fd));
  pid_t pid = start_part(shimmed ? "@echo_at_once" : "@echo_first", ends[1], shimmed);
  SYS(close(ends[1]));
  end_child(pid);
}
SAN_CASE(queued_before_exec) { shimmed = true, run_processes(V4, client, queued_before_exec); }
MIXED_CASE(queued_before_exec_without) { anywhere = true, run_processes(V4, client, queued_before_exec); }

/* It is in a queue that itself is passed on, twice. */
static void queued_in_a_queue(int fd) {
  begin_closed_server(fd);
  int inner[2], middle[2], outer[2];
  socket_pair(inner), socket_pair(middle), socket_pair(outer);
  ready(inner), ready(middle), ready(outer);
  pass(inner[0], fd);
  pass(middle[0], inner[1]);
  pass(outer[0], middle[1]);
  SYS(close(fd)), SYS(close(inner[1])), SYS(close(middle[1]));
  pid_t pid = start_part("@unpack", outer[1], shimmed);
  SYS(close(outer[1]));
  end_child(pid);
}
PART(unpack) { echo(take_first(take(take(atoi(bt_arguments[0]))))); }
SAN_CASE(queued_in_a_queue) { shimmed = true, run_processes(V4, client, queued_in_a_queue); }
MIXED_CASE(queued_in_a_queue_without) { anywhere = true, run_processes(V4, client, queued_in_a_queue); }

/* The end over which it is to come goes to a program without the library, in a message. */
static void end_is_passed(int fd) {
  begin_closed_server(fd);
  int inner[2], outer[2];
  socket_pair(inner), socket_pair(outer);
  pid_t pid = start_part("@unpack_two", outer[1], shimmed);
  SYS(close(outer[1]));
  sender_ready(outer[0]);
  ready(inner);
  pass(outer[0], inner[1]);
  SYS(close(inner[1]));
  pass(inner[0], fd);
  SYS(close(fd));
  end_child(pid);
}
PART(unpack_two) {
  int over = atoi(bt_arguments[0]);
  receiver_ready(over);
  echo(take(take(over)));
}
SAN_CASE(the_end_is_passed) { shimmed = true, run_processes(V4, client, end_is_passed); }
MIXED_CASE(the_end_is_passed_without) { anywhere = true, run_processes(V4, client, end_is_passed); }

/* An image that the configuration switches off takes it. */
static void to_one_switched_off(int fd) {
  begin_closed_server(fd);
  int ends[2];
  socket_pair(ends);
  SYS(setenv("SANSHIM", "off", 1));
  pid_t pid = start_part("@echo_one", ends[1], true);
  pass_to(pid, ends, fd);
}
MIXED_CASE(to_one_switched_off) { anywhere = true, run_processes(V4, client, to_one_switched_off); }

/* The receiver is not another program yet, and will be. */
static void passed_before_exec(int fd) {
  begin_closed_server(fd);
  int ends[2];
  socket_pair(ends);
  pid_t pid = start_part("@echo_at_once", ends[1], false);
  SYS(close(ends[1]));
  pass(ends[0], fd);
  SYS(close(fd));
  end_child(pid);
}
MIXED_CASE(passed_before_exec) { anywhere = true, run_processes(V4, client, passed_before_exec); }

/* Some go while a program without the library comes and inherits the other end: every one arrives whole. */
static void *start_other(void *over) {
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(fcntl(*(int *)over, F_SETFD, 0));
    unsetenv("LD_PRELOAD");
    execl("/bin/true", "true", (char *)NULL);
    _exit(99);
  }
  end_child(pid);
  return NULL;
}
MIXED_CASE(while_another_inherits_the_end) {
  struct pair p = open_pair(V4);
  for (int round = 0; round < 30; round++) {
    int ends[2];
    socket_pair(ends);
    ready(ends);
    pthread_t other = start_thread(start_other, &ends[1]);
    struct pair q = open_pair(V4);
    for (int i = 0; i < 10; i++) {
      put(q.client, "before");
      pass(ends[0], q.server);
      SYS(close(q.server));
      put(q.client, "behind");
      q.server = take_first(ends[1]);
      get(q.server, "beforebehind");
      exercise(q.client, q.server);
    }
    end_thread(other);
    close_pair(&q);
    SYS(close(ends[0])), SYS(close(ends[1]));
  }
  exercise(p.client, p.server);
  on_san(p.client);
  close_pair(&p);
}

/* ---- receivers that become another user ------------------------------------------------------- */

/* By libc, which changes all threads, or by the kernel's call, which changes one. */
enum change { LIBC, RAW, RAW_EFFECTIVE };
static void become_another_user(enum change how) {
  uid_t other = 65534;
  if (how == LIBC) SYS(setresuid(other, other, other));
  else if (how == RAW) SYS(syscall(SYS_setuid, other));
  else SYS(syscall(SYS_setresuid, -1, other, -1));
  EQ(geteuid(), other);
}
static enum change change;
static bool queued;
static void to_another_user(int fd) {
  begin_closed_server(fd);
  int ends[2];
  socket_pair(ends);
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(fd)), SYS(close(ends[0]));
    receiver_ready(ends[1]);
    if (queued) step_wait(4);
    become_another_user(change);
    step_done(5);
    echo(take_first(ends[1]));
    _exit(0);
  }
  SYS(close(ends[1]));
  sender_ready(ends[0]);
  if (!queued) step_wait(5);
  pass(ends[0], fd);
  SYS(close(fd));
  step_done(4);
  end_child(pid);
}
/* Mixed: another user gets it over TCP. */
#define ANOTHER_USER(name, how, queued_)                                      \
  MIXED_CASE(name) {                                                          \
    if (geteuid() != 0) bt_skip("only root can become another user");         \
    anywhere = true, change = how, queued = queued_;                          \
    run_processes(V4, client, to_another_user);                               \
  }
ANOTHER_USER(to_another_user, LIBC, false)
ANOTHER_USER(to_another_user_raw, RAW, false)
ANOTHER_USER(to_another_effective_user_raw, RAW_EFFECTIVE, false)
ANOTHER_USER(queued_for_another_user, LIBC, true)
ANOTHER_USER(queued_for_another_user_raw, RAW, true)
ANOTHER_USER(queued_for_another_effective_user_raw, RAW_EFFECTIVE, true)
