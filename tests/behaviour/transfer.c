/* Every call that moves bytes, with every size and shape of buffer. */
#include "bt.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* ---- each call, one direction ------------------------------------------------------------- */

typedef ssize_t send_fn(int fd, const uint8_t *data, size_t len);
typedef ssize_t recv_fn(int fd, uint8_t *data, size_t len);

static ssize_t by_write(int fd, const uint8_t *d, size_t n) { return write(fd, d, n); }
static ssize_t by_send(int fd, const uint8_t *d, size_t n) { return send(fd, d, n, 0); }
static ssize_t by_sendto(int fd, const uint8_t *d, size_t n) {
  /* A stream ignores the address. */
  union address other = address_v4("127.0.0.1", 9);
  return sendto(fd, d, n, 0, &other.any, sizeof other.v4);
}
static int split(struct iovec *iov, uint8_t *d, size_t n) {
  iov[0] = (struct iovec){d, n / 3};
  iov[1] = (struct iovec){NULL, 0};
  iov[2] = (struct iovec){d + n / 3, n - n / 3};
  return 3;
}
static ssize_t by_writev(int fd, const uint8_t *d, size_t n) {
  struct iovec iov[3];
  return writev(fd, iov, split(iov, (uint8_t *)d, n));
}
static ssize_t by_sendmsg(int fd, const uint8_t *d, size_t n) {
  struct iovec iov[3];
  struct msghdr msg = {.msg_iov = iov, .msg_iovlen = split(iov, (uint8_t *)d, n)};
  return sendmsg(fd, &msg, 0);
}
static ssize_t by_sendmmsg(int fd, const uint8_t *d, size_t n) {
  struct iovec iov[2] = {{(void *)d, n / 2}, {(void *)(d + n / 2), n - n / 2}};
  struct mmsghdr msg[2] = {{.msg_hdr = {.msg_iov = &iov[0], .msg_iovlen = 1}},
                           {.msg_hdr = {.msg_iov = &iov[1], .msg_iovlen = 1}}};
  int sent = sendmmsg(fd, msg, 2, 0);
  if (sent < 0) return sent;
  ssize_t total = 0;
  for (int i = 0; i < sent; i++) {
    total += msg[i].msg_len;
    if (i + 1 < sent) EQ(msg[i].msg_len, iov[i].iov_len); /* blocking: whole messages */
  }
  return total;
}

static ssize_t by_read(int fd, uint8_t *d, size_t n) { return read(fd, d, n); }
static ssize_t by_recv(int fd, uint8_t *d, size_t n) { return recv(fd, d, n, 0); }
static ssize_t by_recvfrom(int fd, uint8_t *d, size_t n) {
  union address from;
  memset(&from, 0x77, sizeof from);
  socklen_t len = sizeof from;
  ssize_t got = recvfrom(fd, d, n, 0, &from.any, &len);
  if (got > 0) EQ(len, 0); /* a stream names no sender */
  return got;
}
static ssize_t by_readv(int fd, uint8_t *d, size_t n) {
  struct iovec iov[3];
  return readv(fd, iov, split(iov, d, n));
}
static ssize_t by_recvmsg(int fd, uint8_t *d, size_t n) {
  struct iovec iov[3];
  char control[64];
  union address from;
  struct msghdr msg = {.msg_iov = iov, .msg_iovlen = split(iov, d, n), .msg_name = &from,
                       .msg_namelen = sizeof from, .msg_control = control,
                       .msg_controllen = sizeof control, .msg_flags = 0x5555};
  ssize_t got = recvmsg(fd, &msg, 0);
  if (got > 0) {
    EQ(msg.msg_flags & ~MSG_CMSG_CLOEXEC, 0);
    EQ(msg.msg_controllen, 0);
    EQ(msg.msg_namelen, 0);
  }
  return got;
}
static ssize_t by_recvmmsg(int fd, uint8_t *d, size_t n) {
  struct iovec iov = {d, n};
  struct mmsghdr msg = {.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1}};
  int got = recvmmsg(fd, &msg, 1, MSG_WAITFORONE, NULL);
  return got <= 0 ? got : (ssize_t)msg.msg_len;
}

static send_fn *const senders[] = {by_write, by_send, by_sendto, by_writev, by_sendmsg, by_sendmmsg};
static recv_fn *const receivers[] = {by_read, by_recv, by_recvfrom, by_readv, by_recvmsg, by_recvmmsg};
enum { CALLS = 6 };

