/* sendmmsg and recvmmsg: what ends them, what their time-out does, and bad arguments. */
#include "bt.h"

#include <sys/mman.h>
#include <sys/syscall.h>

enum { N = 3000 };
static struct mmsghdr batch[N];
static struct iovec vectors[N];
static char bytes[N];

/* N messages of one byte each. */
static void prepare(void) {
  memset(batch, 0, sizeof batch);
  for (int i = 0; i < N; i++) {
    vectors[i] = (struct iovec){bytes + i, 1};
    batch[i].msg_hdr.msg_iov = &vectors[i], batch[i].msg_hdr.msg_iovlen = 1;
    batch[i].msg_len = 77;
  }
}
static void arrive(int from, int to, const char *text) {
  char buffer[64];
  put(from, text);
  UNTIL(recv(to, buffer, sizeof buffer, MSG_PEEK | MSG_DONTWAIT) == (ssize_t)strlen(text));
}

/* The end of the stream is a message like any other. */
SAN_CASE(the_end_fills_the_batch) {
  struct pair p = open_pair(V4);
  arrive(p.client, p.server, "ab");
  SYS(close(p.client));
  wait_revents(p.server, POLLRDHUP, POLLRDHUP);
  prepare();
  EQ(recvmmsg(p.server, batch, 4, 0, NULL), 4);
  EQ(batch[1].msg_len, 1); EQ(batch[2].msg_len, 0); EQ(batch[3].msg_len, 0);
  EQ(batch[4].msg_len, 77);
  EQ(recvmmsg(p.server, batch, 4, MSG_WAITFORONE, NULL), 4);
  /* As many as were asked for: sendmmsg alone has a limit. */
  EQ(recvmmsg(p.server, batch, N, 0, NULL), N);
  EQ(batch[N - 1].msg_len, 0);
}

/* The error of a connection that was reset is told before what lies unread: of one that closed so, too, whose bytes come over TCP
 * with it. */
static void resets(int fd) {
  put(fd, "ping"), get(fd, "pong");
  send_pattern(fd, 0, 3000);
  const struct linger reset = {1, 0};
  SYS(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset));
  SYS(close(fd));
  step_done(0);
}
static void is_reset(int fd) {
  get(fd, "ping"), put(fd, "pong");
  step_wait(0);
  prepare();
  ERR(recvmmsg(fd, batch, 4, 0, NULL), ECONNRESET);
  EQ(recvmmsg(fd, batch, 4, 0, NULL), 4);
  SYS(close(fd));
}
MIXED_CASE(an_error_comes_before_what_is_unread) { run_processes(V4, resets, is_reset); }

SAN_CASE(at_most_1024_are_sent) {
  struct pair p = open_pair(V4);
  prepare();
  EQ(sendmmsg(p.client, batch, N, 0), 1024);
  EQ(batch[1023].msg_len, 1); EQ(batch[1024].msg_len, 77);
  char got[1024];
  EQ(recv(p.server, got, sizeof got, MSG_WAITALL), 1024);
  expect_nothing(p.server);
}

SAN_CASE(bad_times) {
  struct pair p = open_pair(V4);
  arrive(p.client, p.server, "abc");
  prepare();
  struct timespec bad[] = {{0, -1}, {0, 1000000000}, {-1, 0}};
  for (int i = 0; i < 3; i++) ERR(recvmmsg(p.server, batch, 3, MSG_DONTWAIT, &bad[i]), EINVAL);
  ERR(recvmmsg(p.server, batch, 3, MSG_DONTWAIT, bad_pointer()), EFAULT);
  get(p.server, "abc");
}

/* It is looked at after each message, and says what is left. */
SAN_CASE(times_out_after_a_message) {
  struct pair p = open_pair(V4);
  arrive(p.client, p.server, "abcdef");
  prepare();
  struct timespec none = {0, 0}, much = {1000, 0};
  EQ(recvmmsg(p.server, batch, 4, MSG_DONTWAIT, &none), 1);
  EQ(recvmmsg(p.server, batch, 4, MSG_DONTWAIT, &much), 4);
  CHECK(much.tv_sec < 1000 && much.tv_sec > 900 && much.tv_nsec >= 0);
  /* It does not end a wait, and without a message it stays as it is. */
  struct timespec kept = {7, 123};
  EQ(recvmmsg(p.server, batch, 0, MSG_DONTWAIT, &kept), 0);
  get(p.server, "f");
  ERR(recvmmsg(p.server, batch, 4, MSG_DONTWAIT, &kept), EAGAIN);
  EQ(kept.tv_sec, 7); EQ(kept.tv_nsec, 123);
}
static void *send_later(void *fd) {
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep((pid_t)bt_shared->value[0]);
  sleep_ms(20);
  put(*(int *)fd, "x");
  return NULL;
}
SAN_CASE(no_time_out_ends_a_wait) {
  struct pair p = open_pair(V4);
  pthread_t thread = start_thread(send_later, &p.client);
  prepare();
  bt_shared->value[0] = gettid();
  struct timespec short_time = {0, 1000};
  EQ(recvmmsg(p.server, batch, 4, 0, &short_time), 1);
  EQ(short_time.tv_sec, 0); EQ(short_time.tv_nsec, 0);
  end_thread(thread);
}

