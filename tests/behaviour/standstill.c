/* A process that is stopped (SIGSTOP) at any instruction of a send or a receive: who shares the connection with it goes on while
 * it stands still, as on TCP, where nobody stops in the middle. The process is traced (ptrace) to get it there. */
#include "bt.h"
#include <sys/ptrace.h>

enum { LONGEST = 16000, MUCH = 200000 };

static int most_rounds = 16;
static int size = 3000; /* of what is sent and received at a time */
static int flags;       /* of the calls of the one that goes on */
static bool pending;    /* the stopped one has a signal coming, too */

static volatile sig_atomic_t signals;
static void on_signal(int number) { signals += number != 0; }

static char records[256][LONGEST]; /* of each letter */

static void send_record(int fd, int letter, int flags_) {
  EQ(send(fd, records[letter], (size_t)size, MSG_NOSIGNAL | flags_), size);
}
static void receive(int fd, char *into) { EQ(recv(fd, into, (size_t)size, MSG_WAITALL), size); }
static bool is_record(const char *bytes) {
  for (int i = 1; i < size; i++)
    if (bytes[i] != bytes[0]) return false;
  return true;
}

/* A child at rest `instructions` into `work`, or at its end; `most`: not so many of them any more if it got there. */
static pid_t stopped_child(struct pair *p, void (*work)(int fd), long instructions, long *most) {
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(p->server));
    handle_signal(SIGUSR1, on_signal, SA_RESTART);
    SYS(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
    raise(SIGSTOP);
    work(p->client);
    raise(SIGSTOP);
    if (pending) EQ(signals, 1);
    _exit(0);
  }
  int status;
  EQ(SYS(waitpid(pid, &status, 0)), pid);
  SYS(ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_EXITKILL));
  for (long i = 0; i < instructions; i++) {
    SYS(ptrace(PTRACE_SINGLESTEP, pid, NULL, 0));
    EQ(SYS(waitpid(pid, &status, 0)), pid);
    CHECK(WIFSTOPPED(status));
    if (WSTOPSIG(status) == SIGSTOP) {
      *most = i > 10 ? i : 10;
      break;
    }
  }
  SYS(ptrace(PTRACE_DETACH, pid, NULL, SIGSTOP));
  UNTIL(task_state(pid) == 'T');
  if (pending) SYS(kill(pid, SIGUSR1));
  return pid;
}
static void end_stopped_child(pid_t pid) {
  int status;
  UNTIL(task_state(pid) == 'T'); /* who led it on is done, but it may not have stopped again */
  while (SYS(waitpid(pid, &status, WNOHANG)) == 0) SYS(kill(pid, SIGCONT)), sleep_ms(1);
  EQ(status, 0);
}

static void send_one(int fd) { send_record(fd, 'v', 0); }
static void one_send(long instructions, long *most) {
  struct pair p = open_pair(instructions % 3 ? V4 : V6);
  exercise(p.client, p.server);
  pid_t pid = stopped_child(&p, send_one, instructions, most);
  send_record(p.client, 'r', flags);
  char first[LONGEST], second[LONGEST];
  receive(p.server, first);
  bool stopped_was_first = first[0] == 'v';
  if (stopped_was_first) receive(p.server, second);
  end_stopped_child(pid);
  if (!stopped_was_first) receive(p.server, second);
  CHECK(is_record(first) && is_record(second) && first[0] != second[0]);
  close_pair(&p);
}

static bool interrupted; /* the one that goes on gets signals all the time */
static void interrupt_every_us(int us) {
  handle_signal(SIGALRM, on_signal, SA_RESTART);
  struct timeval every = {.tv_usec = us};
  SYS(setitimer(ITIMER_REAL, &(struct itimerval){every, every}, NULL));
}

