/* How connections end: half-close, close, reset, linger, and what each side then sees. */
#include "bt.h"

/* ---- half-close ----------------------------------------------------------------------------- */

/* A client that says it is done and then reads the answer. */
static void request_then_read(int fd) {
  send_pattern(fd, 0, 100000);
  SYS(shutdown(fd, SHUT_WR));
  ERR(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
  recv_pattern(fd, 7, 300000);
  expect_eof(fd);
  SYS(close(fd));
}
static void read_all_then_answer(int fd) {
  recv_pattern(fd, 0, 100000);
  expect_eof(fd);
  expect_eof(fd); /* the end stays the end */
  send_pattern(fd, 7, 300000);
  SYS(shutdown(fd, SHUT_WR));
  SYS(close(fd));
}
ENDS(half_close, request_then_read, read_all_then_answer)

SAN_CASE(half_close_both_ways) {
  struct pair p = open_pair(V4);
  put(p.client, "last");
  SYS(shutdown(p.client, SHUT_WR));
  put(p.server, "words");
  SYS(shutdown(p.server, SHUT_WR));
  get(p.server, "last"), expect_eof(p.server);
  get(p.client, "words"), expect_eof(p.client);
  wait_revents(p.client, POLLIN | POLLOUT | POLLRDHUP, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
  close_pair(&p);
}

SAN_CASE(masks_after_end_of_stream) {
  struct pair p = open_pair(V4);
  put(p.client, "x");
  SYS(shutdown(p.client, SHUT_WR));
  wait_revents(p.server, POLLIN | POLLOUT | POLLRDHUP, POLLIN | POLLOUT | POLLRDHUP);
  EQ(ready_now(p.server, POLLIN), POLLIN);
  EQ(ready_now(p.server, 0), 0);
  get(p.server, "x");
  EQ(ready_now(p.server, POLLIN | POLLOUT | POLLRDHUP), POLLIN | POLLOUT | POLLRDHUP);
  EQ(ready_now(p.client, POLLIN | POLLOUT | POLLRDHUP), POLLOUT);
}

SAN_CASE(masks_after_reset) {
  struct pair p = open_pair(V4);
  close_reset(p.client);
  short all = POLLIN | POLLOUT | POLLRDHUP | POLLHUP;
  wait_revents(p.server, POLLIN | POLLOUT | POLLRDHUP, all | POLLERR);
  char byte;
  ERR(recv(p.server, &byte, 1, 0), ECONNRESET);
  EQ(ready_now(p.server, POLLIN | POLLOUT | POLLRDHUP), all);
  EQ(recv(p.server, &byte, 1, 0), 0);
  ERR(send(p.server, "x", 1, MSG_NOSIGNAL), EPIPE);
}

SAN_CASE(shutdown_for_reading) {
  struct pair p = open_pair(V4);
  put(p.client, "kept");
  wait_for(p.server, POLLIN);
  SYS(shutdown(p.server, SHUT_RD));
  EQ(ready_now(p.server, POLLIN | POLLRDHUP), POLLIN | POLLRDHUP);
  get(p.server, "kept"); /* what had arrived is still there */
  char byte;
  EQ(recv(p.server, &byte, 1, 0), 0);
  /* Linux goes on to take data in. */
  put(p.client, "late");
  UNTIL(recv(p.server, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1);
  get(p.server, "late");
  EQ(recv(p.server, &byte, 1, 0), 0);
  put(p.server, "back"), get(p.client, "back");
}

SAN_CASE(shutdown_both) {
  struct pair p = open_pair(V4);
  SYS(shutdown(p.client, SHUT_RDWR));
  EQ(ready_now(p.client, POLLIN | POLLOUT | POLLRDHUP), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
  char byte;
  EQ(recv(p.client, &byte, 1, 0), 0);
  ERR(send(p.client, "x", 1, MSG_NOSIGNAL), EPIPE);
  expect_eof(p.server);
  SYS(shutdown(p.client, SHUT_WR)); /* again: no error */
  ERR(shutdown(p.client, 77), EINVAL);
  SYS(close(p.server));
}

/* shutdown() from another thread ends what blocks. */
static void *blocked_in_recv(void *arg) {
  char byte;
  bt_shared->value[0] = gettid();
  EQ(recv((int)(intptr_t)arg, &byte, 1, 0), 0);
  return NULL;
}
SAN_CASE(shutdown_wakes_a_reader) {
  for (int how = SHUT_RD; how <= SHUT_RDWR; how += 2) {
    struct pair p = open_pair(V4);
    bt_shared->value[0] = 0;
    pthread_t thread = start_thread(blocked_in_recv, (void *)(intptr_t)p.server);
    UNTIL(bt_shared->value[0] != 0);
    wait_asleep(bt_shared->value[0]);
    SYS(shutdown(p.server, how));
    end_thread(thread);
    close_pair(&p);
  }
}

static void *blocked_in_send(void *arg) {
  bt_shared->value[0] = gettid();
  size_t size = 32 << 20;
  void *data = calloc(1, size);
  /* What went in before counts; the next call says why it ended. */
  CHECK(send((int)(intptr_t)arg, data, size, MSG_NOSIGNAL) < (ssize_t)size);
  ERR(send((int)(intptr_t)arg, data, 1, MSG_NOSIGNAL), EPIPE);
  return NULL;
}
SAN_CASE(shutdown_wakes_a_writer) {
  struct pair p = open_pair(V4);
  pthread_t thread = start_thread(blocked_in_send, (void *)(intptr_t)p.client);
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep(bt_shared->value[0]);
  SYS(shutdown(p.client, SHUT_RDWR));
  end_thread(thread);
}

/* A writer that waits for room learns that its peer, which had ended both directions before, closed. */
static void *write_to_the_end(void *fd) {
  static uint8_t data[4096];
  while (send((int)(intptr_t)fd, data, sizeof data, MSG_NOSIGNAL) > 0) continue;
  EQ(errno, EPIPE);
  return NULL;
}
SAN_CASE(a_close_behind_a_shutdown_wakes_a_writer) {
  struct pair p = open_pair(V4);
  pthread_t writer = start_thread(write_to_the_end, (void *)(intptr_t)p.client);
  sleep_ms(50); /* no room is left */
  SYS(shutdown(p.server, SHUT_RDWR));
  sleep_ms(50); /* it knows of the end, and waits all the same */
  SYS(close(p.server));
  end_thread(writer);
  SYS(close(p.client));
}

/* Who sends more than there is room for, and shut its other direction down, hears that its peer is gone. */
static void *send_in_vain(void *arg) {
  int fd = (int)(intptr_t)arg;
  size_t size = 32 << 20;
  void *data = calloc(1, size);
  bt_shared->value[0] = gettid();
  CHECK(send(fd, data, size, MSG_NOSIGNAL) < (ssize_t)size);
  EQ(send(fd, data, 1, MSG_NOSIGNAL), -1);
  CHECK(errno == EPIPE || errno == ECONNRESET);
  return NULL;
}
static void sender_that_reads_nothing(int fd) {
  SYS(shutdown(fd, SHUT_RD));
  send_in_vain((void *)(intptr_t)fd);
  SYS(close(fd));
}
static void reader_that_closes(int fd) {
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep(bt_shared->value[0]);
  SYS(close(fd));
}
ENDS(the_reader_closes_on_who_reads_nothing, sender_that_reads_nothing, reader_that_closes)
static void poller_that_reads_nothing(int fd) {
  static char data[1 << 16];
  struct pollfd writable = {fd, POLLOUT, 0};
  SYS(shutdown(fd, SHUT_RD));
  while (send(fd, data, sizeof data, MSG_DONTWAIT | MSG_NOSIGNAL) > 0 || ready_now(fd, POLLOUT)) {}
  bt_shared->value[0] = gettid();
  EQ(SYS(poll(&writable, 1, -1)), 1);
  CHECK(writable.revents & POLLERR);
  SYS(close(fd));
}
ENDS(the_reader_closes_on_who_polls, poller_that_reads_nothing, reader_that_closes)
SAN_CASE(the_reader_of_who_reads_nothing_is_killed) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  pid_t reader = start_child();
  if (reader == 0) {
    SYS(close(p.client));
    UNTIL(bt_shared->value[0] != 0);
    wait_asleep(bt_shared->value[0]);
    SYS(kill(getpid(), SIGKILL));
  }
  SYS(close(p.server));
  sender_that_reads_nothing(p.client);
  SYS(waitpid(reader, NULL, 0));
}

/* ---- close ---------------------------------------------------------------------------------- */

static void sixty_four_megabytes_and_gone(int fd) {
  send_pattern(fd, 3, 64 << 20);
  SYS(close(fd));
}
static void all_of_it(int fd) {
  sleep_ms(10);
  recv_pattern(fd, 3, 64 << 20);
  expect_eof(fd);
}
ENDS(large_send_then_close, sixty_four_megabytes_and_gone, all_of_it)

/* The sender's process ends at once, without close(). */
/* D11: what is unsent when a process exits reaches the peer. */
static void send_and_exit(int fd) {
  send_pattern(fd, 0, 3000000);
  _exit(0);
}
static void all_then_end(int fd) {
  recv_pattern(fd, 0, 3000000);
  expect_eof(fd);
}
SAN_CASE(exit_without_close) { run_processes(V4, send_and_exit, all_then_end); }
SAN_CASE(exit_without_close_v6) { run_processes(V6, send_and_exit, all_then_end); }

/* A call of another thread is under way on the connection, which is closed by then. */
static void *receive_in_vain(void *arg) {
  char byte;
  bt_shared->value[0] = gettid();
  recv(*(int *)arg, &byte, 1, 0);
  return NULL;
}
static void send_close_and_exit(int fd) {
  start_thread(receive_in_vain, &fd);
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep(bt_shared->value[0]);
  /* The receiver takes nothing until the sender is about to exit. */
  SYS(kill(getppid(), SIGSTOP));
  bt_shared->value[2] = fill(fd, 0);
  SYS(close(fd));
  bt_shared->value[1] = 1;
  _exit(0);
}
SAN_CASE(exit_while_a_call_goes_on) {
  pid_t receiver = getpid(), waker = start_child();
  if (waker == 0) {
    UNTIL(bt_shared->value[1] == 1);
    sleep_ms(300);
    SYS(kill(receiver, SIGCONT));
    _exit(0);
  }
  union address target;
  int listener = listen_on(V4, &target);
  pid_t sender = start_child();
  if (sender == 0) send_close_and_exit(dial_warm(&target));
  int fd = accept_warm(listener);
  char first;
  SYS(recv(fd, &first, 1, MSG_PEEK));
  UNTIL(bt_shared->value[1] == 1);
  recv_pattern(fd, 0, bt_shared->value[2]);
  expect_eof(fd);
  end_child(sender), end_child(waker);
}

static void send_and_return(int fd) {
  send_pattern(fd, 0, 100000);
  step_wait(0);
  exit(0); /* through the exit handlers */
}
static void a_bit_then_end(int fd) {
  step_done(0);
  recv_pattern(fd, 0, 100000);
  expect_eof(fd);
}
SAN_CASE(exit_through_handlers) { run_processes(V4, send_and_return, a_bit_then_end); }

/* All that a non-blocking sender got rid of arrives after its close. */
/* TCP has told of the end once the process is gone: also to one that does not wait. */
SAN_CASE(an_exit_is_seen_at_once) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t child = start_child();
  if (child == 0) {
    int fd = dial_warm(&target);
    put(fd, "last");
    _exit(0);
  }
  int fd = accept_warm(listener);
  get(fd, "last");
  end_child(child);
  short all = POLLIN | POLLOUT | POLLRDHUP;
  EQ(ready_now(fd, all), all);
  char byte;
  EQ(recv(fd, &byte, 1, MSG_DONTWAIT), 0);
  SYS(close(fd));
  SYS(close(listener));
}

SAN_CASE(unsent_data_is_delivered) {
  struct pair p = open_pair(V4);
  set_nonblocking(p.client, true);
  uint64_t n = fill(p.client, 0);
  SYS(close(p.client));
  recv_pattern(p.server, 0, n);
  expect_eof(p.server);
}

SAN_CASE(close_with_unread_data_resets) {
  struct pair p = open_pair(V4);
  put(p.server, "never read");
  wait_for(p.client, POLLIN);
  SYS(close(p.client));
  wait_revents(p.server, 0, POLLERR | POLLHUP);
  char byte;
  ERR(recv(p.server, &byte, 1, 0), ECONNRESET);
  EQ(recv(p.server, &byte, 1, 0), 0);
  ERR(send(p.server, "x", 1, MSG_NOSIGNAL), EPIPE);
}

/* Data that came before the reset is lost with it on Linux only if it was not received yet: what
 * lies in the receive buffer is readable, and then comes the error. */
SAN_CASE(received_data_survives_a_reset) {
  struct pair p = open_pair(V4);
  put(p.client, "received");
  wait_for(p.server, POLLIN);
  int n;
  UNTIL(ioctl(p.server, FIONREAD, &n) == 0 && n == 8);
  close_reset(p.client);
  wait_revents(p.server, 0, POLLERR | POLLHUP);
  char buffer[16];
  EQ(recv(p.server, buffer, sizeof buffer, 0), 8);
  CHECK(memcmp(buffer, "received", 8) == 0);
  ERR(recv(p.server, buffer, 1, 0), ECONNRESET);
}

SAN_CASE(linger_zero_resets) {
  struct pair p = open_pair(V4);
  close_reset(p.client);
  char byte;
  ERR(recv(p.server, &byte, 1, 0), ECONNRESET);
}

/* Both ends ended their direction before: nothing is left to reset. */
SAN_CASE(linger_zero_behind_both_ends) {
  struct pair p = open_pair(V4);
  SYS(shutdown(p.client, SHUT_WR));
  SYS(shutdown(p.server, SHUT_WR));
  wait_revents(p.client, POLLIN, POLLIN | POLLHUP);
  close_reset(p.server);
  /* Whatever comes of the close has come once another connection has been there and back. */
  struct pair later = open_pair(V4);
  exercise(later.client, later.server);
  EQ(ready_now(p.client, POLLIN), POLLIN | POLLHUP);
}

/* A reset reaches a peer that blocks. */
static void reset_later(int fd) {
  step_wait(0);
  wait_asleep(bt_shared->value[0]);
  close_reset(fd);
}
static void blocked_until_reset(int fd) {
  char byte;
  bt_shared->value[0] = gettid();
  step_done(0);
  ERR(recv(fd, &byte, 1, 0), ECONNRESET);
  SYS(close(fd));
}
ENDS(reset_wakes_a_reader, reset_later, blocked_until_reset)

static void blocked_send_until_reset(int fd) {
  bt_shared->value[0] = gettid();
  size_t size = 32 << 20;
  void *data = calloc(1, size);
  step_done(0);
  ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
  CHECK(n < (ssize_t)size);
  if (n >= 0) n = send(fd, data, 1, MSG_NOSIGNAL);
  EQ(n, -1);
  CHECK(errno == ECONNRESET || errno == EPIPE);
  SYS(close(fd));
}
ENDS(reset_wakes_a_writer, reset_later, blocked_send_until_reset)

/* close() with SO_LINGER waits until the peer's side has everything. */
static void lingering(int fd) {
  struct linger linger = {1, 30};
  SYS(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
  send_pattern(fd, 0, 2000000);
  SYS(close(fd));
}
static void slowly(int fd) {
  for (int i = 0; i < 20; i++) recv_pattern(fd, i * 100000, 100000), sleep_ms(1);
  expect_eof(fd);
  SYS(close(fd));
}
ENDS(linger_waits, lingering, slowly)

/* ---- writing to a peer that is gone --------------------------------------------------------- */

/* The first send is accepted and answered with a reset, the next one fails. */
SAN_CASE(send_after_peer_closed) {
  struct pair p = open_pair(V4);
  SYS(close(p.client));
  wait_revents(p.server, POLLIN | POLLOUT | POLLRDHUP, POLLIN | POLLOUT | POLLRDHUP);
  EQ(send(p.server, "x", 1, MSG_NOSIGNAL), 1);
  wait_revents(p.server, 0, POLLERR | POLLHUP);
  ERR(send(p.server, "y", 1, MSG_NOSIGNAL), EPIPE);
  EQ(get_option(p.server, SOL_SOCKET, SO_ERROR), 0); /* the send took the error */
  char byte;
  EQ(recv(p.server, &byte, 1, 0), 0);
}

SAN_CASE(error_after_peer_closed_is_broken_pipe) {
  struct pair p = open_pair(V4);
  SYS(close(p.client));
  wait_for(p.server, POLLRDHUP);
  EQ(send(p.server, "x", 1, MSG_NOSIGNAL), 1);
  wait_revents(p.server, 0, POLLERR | POLLHUP);
  EQ(get_option(p.server, SOL_SOCKET, SO_ERROR), EPIPE);
  ERR(send(p.server, "y", 1, MSG_NOSIGNAL), EPIPE);
}

/* The peer's last words are readable even after our send was answered by a reset. */
SAN_CASE(last_words_after_a_reset) {
  struct pair p = open_pair(V4);
  put(p.client, "bye");
  SYS(close(p.client));
  wait_for(p.server, POLLRDHUP);
  EQ(send(p.server, "x", 1, MSG_NOSIGNAL), 1);
  wait_revents(p.server, 0, POLLERR | POLLHUP);
  get(p.server, "bye");
  /* After an end of stream the reset reads as that end, once its error is taken. */
  EQ(get_option(p.server, SOL_SOCKET, SO_ERROR), EPIPE);
  expect_eof(p.server);
}

SAN_CASE(send_after_reset) {
  struct pair p = open_pair(V4);
  close_reset(p.client);
  wait_revents(p.server, 0, POLLERR | POLLHUP);
  ERR(send(p.server, "x", 1, MSG_NOSIGNAL), ECONNRESET);
  ERR(send(p.server, "x", 1, MSG_NOSIGNAL), EPIPE);
  char byte;
  EQ(recv(p.server, &byte, 1, 0), 0);
}

SAN_CASE(names_after_the_end) {
  struct pair p = open_pair(V4);
  union address address;
  socklen_t len = sizeof address;
  SYS(shutdown(p.client, SHUT_WR));
  expect_eof(p.server);
  peer_address(p.server), peer_address(p.client);
  SYS(close(p.client));
  close_reset(p.server);
  p = open_pair(V4);
  close_reset(p.client);
  wait_revents(p.server, 0, POLLERR | POLLHUP);
  ERR(getpeername(p.server, &address.any, &len), ENOTCONN);
  local_address(p.server);
}

/* A send that the closed peer answers with a reset leaves no peer, and neither do two ends that both have shut. */
SAN_CASE(no_peer_after_the_end) {
  struct pair p = open_pair(V4);
  union address address;
  socklen_t len = sizeof address;
  SYS(close(p.client));
  wait_for(p.server, POLLRDHUP);
  peer_address(p.server);
  EQ(send(p.server, "x", 1, MSG_NOSIGNAL), 1);
  wait_revents(p.server, 0, POLLERR | POLLHUP);
  ERR(getpeername(p.server, &address.any, &len), ENOTCONN);
  local_address(p.server);
  SYS(close(p.server));
  p = open_pair(V4);
  SYS(shutdown(p.client, SHUT_WR));
  expect_eof(p.server);
  SYS(shutdown(p.server, SHUT_WR));
  expect_eof(p.client);
  UNTIL(getpeername(p.client, &address.any, &len) < 0 && getpeername(p.server, &address.any, &len) < 0);
}

/* ---- a peer that is killed ------------------------------------------------------------------ */

/* Starts a process that runs one end and then waits to be killed; returns our end. */
static pid_t victim;
static int open_victim(enum family family, end_fn *body) {
  union address target;
  int listener = listen_on(family, &target);
  victim = start_child();
  if (victim == 0) {
    SYS(close(listener));
    body(dial_warm(&target));
    step_done(0);
    for (;;) pause();
  }
  int fd = accept_warm(listener);
  SYS(close(listener));
  return fd;
}
static void kill_victim(void) {
  SYS(kill(victim, SIGKILL));
  SYS(waitpid(victim, NULL, 0));
}
static void says_hello(int fd) { put(fd, "hello"); }

SAN_CASE(killed_idle) {
  int fd = open_victim(V4, says_hello);
  get(fd, "hello");
  step_wait(0);
  kill_victim();
  wait_revents(fd, POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
  expect_eof(fd);
  EQ(send(fd, "x", 1, MSG_NOSIGNAL), 1);
  wait_revents(fd, 0, POLLERR | POLLHUP);
  ERR(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
}

/* What it had sent arrives, and then the end. */
static void sends_some(int fd) { send_pattern(fd, 0, 60000); }
SAN_CASE(killed_with_sent_data) {
  int fd = open_victim(V4, sends_some);
  step_wait(0);
  kill_victim();
  recv_pattern(fd, 0, 60000);
  expect_eof(fd);
}

/* It had not read what we sent: a reset, after its own data. */
SAN_CASE(killed_with_unread_data) {
  int fd = open_victim(V4, says_hello);
  step_wait(0);
  get(fd, "hello");
  put(fd, "unread");
  int n;
  UNTIL(ioctl(fd, TIOCOUTQ, &n) == 0 && n == 0); /* it is in the victim's buffer */
  kill_victim();
  wait_revents(fd, 0, POLLERR | POLLHUP);
  char byte;
  ERR(recv(fd, &byte, 1, 0), ECONNRESET);
  EQ(recv(fd, &byte, 1, 0), 0);
}

/* In the middle of a stream: whatever its calls had accepted arrives, then the end. */
enum { ACCEPTED = 1 };
static void sends_for_ever(int fd) {
  for (uint64_t at = 0;;) {
    size_t n = 1 + at % 65536;
    at += SYS(send(fd, pattern(at), n, MSG_NOSIGNAL));
    bt_shared->value[ACCEPTED] = (long)at;
  }
}
static void gets_what_was_accepted(int fd, uint64_t at) {
  kill_victim();
  uint64_t accepted = (uint64_t)bt_shared->value[ACCEPTED];
  static uint8_t buffer[65536];
  ssize_t n;
  while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) {
    check_pattern(buffer, at, n);
    at += n;
  }
  EQ(n, 0);
  if (at < accepted)
    FAIL("%llu bytes of %llu arrive", (unsigned long long)at, (unsigned long long)accepted);
  SYS(close(fd));
}
static void killed_streaming(enum family family) {
  for (int i = 0; i < 10; i++) {
    bt_shared->value[ACCEPTED] = 0;
    int fd = open_victim(family, sends_for_ever);
    recv_pattern(fd, 0, 1000000);
    gets_what_was_accepted(fd, 1000000);
  }
}
/* It waits for room, and nothing was read yet. */
SAN_CASE(killed_while_it_waits_for_room) {
  bt_shared->value[ACCEPTED] = 0;
  int fd = open_victim(V4, sends_for_ever);
  UNTIL(bt_shared->value[ACCEPTED] > 0);
  wait_asleep(victim);
  gets_what_was_accepted(fd, 0);
}
SAN_CASE(killed_while_sending) { killed_streaming(V4); }
SAN_CASE(killed_while_sending_v6) { killed_streaming(V6); }

/* We are blocked in send() when the reader is killed. */
static void never_reads(int fd) { (void)fd; }
static void *killer(void *arg) {
  (void)arg;
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep(bt_shared->value[0]);
  kill_victim();
  return NULL;
}
SAN_CASE(killed_while_we_send) {
  int fd = open_victim(V4, never_reads);
  step_wait(0);
  pthread_t thread = start_thread(killer, NULL);
  size_t size = 32 << 20;
  void *data = calloc(1, size);
  bt_shared->value[0] = gettid();
  ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
  CHECK(n > 0 && n < (ssize_t)size);
  ERR(send(fd, data, size, MSG_NOSIGNAL), ECONNRESET);
  ERR(send(fd, data, size, MSG_NOSIGNAL), EPIPE);
  end_thread(thread);
}

/* And blocked in recv(), in poll(), in epoll_wait(). */
static void killed_while_waiting(int way) {
  int fd = open_victim(V4, says_hello);
  get(fd, "hello");
  step_wait(0);
  bt_shared->value[0] = 0;
  pthread_t thread = start_thread(killer, NULL);
  struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
  int set = SYS(epoll_create1(0));
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  bt_shared->value[0] = gettid();
  if (way == 1) EQ(wait_for(fd, POLLIN), POLLIN);
  if (way == 2) {
    EQ(epoll_wait(set, &event, 1, -1), 1);
    CHECK(event.events & EPOLLRDHUP);
  }
  expect_eof(fd);
  end_thread(thread);
}
SAN_CASE(killed_while_we_wait) {
  for (int way = 0; way < 3; way++) killed_while_waiting(way);
}

/* It was stopped, not killed: nothing ends, and it goes on later. */
static void echoes(int fd) {
  step_done(1);
  for (;;) {
    char byte;
    if (SYS(recv(fd, &byte, 1, 0)) == 0) _exit(0);
    EQ(send(fd, &byte, 1, 0), 1);
  }
}
SAN_CASE(stopped_and_continued) {
  int fd = open_victim(V4, echoes);
  step_wait(1);
  put(fd, "a"), get(fd, "a");
  SYS(kill(victim, SIGSTOP));
  int status;
  SYS(waitpid(victim, &status, WUNTRACED));
  CHECK(WIFSTOPPED(status));
  put(fd, "b");
  struct pollfd p = {fd, POLLIN, 0};
  EQ(poll(&p, 1, 30), 0);
  SYS(kill(victim, SIGCONT));
  get(fd, "b");
  SYS(close(fd));
  end_child(victim);
}
