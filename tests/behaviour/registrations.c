/* Registrations in epoll sets whose socket changes sides, or whose descriptor changes hands: each is there once, reports what TCP
 * has, and none is lost. */
#include "bt.h"

enum { ON = EPOLLIN | EPOLLRDHUP };

static int make_set(int fd, uint32_t events, uint64_t data) {
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = events, .data.u64 = data};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  return set;
}
/* The set reports this one event. */
static void only(int set, int timeout, uint64_t data, uint32_t events) {
  struct epoll_event got[4];
  EQ(epoll_wait(set, got, 4, timeout), 1);
  EQ(got[0].data.u64, data);
  EQ(got[0].events, events);
}
static void nothing(int set) {
  struct epoll_event got;
  EQ(epoll_wait(set, &got, 1, 0), 0);
}
static void send_urgent(struct pair *p) {
  EQ(SYS(send(p->client, "!", 1, MSG_OOB)), 1);
  char byte;
  UNTIL(recv(p->server, &byte, 1, MSG_OOB) == 1);
}

/* ---- a copy that is closed ------------------------------------------------------------------------ */

/* The connection is on the SAN when the copy is closed that was registered; then it goes back to TCP. */
static void back_without_copy(uint32_t how, bool reused, bool busy) {
  struct pair p = open_pair(V4);
  int copy = SYS(dup(p.server)), set = make_set(copy, ON | how, 7), ends[2] = {-1, -1};
  put(p.client, "a"), only(set, HANG_MS, 7, EPOLLIN), get(p.server, "a");
  if (busy) put(p.client, "b");
  SYS(close(copy));
  if (reused) {
    SYS(pipe(ends));
    CHECK(ends[0] == copy || ends[1] == copy);
  }
  if (busy) only(set, HANG_MS, 7, EPOLLIN), get(p.server, "b");
  send_urgent(&p);
  while (!busy && epoll_wait(set, &(struct epoll_event){0}, 1, 0) > 0 && how & EPOLLET) {}
  nothing(set);
  for (int i = 0; i < 50; i++) {
    put(p.client, "x"), only(set, HANG_MS, 7, EPOLLIN), get(p.server, "x");
    if (reused) SYS(write(ends[1], "y", 1)), nothing(set);
  }
  SYS(close(p.client));
  only(set, HANG_MS, 7, EPOLLIN | EPOLLRDHUP);
  SYS(close(p.server));
  nothing(set);
}
MIXED_CASE(a_closed_copy_back_on_tcp) { back_without_copy(0, false, false); }
MIXED_CASE(a_closed_copy_whose_number_is_used_back_on_tcp) { back_without_copy(0, true, false); }
MIXED_CASE(a_closed_copy_with_bytes_back_on_tcp) { back_without_copy(0, true, true); }
MIXED_CASE(a_closed_copy_by_edges_back_on_tcp) { back_without_copy(EPOLLET, true, false); }

/* The copy is closed before the connection moves, with what it registered: once with another registration of the same socket. */
static void moves_without_copy(bool both) {
  union address target;
  int listener = listen_on(V4, &target);
  struct pair p = {.client = dial(&target)};
  p.server = SYS(accept(listener, NULL, NULL));
  int copy = SYS(dup(p.server)), set = make_set(copy, ON | EPOLLOUT, 7);
  SYS(close(copy));
  struct epoll_event event = {.events = ON, .data.u64 = 8}, got[4];
  if (both) SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event));
  for (int i = 0; i < 100; i++) {
    put(p.client, "x");
    wait_for(p.server, POLLIN);
    int n = SYS(epoll_wait(set, got, 4, HANG_MS));
    EQ(n, 1 + both);
    for (int k = 0; k < n; k++) EQ(got[k].events, got[k].data.u64 == 7 ? EPOLLIN | EPOLLOUT : EPOLLIN);
    if (both) CHECK(got[0].data.u64 != got[1].data.u64);
    get(p.server, "x"), put(p.server, "y"), get(p.client, "y");
    only(set, 0, 7, EPOLLOUT);
  }
}
CASE(a_closed_copy_that_moves) { moves_without_copy(false); }
CASE(a_closed_copy_that_moves_beside_another) { moves_without_copy(true); }

/* ---- two descriptors of one connection in one set -------------------------------------------------- */

