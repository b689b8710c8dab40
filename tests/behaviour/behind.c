/* The end of a peer that had read not all, where so much of what it sent lies unread that TCP has room for no more of it: TCP
 * resets such a connection at once, and whoever waits for room, or for nothing, hears of it. The bytes may be from before the
 * connection moved. */
#include "bt.h"

enum { READY, GO };
/* How the peer ends. */
enum end { KILLED, EXITED, CLOSED, RESET };

/* Sends as much as goes, and reads one byte in a while, until it is told to end. */
static void flood(int fd, enum end end) {
  static uint8_t data[65536];
  char byte;
  set_nonblocking(fd, true);
  ready_now(fd, POLLIN);
  while (!bt_shared->value[GO]) {
    while (send(fd, data, sizeof data, MSG_NOSIGNAL) > 0) {}
    EQ(errno, EAGAIN);
    if (bt_shared->value[READY] == 0) recv(fd, &byte, 1, 0);
    sleep_ms(1);
  }
  if (end == EXITED) _exit(0);
  if (end == CLOSED) SYS(close(fd));
  if (end == RESET) close_reset(fd);
  for (;;) pause();
}

/* A connection of this process whose peer floods it and reads nothing any more. No room is left in either direction. */
struct flooded {
  pid_t peer;
  int fd;
  enum end end;
};
static struct flooded flooded_by(enum end end) {
  union address target;
  int listener = listen_on(V4, &target);
  bt_shared->value[READY] = bt_shared->value[GO] = 0;
  pid_t peer = start_child();
  if (peer == 0) flood(dial(&target), end);
  int fd = SYS(accept(listener, NULL, NULL));
  SYS(close(listener));
  static uint8_t bytes[4000];
  set_nonblocking(fd, true);
  ready_now(fd, POLLIN);
  for (int i = 0; i < 20; i++) {
    /* Not amid the peer's first send, which tells the peer what proves the connection. */
    sleep_ms(5);
    put(fd, "a few");
    recv(fd, bytes, sizeof bytes, 0);
  }
  bt_shared->value[READY] = 1;
  sleep_ms(20);
  fill(fd, 0);
  return (struct flooded){peer, fd, end};
}
static void end_peer(struct flooded *it) {
  if (it->end == KILLED) SYS(kill(it->peer, SIGKILL));
  bt_shared->value[GO] = 1;
}
static void *end_later(void *arg) {
  sleep_ms(100);
  end_peer(arg);
  return NULL;
}
/* What is left to do: the rest is there, and then the end. */
static void read_the_rest(struct flooded *it, int error) {
  static uint8_t bytes[65536];
  set_nonblocking(it->fd, false);
  if (error) ERR(send(it->fd, "x", 1, MSG_NOSIGNAL), error);
  ERR(send(it->fd, "x", 1, MSG_NOSIGNAL), EPIPE);
  ssize_t n;
  while ((n = recv(it->fd, bytes, sizeof bytes, 0)) > 0) {}
  EQ(n, 0);
  SYS(close(it->fd));
  if (it->end != EXITED) kill(it->peer, SIGKILL);
  SYS(waitpid(it->peer, NULL, 0));
}