static uint64_t drive_send(int fd, send_fn *call, uint64_t at, size_t len) {
  for (size_t done = 0; done < len;) {
    ssize_t n = call(fd, pattern(at + done), len - done);
    if (n <= 0) FAIL("sender gives %zd %s", n, strerrorname_np(errno));
    done += n;
  }
  return at + len;
}
static uint64_t drive_recv(int fd, recv_fn *call, uint64_t at, size_t len) {
  static _Thread_local uint8_t buffer[300000];
  CHECK(len + 16 <= sizeof buffer);
  for (size_t done = 0; done < len;) {
    memset(buffer + len - done, 0xa5, 16);
    ssize_t n = call(fd, buffer, len - done);
    if (n <= 0) FAIL("receiver gives %zd %s", n, strerrorname_np(errno));
    for (int i = 0; i < 16; i++) EQ(buffer[len - done + i], 0xa5); /* nothing past the end */
    check_pattern(buffer, at + done, n);
    done += n;
  }
  return at + len;
}

/* All six by all six calls, there and back. */
static const size_t mixed[] = {1, 3, 64, 1500, 4096, 70000};
static void matrix_left(int fd) {
  uint64_t out = 0, in = 0;
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1); /* sendmmsg sends two segments */
  for (int s = 0; s < CALLS; s++)
    for (int r = 0; r < CALLS; r++)
      for (int i = 0; i < 6; i++) {
        out = drive_send(fd, senders[s], out, mixed[i]);
        in = drive_recv(fd, receivers[r], in, mixed[i]);
      }
  SYS(close(fd));
}
static void matrix_right(int fd) {
  uint64_t out = 0, in = 0;
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1); /* sendmmsg sends two segments */
  for (int s = 0; s < CALLS; s++)
    for (int r = 0; r < CALLS; r++)
      for (int i = 0; i < 6; i++) {
        in = drive_recv(fd, receivers[r], in, mixed[i]);
        out = drive_send(fd, senders[s], out, mixed[i]);
      }
  expect_eof(fd);
}
ENDS(every_call, matrix_left, matrix_right)

/* ---- sizes -------------------------------------------------------------------------------- */

static void all_sizes_out(int fd) {
  uint64_t at = 0;
  for (size_t n = 1; n <= 65536; n += n < 2048 ? 1 : 7) at = drive_send(fd, by_send, at, n);
  at = drive_send(fd, by_send, at, 65535);
  at = drive_send(fd, by_send, at, 65536);
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
}
static void all_sizes_in(int fd) {
  uint64_t at = 0;
  for (size_t n = 65536; n >= 1; n -= n <= 2048 ? 1 : 7) at = drive_recv(fd, by_recv, at, n);
  static uint8_t rest[1 << 20];
  for (ssize_t n; (n = SYS(recv(fd, rest, sizeof rest, 0))) > 0; at += n) check_pattern(rest, at, n);
  SYS(close(fd));
}
ENDS(all_sizes_streamed, all_sizes_out, all_sizes_in)

static void sizes_ping(int fd) {
  for (size_t n = 1; n <= 65536; n += 1 + n / 12) {
    drive_send(fd, by_write, n, n);
    drive_recv(fd, by_read, n, n);
  }
  SYS(close(fd));
}
static void sizes_pong(int fd) {
  for (size_t n = 1; n <= 65536; n += 1 + n / 12) {
    drive_recv(fd, by_read, n, n);
    drive_send(fd, by_write, n, n);
  }
  expect_eof(fd);
}
ENDS(sizes_there_and_back, sizes_ping, sizes_pong)

static void random_sizes_out(int fd) {
  unsigned seed = 7;
  uint64_t at = 0;
  for (int i = 0; i < 2000; i++) {
    send_fn *call = senders[rand_r(&seed) % CALLS];
    at = drive_send(fd, call, at, 1 + rand_r(&seed) % (i % 50 ? 5000 : 200000));
  }
  SYS(close(fd));
}
static void random_sizes_in(int fd) {
  unsigned seed = 99, sender = 7;
  uint64_t at = 0, total = 0;
  for (int i = 0; i < 2000; i++)
    rand_r(&sender), total += 1 + rand_r(&sender) % (i % 50 ? 5000 : 200000);
  while (at < total) {
    size_t n = 1 + rand_r(&seed) % 20000;
    recv_fn *call = receivers[rand_r(&seed) % CALLS];
    at = drive_recv(fd, call, at, n < total - at ? n : total - at);
  }
  expect_eof(fd);
}
ENDS(random_sizes, random_sizes_out, random_sizes_in)