/* Answers after a pause, so that its peer sleeps. */
static void *answers_late(void *arg) {
  int fd = (int)(intptr_t)arg;
  char byte;
  while (SYS(recv(fd, &byte, 1, 0)) == 1) usleep(300), put(fd, "y");
  return NULL;
}
static void exchanges(int fd, int set, uint64_t data) {
  for (int i = 0; i < 20; i++) put(fd, "x"), only(set, HANG_MS, data, EPOLLIN), get(fd, "y");
}
static void change(int set, int operation, int fd, uint64_t data, uint32_t how) {
  struct epoll_event event = {.events = EPOLLIN | how, .data.u64 = data};
  SYS(epoll_ctl(set, operation, fd, &event));
}
/* Whichever goes, the other is woken. */
static void one_of_two_goes(uint32_t how) {
  struct pair p = open_pair(V4);
  pthread_t peer = start_thread(answers_late, (void *)(intptr_t)p.client);
  int copy = SYS(dup(p.server)), set = make_set(p.server, EPOLLIN | how, 7);
  exchanges(p.server, set, 7);
  for (int round = 0; round < 3; round++) {
    change(set, EPOLL_CTL_ADD, copy, 8, how);
    change(set, EPOLL_CTL_DEL, p.server, 0, 0);
    exchanges(p.server, set, 8);
    change(set, EPOLL_CTL_ADD, p.server, 7, how);
    change(set, EPOLL_CTL_DEL, copy, 0, 0);
    exchanges(copy, set, 7);
    /* Nobody waits for what is not there. */
    change(set, EPOLL_CTL_DEL, p.server, 0, 0);
    put(p.server, "x");
    EQ(epoll_wait(set, &(struct epoll_event){0}, 1, 5), 0);
    get(p.server, "y");
    change(set, EPOLL_CTL_ADD, copy, 8, how);
    exchanges(p.server, set, 8);
    change(set, EPOLL_CTL_DEL, copy, 0, 0);
    change(set, EPOLL_CTL_ADD, p.server, 7, how);
    exchanges(p.server, set, 7);
  }
  change(set, EPOLL_CTL_ADD, copy, 8, how);
  change(set, EPOLL_CTL_DEL, p.server, 0, 0);
  SYS(close(p.server));
  exchanges(copy, set, 8);
  SYS(shutdown(copy, SHUT_WR));
  end_thread(peer);
  SYS(close(copy));
}
SAN_CASE(one_of_two_descriptors_goes) { one_of_two_goes(0); }
SAN_CASE(one_of_two_descriptors_goes_by_edges) { one_of_two_goes(EPOLLET); }

/* ---- SO_RCVLOWAT -------------------------------------------------------------------------------------- */

