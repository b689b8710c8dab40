/* What TCP's timers promise: TCP_USER_TIMEOUT ends a connection whose peer reads nothing for so long while bytes wait for it,
 * and only such a one; keep-alive does not end one whose peer is stopped, for its kernel answers. */
#include "bt.h"

enum { LIMIT_MS = 700 };

/* A pair of processes: the peer has its end, and reads nothing until told to. */
enum { GO, TID };
static void silent_peer(const union address *target) {
  int fd = dial_warm(target);
  UNTIL(bt_shared->value[GO]);
  close(fd);
  _exit(0);
}
static int connected_to_silence(pid_t *peer) {
  union address target;
  int listener = listen_on(V4, &target);
  bt_shared->value[GO] = bt_shared->value[TID] = 0;
  if ((*peer = start_child()) == 0) silent_peer(&target);
  int fd = accept_warm(listener);
  SYS(close(listener));
  return fd;
}
static int timed(pid_t *peer) {
  int fd = connected_to_silence(peer);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, LIMIT_MS);
  return fd;
}
static void over(int fd, pid_t peer) {
  char byte;
  ERR(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
  EQ(recv(fd, &byte, 1, 0), 0);
  union address address;
  socklen_t length = sizeof address;
  ERR(getpeername(fd, &address.any, &length), ENOTCONN);
  SYS(close(fd));
  bt_shared->value[GO] = 1;
  end_child(peer);
}

SAN_CASE(user_timeout_ends_a_send) {
  pid_t peer;
  int fd = timed(&peer);
  static uint8_t data[65536];
  ssize_t n;
  while ((n = send(fd, data, sizeof data, MSG_NOSIGNAL)) > 0) {}
  EQ(errno, ETIMEDOUT);
  over(fd, peer);
}
SAN_CASE(user_timeout_ends_a_poll) {
  for (int events = 0; events <= POLLOUT; events += POLLOUT) {
    pid_t peer;
    int fd = timed(&peer);
    set_nonblocking(fd, true);
    fill(fd, 0);
    struct pollfd one = {fd, events, 0};
    EQ(SYS(poll(&one, 1, HANG_MS)), 1);
    EQ(one.revents, events | POLLERR | POLLHUP);
    EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ETIMEDOUT);
    EQ(get_option(fd, SOL_SOCKET, SO_ERROR), 0);
    over(fd, peer);
  }
}
SAN_CASE(user_timeout_ends_a_select) {
  pid_t peer;
  int fd = timed(&peer);
  set_nonblocking(fd, true);
  fill(fd, 0);
  fd_set room;
  FD_ZERO(&room);
  FD_SET(fd, &room);
  EQ(SYS(select(fd + 1, NULL, &room, NULL, &(struct timeval){HANG_MS / 1000, 0})), 1);
  ERR(send(fd, "x", 1, MSG_NOSIGNAL), ETIMEDOUT);
  over(fd, peer);
}
static void ends_a_wait(uint32_t events, bool looks) {
  pid_t peer;
  int fd = timed(&peer), set = SYS(epoll_create1(0));
  set_nonblocking(fd, true);
  struct epoll_event event = {.events = events};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  /* The set has looked at it for long, and sleeps on it. */
  for (int i = 0; i < 5; i++) epoll_wait(set, &event, 1, 20);
  fill(fd, 0);
  EQ(SYS(epoll_wait(set, &event, 1, 0)), 0);
  if (looks) UNTIL(SYS(epoll_wait(set, &event, 1, 0)) != 0);
  else EQ(SYS(epoll_wait(set, &event, 1, HANG_MS)), 1);
  EQ(event.events & (EPOLLERR | EPOLLHUP), EPOLLERR | EPOLLHUP);
  EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ETIMEDOUT);
  SYS(close(set));
  over(fd, peer);
}
SAN_CASE(user_timeout_ends_a_wait_for_room) { ends_a_wait(EPOLLOUT, false); }
SAN_CASE(user_timeout_ends_a_wait_for_data) { ends_a_wait(EPOLLIN, false); }
SAN_CASE(user_timeout_ends_a_wait_for_an_edge) { ends_a_wait(EPOLLIN | EPOLLOUT | EPOLLET, false); }
SAN_CASE(user_timeout_ends_a_wait_for_an_edge_of_data) { ends_a_wait(EPOLLIN | EPOLLET, false); }
SAN_CASE(user_timeout_is_seen_by_looks) { ends_a_wait(EPOLLOUT, true); }

