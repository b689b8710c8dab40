/* Connections go to the SAN when they are busy and come back to TCP when they are not, as often as that changes, with the
 * library's own idea of busy: no setting brings them there. */
#include "bt.h"

#include <dirent.h>

enum { CONNECTIONS = 6, ROUNDS = 4, BURST = 300, PACED = 60, PAUSE_US = 300 };

/* Exchanges of every size, the client's first. Each end checks what it gets by its place in the stream. */
static uint64_t sizes(uint64_t i) { return 1 + i * 37 % 2000; }

static void client(int fd) {
  uint64_t there = 0, back = 0;
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < BURST; i++) {
      uint64_t n = sizes(there);
      send_pattern(fd, there, n), there += n;
      recv_pattern(fd, back, n), back += n;
    }
    for (int i = 0; i < PACED; i++) {
      usleep(PAUSE_US);
      uint64_t n = sizes(there);
      send_pattern(fd, there, n), there += n;
      recv_pattern(fd, back, n), back += n;
    }
  }
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
  SYS(close(fd));
}
static void server(int fd) {
  uint64_t there = 0, back = 0;
  for (int i = 0; i < ROUNDS * (BURST + PACED); i++) {
    uint64_t n = sizes(there);
    recv_pattern(fd, there, n), there += n;
    send_pattern(fd, back, n), back += n;
  }
  expect_eof(fd);
  SYS(close(fd));
}

static void ends_of(void (*run)(enum family, end_fn *, end_fn *)) {
  for (int i = 0; i < CONNECTIONS; i++) run(i % 2 ? V6 : V4, client, server);
}
MIXED_CASE(there_and_back_between_processes) { ends_of(run_processes); }
MIXED_CASE(there_and_back_between_threads) { ends_of(run_threads); }

/* The same where the server sleeps on a set, and the client does not wait. */
static void client_by_poll(int fd) { set_nonblocking(fd, true), client(fd); }
static void echo_by_epoll(int fd, bool changes) {
  set_nonblocking(fd, true);
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event wanted = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = fd}, event;
  if (!changes) SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted));
  static uint8_t bytes[65536];
  uint64_t got = 0;
  for (;;) {
    if (changes) SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted));
    EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
    EQ(event.data.fd, fd);
    if (changes) SYS(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    if (n < 0) {
      EQ(errno, EAGAIN);
      continue;
    }
    if (n == 0) break;
    check_pattern(bytes, got, n);
    send_pattern(fd, got, n);
    got += n;
  }
  SYS(close(set));
  SYS(close(fd));
}
static void server_by_epoll(int fd) { echo_by_epoll(fd, false); }
MIXED_CASE(there_and_back_on_a_set) {
  for (int i = 0; i < CONNECTIONS; i++) run_processes(V4, client_by_poll, server_by_epoll);
}

/* One that deletes its registration for as long as it serves, as pools of threads do. */
static void server_by_changing_epoll(int fd) { echo_by_epoll(fd, true); }
MIXED_CASE(there_and_back_on_a_set_that_changes) {
  for (int i = 0; i < CONNECTIONS; i++) run_processes(V4, client, server_by_changing_epoll);
}