enum { LOW = 100 };
static void below(int fd, int set) {
  EQ(ready_now(fd, POLLIN), 0);
  nothing(set);
}
static void from(int fd, int set) {
  EQ(wait_for(fd, POLLIN), POLLIN);
  only(set, HANG_MS, 7, EPOLLIN);
}
static void send_many(int fd, int count) {
  static const char bytes[2 * LOW];
  EQ(SYS(send(fd, bytes, (size_t)count, 0)), count);
}
static void take_all(int fd, int count) {
  static char bytes[2 * LOW];
  EQ(SYS(recv(fd, bytes, (size_t)count, MSG_WAITALL)), count);
}
SAN_CASE(too_little_to_be_reported) {
  struct pair p = open_pair(V4);
  int set = make_set(p.server, EPOLLIN, 7);
  set_option(p.server, SOL_SOCKET, SO_RCVLOWAT, LOW);
  for (int i = 0; i < 50; i++) {
    send_many(p.client, LOW / 2), below(p.server, set);
    send_many(p.client, LOW / 2 - 1), below(p.server, set);
    send_many(p.client, 1), from(p.server, set);
    take_all(p.server, LOW);
  }
}
/* What is there lies in two places. */
MIXED_CASE(too_little_on_the_way_back) {
  struct pair p = open_pair(V4);
  set_option(p.server, SOL_SOCKET, SO_OOBINLINE, 1);
  set_option(p.client, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(p.server, SOL_SOCKET, SO_RCVLOWAT, LOW);
  int set = make_set(p.server, EPOLLIN, 7);
  send_many(p.client, LOW / 2), below(p.server, set);
  int passed = SYS(dup(p.client));
  CHECK(fdopen(passed, "r+"));
  send_many(p.client, LOW / 4), below(p.server, set);
  send_many(p.client, LOW / 4), from(p.server, set);
  take_all(p.server, LOW);
  for (int i = 0; i < 50; i++) {
    send_many(p.client, LOW / 2), below(p.server, set);
    send_many(p.client, LOW / 2), from(p.server, set);
    take_all(p.server, LOW);
  }
}
CASE(too_little_on_the_way) {
  for (int before = 0; before < 45; before++) {
    union address target;
    int listener = listen_on(V4, &target);
    struct pair p = {.client = dial(&target)};
    p.server = SYS(accept(listener, NULL, NULL));
    set_option(p.client, IPPROTO_TCP, TCP_NODELAY, 1);
    int set = make_set(p.server, EPOLLIN, 7);
    for (int i = 0; i < before; i++) exercise(p.client, p.server);
    set_option(p.server, SOL_SOCKET, SO_RCVLOWAT, LOW);
    for (int i = 0; i < 45; i++) {
      send_many(p.client, LOW / 2), below(p.server, set);
      send_many(p.client, LOW / 2), from(p.server, set);
      take_all(p.server, LOW);
      put(p.server, "y"), get(p.client, "y");
    }
    close_pair(&p), SYS(close(listener)), SYS(close(set));
  }
}

/* ---- passed ---------------------------------------------------------------------------------------------- */

static int pass(int fd) {
  int channel[2];
  SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
  char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'c';
  struct iovec iov = {&byte, 1};
  struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
  EQ(SYS(sendmsg(channel[0], &msg, MSG_NOSIGNAL)), 1);
  EQ(SYS(recvmsg(channel[1], &msg, 0)), 1);
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof fd);
  SYS(close(channel[0])), SYS(close(channel[1]));
  return fd;
}
/* Which end was passed, and how the peer ends afterwards. */
static void passed(bool server, bool keeps, bool half, uint32_t how) {
  struct pair p = open_pair(V4);
  int kept = server ? p.server : p.client, other = server ? p.client : p.server;
  int before = make_set(kept, ON | how, 7);
  put(other, "a"), only(before, HANG_MS, 7, EPOLLIN), get(kept, "a");
  int fd = pass(kept), after = make_set(fd, ON | how, 9);
  if (!keeps) SYS(close(kept));
  nothing(before), nothing(after);
  put(other, "b"), only(before, HANG_MS, 7, EPOLLIN), only(after, HANG_MS, 9, EPOLLIN), get(fd, "b");
  if (half) SYS(shutdown(other, SHUT_WR));
  else SYS(close(other));
  only(before, HANG_MS, 7, ON);
  only(after, HANG_MS, 9, ON);
  EQ(wait_for(fd, POLLIN | POLLRDHUP), POLLIN | POLLRDHUP);
  if (keeps) EQ(wait_for(kept, POLLIN | POLLRDHUP), POLLIN | POLLRDHUP);
  expect_eof(fd);
}
MIXED_CASE(end_of_the_peer_of_a_passed_acceptor) { passed(true, true, false, 0); }
MIXED_CASE(end_of_the_peer_of_a_passed_connector) { passed(false, true, false, 0); }
MIXED_CASE(half_close_of_the_peer_of_a_passed_one) { passed(true, true, true, 0); }
MIXED_CASE(end_of_the_peer_of_a_passed_one_by_edges) { passed(true, true, false, EPOLLET); }
MIXED_CASE(end_of_the_peer_of_a_passed_and_closed_one) { passed(true, false, false, 0); }
MIXED_CASE(half_close_of_the_peer_of_a_passed_and_closed_one_by_edges) { passed(false, false, true, EPOLLET); }

/* The same where the peer ended before, with nothing unread. */
static void passed_after_the_end(bool half, uint32_t how) {
  struct pair p = open_pair(V4);
  int before = make_set(p.server, ON | how, 7);
  if (half) SYS(shutdown(p.client, SHUT_WR));
  else SYS(close(p.client));
  if (how == 0) only(before, HANG_MS, 7, ON);
  int fd = pass(p.server), after = make_set(fd, ON | how, 9);
  only(after, HANG_MS, 9, ON);
  only(before, HANG_MS, 7, ON);
  expect_eof(fd);
}
MIXED_CASE(passed_after_the_peers_end) { passed_after_the_end(false, 0); }
MIXED_CASE(passed_after_the_peers_half_close) { passed_after_the_end(true, 0); }
MIXED_CASE(passed_after_the_peers_end_by_edges) { passed_after_the_end(false, EPOLLET); }
MIXED_CASE(passed_after_the_peers_half_close_by_edges) { passed_after_the_end(true, EPOLLET); }