/* What is sent at once is lent to the peer, which does not read: TCP's buffers have room for it, and for who sends next. */
static char much[MUCH];
static void send_much(int fd) { EQ(send(fd, much, MUCH, MSG_NOSIGNAL), MUCH); }
static void one_loan(long instructions, long *most) {
  struct pair p = open_pair(instructions % 3 ? V4 : V6);
  exercise(p.client, p.server);
  pid_t pid = stopped_child(&p, send_much, instructions, most);
  wait_for(p.client, POLLOUT);
  interrupt_every_us(interrupted ? 5000 : 0);
  send_record(p.client, 'r', flags);
  interrupt_every_us(0);
  char first[LONGEST];
  receive(p.server, first);
  static char all[MUCH];
  bool stopped_was_first = first[0] == 'v';
  if (stopped_was_first) {
    EQ(recv(p.server, all, (size_t)(MUCH - size), MSG_WAITALL), MUCH - size);
    CHECK(memcmp(all, much, (size_t)(MUCH - size)) == 0);
    receive(p.server, first);
    EQ(first[0], 'r');
  }
  end_stopped_child(pid);
  if (!stopped_was_first) {
    EQ(recv(p.server, all, MUCH, MSG_WAITALL), MUCH);
    CHECK(memcmp(all, much, MUCH) == 0);
  }
  close_pair(&p);
}

static void receive_one(int fd) {
  char bytes[LONGEST];
  receive(fd, bytes);
  CHECK(is_record(bytes));
  bt_shared->value[0] = bytes[0];
}
static void one_receive(long instructions, long *most) {
  struct pair p = open_pair(instructions % 3 ? V4 : V6);
  exercise(p.client, p.server);
  send_record(p.server, 'a', 0), send_record(p.server, 'b', 0);
  int there;
  do SYS(ioctl(p.client, FIONREAD, &there));
  while (there < 2 * size);
  pid_t pid = stopped_child(&p, receive_one, instructions, most);
  char bytes[LONGEST];
  EQ(recv(p.client, bytes, (size_t)size, flags), size);
  end_stopped_child(pid);
  CHECK(is_record(bytes) && bytes[0] + bt_shared->value[0] == 'a' + 'b');
  close_pair(&p);
}

static bool may_trace_anybody(void) {
  char text[4096] = {0};
  FILE *file = fopen("/proc/self/status", "r");
  CHECK(file && fread(text, 1, sizeof text - 1, file) > 0);
  fclose(file);
  const char *seccomp = strstr(text, "Seccomp:\t");
  file = fopen("/proc/sys/kernel/yama/ptrace_scope", "r");
  int scope = file ? fgetc(file) : '0';
  if (file) fclose(file);
  return scope == '0' && (!seccomp || seccomp[9] == '0');
}

static void rounds(void (*one)(long, long *)) {
  if (!may_trace_anybody()) bt_skip("processes may not trace their relatives");
  memset(much, 'v', MUCH);
  for (const char *letter = "vrab"; *letter; letter++) memset(records[(int)*letter], *letter, LONGEST);
  unsigned seed = (unsigned)now_ms();
  long most = 6000;
  for (int round = 0; round < most_rounds; round++) {
    seed = seed * 1103515245u + 12345u;
    one((long)((seed >> 8) % (unsigned)most), &most);
  }
}

SAN_CASE(a_sender) { rounds(one_send); }
SAN_CASE(a_sender_of_much) { size = LONGEST, rounds(one_send); }
SAN_CASE(a_sender_and_one_that_does_not_wait) { flags = MSG_DONTWAIT, rounds(one_send); }
SAN_CASE(a_sender_with_a_signal_pending) { pending = true, rounds(one_send); }
SAN_CASE(a_sender_that_lends) {
  most_rounds = 2;
  rounds(one_loan);
}
SAN_CASE(a_sender_that_lends_and_one_that_does_not_wait) {
  flags = MSG_DONTWAIT, most_rounds = 2;
  rounds(one_loan);
}
SAN_CASE(a_sender_that_lends_and_one_that_is_interrupted) {
  flags = MSG_DONTWAIT, interrupted = true, most_rounds = 2;
  rounds(one_loan);
}
SAN_CASE(a_receiver) { rounds(one_receive); }
SAN_CASE(a_receiver_and_one_that_does_not_wait) { flags = MSG_DONTWAIT, rounds(one_receive); }
