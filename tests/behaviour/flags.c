/* Flags of the send and receive calls, odd lengths, bad pointers and wrong descriptors. */
#include "bt.h"

#include <sys/mman.h>
#include <sys/syscall.h>

/* ---- MSG_PEEK ------------------------------------------------------------------------------- */

SAN_CASE(peek_keeps_data) {
  struct pair p = open_pair(V4);
  char buffer[16] = {0};
  put(p.client, "abcdef");
  wait_for(p.server, POLLIN);
  for (int i = 0; i < 3; i++) {
    EQ(recv(p.server, buffer, 3, MSG_PEEK), 3);
    CHECK(memcmp(buffer, "abc", 3) == 0);
  }
  get(p.server, "ab");
  EQ(recv(p.server, buffer, sizeof buffer, MSG_PEEK), 4);
  CHECK(memcmp(buffer, "cdef", 4) == 0);
  EQ(ready_now(p.server, POLLIN), POLLIN);
  get(p.server, "cdef");
  ERR(recv(p.server, buffer, 1, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
  SYS(close(p.client));
  EQ(recv(p.server, buffer, 1, MSG_PEEK), 0);
  EQ(recv(p.server, buffer, 1, MSG_PEEK), 0);
}

SAN_CASE(peek_over_many_messages) {
  struct pair p = open_pair(V4);
  static uint8_t buffer[50000];
  for (int i = 0; i < 50; i++) send_pattern(p.client, i * 1000, 1000);
  UNTIL(recv(p.server, buffer, sizeof buffer, MSG_PEEK) == 50000);
  check_pattern(buffer, 0, 50000);
  recv_pattern(p.server, 0, 12345);
  EQ(recv(p.server, buffer, sizeof buffer, MSG_PEEK), 50000 - 12345);
  check_pattern(buffer, 12345, 50000 - 12345);
  recv_pattern(p.server, 12345, 50000 - 12345);
}

/* MSG_PEEK with MSG_WAITALL waits until all is there, and takes nothing. */
static void peek_wait_left(int fd) {
  char buffer[8];
  step_done(0);
  EQ(recv(fd, buffer, 6, MSG_PEEK | MSG_WAITALL), 6);
  CHECK(memcmp(buffer, "abcdef", 6) == 0);
  get(fd, "abcdef");
}
static void peek_wait_right(int fd) {
  step_wait(0);
  put(fd, "abc");
  sleep_ms(20);
  put(fd, "def");
  step_done(1);
  expect_eof(fd);
}
static void peek_wait_end(int fd) {
  peek_wait_left(fd);
  SYS(close(fd));
}
ENDS(peek_waitall, peek_wait_end, peek_wait_right)

SAN_CASE(peek_offset) {
  struct pair p = open_pair(V4);
  char buffer[8];
  put(p.client, "abcdefgh");
  wait_for(p.server, POLLIN);
  int offset = 0;
  if (setsockopt(p.server, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset) != 0) {
    EQ(errno, EOPNOTSUPP); /* Linux before 6.9 */
    get(p.server, "abcdefgh");
    exercise(p.server, p.client);
    return;
  }
  EQ(recv(p.server, buffer, 3, MSG_PEEK), 3);
  CHECK(memcmp(buffer, "abc", 3) == 0);
  EQ(recv(p.server, buffer, 3, MSG_PEEK), 3);
  CHECK(memcmp(buffer, "def", 3) == 0);
  get(p.server, "abcdefgh");
}

/* ---- MSG_WAITALL ---------------------------------------------------------------------------- */

static void pieces(int fd) {
  for (int i = 0; i < 10; i++) {
    send_pattern(fd, i * 1000, 1000);
    if (i % 3 == 0) sleep_ms(5);
  }
  step_wait(0);
  SYS(close(fd));
}
static void waitall_whole(int fd) {
  static uint8_t buffer[10001];
  step_done(0);
  EQ(recv(fd, buffer, 7000, MSG_WAITALL), 7000);
  check_pattern(buffer, 0, 7000);
  /* The end of the stream cuts it short. */
  EQ(recv(fd, buffer, 10001, MSG_WAITALL), 3000);
  check_pattern(buffer, 7000, 3000);
  EQ(recv(fd, buffer, 10001, MSG_WAITALL), 0);
}
ENDS(waitall, pieces, waitall_whole)

static void waitall_vectors(int fd) {
  static uint8_t buffer[10001];
  struct iovec iov[3] = {{buffer, 1}, {buffer + 1, 4999}, {buffer + 5000, 3000}};
  struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 3};
  step_done(0);
  EQ(recvmsg(fd, &msg, MSG_WAITALL), 8000);
  check_pattern(buffer, 0, 8000);
  EQ(recvfrom(fd, buffer, 10001, MSG_WAITALL, NULL, NULL), 2000);
  check_pattern(buffer, 8000, 2000);
}
ENDS(waitall_recvmsg, pieces, waitall_vectors)

SAN_CASE(waitall_nonblocking) {
  struct pair p = open_pair(V4);
  char buffer[16];
  put(p.client, "abc");
  wait_for(p.server, POLLIN);
  EQ(recv(p.server, buffer, 8, MSG_WAITALL | MSG_DONTWAIT), 3);
  ERR(recv(p.server, buffer, 8, MSG_WAITALL | MSG_DONTWAIT), EAGAIN);
}

/* More than any buffer holds: the receiver must make room as it goes. */
static void eight_megabytes(int fd) {
  send_pattern(fd, 0, 8 << 20);
  expect_eof(fd);
}
static void waitall_large(int fd) {
  uint8_t *buffer = malloc(8 << 20);
  EQ(recv(fd, buffer, 8 << 20, MSG_WAITALL), 8 << 20);
  check_pattern(buffer, 0, 8 << 20);
  SYS(close(fd));
}
ENDS(waitall_eight_megabytes, eight_megabytes, waitall_large)

/* ---- MSG_DONTWAIT, MSG_TRUNC, MSG_NOSIGNAL, MSG_MORE ---------------------------------------- */

SAN_CASE(dontwait) {
  struct pair p = open_pair(V4);
  char byte;
  ERR(recv(p.server, &byte, 1, MSG_DONTWAIT), EAGAIN);
  fill(p.client, 0);
  ERR(send(p.client, &byte, 1, MSG_DONTWAIT), EAGAIN);
  struct iovec iov = {&byte, 1};
  struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
  ERR(sendmsg(p.client, &msg, MSG_DONTWAIT), EAGAIN);
  ERR(recvmsg(p.client, &msg, MSG_DONTWAIT), EAGAIN);
  CHECK(!(fcntl(p.client, F_GETFL) & O_NONBLOCK));
}

/* TCP: MSG_TRUNC takes bytes from the stream and does not store them. */
SAN_CASE(trunc_discards) {
  struct pair p = open_pair(V4);
  char buffer[8] = "unused!";
  put(p.client, "abcdefgh");
  wait_for(p.server, POLLIN);
  EQ(recv(p.server, buffer, 3, MSG_TRUNC), 3);
  EQ(memcmp(buffer, "unused!", 8), 0);
  EQ(recv(p.server, NULL, 2, MSG_TRUNC), 2);
  get(p.server, "fgh");
  send_pattern(p.client, 0, 100000);
  for (uint64_t gone = 0; gone < 60000;)
    gone += SYS(recv(p.server, NULL, 60000 - gone, MSG_TRUNC));
  recv_pattern(p.server, 60000, 40000);
}

static void sigpipe_default(int call) {
  struct pair p = open_pair(V4);
  pid_t child = start_child();
  if (child == 0) {
    signal(SIGPIPE, SIG_DFL);
    SYS(shutdown(p.client, SHUT_WR));
    struct iovec iov = {"x", 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (call == 0) write(p.client, "x", 1);
    if (call == 1) send(p.client, "x", 1, 0);
    if (call == 2) writev(p.client, &iov, 1);
    if (call == 3) sendmsg(p.client, &msg, 0);
    if (call == 4) sendto(p.client, "x", 1, 0, NULL, 0);
    if (call == 5) sendmmsg(p.client, &(struct mmsghdr){.msg_hdr = msg}, 1, 0);
    if (call == 6) sendfile(p.client, SYS(open("/proc/self/exe", O_RDONLY)), NULL, 1);
    if (call == 7) {
      int ends[2];
      SYS(pipe(ends)), SYS(write(ends[1], "x", 1));
      splice(ends[0], NULL, p.client, NULL, 1, 0);
    }
    _exit(9);
  }
  int status;
  SYS(waitpid(child, &status, 0));
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
}
SAN_CASE(sigpipe_kills) {
  for (int call = 0; call < 8; call++) sigpipe_default(call);
}

static _Atomic int pipe_signals;
static _Atomic pid_t pipe_thread;
static void on_sigpipe(int number) {
  (void)number;
  pipe_signals++;
  pipe_thread = gettid();
}
static void *write_shut_socket(void *arg) {
  ERR(write((int)(intptr_t)arg, "x", 1), EPIPE);
  EQ(pipe_signals, 1); /* delivered before the call returned, to this thread */
  EQ(pipe_thread, gettid());
  return NULL;
}
SAN_CASE(sigpipe_goes_to_the_thread) {
  struct pair p = open_pair(V4);
  handle_signal(SIGPIPE, on_sigpipe, 0);
  SYS(shutdown(p.client, SHUT_WR));
  end_thread(start_thread(write_shut_socket, (void *)(intptr_t)p.client));
  ERR(send(p.client, "x", 1, MSG_NOSIGNAL), EPIPE);
  EQ(pipe_signals, 1);
}

SAN_CASE(sigpipe_blocked_stays_pending) {
  struct pair p = open_pair(V4);
  sigset_t set, pending;
  sigemptyset(&set), sigaddset(&set, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  SYS(shutdown(p.client, SHUT_WR));
  ERR(send(p.client, "x", 1, MSG_NOSIGNAL), EPIPE);
  sigpending(&pending);
  EQ(sigismember(&pending, SIGPIPE), 0);
  ERR(send(p.client, "x", 1, 0), EPIPE);
  sigpending(&pending);
  EQ(sigismember(&pending, SIGPIPE), 1);
}

SAN_CASE(more_is_sent_in_order) {
  struct pair p = open_pair(V4);
  EQ(send(p.client, "head", 4, MSG_MORE), 4);
  EQ(send(p.client, "er", 2, MSG_MORE), 2);
  EQ(send(p.client, "body", 4, 0), 4);
  get(p.server, "headerbody");
  /* What MSG_MORE held back goes out with the end of the stream. */
  EQ(send(p.client, "tail", 4, MSG_MORE), 4);
  SYS(close(p.client));
  get(p.server, "tail");
  expect_eof(p.server);
}

/* MSG_MORE without a follow-up is a delay, not a loss (TCP: 200 ms). */
SAN_CASE(more_alone_arrives) {
  struct pair p = open_pair(V4);
  EQ(send(p.client, "alone", 5, MSG_MORE), 5);
  get(p.server, "alone");
}

SAN_CASE(cork) {
  struct pair p = open_pair(V4);
  set_option(p.client, IPPROTO_TCP, TCP_CORK, 1);
  EQ(get_option(p.client, IPPROTO_TCP, TCP_CORK), 1);
  put(p.client, "GET ");
  put(p.client, "/");
  set_option(p.client, IPPROTO_TCP, TCP_CORK, 0);
  get(p.server, "GET /");
  set_option(p.client, IPPROTO_TCP, TCP_CORK, 1);
  send_pattern(p.client, 0, 100000);
  SYS(shutdown(p.client, SHUT_WR));
  recv_pattern(p.server, 0, 100000);
  expect_eof(p.server);
}

/* ---- lengths -------------------------------------------------------------------------------- */

SAN_CASE(zero_lengths) {
  struct pair p = open_pair(V4);
  char byte = 'x';
  struct iovec none = {&byte, 0};
  struct msghdr msg = {.msg_iov = &none, .msg_iovlen = 1}, empty = {0};
  EQ(send(p.client, &byte, 0, 0), 0);
  EQ(write(p.client, &byte, 0), 0);
  EQ(write(p.client, NULL, 0), 0);
  EQ(writev(p.client, &none, 1), 0);
  EQ(writev(p.client, NULL, 0), 0);
  EQ(sendmsg(p.client, &msg, 0), 0);
  EQ(sendmsg(p.client, &empty, 0), 0);
  expect_nothing(p.server); /* and that is not an end of stream */
  put(p.client, "a");
  wait_for(p.server, POLLIN);
  EQ(recv(p.server, &byte, 0, 0), 0);
  EQ(read(p.server, &byte, 0), 0);
  EQ(readv(p.server, &none, 1), 0);
  EQ(recvmsg(p.server, &empty, 0), 0);
  get(p.server, "a");
  /* An empty read never waits. */
  EQ(read(p.server, &byte, 0), 0);
  exercise(p.client, p.server);
}

static void vectors_out(int fd) {
  static struct iovec iov[IOV_MAX];
  size_t total = 0;
  for (int i = 0; i < IOV_MAX; i++) {
    iov[i] = (struct iovec){(void *)pattern(total), i % 7 ? i * 3 : 0};
    total += iov[i].iov_len;
  }
  EQ(writev(fd, iov, IOV_MAX), total); /* blocking: all of it */
  struct msghdr msg = {.msg_iov = iov, .msg_iovlen = IOV_MAX};
  EQ(sendmsg(fd, &msg, 0), total);
  expect_eof(fd);
}
static void vectors_in(int fd) {
  size_t total = 0;
  for (int i = 0; i < IOV_MAX; i++) total += i % 7 ? i * 3 : 0;
  recv_pattern(fd, 0, total);
  static struct iovec iov[IOV_MAX];
  uint8_t *buffer = malloc(IOV_MAX * 2000);
  for (int i = 0; i < IOV_MAX; i++) iov[i] = (struct iovec){buffer + i * 2000, 2000};
  struct msghdr msg = {.msg_iov = iov, .msg_iovlen = total / 2000};
  EQ(recvmsg(fd, &msg, MSG_WAITALL), total / 2000 * 2000);
  check_pattern(buffer, 0, total / 2000 * 2000);
  iov[0].iov_len = total % 2000;
  for (size_t done = 0; done < total % 2000;) {
    iov[0] = (struct iovec){buffer, total % 2000 - done};
    ssize_t n = SYS(readv(fd, iov, 1));
    check_pattern(buffer, total / 2000 * 2000 + done, n);
    done += n;
  }
  SYS(close(fd));
}
ENDS(a_thousand_vectors, vectors_out, vectors_in)

SAN_CASE(bad_vectors) {
  struct pair p = open_pair(V4);
  static struct iovec iov[IOV_MAX + 1];
  static char byte;
  for (int i = 0; i <= IOV_MAX; i++) iov[i] = (struct iovec){&byte, 1};
  ERR(writev(p.client, iov, IOV_MAX + 1), EINVAL);
  ERR(readv(p.client, iov, IOV_MAX + 1), EINVAL);
  volatile int negative = -1;
  ERR(writev(p.client, iov, negative), EINVAL);
  struct msghdr msg = {.msg_iov = iov, .msg_iovlen = IOV_MAX + 1};
  ERR(sendmsg(p.client, &msg, 0), EMSGSIZE);
  ERR(recvmsg(p.client, &msg, 0), EMSGSIZE);
  iov[0].iov_len = (size_t)-1;
  ERR(writev(p.client, iov, 1), EINVAL);
  ERR(readv(p.client, iov, 1), EINVAL);
  exercise(p.client, p.server);
}

SAN_CASE(positioned_calls) {
  struct pair p = open_pair(V4);
  char byte = 'x';
  struct iovec iov = {&byte, 1};
  ERR(pread(p.client, &byte, 1, 0), ESPIPE);
  ERR(pwrite(p.client, &byte, 1, 0), ESPIPE);
  ERR(preadv(p.client, &iov, 1, 0), ESPIPE);
  ERR(pwritev(p.client, &iov, 1, 0), ESPIPE);
  ERR(preadv2(p.client, &iov, 1, 0, 0), ESPIPE);
  ERR(lseek(p.client, 0, SEEK_CUR), ESPIPE);
  /* With offset -1 they are readv and writev. */
  EQ(pwritev2(p.client, &iov, 1, -1, 0), 1);
  byte = 0;
  EQ(preadv2(p.server, &iov, 1, -1, 0), 1);
  EQ(byte, 'x');
  /* Only one of the flags means something to a socket. */
  EQ(pwritev2(p.client, &iov, 1, -1, RWF_DSYNC), 1);
  EQ(preadv2(p.server, &iov, 1, -1, RWF_HIPRI), 1);
  ERR(preadv2(p.server, &iov, 1, -1, RWF_NOWAIT), EAGAIN);
  EQ(pwritev2(p.client, &iov, 1, -1, RWF_NOWAIT), 1);
  EQ(SYS(syscall(SYS_preadv2, p.server, &iov, 1, -1L, -1L, 0)), 1);
  EQ(SYS(syscall(SYS_pwritev2, p.server, &iov, 1, -1L, -1L, 0)), 1);
  get(p.client, "x");
  ERR(preadv2(p.server, &iov, 1, -1, 1 << 30), EOPNOTSUPP);
  exercise(p.client, p.server);
}

SAN_CASE(message_batches) {
  struct pair p = open_pair(V4);
  enum { N = 64 };
  struct mmsghdr out[N], in[4];
  struct iovec out_iov[N], in_iov[4];
  static uint8_t buffer[4][1000];
  memset(out, 0, sizeof out), memset(in, 0, sizeof in);
  size_t total = 0;
  for (int i = 0; i < N; i++) {
    out_iov[i] = (struct iovec){(void *)pattern(total), i + 1};
    out[i].msg_hdr.msg_iov = &out_iov[i], out[i].msg_hdr.msg_iovlen = 1;
    total += i + 1;
  }
  EQ(sendmmsg(p.client, out, N, 0), N);
  for (int i = 0; i < N; i++) EQ(out[i].msg_len, i + 1);
  recv_pattern(p.server, 0, total);
  send_pattern(p.client, 0, 3500);
  UNTIL(recv(p.server, (uint8_t[3500]){0}, 3500, MSG_PEEK) == 3500);
  for (int i = 0; i < 4; i++) {
    in_iov[i] = (struct iovec){buffer[i], 1000};
    in[i].msg_hdr.msg_iov = &in_iov[i], in[i].msg_hdr.msg_iovlen = 1;
  }
  EQ(recvmmsg(p.server, in, 4, MSG_DONTWAIT, NULL), 4);
  for (int i = 0; i < 4; i++) {
    EQ(in[i].msg_len, i < 3 ? 1000 : 500);
    check_pattern(buffer[i], i * 1000, in[i].msg_len);
  }
  ERR(recvmmsg(p.server, in, 4, MSG_DONTWAIT, NULL), EAGAIN);
  EQ(sendmmsg(p.client, out, 0, 0), 0);
  ERR(sendmmsg(-1, out, 1, 0), EBADF);
  ERR(recvmmsg(-1, in, 1, 0, NULL), EBADF);
}

/* ---- bad memory ----------------------------------------------------------------------------- */

SAN_CASE(bad_pointers) {
  struct pair p = open_pair(V4);
  void *bad = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct iovec iov = {bad, 10};
  struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
  void *const pointers[] = {bad, bad_pointer(), NULL};
  for (int i = 0; i < 3; i++) {
    iov.iov_base = pointers[i];
    ERR(send(p.client, pointers[i], 10, 0), EFAULT);
    ERR(write(p.client, pointers[i], 10), EFAULT);
    ERR(sendto(p.client, pointers[i], 10, 0, NULL, 0), EFAULT);
    ERR(writev(p.client, &iov, 1), EFAULT);
    ERR(sendmsg(p.client, &msg, 0), EFAULT);
  }
  ERR(sendmsg(p.client, bad, 0), EFAULT);
  ERR(writev(p.client, bad, 1), EFAULT);
  expect_nothing(p.server);
  put(p.client, "kept");
  wait_for(p.server, POLLIN);
  for (int i = 0; i < 3; i++) {
    iov.iov_base = pointers[i];
    ERR(recv(p.server, pointers[i], 10, 0), EFAULT);
    ERR(read(p.server, pointers[i], 10), EFAULT);
    ERR(readv(p.server, &iov, 1), EFAULT);
    ERR(recvmsg(p.server, &msg, 0), EFAULT);
  }
  ERR(recvmsg(p.server, bad, 0), EFAULT);
  ERR(readv(p.server, bad, 1), EFAULT);
  get(p.server, "kept");
  exercise(p.client, p.server);
}

SAN_CASE(read_only_memory) {
  struct pair p = open_pair(V4);
  char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EQ(send(p.client, page, 100, 0), 100);
  wait_for(p.server, POLLIN);
  ERR(recv(p.server, page, 100, 0), EFAULT);
  char buffer[100];
  EQ(recv(p.server, buffer, 100, MSG_WAITALL), 100);
}

/* ---- wrong descriptors ---------------------------------------------------------------------- */

SAN_CASE(closed_descriptor) {
  struct pair p = open_pair(V4);
  char byte;
  struct iovec iov = {&byte, 1};
  struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
  SYS(close(p.client));
  ERR(close(p.client), EBADF);
  ERR(read(p.client, &byte, 1), EBADF);
  ERR(write(p.client, &byte, 1), EBADF);
  ERR(recv(p.client, &byte, 1, 0), EBADF);
  ERR(send(p.client, &byte, 1, 0), EBADF);
  ERR(readv(p.client, &iov, 1), EBADF);
  ERR(writev(p.client, &iov, 1), EBADF);
  ERR(recvmsg(p.client, &msg, 0), EBADF);
  ERR(sendmsg(p.client, &msg, 0), EBADF);
  ERR(shutdown(p.client, SHUT_RD), EBADF);
  ERR(fcntl(p.client, F_GETFL), EBADF);
  ERR(ioctl(p.client, FIONREAD, &(int){0}), EBADF);
  ERR(getsockopt(p.client, SOL_SOCKET, SO_ERROR, &byte, &(socklen_t){1}), EBADF);
  ERR(dup(p.client), EBADF);
  EQ(ready_now(p.client, POLLIN), POLLNVAL);
  expect_eof(p.server);
  for (int i = -2; i < 0; i++) {
    ERR(read(i, &byte, 1), EBADF);
    ERR(send(i, &byte, 1, 0), EBADF);
    ERR(close(i), EBADF);
  }
  ERR(read(INT_MAX, &byte, 1), EBADF);
  ERR(close(INT_MAX), EBADF);
  ERR(recv(100000, &byte, 1, 0), EBADF);
}

CASE(not_a_socket) {
  int fd[2];
  char byte = 'p';
  SYS(pipe(fd));
  ERR(send(fd[1], &byte, 1, 0), ENOTSOCK);
  ERR(recv(fd[0], &byte, 1, 0), ENOTSOCK);
  ERR(shutdown(fd[0], SHUT_RD), ENOTSOCK);
  ERR(sendmsg(fd[1], &(struct msghdr){0}, 0), ENOTSOCK);
  EQ(write(fd[1], &byte, 1), 1);
  EQ(read(fd[0], &byte, 1), 1);
  ERR(write(fd[0], &byte, 1), EBADF);
}

/* ---- control messages ----------------------------------------------------------------------- */

SAN_CASE(unknown_control_message_refused) {
  struct pair p = open_pair(V4);
  char control[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec iov = {"x", 1};
  struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
                       .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = 0x7777, c->cmsg_len = CMSG_LEN(sizeof(int));
  ERR(sendmsg(p.client, &msg, 0), EINVAL);
  expect_nothing(p.server);
  exercise(p.client, p.server);
}