static void tiny_writes(int fd) {
  for (int i = 0; i < 20000; i++) EQ(write(fd, pattern(i), 1), 1);
  step_wait(0);
  SYS(close(fd));
}
static void slow_reader(int fd) {
  step_done(0);
  uint8_t buffer[97];
  uint64_t at = 0;
  for (ssize_t n; (n = SYS(read(fd, buffer, sizeof buffer))) > 0; at += n) {
    check_pattern(buffer, at, n);
    if (at % 16 == 0) sleep_ms(1);
  }
  EQ(at, 20000);
}
ENDS(tiny_writes_slow_reader, tiny_writes, slow_reader)

static void one_byte_reader(int fd) {
  step_done(0);
  recv_pattern(fd, 0, 1);
  for (int i = 1; i < 20000; i++) {
    uint8_t byte;
    EQ(recv(fd, &byte, 1, 0), 1);
    EQ(byte, *pattern(i));
  }
  expect_eof(fd);
}
static void large_writer(int fd) {
  send_pattern(fd, 0, 20000);
  step_wait(0);
  SYS(close(fd));
}
ENDS(one_byte_reads, large_writer, one_byte_reader)

/* ---- bulk --------------------------------------------------------------------------------- */

enum { BULK = 64 << 20 };
static void *bulk_sender(void *arg) {
  send_pattern(*(int *)arg, 5, BULK);
  SYS(shutdown(*(int *)arg, SHUT_WR));
  return NULL;
}
static void bulk_both(int fd) {
  pthread_t thread = start_thread(bulk_sender, &fd);
  recv_pattern(fd, 5, BULK);
  expect_eof(fd);
  end_thread(thread);
  SYS(close(fd));
}
ENDS(bulk_both_ways, bulk_both, bulk_both)

/* One process, non-blocking, both ways at once: a program that serves itself. */
SAN_CASE(one_thread_both_ways) {
  enum { TOTAL = 8 << 20 };
  struct pair p = open_pair(V4);
  int fd[2] = {p.client, p.server};
  uint64_t out[2] = {0, 0}, in[2] = {0, 0};
  static uint8_t buffer[100000];
  set_nonblocking(fd[0], true), set_nonblocking(fd[1], true);
  while (in[0] < TOTAL || in[1] < TOTAL) {
    struct pollfd set[2];
    for (int i = 0; i < 2; i++)
      set[i] = (struct pollfd){.fd = fd[i], .events = POLLIN | (out[i] < TOTAL ? POLLOUT : 0)};
    CHECK(SYS(poll(set, 2, HANG_MS)) > 0);
    for (int i = 0; i < 2; i++) {
      if (set[i].revents & POLLOUT) {
        size_t left = TOTAL - out[i];
        ssize_t n = send(fd[i], pattern(out[i]), left < 150000 ? left : 150000, 0);
        if (n < 0) EQ(errno, EAGAIN);
        if (n > 0) out[i] += n;
      }
      if (set[i].revents & POLLIN) {
        ssize_t n = recv(fd[i], buffer, sizeof buffer, 0);
        if (n < 0) FAIL("readable, and recv says %s", strerrorname_np(errno));
        check_pattern(buffer, in[i], n);
        in[i] += n;
      }
    }
  }
  expect_nothing(fd[0]), expect_nothing(fd[1]);
}

/* The buffers hold that much, so a thread may send it to itself before it reads. */
SAN_CASE(one_thread_quarter_megabyte) {
  struct pair p = open_pair(V4);
  send_pattern(p.client, 0, 256 << 10);
  send_pattern(p.server, 9, 256 << 10);
  recv_pattern(p.server, 0, 256 << 10);
  recv_pattern(p.client, 9, 256 << 10);
}

static void fill_and_drain(enum family family, bool epoll) {
  struct pair p = open_pair(family);
  uint64_t at = 0;
  set_nonblocking(p.client, true);
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLOUT}, got;
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.client, &event));
  for (int round = 0; round < 3; round++) {
    uint64_t n = fill(p.client, at);
    CHECK(n >= 65536);
    EQ(ready_now(p.client, POLLOUT), 0);
    EQ(epoll_wait(set, &got, 1, 0), 0);
    recv_pattern(p.server, at, n);
    expect_nothing(p.server);
    at += n;
    if (epoll) {
      EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
      EQ(got.events, EPOLLOUT);
    }
    wait_for(p.client, POLLOUT);
  }
  exercise(p.client, p.server);
}
SAN_CASE(full_buffer_poll) { fill_and_drain(V4, false); }
SAN_CASE(full_buffer_epoll) { fill_and_drain(V6, true); }

