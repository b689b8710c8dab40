/* A call that succeeds leaves errno as it was: each that the library has a hook for, on the SAN and on TCP, where it finds
 * what it wants, where it has to sleep for it, and where a signal interrupts it. tests/tests/library.rs sees that none is
 * missing. */
#include "bt.h"

#include <aio.h>
#include <dlfcn.h>
#include <sched.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

/* No call sets this. */
enum { MAGIC = EXFULL };

/* errno is as before the call, which gives `wanted`. */
#define KEEPS(call, wanted)                                                   \
  do {                                                                        \
    errno = MAGIC;                                                            \
    long long v_ = (long long)(call);                                         \
    int e_ = errno;                                                           \
    if (v_ != (long long)(wanted))                                            \
      FAIL("%s gives %lld, want %s (errno %s)", #call, v_, #wanted,           \
           strerrorname_np(e_));                                              \
    if (e_ != MAGIC) FAIL("%s leaves errno %s", #call, strerrorname_np(e_));  \
  } while (0)
/* The same of a call that gives something; that is the value of the expression. */
#define KEEPS_AND_GIVES(call)                                                 \
  ({                                                                          \
    errno = MAGIC;                                                            \
    __typeof__(call) v_ = (call);                                             \
    int e_ = errno;                                                           \
    if ((long long)v_ < 0 || e_ != MAGIC)                                     \
      FAIL("%s gives %lld, errno %s", #call, (long long)v_, strerrorname_np(e_)); \
    v_;                                                                       \
  })

#define ENTRY(name, like) ((__typeof__(&like))entry(name))
static void *entry(const char *name) {
  void *found = dlsym(RTLD_DEFAULT, name);
  if (!found) FAIL("no %s", name);
  return found;
}

/* ---- connections ----------------------------------------------------------------------------- */

typedef struct pair open_fn(void);
/* A program that is started does not inherit it, and so it stays where it is. */
static struct pair on_the_san(void) {
  struct pair p = open_pair(V4);
  SYS(fcntl(p.server, F_SETFD, FD_CLOEXEC));
  return p;
}
/* One that has a stream stays on TCP. */
static struct pair on_tcp(void) {
  union address target;
  int listener = listen_on(V4, &target);
  struct pair p = {dial(&target), SYS(accept(listener, NULL, NULL))};
  CHECK(fdopen(p.client, "r+") && fdopen(p.server, "r+"));
  SYS(close(listener));
  return p;
}
#define ON_BOTH(name)                                                         \
  static void name(open_fn *opened);                                          \
  SAN_CASE(name##_on_the_san) { name(on_the_san); }                           \
  CASE(name##_on_tcp) { name(on_tcp); }                                       \
  static void name(open_fn *opened)

/* A thread that does something to the other end once this one sleeps. */
struct later {
  pid_t sleeper;
  int fd;
  void (*act)(int fd);
  pthread_t thread;
};
static void *act_later(void *arg) {
  struct later *later = arg;
  wait_asleep(later->sleeper);
  later->act(later->fd);
  return NULL;
}
#define LATER(what, at)                                                       \
  struct later later_ = {gettid(), at, what, 0};                              \
  later_.thread = start_thread(act_later, &later_)
static void put_one(int fd) { put(fd, "x"); }
static void put_four(int fd) { put(fd, "abcd"); }
static void close_it(int fd) { SYS(close(fd)); }
static void interrupted(int number) { (void)number; }
static void interrupt_and_put(int fd) {
  for (int i = 0; i < 3; i++) {
    SYS(tgkill(getpid(), getpid(), SIGUSR1));
    wait_asleep(getpid());
  }
  put(fd, "x");
}

/* KEEPS for a call that finds its byte, that sleeps for it, and that sleeps and is interrupted. */
#define KEEPS_RECEIVING(call)                                                 \
  do {                                                                        \
    put(p.client, "x");                                                       \
    KEEPS(call, 1);                                                           \
    void (*const acts_[])(int) = {put_one, interrupt_and_put};                \
    for (int i_ = 0; i_ < 2; i_++) {                                          \
      LATER(acts_[i_], p.client);                                             \
      KEEPS(call, 1);                                                         \
      end_thread(later_.thread);                                              \
    }                                                                         \
  } while (0)

/* ---- transfers ----------------------------------------------------------------------------------- */

typedef ssize_t read_chk(int, void *, size_t, size_t);
typedef ssize_t recv_chk(int, void *, size_t, size_t, int);
typedef ssize_t recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);

ON_BOTH(receiving) {
  struct pair p = opened();
  char byte;
  struct iovec in = {&byte, 1};
  struct msghdr message = {.msg_iov = &in, .msg_iovlen = 1};
  struct mmsghdr one = {.msg_hdr = message};
  handle_signal(SIGUSR1, interrupted, SA_RESTART);
  KEEPS_RECEIVING(read(p.server, &byte, 1));
  KEEPS_RECEIVING(readv(p.server, &in, 1));
  KEEPS_RECEIVING(preadv2(p.server, &in, 1, -1, 0));
  KEEPS_RECEIVING(ENTRY("preadv64v2", preadv2)(p.server, &in, 1, -1, 0));
  KEEPS_RECEIVING(recv(p.server, &byte, 1, 0));
  KEEPS_RECEIVING(recv(p.server, &byte, 1, MSG_WAITALL));
  KEEPS_RECEIVING(recvfrom(p.server, &byte, 1, 0, NULL, NULL));
  KEEPS_RECEIVING(recvmsg(p.server, &message, 0));
  KEEPS_RECEIVING(recvmmsg(p.server, &one, 1, 0, NULL));
  KEEPS_RECEIVING(ENTRY("__read", read)(p.server, &byte, 1));
  KEEPS_RECEIVING(((read_chk *)entry("__read_chk"))(p.server, &byte, 1, 1));
  KEEPS_RECEIVING(((recv_chk *)entry("__recv_chk"))(p.server, &byte, 1, 1, 0));
  KEEPS_RECEIVING(((recvfrom_chk *)entry("__recvfrom_chk"))(p.server, &byte, 1, 1, 0, NULL, NULL));
  KEEPS_RECEIVING(syscall(SYS_read, p.server, &byte, 1));
  KEEPS_RECEIVING(syscall(SYS_recvfrom, p.server, &byte, 1, 0, NULL, NULL));
  put(p.client, "x");
  KEEPS(recv(p.server, &byte, 1, MSG_PEEK), 1);
  KEEPS(recv(p.server, &byte, 1, MSG_DONTWAIT), 1);
  /* The end of the stream, and none of two messages after the first. */
  struct mmsghdr two[2] = {one, one};
  put(p.client, "x");
  KEEPS(recvmmsg(p.server, two, 2, MSG_WAITFORONE, NULL), 1);
  LATER(close_it, p.client);
  KEEPS(read(p.server, &byte, 1), 0);
  end_thread(later_.thread);
  KEEPS(recv(p.server, &byte, 1, 0), 0);
  KEEPS(recvmsg(p.server, &message, 0), 0);
}

ON_BOTH(receiving_behind_what_a_peer_left) {
  struct pair p = opened();
  char bytes[8];
  /* The peer closes while bytes for it are on their way. */
  put(p.client, "abcd");
  SYS(send(p.server, "unread", 6, 0));
  LATER(put_four, p.client);
  KEEPS(recv(p.server, bytes, 8, MSG_WAITALL), 8);
  end_thread(later_.thread);
  SYS(shutdown(p.client, SHUT_WR));
  KEEPS(read(p.server, bytes, 4), 0);
}

/* A sender that waited for room, and closes while the reader sleeps. */
static void stream(int fd) {
  bt_shared->value[0] = gettid();
  for (int i = 0; i < 128; i++) KEEPS(write(fd, pattern(0), 65536), 65536);
  UNTIL(bt_shared->value[1] != 0);
  wait_asleep((pid_t)bt_shared->value[1]);
  SYS(close(fd));
}
static void read_to_the_end(int fd) {
  static char bytes[65536];
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep((pid_t)bt_shared->value[0]);
  for (size_t at = 0; at < 128 * sizeof bytes;) at += KEEPS_AND_GIVES(read(fd, bytes, sizeof bytes));
  bt_shared->value[1] = gettid();
  KEEPS(read(fd, bytes, sizeof bytes), 0);
}
ENDS(streams_and_their_end, stream, read_to_the_end)

static void drain(int fd) { recv_pattern(fd, 0, 8 << 20); }
static void interrupt_and_drain(int fd) {
  SYS(tgkill(getpid(), getpid(), SIGUSR1));
  wait_asleep(getpid());
  drain(fd);
}

ON_BOTH(sending) {
  struct pair p = opened();
  struct iovec out = {"abcd", 4};
  struct msghdr message = {.msg_iov = &out, .msg_iovlen = 1};
  struct mmsghdr one = {.msg_hdr = message};
  KEEPS(write(p.client, "abcd", 4), 4);
  KEEPS(writev(p.client, &out, 1), 4);
  KEEPS(pwritev2(p.client, &out, 1, -1, 0), 4);
  KEEPS(ENTRY("pwritev64v2", pwritev2)(p.client, &out, 1, -1, 0), 4);
  KEEPS(send(p.client, "abcd", 4, 0), 4);
  KEEPS(sendto(p.client, "abcd", 4, 0, NULL, 0), 4);
  KEEPS(sendmsg(p.client, &message, 0), 4);
  KEEPS(sendmmsg(p.client, &one, 1, 0), 1);
  KEEPS(ENTRY("__write", write)(p.client, "abcd", 4), 4);
  KEEPS(ENTRY("__send", send)(p.client, "abcd", 4, 0), 4);
  KEEPS(syscall(SYS_write, p.client, "abcd", 4), 4);
  KEEPS(dprintf(p.client, "%s", "abcd"), 4);
  for (int i = 0; i < 12; i++) get(p.server, "abcd");
  handle_signal(SIGUSR1, interrupted, SA_RESTART);
  void (*const acts[])(int) = {drain, interrupt_and_drain};
  for (int i = 0; i < 2; i++) {
    LATER(acts[i], p.server);
    for (uint64_t at = 0; at < 8 << 20;) {
      size_t left = (8 << 20) - at;
      at += KEEPS_AND_GIVES(send(p.client, pattern(at), left < 1 << 20 ? left : 1 << 20, 0));
    }
    end_thread(later_.thread);
  }
  /* Some of what has no room, and one of two messages. */
  set_nonblocking(p.client, true);
  const size_t much = 32 << 20;
  char *bytes = calloc(1, much);
  errno = MAGIC;
  ssize_t n = send(p.client, bytes, much, 0);
  CHECK(n > 0 && n < (ssize_t)much);
  EQ(errno, MAGIC);
  for (ssize_t left = n; left > 0;) left -= SYS(recv(p.server, bytes, left, 0));
  struct iovec large = {bytes, much};
  struct mmsghdr two[2] = {one, {.msg_hdr = {.msg_iov = &large, .msg_iovlen = 1}}};
  /* From another host it takes a moment until the sender hears that all was read. */
  CHECK(wait_for(p.client, POLLOUT) & POLLOUT);
  KEEPS(sendmmsg(p.client, two, 2, 0), 2);
  CHECK(two[1].msg_len < much);
}

typedef int checked_print(int, int, const char *, ...);
typedef int checked_list(int, int, const char *, va_list);
static int print_list(int fd, bool checked, const char *format, ...) {
  va_list list;
  va_start(list, format);
  int n = checked ? ((checked_list *)entry("__vdprintf_chk"))(fd, 1, format, list)
                  : vdprintf(fd, format, list);
  va_end(list);
  return n;
}
ON_BOTH(printing_files_and_pipes) {
  struct pair p = opened();
  KEEPS(dprintf(p.client, "%d-%s", 1, "ab"), 4);
  KEEPS(((checked_print *)entry("__dprintf_chk"))(p.client, 1, "%d-%s", 1, "ab"), 4);
  KEEPS(print_list(p.client, false, "%d-%s", 1, "ab"), 4);
  KEEPS(print_list(p.client, true, "%d-%s", 1, "ab"), 4);
  int file = SYS(open("f", O_RDWR | O_CREAT, 0600)), ends[2];
  EQ(write(file, "1-ab", 4), 4);
  off_t from = 0;
  KEEPS(sendfile(p.client, file, &from, 4), 4);
  from = 0;
  KEEPS(ENTRY("sendfile64", sendfile)(p.client, file, &from, 4), 4);
  /* All that the file has, which is less. */
  from = 0;
  KEEPS(sendfile(p.client, file, &from, 100), 4);
  for (int i = 0; i < 7; i++) get(p.server, "1-ab");
  SYS(pipe(ends));
  EQ(write(ends[1], "1-ab", 4), 4);
  KEEPS(splice(ends[0], NULL, p.client, NULL, 4, 0), 4);
  wait_for(p.server, POLLIN);
  KEEPS(splice(p.server, NULL, ends[1], NULL, 4, 0), 4);
  char got[4];
  KEEPS(read(ends[0], got, 4), 4);
  LATER(put_four, p.client);
  KEEPS(splice(p.server, NULL, ends[1], NULL, 4, 0), 4);
  end_thread(later_.thread);
}

CASE(pipes_timers_and_signals) {
  int ends[2], others[2], event = SYS(eventfd(0, EFD_NONBLOCK)), timer = SYS(timerfd_create(CLOCK_MONOTONIC, 0));
  SYS(pipe(ends)), SYS(pipe(others));
  struct iovec part = {"1-ab", 4};
  KEEPS(vmsplice(ends[1], &part, 1, 0), 4);
  KEEPS(tee(ends[0], others[1], 4, 0), 4);
  KEEPS(eventfd_write(event, 1), 0);
  KEEPS(timerfd_settime(timer, 0, &(struct itimerspec){.it_value.tv_sec = 1}, NULL), 0);
  signal(SIGURG, SIG_IGN);
  KEEPS(kill(getpid(), SIGURG), 0);
  KEEPS(killpg(getpgrp(), 0), 0);
  KEEPS(tgkill(getpid(), getpid(), SIGURG), 0);
  KEEPS(sigqueue(getpid(), SIGURG, (union sigval){0}), 0);
}

/* ---- waiting --------------------------------------------------------------------------------------- */

typedef int poll_chk(struct pollfd *, nfds_t, int, size_t);
typedef int ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);

/* KEEPS for a wait that finds nothing for a moment, one that sleeps, and one that finds what it wants. */
#define KEEPS_WAITING(call, shortly)                                          \
  do {                                                                        \
    FD_SET(p.server, &in);                                                    \
    KEEPS(shortly, 0);                                                        \
    FD_SET(p.server, &in);                                                    \
    LATER(put_one, p.client);                                                 \
    KEEPS(call, 1);                                                           \
    end_thread(later_.thread);                                                \
    KEEPS(call, 1);                                                           \
    get(p.server, "x");                                                       \
  } while (0)

ON_BOTH(waiting) {
  struct pair p = opened();
  struct pollfd one = {p.server, POLLIN, 0};
  struct timespec much = {HANG_MS / 1000, 0}, little = {0, 1000000};
  struct timeval moment, moments = {HANG_MS / 1000, 0};
  fd_set in;
  FD_ZERO(&in);
  KEEPS_WAITING(poll(&one, 1, HANG_MS), poll(&one, 1, 1));
  KEEPS_WAITING(ENTRY("__poll", poll)(&one, 1, HANG_MS), ENTRY("__poll", poll)(&one, 1, 0));
  KEEPS_WAITING(((poll_chk *)entry("__poll_chk"))(&one, 1, HANG_MS, sizeof one),
                ((poll_chk *)entry("__poll_chk"))(&one, 1, 0, sizeof one));
  KEEPS_WAITING(ppoll(&one, 1, &much, NULL), ppoll(&one, 1, &little, NULL));
  KEEPS_WAITING(((ppoll_chk *)entry("__ppoll_chk"))(&one, 1, &much, NULL, sizeof one),
                ((ppoll_chk *)entry("__ppoll_chk"))(&one, 1, &little, NULL, sizeof one));
  KEEPS_WAITING(select(p.server + 1, &in, NULL, NULL, &moments),
                (moment = (struct timeval){0, 1000}, select(p.server + 1, &in, NULL, NULL, &moment)));
  moments = (struct timeval){HANG_MS / 1000, 0};
  KEEPS_WAITING(ENTRY("__select", select)(p.server + 1, &in, NULL, NULL, &moments),
                (moment = (struct timeval){0, 0}, select(p.server + 1, &in, NULL, NULL, &moment)));
  KEEPS_WAITING(pselect(p.server + 1, &in, NULL, NULL, &much, NULL),
                pselect(p.server + 1, &in, NULL, NULL, &little, NULL));
  struct epoll_event event = {.events = EPOLLIN}, got;
  int set = KEEPS_AND_GIVES(epoll_create1(EPOLL_CLOEXEC));
  KEEPS(close(set), 0);
  set = KEEPS_AND_GIVES(epoll_create(1));
  KEEPS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event), 0);
  KEEPS(epoll_ctl(set, EPOLL_CTL_MOD, p.server, &event), 0);
  KEEPS_WAITING(epoll_wait(set, &got, 1, HANG_MS), epoll_wait(set, &got, 1, 1));
  KEEPS_WAITING(epoll_pwait(set, &got, 1, HANG_MS, NULL), epoll_pwait(set, &got, 1, 1, NULL));
  KEEPS_WAITING(epoll_pwait2(set, &got, 1, &much, NULL), epoll_pwait2(set, &got, 1, &little, NULL));
  KEEPS(epoll_ctl(set, EPOLL_CTL_DEL, p.server, NULL), 0);
  KEEPS(close(set), 0);
}