/* A request, its end, and a long answer: before the move, about when it would be, and long after. */
enum { ANSWER = 16 << 20, ABOUT_THE_MOVE = 45, LONG_AFTER = 3000 };
static int requests;
static void client_that_half_closes(int fd) {
  uint64_t there = 0;
  for (; there < (uint64_t)requests; there++) {
    send_pattern(fd, there, 1);
    recv_pattern(fd, there, 1);
  }
  SYS(shutdown(fd, SHUT_WR));
  ERR(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
  recv_pattern(fd, there, ANSWER);
  expect_eof(fd);
  SYS(close(fd));
}
static void server_that_answers(int fd) {
  for (uint64_t i = 0; i < (uint64_t)requests; i++) {
    recv_pattern(fd, i, 1);
    send_pattern(fd, i, 1);
  }
  expect_eof(fd);
  send_pattern(fd, requests, ANSWER);
  SYS(close(fd));
}
MIXED_CASE(a_long_answer_after_a_half_close) {
  for (requests = 0; requests <= ABOUT_THE_MOVE; requests += 15)
    run_processes(V4, client_that_half_closes, server_that_answers);
  requests = LONG_AFTER;
  run_processes(V4, client_that_half_closes, server_that_answers);
}

/* A stream one way that slows down, so that it goes back to TCP, and then ends. Its sender never receives. */
enum { QUICK_WRITES = 100, SLOW_WRITES = 200, PIECE = 8192, STREAMS = 8 };
static const uint64_t STREAM = 5000000;
enum stream_end { CLOSES, EXITS, SHUTS_DOWN, SHUTS_DOWN_BOTH, STREAM_ENDS, KILLED };
static enum stream_end stream_end;
static void sender_that_slows_down(int fd) {
  uint64_t at = 0;
  for (int i = 0; at < STREAM; i++) {
    if (i >= QUICK_WRITES && i < QUICK_WRITES + SLOW_WRITES) usleep(60);
    uint64_t piece = STREAM - at < PIECE ? STREAM - at : PIECE;
    send_pattern(fd, at, piece), at += piece;
  }
  switch (stream_end) {
    case EXITS: exit(0);
    case KILLED: raise(SIGKILL); break;
    case SHUTS_DOWN: SYS(shutdown(fd, SHUT_WR)); expect_eof(fd); break;
    case SHUTS_DOWN_BOTH: SYS(shutdown(fd, SHUT_RDWR)); break;
    default: break;
  }
  SYS(close(fd));
}
static void receiver_of_all(int fd) { recv_pattern(fd, 0, STREAM), expect_eof(fd), SYS(close(fd)); }
static void stream_that_slows_down(enum stream_end end, bool dials) {
  stream_end = end;
  union address target;
  int listener = listen_on(V4, &target);
  pid_t child = start_child();
  if (child == 0) {
    sender_that_slows_down(dials ? dial(&target) : SYS(accept(listener, NULL, NULL)));
    _exit(0);
  }
  receiver_of_all(dials ? SYS(accept(listener, NULL, NULL)) : dial(&target));
  SYS(close(listener));
  int status;
  EQ(waitpid(child, &status, 0), child);
  CHECK(end == KILLED ? WIFSIGNALED(status) : status == 0);
}
MIXED_CASE(a_stream_that_slowed_down_ends_whole) {
  for (int i = 0; i < STREAMS * STREAM_ENDS; i++) stream_that_slows_down(i % STREAM_ENDS, i / STREAM_ENDS % 2);
}
MIXED_CASE(a_stream_that_slowed_down_is_whole_if_its_sender_is_killed) {
  for (int i = 0; i < STREAMS; i++) stream_that_slows_down(KILLED, i % 2);
}

/* Those that lead to something of this name. */
static int descriptors_of(const char *name) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  if (!folder) FAIL("opendir: %s", strerrorname_np(errno));
  for (struct dirent *entry; (entry = readdir(folder));) {
    char target[64] = "";
    readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
    count += !strncmp(target, name, strlen(name));
  }
  closedir(folder);
  return count;
}
static int open_descriptors(void) { return descriptors_of(""); }

/* A connection on which nothing happens, or little, stays on TCP, and costs no descriptor. */
CASE(hundreds_of_idle_connections_stay_where_they_are) {
  enum { MANY = 300 };
  static int clients[MANY], servers[MANY];
  union address target;
  int listener = listen_on(V4, &target);
  clients[0] = dial(&target), servers[0] = SYS(accept(listener, NULL, NULL));
  int before = open_descriptors();
  for (int i = 1; i < MANY; i++) {
    clients[i] = dial(&target);
    servers[i] = SYS(accept(listener, NULL, NULL));
    exercise(clients[i], servers[i]);
  }
  EQ(open_descriptors(), before + 2 * (MANY - 1));
  for (int i = 0; i < MANY; i++) SYS(close(clients[i])), SYS(close(servers[i]));
}