static void filling_end(int fd) {
  set_nonblocking(fd, true);
  uint64_t n = fill(fd, 0);
  atomic_store(&bt_shared->value[0], n);
  step_done(0);
  wait_for(fd, POLLOUT);
  send_pattern(fd, n, 1000);
  SYS(close(fd));
}
static void draining_end(int fd) {
  step_wait(0);
  recv_pattern(fd, 0, atomic_load(&bt_shared->value[0]) + 1000);
  expect_eof(fd);
}
ENDS(full_buffer_drained_by_peer, filling_end, draining_end)

/* ---- a receiver that neither waits nor polls ------------------------------------------------ */

enum { PIECE = 1500, PIECES = 20 };
/* Each piece waits for an answer: nothing comes behind it. */
static void piece_sender(int fd) {
  for (int i = 0; i < PIECES; i++) {
    send_pattern(fd, (uint64_t)i * PIECE, PIECE);
    recv_pattern(fd, i, 1);
  }
  SYS(close(fd));
}
static void receive_spinning(int fd, int first_look) {
  uint8_t buffer[400];
  for (size_t got = 0; got < (size_t)PIECE * PIECES;) {
    size_t left = PIECE - got % PIECE;
    ssize_t n = recv(fd, buffer, left < sizeof buffer ? left : sizeof buffer, MSG_DONTWAIT | first_look);
    if (n < 0) {
      EQ(errno, EAGAIN);
      sched_yield();
      continue;
    }
    if (first_look) EQ(recv(fd, buffer, n, MSG_DONTWAIT), n);
    CHECK(n > 0);
    check_pattern(buffer, got, n);
    got += n;
    if (got % PIECE == 0) send_pattern(fd, got / PIECE - 1, 1);
  }
  expect_eof(fd);
}
static void spinning_end(int fd) { receive_spinning(fd, 0); }
static void peeking_spinning_end(int fd) { receive_spinning(fd, MSG_PEEK); }
ENDS(spinning_receiver, piece_sender, spinning_end)
ENDS(spinning_receiver_that_peeks, piece_sender, peeking_spinning_end)

/* ---- many threads on one socket ------------------------------------------------------------ */

enum { RECORD = 4096, RECORDS = 400 };
static int record_fd;
static void *record_writer(void *arg) {
  uint8_t record[RECORD];
  memset(record, (int)(intptr_t)arg, sizeof record);
  for (int i = 0; i < RECORDS; i++)
    for (size_t done = 0; done < RECORD;) done += SYS(send(record_fd, record, RECORD - done, 0));
  return NULL;
}
static void four_writers(int fd) {
  record_fd = fd;
  pthread_t thread[4];
  for (intptr_t i = 0; i < 4; i++) thread[i] = start_thread(record_writer, (void *)(i + 1));
  for (int i = 0; i < 4; i++) end_thread(thread[i]);
  SYS(close(fd));
}
static void count_bytes(int fd) {
  long count[256] = {0};
  static uint8_t buffer[65536];
  for (ssize_t n; (n = SYS(recv(fd, buffer, sizeof buffer, 0))) > 0;)
    for (ssize_t i = 0; i < n; i++) count[buffer[i]]++;
  for (int i = 1; i <= 4; i++) EQ(count[i], (long)RECORD * RECORDS);
}
ENDS(four_writing_threads, four_writers, count_bytes)

static _Atomic long taken;
static void *taking_reader(void *arg) {
  uint8_t buffer[5000];
  ssize_t n;
  while ((n = SYS(recv(*(int *)arg, buffer, sizeof buffer, 0))) > 0) taken += n;
  return NULL;
}
static void four_readers(int fd) {
  pthread_t thread[4];
  for (int i = 0; i < 4; i++) thread[i] = start_thread(taking_reader, &fd);
  for (int i = 0; i < 4; i++) end_thread(thread[i]); /* end of stream wakes every reader */
  EQ(taken, 4 << 20);
}
static void four_megabytes(int fd) {
  send_pattern(fd, 0, 4 << 20);
  SYS(close(fd));
}
ENDS(four_reading_threads, four_megabytes, four_readers)