/* ---- sockets and descriptors ------------------------------------------------------------------------- */

static void dial_it(int listener) {
  union address target = local_address(listener);
  put(dial(&target), "x");
}
static struct pair set_up(bool tcp) {
  struct pair p;
  union address target = address_v4("127.0.0.1", 0);
  socklen_t length = sizeof target.v4;
  int listener = KEEPS_AND_GIVES(socket(AF_INET, SOCK_STREAM, 0));
  SYS(bind(listener, &target.any, length));
  KEEPS(listen(listener, 8), 0);
  target = local_address(listener);
  p.client = KEEPS_AND_GIVES(socket(AF_INET, SOCK_STREAM, 0));
  if (tcp) CHECK(fdopen(p.client, "r+"));
  KEEPS(connect(p.client, &target.any, length), 0);
  p.server = KEEPS_AND_GIVES(accept(listener, NULL, NULL));
  if (!tcp) warm_up_both(p.client, p.server);
  int client = SYS(socket(AF_INET, SOCK_STREAM, 0));
  if (tcp) CHECK(fdopen(client, "r+"));
  KEEPS(ENTRY("__connect", connect)(client, &target.any, length), 0);
  int server = KEEPS_AND_GIVES(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
  if (!tcp) warm_up_both(client, server);
  KEEPS(close(client), 0);
  KEEPS(ENTRY("__close", close)(server), 0);
  KEEPS(close(listener), 0);
  return p;
}
static struct pair set_up_on_the_san(void) { return set_up(false); }
static struct pair set_up_on_tcp(void) { return set_up(true); }
#define ON_BOTH_FROM_THE_START(name)                                          \
  static void name(open_fn *opened);                                          \
  SAN_CASE(name##_on_the_san) { name(set_up_on_the_san); }                    \
  CASE(name##_on_tcp) { name(set_up_on_tcp); }                                \
  static void name(open_fn *opened)

CASE(accepting_after_a_sleep) {
  union address target;
  int listener = listen_on(V4, &target);
  LATER(dial_it, listener);
  int server = KEEPS_AND_GIVES(accept(listener, NULL, NULL));
  end_thread(later_.thread);
  get(server, "x");
}

ON_BOTH_FROM_THE_START(descriptors) {
  struct pair p = opened();
  int copy = KEEPS_AND_GIVES(dup(p.server));
  KEEPS(close(copy), 0);
  KEEPS(dup2(p.server, 70), 70);
  KEEPS(ENTRY("__dup2", dup2)(p.server, 71), 71);
  KEEPS(dup3(p.server, 72, O_CLOEXEC), 72);
  KEEPS(dup2(p.client, 72), 72);
  KEEPS(fcntl(p.server, F_DUPFD, 73), 73);
  KEEPS(ENTRY("fcntl64", fcntl)(p.server, F_DUPFD_CLOEXEC, 74), 74);
  KEEPS(ENTRY("__fcntl", fcntl)(p.server, F_GETFD), 0);
  KEEPS(fcntl(p.server, F_SETFL, O_NONBLOCK), 0);
  int off = 0, at_mark = -1;
  KEEPS(ioctl(p.server, FIONBIO, &off), 0);
  KEEPS(ioctl(p.server, FIONREAD, &at_mark), 0);
  KEEPS(sockatmark(p.server), 0);
  KEEPS(syscall(SYS_close, 70), 0);
  KEEPS(close_range(71, 72, 0), 0);
  KEEPS(ioctl(p.server, SIOCATMARK, &at_mark), 0);
  errno = MAGIC;
  closefrom(73);
  EQ(errno, MAGIC);
  exercise(p.client, p.server);
  int value = 1;
  socklen_t length = sizeof value;
  union address address;
  KEEPS(setsockopt(p.client, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value), 0);
  KEEPS(getsockopt(p.client, SOL_SOCKET, SO_ERROR, &value, &length), 0);
  KEEPS(getsockopt(p.client, IPPROTO_TCP, TCP_NODELAY, &value, &length), 0);
  length = sizeof address;
  KEEPS(getpeername(p.client, &address.any, &length), 0);
  /* While the peer closes, with something unread. */
  put(p.server, "x");
  KEEPS(shutdown(p.server, SHUT_WR), 0);
  get(p.client, "x");
  put(p.client, "unread");
  KEEPS(close(p.server), 0);
  KEEPS(close(p.client), 0);
}

/* ---- processes ------------------------------------------------------------------------------------------ */

static void end_with(pid_t pid) {
  int status;
  EQ(waitpid(pid, &status, 0), pid);
  EQ(status, 0);
}
static int child_of_clone(void *arg) {
  (void)arg;
  return 0;
}
static bool is_kept_by_vfork(void) {
  errno = MAGIC;
  pid_t pid = vfork();
  if (pid == 0) _exit(errno != MAGIC);
  bool is_kept = errno == MAGIC;
  end_with(pid);
  return is_kept;
}
PART(begins) {
  if (errno != 0) FAIL("errno is %s at the start of a program", strerrorname_np(errno));
}
static int at_start = -1;
__attribute__((constructor)) static void look(void) {
  if (at_start < 0) at_start = errno;
}
CASE(it_is_zero_at_the_start) {
  EQ(at_start, 0);
  end_child(start_program("@begins", true, NULL, NULL));
}

ON_BOTH(children) {
  struct pair p = opened();
  errno = MAGIC;
  pid_t pid = fork();
  if (pid == 0) _exit(errno != MAGIC);
  EQ(errno, MAGIC);
  end_with(pid);
  errno = MAGIC;
  pid = _Fork();
  if (pid == 0) _exit(errno != MAGIC);
  EQ(errno, MAGIC);
  end_with(pid);
  CHECK(is_kept_by_vfork());
  static char stack[65536] __attribute__((aligned(16)));
  pid = KEEPS_AND_GIVES(clone(child_of_clone, stack + sizeof stack, SIGCHLD, NULL));
  end_with(pid);
  char *const arguments[] = {"true", NULL}, *const environment[] = {NULL};
  KEEPS(posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environment), 0);
  end_with(pid);
  KEEPS(posix_spawnp(&pid, "/bin/true", NULL, NULL, arguments, environment), 0);
  end_with(pid);
  exercise(p.client, p.server);
}

/* A program that does not exist, by each of the calls: they return only where they fail, and this is why. */
ON_BOTH(programs_that_do_not_exist) {
  struct pair p = opened();
  char *const arguments[] = {"nothing", NULL}, *const environment[] = {NULL};
  ERR(execve("/nothing", arguments, environment), ENOENT);
  ERR(execv("/nothing", arguments), ENOENT);
  ERR(execvp("/nothing", arguments), ENOENT);
  ERR(execvpe("/nothing", arguments, environment), ENOENT);
  ERR(execl("/nothing", "nothing", NULL), ENOENT);
  ERR(execlp("/nothing", "nothing", NULL), ENOENT);
  ERR(execle("/nothing", "nothing", NULL, environment), ENOENT);
  ERR(execveat(AT_FDCWD, "/nothing", arguments, environment, 0), ENOENT);
  ERR(fexecve(p.server, arguments, environment), EACCES);
}

MIXED_CASE(commands) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  KEEPS(system("true"), 0);
  FILE *stream = KEEPS_AND_GIVES(popen("true", "r"));
  EQ(pclose(stream), 0);
  stream = KEEPS_AND_GIVES(ENTRY("_IO_popen", popen)("true", "r"));
  EQ(pclose(stream), 0);
}

MIXED_CASE(a_process_of_its_own) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  KEEPS(prctl(PR_SET_NAME, "errno"), 0);
  KEEPS(setuid(getuid()), 0);
  KEEPS(seteuid(geteuid()), 0);
  KEEPS(setreuid(getuid(), geteuid()), 0);
  KEEPS(setresuid(getuid(), geteuid(), geteuid()), 0);
  KEEPS(unshare(0), 0);
  if (geteuid() == 0) {
    KEEPS(chroot("/"), 0);
    int pids = SYS(open("/proc/self/ns/pid", O_RDONLY));
    KEEPS(setns(pids, CLONE_NEWPID), 0);
    KEEPS(setns(pids, 0), 0);
  }
  struct sigaction action = {.sa_handler = interrupted};
  KEEPS(sigaction(SIGUSR1, &action, NULL), 0);
  KEEPS(ENTRY("__sigaction", sigaction)(SIGUSR1, &action, NULL), 0);
  const char *const names[] = {"signal", "bsd_signal", "ssignal", "sysv_signal", "__sysv_signal", "sigset"};
  for (int i = 0; i < 6; i++) {
    errno = MAGIC;
    CHECK(ENTRY(names[i], signal)(SIGUSR1, interrupted) != SIG_ERR);
    EQ(errno, MAGIC);
  }
}