/* Nobody waits meanwhile. */
SAN_CASE(user_timeout_passes_by_itself) {
  pid_t peer;
  int fd = timed(&peer);
  set_nonblocking(fd, true);
  fill(fd, 0);
  sleep_ms(3 * LIMIT_MS);
  EQ(ready_now(fd, POLLIN | POLLOUT), POLLIN | POLLOUT | POLLERR | POLLHUP);
  EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ETIMEDOUT);
  over(fd, peer);
}
SAN_CASE(user_timeout_ends_a_receive) {
  pid_t peer;
  int fd = timed(&peer);
  char byte;
  set_nonblocking(fd, true);
  fill(fd, 0);
  set_nonblocking(fd, false);
  ERR(recv(fd, &byte, 1, 0), ETIMEDOUT);
  over(fd, peer);
}
/* The kernel, which has all that the peer ever sent, knows nothing of the end. */
static void ends_behind_bytes_of_tcp(bool sleeps) {
  union address target;
  int listener = listen_on(V4, &target), client = dial(&target), server = SYS(accept(listener, NULL, NULL));
  put(client, "unread");
  for (int i = 0; i < 100; i++) {
    put(server, "x");
    wait_for(client, POLLIN);
    get(client, "x");
    /* Between hosts the ends meet in the background. */
    if (getenv("SANSHIM_PROVIDERS")) usleep(1000);
  }
  set_option(server, IPPROTO_TCP, TCP_USER_TIMEOUT, LIMIT_MS);
  set_nonblocking(server, true);
  fill(server, 0);
  char byte;
  set_nonblocking(server, !sleeps);
  if (sleeps) {
    get(server, "unread");
    ERR(recv(server, &byte, 1, 0), ETIMEDOUT);
  } else {
    wait_revents(server, POLLIN | POLLOUT, POLLIN | POLLOUT | POLLERR | POLLHUP);
    EQ(get_option(server, SOL_SOCKET, SO_ERROR), ETIMEDOUT);
    get(server, "unread");
  }
  expect_eof(server);
  SYS(close(client)), SYS(close(server)), SYS(close(listener));
}
SAN_CASE(user_timeout_ends_a_receive_behind_bytes_of_tcp) {
  ends_behind_bytes_of_tcp(false);
  ends_behind_bytes_of_tcp(true);
}
SAN_CASE(user_timeout_ends_sends_that_do_not_wait) {
  pid_t peer;
  int fd = timed(&peer);
  set_nonblocking(fd, true);
  fill(fd, 0);
  UNTIL(send(fd, "x", 1, MSG_NOSIGNAL) < 0 && errno != EAGAIN);
  EQ(errno, ETIMEDOUT);
  over(fd, peer);
}
/* Set before the connection was made, and on the listener. */
static void set_before(bool on_listener) {
  union address target;
  int listener = listen_on(V4, &target);
  if (on_listener) set_option(listener, IPPROTO_TCP, TCP_USER_TIMEOUT, LIMIT_MS);
  int client = SYS(socket(AF_INET, SOCK_STREAM, 0));
  if (!on_listener) set_option(client, IPPROTO_TCP, TCP_USER_TIMEOUT, LIMIT_MS);
  SYS(connect(client, &target.any, address_len(&target)));
  int server = accept_warm_both(listener, client), fd = on_listener ? server : client;
  EQ(get_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), LIMIT_MS);
  set_nonblocking(fd, true);
  fill(fd, 0);
  EQ(wait_for(fd, POLLOUT), POLLOUT | POLLERR | POLLHUP);
  EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ETIMEDOUT);
  SYS(close(client)), SYS(close(server)), SYS(close(listener));
}
SAN_CASE(user_timeout_set_before_connect) { set_before(false); }
SAN_CASE(user_timeout_of_the_listener) { set_before(true); }

