/* Processes that are killed at one certain system call inside a call on a connection which they share
 * with a relative. What they had done counts, and its peer is not left asleep: at the latest when the
 * relative next uses the connection. Natively the same calls simply succeed. */
#include "bt.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* From now on this system call kills the process. */
static void die_at(int number) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof code[0], code};
  SYS(setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}));
  /* The library would take the connection back to TCP before a filter. */
  EQ(past_libc(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  EQ(past_libc(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program, 0, 0), 0);
}
/* Whether it was, or ended by itself. */
static void reap(pid_t child) {
  int status;
  EQ(SYS(waitpid(child, &status, 0)), child);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS) ||
        (WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

enum { TID };

/* ---- before the ring ------------------------------------------------------------------------ */

static void *answer(void *arg) {
  int fd = *(int *)arg;
  bt_shared->value[TID] = gettid();
  get(fd, "ping");
  put(fd, "pong");
  return NULL;
}
/* A relative that only waits for the answer, by whatever call. */
enum way { RECEIVE, TRY, POLL, EPOLL, SHUT };
static void wake_by(enum way way) {
  struct pair p = open_pair(V4);
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.client, &event));
  exercise(p.client, p.server);
  bt_shared->value[TID] = 0;
  pthread_t peer = start_thread(answer, &p.server);
  UNTIL(bt_shared->value[TID] != 0);
  wait_asleep((pid_t)bt_shared->value[TID]);
  pid_t child = start_child();
  if (child == 0) {
    die_at(SYS_sendto);
    _exit(write(p.client, "ping", 4) == 4 ? 0 : 1);
  }
  reap(child);
  char byte;
  if (way == TRY && recv(p.client, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0) EQ(errno, EAGAIN);
  if (way == SHUT) SYS(shutdown(p.client, SHUT_WR));
  if (way == TRY || way == SHUT) end_thread(peer);
  if (way == POLL) wait_for(p.client, POLLIN);
  if (way == EPOLL) EQ(SYS(epoll_wait(set, &event, 1, HANG_MS)), 1);
  get(p.client, "pong");
  if (way != TRY && way != SHUT) end_thread(peer);
  SYS(close(set));
  close_pair(&p);
}
SAN_CASE(a_sender_before_it_rings_and_its_relative_receives) { wake_by(RECEIVE); }
SAN_CASE(a_sender_before_it_rings_and_its_relative_tries) { wake_by(TRY); }
SAN_CASE(a_sender_before_it_rings_and_its_relative_polls) { wake_by(POLL); }
SAN_CASE(a_sender_before_it_rings_and_its_relative_epolls) { wake_by(EPOLL); }
SAN_CASE(a_sender_before_it_rings_and_its_relative_shuts_down) { wake_by(SHUT); }

enum { MUCH = 32 << 20, SOME = 24 << 20 };

static void *send_much(void *arg) {
  int fd = *(int *)arg;
  bt_shared->value[TID] = gettid();
  send_pattern(fd, 0, MUCH);
  SYS(shutdown(fd, SHUT_WR));
  return NULL;
}
SAN_CASE(a_receiver_before_it_rings_for_room) {
  struct pair p = open_pair(V4);
  pthread_t peer = start_thread(send_much, &p.client);
  UNTIL(bt_shared->value[TID] != 0);
  wait_asleep((pid_t)bt_shared->value[TID]);
  pid_t child = start_child();
  if (child == 0) {
    die_at(SYS_sendto);
    static char bytes[65536];
    for (long got = 0; got < SOME;) got += SYS(read(p.server, bytes, sizeof bytes));
    _exit(0);
  }
  reap(child);
  static char bytes[65536];
  while (SYS(recv(p.server, bytes, sizeof bytes, 0)) > 0) {}
  end_thread(peer);
  close_pair(&p);
}

/* A process that has the connection while it is on TCP: once it is gone the others go on as if it had never been. */
static void without_relative(bool parent_dies) {
  union address target;
  int listener = listen_on(V4, &target), client = dial(&target), server = SYS(accept(listener, NULL, NULL));
  SYS(close(listener));
  pid_t child = start_child();
  if (child == 0 && !parent_dies) {
    step_done(0);
    for (;;) pause();
  }
  if (child == 0) {
    /* A grandchild goes on without the process between. */
    if (start_child() != 0) {
      step_done(0);
      for (;;) pause();
    }
    step_wait(1);
    warm_up_both(client, server);
    exercise(client, server);
    step_done(2);
    _exit(0);
  }
  step_wait(0);
  SYS(kill(child, SIGKILL));
  SYS(waitpid(child, NULL, 0));
  if (parent_dies) {
    SYS(close(client)), SYS(close(server));
    step_done(1);
    step_wait(2);
    return;
  }
  warm_up_both(client, server);
  exercise(client, server);
}
static void child_killed(void) { without_relative(false); }
BT_REGISTER(child_killed, "child_that_had_it_on_tcp", child_killed, BT_SAN)
static void middle_killed(void) { without_relative(true); }
BT_REGISTER(middle_killed, "parent_that_had_it_on_tcp", middle_killed, BT_SAN)

/* ---- before it sends again -------------------------------------------------------------------- */

/* A connection of this process whose peer has sent "last words", and is killed at this moment. The more memory it has, the later
 * the kernel comes to its socket. */
static int left_by_the_killed(pid_t *peer, size_t memory) {
  union address target;
  int listener = listen_on(V4, &target);
  if ((*peer = start_child()) == 0) {
    SYS(close(listener));
    int fd = dial_warm(&target);
    char *held = malloc(memory + 1);
    memset(held, 1, memory + 1);
    put(fd, "last words");
    step_done(0);
    for (;;) pause();
  }
  int fd = accept_warm(listener);
  SYS(close(listener));
  step_wait(0);
  wait_for(fd, POLLIN);
  SYS(kill(*peer, SIGKILL));
  return fd;
}
/* A connection whose peer is gone by then is no stream (docs/limitations.md): nothing is lost by that. */
static void as_stream(int fd) {
  char all[16];
  FILE *stream = fdopen(fd, "r");
  if (!stream) {
    EQ(errno, EOPNOTSUPP);
    get(fd, "last words");
    EQ(SYS(recv(fd, all, sizeof all, 0)), 0);
    SYS(close(fd));
    return;
  }
  EQ(fread(all, 1, sizeof all, stream), 10);
  EQ(memcmp(all, "last words", 10), 0);
  EQ(fclose(stream), 0);
}
static void by_a_program(int fd) {
  pid_t child = start_child();
  if (child == 0) {
    SYS(dup2(fd, 0));
    execlp("sh", "sh", "-c", "test \"$(cat)\" = 'last words'", NULL);
    _exit(127);
  }
  SYS(close(fd));
  end_child(child);
}
static void just_before(void (*read_all)(int)) {
  for (int i = 0; i < 40; i++) {
    pid_t peer;
    read_all(left_by_the_killed(&peer, (size_t)i << 18));
    SYS(waitpid(peer, NULL, 0));
  }
}
MIXED_CASE(a_sender_just_before_its_peer_takes_a_stream) { just_before(as_stream); }
MIXED_CASE(a_sender_just_before_its_peer_executes) { just_before(by_a_program); }

/* Many connections of a peer that looks at none of them go to a program, which gets what was sent on each. */
enum { MANY = 80 };
MIXED_CASE(a_sender_of_many_is_busy_when_its_peer_executes) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t peer = start_child();
  if (peer == 0) {
    int fds[MANY];
    for (int i = 0; i < MANY; i++) fds[i] = dial_warm(&target);
    for (int i = 0; i < MANY; i++) put(fds[i], "last words");
    step_done(0);
    for (;;) pause();
  }
  static char script[MANY * 64] = "set -e\n";
  for (int i = 0; i < MANY; i++) {
    int fd = accept_warm(listener);
    sprintf(script + strlen(script), "test \"$(head -c 10 <&%d)\" = 'last words'\n", fd);
  }
  step_wait(0);
  pid_t child = start_child();
  if (child == 0) {
    execlp("bash", "bash", "-c", script, NULL);
    _exit(127);
  }
  end_child(child);
  SYS(kill(peer, SIGKILL));
  SYS(waitpid(peer, NULL, 0));
}