SAN_CASE(a_time_that_can_not_be_written) {
  struct pair p = open_pair(V4);
  arrive(p.client, p.server, "ab");
  prepare();
  struct timespec *fixed = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ERR(recvmmsg(p.server, batch, 1, MSG_DONTWAIT, fixed), EFAULT);
  get(p.server, "b");
}

SAN_CASE(bad_batches) {
  struct pair p = open_pair(V4);
  void *bad = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ERR(sendmmsg(p.client, bad, 4, 0), EFAULT);
  prepare(), vectors[0].iov_base = bad;
  ERR(sendmmsg(p.client, batch, 4, 0), EFAULT);
  prepare(), batch[0].msg_hdr.msg_iov = bad;
  ERR(sendmmsg(p.client, batch, 4, 0), EFAULT);
  expect_nothing(p.server);
  prepare(), vectors[1].iov_base = bad;
  EQ(sendmmsg(p.client, batch, 4, 0), 1);
  prepare(), batch[1].msg_hdr.msg_iov = bad;
  EQ(sendmmsg(p.client, batch, 4, 0), 1);
  char two[2];
  EQ(recv(p.server, two, 2, MSG_WAITALL), 2);
  arrive(p.client, p.server, "abc");
  ERR(recvmmsg(p.server, bad, 4, MSG_DONTWAIT, NULL), EFAULT);
  prepare(), batch[0].msg_hdr.msg_iov = bad;
  ERR(recvmmsg(p.server, batch, 4, MSG_DONTWAIT, NULL), EFAULT);
  prepare(), batch[1].msg_hdr.msg_iov = bad;
  EQ(recvmmsg(p.server, batch, 4, MSG_DONTWAIT, NULL), 1);
  EQ(bytes[0], 'a');
}

/* The socket's error comes first, then what had come before it, then the end. */
SAN_CASE(an_error_comes_first) {
  struct pair p = open_pair(V4);
  arrive(p.client, p.server, "ab");
  close_reset(p.client);
  wait_revents(p.server, 0, POLLERR | POLLHUP);
  prepare();
  ERR(recvmmsg(p.server, batch, 4, 0, NULL), ECONNRESET);
  EQ(recvmmsg(p.server, batch, 4, 0, NULL), 4);
  EQ(batch[3].msg_len, 0);
}

MIXED_CASE(urgent_data_ends_the_batch) {
  struct pair p = open_pair(V4);
  EQ(send(p.client, "abU", 3, MSG_OOB), 3);
  wait_for(p.server, POLLPRI);
  prepare();
  EQ(recvmmsg(p.server, batch, 4, MSG_OOB, NULL), 1);
  EQ(bytes[0], 'U'); EQ(batch[0].msg_hdr.msg_flags, MSG_OOB);
  ERR(recvmmsg(p.server, batch, 4, MSG_OOB, NULL), EINVAL);
}

/* The system calls that wait, with a time that can not be read (libc's own entries read it themselves). */
SAN_CASE(bad_times_of_waits) {
  struct pair p = open_pair(V4);
  put(p.client, "x"), wait_for(p.server, POLLIN);
  struct pollfd one = {p.server, POLLIN, 0};
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event));
  fd_set in;
  FD_ZERO(&in); FD_SET(p.server, &in);
  ERR(syscall(SYS_ppoll, &one, 1, bad_pointer(), NULL, 8), EFAULT);
  ERR(epoll_pwait2(set, &event, 1, bad_pointer(), NULL), EFAULT);
  ERR(syscall(SYS_select, p.server + 1, &in, NULL, NULL, bad_pointer()), EFAULT);
  ERR(syscall(SYS_pselect6, p.server + 1, &in, NULL, NULL, bad_pointer(), NULL), EFAULT);
}
