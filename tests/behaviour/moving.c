/* A connection moves from TCP to the SAN while it is used: after every number of exchanges up to one when it is there for
 * certain, something happens that must be as over TCP. */
#include "bt.h"

static int exchanges; /* before it happens */

/* As many bytes each way, of which the server checks what the client sends. */
static void exchange_client(int fd) {
  for (int i = 0; i < exchanges; i++) {
    char byte = (char)i;
    EQ(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
    EQ(recv(fd, &byte, 1, 0), 1);
    EQ(byte, (char)(i + 1));
    /* Between hosts the ends meet in the background. */
    if (getenv("SANSHIM_PROVIDERS")) usleep(rand() % 400);
  }
}
static void exchange_server(int fd) {
  for (int i = 0; i < exchanges; i++) {
    char byte;
    EQ(recv(fd, &byte, 1, 0), 1);
    EQ(byte, (char)i);
    byte++;
    EQ(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
  }
}

struct ends {
  int client, server;
};
static struct ends connect_ends(void) {
  union address target;
  int listener = listen_on(V4, &target);
  struct ends ends = {.client = dial(&target)};
  ends.server = SYS(accept(listener, NULL, NULL));
  SYS(close(listener));
  return ends;
}
/* The two ends in two threads, for every number of exchanges. */
static void *client_of(void *ends) {
  exchange_client(((struct ends *)ends)->client);
  return NULL;
}
static struct ends after_exchanges(int count) {
  struct ends ends = connect_ends();
  exchanges = count;
  pthread_t client = start_thread(client_of, &ends);
  exchange_server(ends.server);
  end_thread(client);
  return ends;
}
static void close_ends(struct ends ends) { SYS(close(ends.client)), SYS(close(ends.server)); }

/* In the end it is on the SAN. */
static void settles(struct ends ends) {
  warm_up_both(ends.client, ends.server);
  exercise(ends.client, ends.server);
  on_san(ends.client);
}

SAN_CASE(a_half_close_of_the_connector) {
  for EACH_EXCHANGES(n) {
    struct ends ends = after_exchanges(n);
    put(ends.client, "last");
    SYS(shutdown(ends.client, SHUT_WR));
    get(ends.server, "last");
    expect_eof(ends.server);
    put(ends.server, "answer");
    get(ends.client, "answer");
    SYS(close(ends.server));
    expect_eof(ends.client);
    SYS(close(ends.client));
  }
  struct ends ends = after_exchanges(most_exchanges());
  settles(ends), close_ends(ends);
}

SAN_CASE(a_half_close_of_the_acceptor) {
  for EACH_EXCHANGES(n) {
    struct ends ends = after_exchanges(n);
    put(ends.server, "last");
    SYS(shutdown(ends.server, SHUT_WR));
    get(ends.client, "last");
    expect_eof(ends.client);
    put(ends.client, "answer");
    get(ends.server, "answer");
    SYS(close(ends.client));
    expect_eof(ends.server);
    SYS(close(ends.server));
  }
}

/* What was sent before the close is read, by either end, and then the end. */
SAN_CASE(a_close_behind_data) {
  for EACH_EXCHANGES(n)
    for (int who = 0; who < 2; who++) {
      struct ends ends = after_exchanges(n);
      int from = who ? ends.server : ends.client, to = who ? ends.client : ends.server;
      put(from, "first"), put(from, "second");
      if (n % 2) SYS(shutdown(from, SHUT_RDWR));
      SYS(close(from));
      get(to, "firstsecond");
      expect_eof(to);
      SYS(close(to));
    }
}

/* Behind the end of the stream the kernel alone tells of a reset, where this end sends over TCP still. */
SAN_CASE(a_half_close_and_a_close_with_bytes_unread) {
  for EACH_EXCHANGES(n)
    for (int who = 0; who < 2; who++) {
      struct ends ends = after_exchanges(n);
      int reader = who ? ends.server : ends.client, writer = who ? ends.client : ends.server;
      SYS(shutdown(reader, SHUT_WR));
      expect_eof(writer);
      put(writer, "unread");
      wait_for(reader, POLLIN);
      SYS(close(reader));
      wait_revents(writer, POLLIN | POLLOUT | POLLRDHUP, POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR);
      ERR(send(writer, "x", 1, MSG_NOSIGNAL), EPIPE);
      SYS(close(writer));
    }
}

/* Bytes unread at the close: the other end is reset. */
SAN_CASE(a_close_with_bytes_unread) {
  for EACH_EXCHANGES(n)
    for (int who = 0; who < 2; who++) {
      struct ends ends = after_exchanges(n);
      int reader = who ? ends.server : ends.client, writer = who ? ends.client : ends.server;
      put(writer, "unread");
      wait_for(reader, POLLIN);
      SYS(close(reader));
      CHECK(wait_for(writer, POLLIN) & POLLIN);
      char byte;
      ERR(recv(writer, &byte, 1, 0), ECONNRESET);
      SYS(close(writer));
    }
}

SAN_CASE(a_send_to_who_closed) {
  for EACH_EXCHANGES(n)
    for (int who = 0; who < 2; who++) {
      struct ends ends = after_exchanges(n);
      int gone = who ? ends.server : ends.client, stays = who ? ends.client : ends.server;
      SYS(close(gone));
      wait_for(stays, POLLIN);
      EQ(send(stays, "x", 1, MSG_NOSIGNAL), 1);
      sleep_ms(2);
      ERR(send(stays, "x", 1, MSG_NOSIGNAL), EPIPE);
      expect_eof(stays);
      SYS(close(stays));
    }
}

MIXED_CASE(an_urgent_byte) {
  for EACH_EXCHANGES(n)
    for (int who = 0; who < 2; who++) {
      struct ends ends = after_exchanges(n);
      int from = who ? ends.server : ends.client, to = who ? ends.client : ends.server;
      put(from, "before");
      EQ(send(from, "!", 1, MSG_OOB | MSG_NOSIGNAL), 1);
      put(from, "behind");
      CHECK(wait_for(to, POLLPRI) & POLLPRI);
      get(to, "before");
      EQ(sockatmark(to), 1);
      char byte;
      EQ(recv(to, &byte, 1, MSG_OOB), 1);
      EQ(byte, '!');
      get(to, "behind");
      exercise(ends.client, ends.server);
      close_ends(ends);
    }
}

SAN_CASE(bytes_that_are_looked_at_and_counted) {
  for EACH_EXCHANGES(n) {
    struct ends ends = after_exchanges(n);
    for (int i = 0; i < 8; i++) {
      put(ends.client, "0123456789");
      char bytes[16];
      EQ(recv(ends.server, bytes, 4, MSG_PEEK), 4);
      EQ(memcmp(bytes, "0123", 4), 0);
      int unread;
      do SYS(ioctl(ends.server, FIONREAD, &unread));
      while (unread < 10);
      EQ(unread, 10);
      EQ(recv(ends.server, NULL, 2, MSG_TRUNC), 2);
      EQ(recv(ends.server, bytes, 8, MSG_WAITALL), 8);
      EQ(memcmp(bytes, "23456789", 8), 0);
      put(ends.server, "ok");
      get(ends.client, "ok");
    }
    close_ends(ends);
  }
}

/* A child goes on with either end, and the parent after it. */
SAN_CASE(forks) {
  for EACH_EXCHANGES(n) {
    struct ends ends = after_exchanges(n);
    pid_t child = start_child();
    if (child == 0) {
      exercise(ends.client, ends.server);
      exercise(ends.server, ends.client);
      _exit(0);
    }
    end_child(child);
    exercise(ends.server, ends.client);
    close_ends(ends);
  }
  struct ends ends = after_exchanges(most_exchanges());
  settles(ends), close_ends(ends);
}

/* ---- streams that do not stop for it --------------------------------------------------------- */

enum { STREAM = 6 << 20 };

static void *sends(void *fd) {
  send_pattern(*(int *)fd, 0, STREAM);
  return NULL;
}
static void both_ways(int fd) {
  pthread_t sender = start_thread(sends, &fd);
  recv_pattern(fd, 0, STREAM);
  end_thread(sender);
}
static void *client_streams(void *ends) {
  both_ways(((struct ends *)ends)->client);
  return NULL;
}
MIXED_CASE(streams_both_ways) {
  struct ends ends = after_exchanges(most_exchanges());
  settles(ends), close_ends(ends);
  for (int round = 0; round < 10; round++) {
    struct ends moving = connect_ends();
    pthread_t client = start_thread(client_streams, &moving);
    both_ways(moving.server);
    end_thread(client);
    close_ends(moving);
  }
}

/* One thread sends small pieces of every size, another receives pieces of other sizes, by poll and without waiting. */
static void *sends_pieces(void *fd) {
  for (uint64_t at = 0; at < STREAM / 8;) {
    uint64_t n = 1 + at % 3001;
    send_pattern(*(int *)fd, at, n);
    at += n;
  }
  SYS(shutdown(*(int *)fd, SHUT_WR));
  return NULL;
}
MIXED_CASE(pieces_without_waiting) {
  struct ends ends = after_exchanges(most_exchanges());
  settles(ends), close_ends(ends);
  for (int round = 0; round < 10; round++) {
    struct ends moving = connect_ends();
    set_nonblocking(moving.server, true);
    if (round % 2) set_nonblocking(moving.client, true);
    pthread_t sender = start_thread(sends_pieces, &moving.client);
    uint8_t bytes[4096];
    uint64_t got = 0;
    for (ssize_t n = 1; n != 0;) {
      n = recv(moving.server, bytes, 1 + got % 4095, 0);
      if (n < 0) {
        EQ(errno, EAGAIN);
        wait_for(moving.server, POLLIN);
        continue;
      }
      check_pattern(bytes, got, n);
      got += n;
      /* What moves a connection is that its ends pass by. */
      if (n > 0) EQ(send(moving.server, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT), 1);
    }
    CHECK(got >= STREAM / 8);
    end_thread(sender);
    close_ends(moving);
  }
}

/* ---- sets that go on waiting through it ------------------------------------------------------ */

static void *echoes(void *ends) {
  int fd = ((struct ends *)ends)->client;
  char bytes[64];
  for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, 0)) > 0;)
    EQ(send(fd, bytes, n, MSG_NOSIGNAL), n);
  return NULL;
}
static void by_epoll(uint32_t how) {
  struct ends ends = connect_ends();
  set_nonblocking(ends.server, true);
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event event = {.events = EPOLLIN | how, .data.u64 = 77};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, ends.server, &event));
  pthread_t client = start_thread(echoes, &ends);
  for (int i = 0; i < 200; i++) {
    char text[16], back[64];
    int n = snprintf(text, sizeof text, "%d", i), have = 0;
    EQ(send(ends.server, text, n, MSG_NOSIGNAL), n);
    while (have < n) {
      EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
      EQ(event.data.u64, 77);
      CHECK(event.events & EPOLLIN);
      for (ssize_t more; (more = recv(ends.server, back + have, sizeof back - have, 0)) != -1;) {
        CHECK(more > 0);
        have += more;
      }
      EQ(errno, EAGAIN);
      /* Reported once, it is not reported again before it is asked for. */
      if (how & EPOLLONESHOT) {
        EQ(epoll_wait(set, &event, 1, 0), 0);
        event = (struct epoll_event){.events = EPOLLIN | how, .data.u64 = 77};
        SYS(epoll_ctl(set, EPOLL_CTL_MOD, ends.server, &event));
      }
    }
    EQ(have, n);
    EQ(memcmp(text, back, n), 0);
  }
  on_san(ends.server);
  SYS(shutdown(ends.server, SHUT_WR));
  end_thread(client);
  close_ends(ends);
  SYS(close(set));
}
SAN_CASE(a_level_triggered_set) { by_epoll(0); }
SAN_CASE(an_edge_triggered_set) { by_epoll(EPOLLET); }
SAN_CASE(a_set_that_reports_once) { by_epoll(EPOLLONESHOT); }
SAN_CASE(a_set_that_reports_edges_once) { by_epoll(EPOLLET | EPOLLONESHOT); }
SAN_CASE(an_exclusive_set) { by_epoll(EPOLLEXCLUSIVE); }