/* A peer that reads now and then, and one that has nothing to read, are waited for; and a time-out that was taken back is none. */
SAN_CASE(user_timeout_spares_who_reads) {
  struct pair p = open_pair(V4);
  set_option(p.client, IPPROTO_TCP, TCP_USER_TIMEOUT, LIMIT_MS);
  set_nonblocking(p.client, true);
  fill(p.client, 0);
  uint64_t got = 0;
  for (int i = 0; i < 8; i++) {
    sleep_ms(LIMIT_MS / 4);
    EQ(ready_now(p.client, 0), 0);
    recv_pattern(p.server, got, 100000), got += 100000;
  }
  set_option(p.client, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
  struct pollfd one = {p.client, 0, 0};
  EQ(SYS(poll(&one, 1, 2 * LIMIT_MS)), 0);
  close_pair(&p);
}
SAN_CASE(user_timeout_spares_the_idle) {
  struct pair p = open_pair(V4);
  set_option(p.client, IPPROTO_TCP, TCP_USER_TIMEOUT, LIMIT_MS);
  put(p.client, "unread"), put(p.server, "this too");
  struct pollfd one = {p.client, 0, 0};
  EQ(SYS(poll(&one, 1, 3 * LIMIT_MS)), 0);
  get(p.server, "unread"), get(p.client, "this too");
  exercise(p.client, p.server);
  close_pair(&p);
}
/* With a small send buffer there is no room long before the peer's receive buffer is full. Until then nothing waits, as TCP has
 * it; and the time-out is heeded all the same. */
static void with_small_buffer(bool before, bool size_first) {
  union address target;
  int listener = listen_on(V4, &target), client = SYS(socket(AF_INET, SOCK_STREAM, 0)), server = -1;
  for (int moved = 0; moved < 2; moved++) {
    if (moved) SYS(connect(client, &target.any, address_len(&target)));
    if (moved) server = SYS(accept(listener, NULL, NULL));
    if (moved && !before) warm_up_both(client, server);
    if (moved == before) continue;
    if (size_first) set_option(client, SOL_SOCKET, SO_SNDBUF, 8192);
    set_option(client, IPPROTO_TCP, TCP_USER_TIMEOUT, LIMIT_MS);
    if (!size_first) set_option(client, SOL_SOCKET, SO_SNDBUF, 8192);
  }
  send_pattern(client, 0, 40000);
  struct pollfd one = {client, 0, 0};
  EQ(SYS(poll(&one, 1, 3 * LIMIT_MS)), 0);
  set_nonblocking(client, true);
  UNTIL(send(client, pattern(0), 4096, MSG_NOSIGNAL) < 0 && errno != EAGAIN);
  EQ(errno, ETIMEDOUT);
  recv_pattern(server, 0, 40000);
  SYS(close(client)), SYS(close(server)), SYS(close(listener));
}
CASE(user_timeout_and_a_small_buffer_before_the_move) { with_small_buffer(true, true); }
CASE(user_timeout_and_a_small_buffer) { with_small_buffer(false, true); }
CASE(a_small_buffer_and_a_user_timeout) { with_small_buffer(false, false); }

/* The peer gets what it was sent before, and then an error, never a clean end. */
SAN_CASE(user_timeout_is_no_end_of_the_stream) {
  struct pair p = open_pair(V4);
  set_option(p.client, IPPROTO_TCP, TCP_USER_TIMEOUT, LIMIT_MS);
  set_nonblocking(p.client, true);
  uint64_t sent = fill(p.client, 0), got = 0;
  EQ(wait_for(p.client, POLLOUT), POLLOUT | POLLERR | POLLHUP);
  static uint8_t bytes[65536];
  ssize_t n;
  while ((n = recv(p.server, bytes, sizeof bytes, 0)) > 0) check_pattern(bytes, got, n), got += n;
  EQ(n, -1);
  EQ(errno, ECONNRESET);
  CHECK(got <= sent);
  close_pair(&p);
}

/* A relative that shares the connection. */
SAN_CASE(user_timeout_of_a_relative) {
  pid_t peer;
  int fd = connected_to_silence(&peer);
  pid_t child = start_child();
  if (child == 0) {
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, LIMIT_MS);
    _exit(0);
  }
  end_child(child);
  set_nonblocking(fd, true);
  fill(fd, 0);
  EQ(wait_for(fd, POLLOUT), POLLOUT | POLLERR | POLLHUP);
  EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ETIMEDOUT);
  over(fd, peer);
}

static void answer_ping(int fd) {
  get(fd, "ping");
  bt_shared->value[TID] = getpid();
  get(fd, "again");
  put(fd, "pong");
  SYS(close(fd));
}
static void keep_alive(int fd) {
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 1);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, LIMIT_MS);
  put(fd, "ping");
  UNTIL(bt_shared->value[TID] != 0);
  pid_t peer = (pid_t)bt_shared->value[TID];
  SYS(kill(peer, SIGSTOP));
  put(fd, "again");
  struct pollfd one = {fd, POLLIN, 0};
  EQ(SYS(poll(&one, 1, 4000)), 0);
  SYS(kill(peer, SIGCONT));
  get(fd, "pong");
  expect_eof(fd);
  SYS(close(fd));
}
PROCESS_ENDS(keep_alive_spares_who_is_stopped, keep_alive, answer_ping)