/* What is idle for five seconds or ten gives its memory back, in both processes: one of them has to do something for that. It
 * goes to the SAN again when it is busy again. */
enum { IDLE = 12, LEFT = 3 };
static long segments(void) { return count_lines("/proc/self/maps", "/memfd:sanshim "); }
static void exchange(int fd, bool first, uint64_t *at, int count) {
  for (int i = 0; i < count; i++) {
    if (first) send_pattern(fd, *at, 100), recv_pattern(fd, *at, 100);
    else recv_pattern(fd, *at, 100), send_pattern(fd, *at, 100);
    *at += 100;
  }
}
static void idle_end(int *fds, bool first) {
  uint64_t at[IDLE] = {0};
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < IDLE; i++) exchange(fds[i], first, &at[i], 2000);
    /* Those that are about to move are to have moved: their ends do at their next transfers. */
    for (int again = 0; again < 4; again++) {
      usleep(20000);
      for (int i = 0; i < IDLE; i++) exchange(fds[i], first, &at[i], 20);
    }
    long most = IDLE;
    for (int turn = 0; turn < 40 && most > LEFT; turn++) {
      usleep(500000);
      exchange(fds[0], first, &at[0], 40);
      bt_shared->value[first] = segments();
      exchange(fds[0], first, &at[0], 1);
      most = bt_shared->value[0] > bt_shared->value[1] ? bt_shared->value[0] : bt_shared->value[1];
      exchange(fds[0], first, &at[0], 1);
    }
    /* One that is busy, and two that found no time to move. */
    CHECK(most <= LEFT);
  }
  for (int i = 0; i < IDLE; i++) SYS(close(fds[i]));
}
MIXED_CASE(idle_connections_give_their_memory_back) {
  int fds[IDLE];
  union address target;
  int listener = listen_on(V4, &target);
  pid_t child = start_child();
  for (int i = 0; i < IDLE; i++) fds[i] = child ? dial(&target) : SYS(accept(listener, NULL, NULL));
  idle_end(fds, child != 0);
  if (child == 0) _exit(0);
  end_child(child);
}

/* The acceptor does not take the session that it is offered, since it makes no more transfers: the connector gives up what it holds for it. */
MIXED_CASE(an_offer_that_nobody_takes) {
  enum { TRANSFERS = 60 };
  int pipes = descriptors_of("pipe:");
  struct pair p = open_pair(V4);
  for (int i = 0; i < TRANSFERS; i++) send_pattern(p.server, i, 1);
  for (int i = 0; i < TRANSFERS; i++) recv_pattern(p.client, i, 1);
  struct pollfd wanted = {.fd = p.client, .events = POLLIN};
  for (int turn = 0; turn < 60 && segments() > 0; turn++) EQ(poll(&wanted, 1, 500), 0);
  EQ(segments(), 0);
  /* The bells. */
  EQ(descriptors_of("pipe:"), pipes);
  for (int i = 0; i < 2000; i++) exercise(p.client, p.server);
  SYS(close(p.client)), SYS(close(p.server));
}

/* Reported once and not armed anew: that stays so over the way back to TCP, and there again. */
static void keep_busy(const struct pair *p) {
  for (uint64_t i = 0; i < 2000; i++) exercise(p->client, p->server);
}
MIXED_CASE(a_registration_that_was_reported_once) {
  struct pair p = open_pair(V4);
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event once = {.events = EPOLLIN | EPOLLONESHOT}, event;
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &once));
  keep_busy(&p);
  EQ(epoll_ctl(set, EPOLL_CTL_MOD, p.server, &once), 0);
  put(p.client, "question");
  EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
  get(p.server, "question");
  for (int i = 0; i < 30; i++) EQ(epoll_wait(set, &event, 1, 100), 0);
  keep_busy(&p);
  put(p.client, "next");
  EQ(epoll_wait(set, &event, 1, 100), 0);
  SYS(epoll_ctl(set, EPOLL_CTL_MOD, p.server, &once));
  EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
  get(p.server, "next");
  SYS(close(set));
  close_pair(&p);
}