/* ---- ends that go in the middle of it -------------------------------------------------------- */

/* The client exchanges so often in a process of its own, and does what follows. */
static int served(int count, void (*then)(int fd), pid_t *child) {
  union address target;
  int listener = listen_on(V4, &target);
  exchanges = count;
  *child = start_child();
  if (*child == 0) {
    SYS(close(listener));
    int fd = dial(&target);
    exchange_client(fd);
    then(fd);
    _exit(0);
  }
  int fd = SYS(accept(listener, NULL, NULL));
  SYS(close(listener));
  exchange_server(fd);
  return fd;
}
static void killed_behind_data(int fd) {
  put(fd, "last");
  raise(SIGKILL);
}
/* What a killed end had sent arrives, and then the end. */
SAN_CASE(an_end_that_is_killed) {
  for EACH_EXCHANGES(n) {
    pid_t child;
    int fd = served(n, killed_behind_data, &child), status;
    get(fd, "last");
    expect_eof(fd);
    EQ(waitpid(child, &status, 0), child);
    EQ(WTERMSIG(status), SIGKILL);
    SYS(close(fd));
  }
}
/* A broken pipe that a send tells is what poll tells too, whoever carries the connection: the connector may be alone on the SAN when
 * the acceptor is killed. */
static void send_to_killed_acceptor(int looks) {
  union address target;
  int listener = listen_on(V4, &target), status;
  pid_t child = start_child();
  if (child == 0) {
    exchange_server(SYS(accept(listener, NULL, NULL)));
    for (;;) pause();
  }
  int fd = dial(&target);
  exchange_client(fd);
  char byte;
  for (int i = 0; i < looks; i++) ERR(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
  SYS(kill(child, SIGKILL));
  EQ(waitpid(child, &status, 0), child);
  SYS(close(listener));
  expect_eof(fd);
  /* At once: nobody asks the kernel of the connection between. */
  while (send(fd, "x", 1, MSG_NOSIGNAL) == 1) {}
  EQ(errno, EPIPE);
  EQ(ready_now(fd, POLLOUT), POLLOUT | POLLHUP);
  expect_eof(fd);
  ERR(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
  SYS(close(fd));
}
SAN_CASE(sends_to_a_killed_acceptor) {
  for EACH_EXCHANGES(n) {
    exchanges = n ? n : 1;
    for (int looks = 0; looks < 3; looks++) send_to_killed_acceptor(looks);
  }
}
/* What a reset overtakes is lost, and what was sent behind it on the SAN is not read in its place. */
SAN_CASE(a_reset_that_overtakes_bytes) {
  struct ends ends = connect_ends();
  set_nonblocking(ends.client, true);
  /* Who does not block, and never waits, stays on TCP. */
  EQ(ready_now(ends.client, POLLIN), 0);
  uint64_t sent = fill(ends.client, 0), got = 0;
  for (int i = 0; i < most_exchanges(); i++) {
    put(ends.server, "x");
    wait_for(ends.client, POLLIN);
    get(ends.client, "x");
    if (getenv("SANSHIM_PROVIDERS")) usleep(500);
  }
  sent += fill(ends.client, sent);
  close_reset(ends.client);
  static uint8_t bytes[65536];
  for (ssize_t n; (n = recv(ends.server, bytes, sizeof bytes, 0)) != -1; got += (uint64_t)n) {
    CHECK(n > 0);
    check_pattern(bytes, got, (size_t)n);
  }
  EQ(errno, ECONNRESET);
  CHECK(got < sent);
  expect_eof(ends.server);
  SYS(close(ends.server));
}
static void becomes_cat(int fd) {
  put(fd, "from before;");
  SYS(dup2(fd, 0)), SYS(dup2(fd, 1));
  unsetenv("LD_PRELOAD");
  execl("/bin/cat", "cat", (char *)NULL);
  _exit(99);
}
/* A program without the library goes on with it. */
MIXED_CASE(an_end_that_becomes_another_program) {
  struct ends ends = after_exchanges(most_exchanges());
  settles(ends), close_ends(ends);
  for EACH_EXCHANGES(n)
    /* What the kernel tells of the connection, it tells no more once both directions have ended. */
    for (int reads_after_the_end = 0; reads_after_the_end < 2; reads_after_the_end++) {
      pid_t child;
      int fd = served(n, becomes_cat, &child);
      put(fd, "echoed");
      SYS(shutdown(fd, SHUT_WR));
      if (reads_after_the_end) end_child(child);
      get(fd, "from before;echoed");
      expect_eof(fd);
      if (!reads_after_the_end) end_child(child);
      SYS(close(fd));
    }
}
/* A program without the library that reads nothing before it wrote much, of a connection on which much is unread, and for which
 * TCP has little room: its peer reads that, although what it is to send again finds no room. */
enum { LITTLE = 16384, MUCH = 400000 };
static void writes_first(int fd) {
  set_option(fd, SOL_SOCKET, SO_SNDBUF, LITTLE), set_option(fd, SOL_SOCKET, SO_RCVBUF, LITTLE);
  UNTIL(bt_shared->value[0]);
  SYS(dup2(fd, 0)), SYS(dup2(fd, 1));
  unsetenv("LD_PRELOAD");
  execl("/bin/sh", "sh", "-c", "head -c 400000 /dev/zero; cat", (char *)NULL);
  _exit(99);
}
/* Reads so many bytes in such a way. */
enum way { RECEIVE, POLL, LEVEL, EDGE };
static void read_much(int fd, enum way way) {
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event event = {.events = EPOLLIN | (way == EDGE ? EPOLLET : 0)};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  set_nonblocking(fd, way != RECEIVE);
  char bytes[4096];
  for (int got = 0; got < MUCH;) {
    ssize_t n = recv(fd, bytes, MUCH - got < 4096 ? MUCH - got : 4096, 0);
    if (n > 0) {
      got += (int)n;
      continue;
    }
    EQ(n, -1);
    EQ(errno, EAGAIN);
    if (way == POLL) wait_for(fd, POLLIN);
    else EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
  }
  set_nonblocking(fd, false);
  SYS(close(set));
}
static void by_a_program_that_writes_first(enum way way) {
  pid_t child;
  int fd = served(most_exchanges(), writes_first, &child);
  set_nonblocking(fd, true);
  uint64_t sent = fill(fd, 0);
  set_option(fd, SOL_SOCKET, SO_SNDBUF, LITTLE), set_option(fd, SOL_SOCKET, SO_RCVBUF, LITTLE);
  bt_shared->value[0] = 1;
  read_much(fd, way);
  recv_pattern(fd, 0, sent);
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
  end_child(child);
  SYS(close(fd));
}
MIXED_CASE(a_program_that_writes_before_it_reads) { by_a_program_that_writes_first(RECEIVE); }
MIXED_CASE(a_program_that_writes_before_it_reads_by_poll) { by_a_program_that_writes_first(POLL); }
MIXED_CASE(a_program_that_writes_before_it_reads_by_epoll) { by_a_program_that_writes_first(LEVEL); }
MIXED_CASE(a_program_that_writes_before_it_reads_by_edges) { by_a_program_that_writes_first(EDGE); }
/* The last exchange of the client's is in flight when the server's end goes over to a child, and the parent leaves. */
static void goes_on(int fd) {
  for (int i = 0; i < 20; i++) put(fd, "ping"), get(fd, "pong");
}
SAN_CASE(a_child_that_takes_over) {
  for EACH_EXCHANGES(n) {
    pid_t child;
    int fd = served(n, goes_on, &child);
    pid_t other = start_child();
    if (other == 0) {
      for (int i = 0; i < 20; i++) get(fd, "ping"), put(fd, "pong");
      expect_eof(fd);
      _exit(0);
    }
    SYS(close(fd));
    end_child(child), end_child(other);
  }
}

/* One read takes all that is there, into however many buffers: who gets less takes it that nothing is left. */
SAN_CASE(buffers_that_are_filled) {
  for EACH_EXCHANGES(n) {
    struct ends ends = after_exchanges(n);
    for (int i = 0; i < 8; i++) {
      put(ends.client, "01234"), put(ends.client, "56789");
      int unread;
      do SYS(ioctl(ends.server, FIONREAD, &unread));
      while (unread < 10);
      char first[3], second[4], third[8];
      struct iovec three[] = {{first, 3}, {second, 4}, {third, 8}};
      EQ(readv(ends.server, three, 3), 10);
      CHECK(memcmp(first, "012", 3) == 0 && memcmp(second, "3456", 4) == 0 && memcmp(third, "789", 3) == 0);
      put(ends.server, "ok"), get(ends.client, "ok");
    }
    close_ends(ends);
  }
}

/* A full kernel buffer before the move, space after it: the edge is told on the SAN as well. */
SAN_CASE(an_edge_of_space_across_the_move) {
  struct ends ends = connect_ends();
  set_nonblocking(ends.client, true);
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.fd = ends.client};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, ends.client, &event));
  EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
  uint64_t sent = fill(ends.client, 0);
  for (int i = 0; i < most_exchanges(); i++) {
    put(ends.server, "x");
    EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
    CHECK(event.events & EPOLLIN);
    get(ends.client, "x");
    if (getenv("SANSHIM_PROVIDERS")) usleep(500);
  }
  recv_pattern(ends.server, 0, sent);
  do EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
  while (!(event.events & EPOLLOUT));
  EQ(send(ends.client, "y", 1, MSG_NOSIGNAL), 1);
  get(ends.server, "y");
  SYS(close(set));
  close_ends(ends);
}

