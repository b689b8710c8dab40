/* Processes that are killed, or stopped, at every system call of a return to TCP, and between them: whoever shares the
 * connection, and its peer, goes on; nobody hangs, and no byte is wrong or missing. Natively the same
 * calls return nothing, and all goes on. The process is traced (ptrace), so no step is left out. */
#include "traced.h"

enum { PART_ONE = 30000, ALL = 60000 };

/* What every process of a round sees. */
enum { SENT, READ, LEFT_TCP, GONE, DONE, PEER_GOT, PEER_ERROR, RELATIVE_GOT, RELATIVE_ERROR, ROUND_VALUES };
#define VALUE(name) (bt_shared->value[name])

/* What makes the traced process's end go back. */
enum trigger {
  PASSED,   /* it passes the connection on, to somebody who may be without the library */
  ASKED,    /* sanctl asks it, and it reads */
  FOLLOWING /* its peer passes it on, and it reads */
};
static enum trigger trigger;
static bool has_relative; /* another process has the connection too */
static bool peer_reads;   /* the peer waits for what it is sent, else it is busy elsewhere */
static bool stops;        /* stopped and continued instead of killed */
static bool between;      /* at any instruction after a system call instead of at it */

static int way[2]; /* a socket that no process with the library need have the other end of */

static void pass(int fd) {
  _Alignas(8) char control[CMSG_SPACE(sizeof fd)] = {0};
  struct iovec iov = {"f", 1};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
  EQ(SYS(sendmsg(way[0], &message, 0)), 1);
}
static void ask(pid_t pid) {
  const char *library = getenv("LD_PRELOAD");
  if (!library || !*library) return;
  char sanctl[PATH_MAX], number[16];
  snprintf(sanctl, sizeof sanctl, "%.*s/sanctl", (int)(strrchr(library, '/') - library), library);
  snprintf(number, sizeof number, "%d", pid);
  pid_t child = SYS(fork());
  if (child == 0) {
    unsetenv("LD_PRELOAD");
    dup2(SYS(open("/dev/null", O_WRONLY)), 1), dup2(1, 2);
    execl(sanctl, "sanctl", "detach", "--wait", "0", number, "all", (char *)NULL);
    _exit(99);
  }
  SYS(waitpid(child, NULL, 0));
}