CASE(a_daemon) {
  pid_t pid = start_child();
  if (pid == 0) {
    errno = MAGIC;
    bt_shared->value[0] = daemon(1, 1) == 0 && errno == MAGIC;
    step_done(0);
    _exit(0);
  }
  end_child(pid);
  step_wait(0);
  EQ(bt_shared->value[0], 1);
}

/* ---- past the hooks --------------------------------------------------------------------------------------- */

MIXED_CASE(streams_libraries_and_requests) {
  struct pair p = open_pair(V4), q = open_pair(V4), r = open_pair(V4);
  char bytes[4];
  const char *const readers[] = {"aio_read", "aio_read64"}, *const writers[] = {"aio_write", "aio_write64"};
  const char *const lists[] = {"lio_listio", "lio_listio64"};
  for (int i = 0; i < 2; i++) {
    struct aiocb request = {.aio_fildes = p.client, .aio_buf = "abcd", .aio_nbytes = 4,
                            .aio_sigevent.sigev_notify = SIGEV_NONE, .aio_lio_opcode = LIO_WRITE};
    struct aiocb *list[] = {&request};
    KEEPS(ENTRY(writers[i], aio_write)(&request), 0);
    get(p.server, "abcd");
    UNTIL(aio_error(&request) == 0);
    KEEPS(ENTRY(lists[i], lio_listio)(LIO_WAIT, list, 1, NULL), 0);
    request.aio_fildes = p.server, request.aio_buf = bytes;
    KEEPS(ENTRY(readers[i], aio_read)(&request), 0);
    UNTIL(aio_error(&request) == 0);
  }
  exercise(q.client, q.server), exercise(r.client, r.server);
  KEEPS_AND_GIVES(fdopen(q.client, "r"));
  KEEPS_AND_GIVES(ENTRY("_IO_fdopen", fdopen)(q.server, "r"));
  void *libc = KEEPS_AND_GIVES(dlopen("libc.so.6", RTLD_NOW | RTLD_DEEPBIND));
  KEEPS_AND_GIVES(dlsym(libc, "send"));
  KEEPS_AND_GIVES(dlsym(libc, "getpid"));
  KEEPS_AND_GIVES(dlsym(RTLD_NEXT, "send"));
  KEEPS_AND_GIVES(dlmopen(LM_ID_BASE, "libm.so.6", RTLD_NOW));
}