/* ---- a look at what comes, into several buffers ------------------------------------------------ */

/* However far the connection is on its way, it sees all that is there, in few buffers and in many. */
static void peek_on_the_way(int exchanges, int flags) {
  enum { MANY = 30, LENGTH = 90 };
  union address target;
  int listener = listen_on(V4, &target);
  int client = dial(&target), server = SYS(accept(listener, NULL, NULL));
  SYS(close(listener));
  for (int i = 0; i < exchanges; i++) {
    put(client, "request"), get(server, "request");
    put(server, "answer"), get(client, "answer");
  }
  send_pattern(client, 0, LENGTH);
  uint8_t bytes[LENGTH] = {0};
  struct iovec few[] = {{bytes, 1}, {bytes + 1, 40}, {NULL, 0}, {bytes + 41, LENGTH - 41}}, many[MANY];
  for (int i = 0; i < MANY; i++) many[i] = (struct iovec){bytes + 3 * i, 3};
  struct msghdr into_few = {.msg_iov = few, .msg_iovlen = 4}, into_many = {.msg_iov = many, .msg_iovlen = MANY};
  UNTIL(recv(server, bytes, LENGTH, MSG_PEEK | MSG_DONTWAIT) == LENGTH);
  for (int again = 0; again < 3; again++) {
    memset(bytes, 0, LENGTH);
    EQ(recvmsg(server, again % 2 ? &into_many : &into_few, MSG_PEEK | flags), LENGTH);
    check_pattern(bytes, 0, LENGTH);
  }
  EQ(recvmsg(server, &into_many, 0), LENGTH);
  check_pattern(bytes, 0, LENGTH);
  SYS(close(client)), SYS(close(server));
}
MIXED_CASE(peek_into_several_buffers_on_the_way) {
  for (int exchanges = 0; exchanges < 60; exchanges++) {
    peek_on_the_way(exchanges, MSG_DONTWAIT);
    peek_on_the_way(exchanges, MSG_WAITALL);
  }
}