static void by_poll(enum end end) {
  struct flooded it = flooded_by(end);
  EQ(ready_now(it.fd, POLLOUT), 0);
  pthread_t ender = start_thread(end_later, &it);
  struct pollfd one = {it.fd, POLLOUT, 0};
  EQ(SYS(poll(&one, 1, HANG_MS)), 1);
  EQ(one.revents, POLLOUT | POLLERR | POLLHUP);
  end_thread(ender);
  read_the_rest(&it, ECONNRESET);
}
static void by_looking(enum end end) {
  struct flooded it = flooded_by(end);
  end_peer(&it);
  wait_revents(it.fd, 0, POLLERR | POLLHUP);
  read_the_rest(&it, ECONNRESET);
}
static void by_select(enum end end) {
  struct flooded it = flooded_by(end);
  pthread_t ender = start_thread(end_later, &it);
  fd_set room;
  FD_ZERO(&room);
  FD_SET(it.fd, &room);
  EQ(SYS(select(it.fd + 1, NULL, &room, NULL, &(struct timeval){HANG_MS / 1000, 0})), 1);
  end_thread(ender);
  read_the_rest(&it, ECONNRESET);
}
static void by_epoll(enum end end, uint32_t how) {
  struct flooded it = flooded_by(end);
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = how};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, it.fd, &event));
  while (SYS(epoll_wait(set, &event, 1, 0)) > 0) CHECK(how & EPOLLET);
  pthread_t ender = start_thread(end_later, &it);
  /* Before that an edge may tell of bytes. */
  do EQ(SYS(epoll_wait(set, &event, 1, HANG_MS)), 1);
  while (event.events == EPOLLIN && how & EPOLLET);
  EQ(event.events & (EPOLLERR | EPOLLHUP), EPOLLERR | EPOLLHUP);
  end_thread(ender);
  SYS(close(set));
  read_the_rest(&it, ECONNRESET);
}
static void by_looking_at_a_set(enum end end) {
  struct flooded it = flooded_by(end);
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLOUT};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, it.fd, &event));
  end_peer(&it);
  UNTIL(SYS(epoll_wait(set, &event, 1, 0)) == 1);
  EQ(event.events, EPOLLOUT | EPOLLERR | EPOLLHUP);
  SYS(close(set));
  read_the_rest(&it, ECONNRESET);
}
static void by_sending(enum end end, bool waits) {
  struct flooded it = flooded_by(end);
  set_nonblocking(it.fd, !waits);
  pthread_t ender = start_thread(end_later, &it);
  UNTIL(send(it.fd, "x", 1, MSG_NOSIGNAL) < 0 && errno != EAGAIN);
  EQ(errno, ECONNRESET);
  end_thread(ender);
  read_the_rest(&it, 0);
}
static void by_asking(enum end end) {
  struct flooded it = flooded_by(end);
  end_peer(&it);
  int error;
  UNTIL((error = get_option(it.fd, SOL_SOCKET, SO_ERROR)) != 0);
  EQ(error, ECONNRESET);
  read_the_rest(&it, 0);
}

SAN_CASE(poll_hears_of_a_killed_peer) { by_poll(KILLED); }
SAN_CASE(poll_hears_of_a_peer_that_exits) { by_poll(EXITED); }
SAN_CASE(poll_hears_of_a_peer_that_closes) { by_poll(CLOSED); }
SAN_CASE(poll_hears_of_a_peer_that_resets) { by_poll(RESET); }
SAN_CASE(looks_see_a_killed_peer) { by_looking(KILLED); }
SAN_CASE(select_hears_of_a_killed_peer) { by_select(KILLED); }
SAN_CASE(a_set_hears_of_a_killed_peer) { by_epoll(KILLED, EPOLLOUT); }
SAN_CASE(a_set_hears_of_a_peer_that_closes) { by_epoll(CLOSED, EPOLLOUT); }
SAN_CASE(a_set_that_waits_for_nothing_hears_of_a_killed_peer) { by_epoll(KILLED, 0); }
SAN_CASE(an_edge_tells_of_a_killed_peer) { by_epoll(KILLED, EPOLLIN | EPOLLOUT | EPOLLET); }
SAN_CASE(an_edge_tells_of_a_peer_that_exits) { by_epoll(EXITED, EPOLLOUT | EPOLLET); }
SAN_CASE(looks_at_a_set_see_a_killed_peer) { by_looking_at_a_set(KILLED); }
SAN_CASE(a_send_hears_of_a_killed_peer) { by_sending(KILLED, true); }
SAN_CASE(a_send_hears_of_a_peer_that_closes) { by_sending(CLOSED, true); }
SAN_CASE(sends_that_do_not_wait_hear_of_a_killed_peer) { by_sending(KILLED, false); }
SAN_CASE(so_error_tells_of_a_killed_peer) { by_asking(KILLED); }