/* liburing's, of a ring in which nothing lies. */
MIXED_CASE(functions_of_liburing) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  void *liburing = dlopen("liburing.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!liburing) bt_skip("no liburing");
  int (*begin)(long, void *, long);
  *(void **)&begin = dlsym(liburing, "io_uring_queue_init");
  static char ring[4096];
  if (begin(4, ring, 0) < 0) bt_skip("no io_uring in the kernel");
  long long moment[2] = {0, 1000000};
  int file = SYS(open("/dev/null", O_RDONLY));
  void *done;
  const struct {
    const char *name;
    void *a[4];
  } calls[] = {
      {"io_uring_submit", {0}},
      {"io_uring_submit_and_wait", {0}},
      {"io_uring_submit_and_wait_timeout", {&done, 0, moment}},
      {"io_uring_submit_and_wait_min_timeout", {&done, 0, moment}},
      {"io_uring_submit_and_wait_reg", {&done}},
      {"io_uring_submit_and_get_events", {0}},
      {"io_uring_wait_cqes", {&done, (void *)1, moment}},
      {"io_uring_wait_cqe_timeout", {&done, moment}},
      {"io_uring_register_files", {&file}},
      {"io_uring_register_files_tags", {&file}},
      {"io_uring_register_files_update", {0, &file}},
      {"io_uring_register_files_update_tag", {0, &file}},
  };
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    int (*function)(void *, void *, void *, void *, void *, long);
    *(void **)&function = dlsym(liburing, calls[i].name);
    void *const *a = calls[i].a;
    errno = MAGIC;
    if (function) function(ring, a[0], a[1], a[2], a[3], 0);
    EQ(errno, MAGIC);
  }
  int (*enter)(long, long, void *, long);
  *(void **)&enter = dlsym(liburing, "io_uring_register");
  errno = MAGIC;
  if (enter) CHECK(enter(-1, 0, NULL, 0) < 0);
  EQ(errno, MAGIC);
}