/* Sends the second half, as far as that goes. */
static void send_rest(int fd) {
  for (int at = PART_ONE; at < ALL;) {
    ssize_t n = send(fd, pattern((uint64_t)at), (size_t)(ALL - at), MSG_NOSIGNAL);
    if (n < 0) {
      CHECK(errno == EPIPE || errno == ECONNRESET);
      return;
    }
    at += (int)n;
  }
  if (shutdown(fd, SHUT_WR) < 0) EQ(errno, ENOTCONN);
}
/* Reads so much, or to the end: how much came, and by which error it ended. */
static int read_some(int fd, uint8_t *bytes, int most, int *error) {
  int got = 0;
  for (ssize_t n = 1; got < most && n > 0; got += n > 0 ? (int)n : 0) {
    n = recv(fd, bytes + got, (size_t)(most - got), 0);
    *error = n < 0 ? errno : 0;
  }
  if (*error) EQ(*error, ECONNRESET);
  return got;
}
static void peer(int fd) {
  static uint8_t bytes[ALL + 1];
  int error = 0, got;
  send_pattern(fd, 0, PART_ONE);
  VALUE(SENT) = 1;
  if (trigger == FOLLOWING) {
    UNTIL(VALUE(READ));
    pass(fd);
    VALUE(LEFT_TCP) = 1;
  }
  SYS(close(way[0])), SYS(close(way[1]));
  got = peer_reads ? read_some(fd, bytes, PART_ONE, &error) : 0;
  if (peer_reads) recv(fd, &(char){0}, 1, MSG_PEEK);
  UNTIL(VALUE(GONE));
  send_rest(fd);
  if (error == 0) got += read_some(fd, bytes + got, ALL + 1 - got, &error);
  CHECK(got <= ALL);
  check_pattern(bytes, 0, (size_t)got);
  UNTIL(VALUE(DONE)); /* one that closed would not send again what the others want again */
  VALUE(PEER_ERROR) = error;
  VALUE(PEER_GOT) = got;
}
static void relative(int fd) {
  static uint8_t bytes[ALL + 1];
  int error;
  SYS(close(way[0])), SYS(close(way[1]));
  UNTIL(VALUE(GONE));
  send_rest(fd);
  UNTIL(VALUE(DONE));
  int got = read_some(fd, bytes, ALL + 1, &error);
  CHECK(got <= ALL);
  /* What the other one read is missing at the beginning; what was lost at the end, at the end. */
  if (error == 0) check_pattern(bytes, (uint64_t)(ALL - got), (size_t)got);
  VALUE(RELATIVE_ERROR) = error;
  VALUE(RELATIVE_GOT) = got;
}
static bool traced = true;
static void no_stop(int number) { (void)number, traced = false; }
static void victim(int fd) {
  UNTIL(VALUE(SENT));
  send_pattern(fd, 0, PART_ONE);
  VALUE(READ) = 1;
  if (trigger == FOLLOWING) UNTIL(VALUE(LEFT_TCP));
  handle_signal(SIGUSR1, no_stop, SA_RESTART);
  SYS(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
  raise(SIGSTOP);
  if (trigger == PASSED) {
    pass(fd);
  } else {
    recv_pattern(fd, 0, PART_ONE);
    /* So long ago that it is looked at again what others want of it. */
    for (int i = 0; i < 2; i++) sleep_ms(1), recv(fd, &(char){0}, 1, MSG_DONTWAIT | MSG_PEEK);
  }
  if (traced) raise(SIGSTOP);
}

static pid_t start_role(struct pair *p, bool client, end_fn *role) {
  pid_t pid = start_child();
  if (pid != 0) return pid;
  SYS(close(client ? p->server : p->client));
  role(client ? p->client : p->server);
  _exit(0);
}
/* A round (round_fn) after which the traced process is killed, or stopped and continued. */
static bool one_round(long at, long instructions) {
  for (int i = 0; i < ROUND_VALUES; i++) VALUE(i) = 0;
  bool victim_connects = at % 2;
  SYS(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, way));
  struct pair p = open_pair(at % 3 ? V4 : V6);
  exercise(p.client, p.server);
  pid_t other = start_role(&p, !victim_connects, peer);
  pid_t related = has_relative ? start_role(&p, victim_connects, relative) : 0;
  pid_t pid = start_role(&p, victim_connects, victim);
  close_pair(&p);
  CHECK(wait_stopped(pid));
  if (trigger == ASKED) ask(pid);
  enum reached reached = run_to(pid, at, instructions);
  if (stops && reached == UNDER_WAY) {
    int status;
    SYS(kill(pid, SIGUSR1));
    SYS(ptrace(PTRACE_DETACH, pid, NULL, SIGSTOP));
    VALUE(GONE) = 1;
    sleep_ms(5);
    /* It may be about to stop itself. */
    while (SYS(waitpid(pid, &status, WNOHANG)) == 0) SYS(kill(pid, SIGCONT)), sleep_ms(1);
    EQ(status, 0);
  } else {
    kill_traced(pid);
  }
  VALUE(GONE) = VALUE(DONE) = 1;
  SYS(close(way[0])), SYS(close(way[1]));
  end_child(other);
  if (has_relative) end_child(related);
  long got = VALUE(PEER_GOT), of_relative = VALUE(RELATIVE_GOT);
  if (has_relative) {
    if (got != ALL || VALUE(PEER_ERROR) != 0) FAIL("step %ld+%ld: the peer got %ld, error %ld", at, instructions, got, VALUE(PEER_ERROR));
    if (VALUE(RELATIVE_ERROR) != 0 || (trigger == PASSED && of_relative != ALL) || of_relative < PART_ONE)
      FAIL("step %ld+%ld: the relative got %ld, error %ld", at, instructions, of_relative, VALUE(RELATIVE_ERROR));
  }
  if (!has_relative && got != PART_ONE)
    FAIL("step %ld+%ld: the peer got %ld, error %ld", at, instructions, got, VALUE(PEER_ERROR));
  return reached != DONE_BEFORE;
}
static void all_steps(void) {
  /* With rules of its own the library goes the same way as without but for the swaps of control before: every
   * fourth step, other ones each time. */
  long stride = getenv("SANSHIM_CONFIG") ? 4 : 1;
  if (between) some_steps(one_round, 15);
  else
    for (long at = now_ms() % stride; one_round(at, 0); at += stride) {}
}

/* Mixed: every round hands a connection over to TCP. */
#define STEPS(name, trigger_, relative_, reads, stops_, between_)             \
  MIXED_CASE(name) {                                                          \
    trigger = trigger_, has_relative = relative_, peer_reads = reads;         \
    stops = stops_, between = between_;                                       \
    all_steps();                                                              \
  }
#define TRIGGER(name, trigger)                                                \
  STEPS(name##_killed, trigger, true, false, false, false)                    \
  STEPS(name##_killed_and_the_peer_waits, trigger, true, true, false, false)  \
  STEPS(name##_killed_between, trigger, true, false, false, true)             \
  STEPS(name##_killed_alone, trigger, false, false, false, false)             \
  STEPS(name##_killed_alone_and_the_peer_waits, trigger, false, true, false, false) \
  STEPS(name##_stopped, trigger, true, false, true, false)                    \
  STEPS(name##_stopped_between, trigger, true, true, true, true)

TRIGGER(passed, PASSED)
TRIGGER(asked, ASKED)
TRIGGER(following, FOLLOWING)