static void *bounce_thread(void *arg) {
  int fd = (int)(intptr_t)arg;
  for (int i = 0; i < 200; i++) recv_pattern(fd, i, 300), send_pattern(fd, i, 300);
  return NULL;
}
SAN_CASE(forty_connections_between_threads) {
  enum { N = 40 };
  struct pair p[N];
  pthread_t thread[N];
  for (int i = 0; i < N; i++) {
    p[i] = open_pair(i % 3);
    thread[i] = start_thread(bounce_thread, (void *)(intptr_t)p[i].server);
  }
  for (int round = 0; round < 200; round++) {
    for (int i = 0; i < N; i++) send_pattern(p[i].client, round, 300);
    for (int i = 0; i < N; i++) recv_pattern(p[i].client, round, 300);
  }
  for (int i = 0; i < N; i++) end_thread(thread[i]), close_pair(&p[i]);
}

/* Sends that must not wait beside one of another thread that does: what each said it sent arrives. */
enum { LONG = 32 << 20, ENOUGH = 1 << 20 };
static void *long_send(void *arg) {
  static uint8_t bytes[LONG];
  EQ(SYS(send(*(int *)arg, bytes, LONG, MSG_NOSIGNAL)), LONG);
  return NULL;
}
static void sends_beside(int fd) {
  pthread_t thread = start_thread(long_send, &fd);
  UNTIL(bt_shared->value[0]);
  long beside = 0;
  for (int i = 0; i < 20; i++) {
    ssize_t n = send(fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) EQ(errno, EAGAIN);
    else beside += n;
  }
  bt_shared->value[1] = 1;
  end_thread(thread);
  bt_shared->value[2] = LONG + beside;
  SYS(close(fd));
}
static void receives_slowly(int fd) {
  static uint8_t bytes[1 << 16];
  long got = 0;
  ssize_t n;
  while ((n = SYS(recv(fd, bytes, bt_shared->value[1] ? sizeof bytes : 4096, 0))) > 0) {
    got += n;
    if (got >= ENOUGH) bt_shared->value[0] = 1;
    if (got >= ENOUGH && !bt_shared->value[1])
      for (int i = 0; i < 500; i++) getppid();
  }
  EQ(got, bt_shared->value[2]);
  SYS(close(fd));
}
ENDS(dontwait_beside_a_long_send, sends_beside, receives_slowly)

/* ---- where the kernel forbids copies between processes -------------------------------------- */

static void forbid_copies(void) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof code[0], code};
  /* The library would take the connection back to TCP before a filter. */
  EQ(past_libc(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  EQ(past_libc(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program, 0, 0), 0);
}
static void large_both_ways(int fd) {
  for (uint64_t at = 0; at < 4 << 20; at += 1 << 18) {
    send_pattern(fd, at, 1 << 18);
    recv_pattern(fd, at, 1 << 18);
  }
  on_san(fd);
  SYS(close(fd));
}
static void mirrored(int fd) {
  for (uint64_t at = 0; at < 4 << 20; at += 1 << 18) {
    recv_pattern(fd, at, 1 << 18);
    send_pattern(fd, at, 1 << 18);
  }
  SYS(close(fd));
}
static void forbidden_here(int fd) {
  forbid_copies();
  large_both_ways(fd);
}
/* Refused to one end alone: messages carry everything. */
PROCESS_ENDS(copies_forbidden, forbidden_here, mirrored)

/* The kernel moves as much at once as is there and as the pipe has room for. */
static void splice_all_there_is(int fd) {
  static uint8_t bytes[20000];
  int pipes[2];
  SYS(pipe(pipes));
  recv_pattern(fd, 0, 1);
  step_done(0);
  step_wait(1);
  EQ(SYS(splice(fd, NULL, pipes[1], NULL, sizeof bytes, 0)), 16749);
  EQ(SYS(read(pipes[0], bytes, sizeof bytes)), 16749);
  check_pattern(bytes, 1, 16749);
}
CASE(splice_of_more_than_a_piece) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t child = start_child();
  if (child == 0) {
    SYS(close(listener));
    splice_all_there_is(dial(&target));
    _exit(0);
  }
  int fd = SYS(accept(listener, NULL, NULL));
  send_pattern(fd, 0, 16000);
  step_wait(0);
  /* Time to move. */
  sleep_ms(50);
  send_pattern(fd, 16000, 750);
  step_done(1);
  end_child(child);
  SYS(close(listener)), SYS(close(fd));
}