/* Functions that give errors by their value, of libraries that need not be there. */
MIXED_CASE(functions_of_other_libraries) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  const char *const names[] = {"io_uring_setup", "io_submit"};
  for (int i = 0; i < 2; i++) {
    int (*function)(long, long, long, long, long) = dlsym(RTLD_DEFAULT, names[i]);
    errno = MAGIC;
    if (function && function(0, 0, 0, 0, 0) > 0) FAIL("%s gives something for nothing", names[i]);
    EQ(errno, MAGIC);
  }
}

/* ---- jumps ---------------------------------------------------------------------------------------------------- */

static sigjmp_buf out;
static const char *jump_name;
static void jump_out(int number) {
  (void)number;
  void (*jump)(sigjmp_buf, int) = entry(jump_name);
  errno = MAGIC;
  jump(out, 1);
}
static void interrupt(int fd) {
  (void)fd;
  SYS(tgkill(getpid(), getpid(), SIGUSR1));
}
ON_BOTH(jumps) {
  struct pair p = opened();
  const char *const names[] = {"longjmp", "_longjmp", "siglongjmp", "__longjmp_chk"};
  handle_signal(SIGUSR1, jump_out, SA_NODEFER);
  for (int i = 0; i < 4; i++) {
    jump_name = names[i];
    char byte;
    LATER(interrupt, p.client);
    errno = 0;
    if (sigsetjmp(out, 0) == 0) recv(p.server, &byte, 1, 0), FAIL("%s came back", jump_name);
    EQ(errno, MAGIC);
    end_thread(later_.thread);
    exercise(p.client, p.server);
  }
}
