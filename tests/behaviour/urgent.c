/* Urgent data (S8): MSG_OOB, SO_OOBINLINE, SIOCATMARK, SIGURG, POLLPRI and the exception set, beside ordinary data. */
#include "bt.h"
#include <time.h>

MIXED_CASE(urgent_byte) {
  struct pair p = open_pair(V4);
  char byte = 0;
  ERR(recv(p.server, &byte, 1, MSG_OOB), EINVAL); /* none sent */
  put(p.client, "abc");
  EQ(send(p.client, "!", 1, MSG_OOB), 1);
  put(p.client, "def");
  CHECK(wait_for(p.server, POLLPRI) & POLLPRI);
  EQ(recv(p.server, &byte, 1, MSG_OOB), 1);
  EQ(byte, '!');
  ERR(recv(p.server, &byte, 1, MSG_OOB), EINVAL); /* taken */
  EQ(sockatmark(p.server), 0);
  /* A read stops at the mark. */
  char buffer[16];
  EQ(recv(p.server, buffer, sizeof buffer, 0), 3);
  CHECK(memcmp(buffer, "abc", 3) == 0);
  int mark = -1;
  SYS(ioctl(p.server, SIOCATMARK, &mark));
  EQ(mark, 1);
  EQ(sockatmark(p.server), 1);
  get(p.server, "def");
}

/* The connection would move meanwhile. Behind an urgent byte that is unread every byte keeps its place, and a close behind all bytes
   resets nothing. */
MIXED_CASE(unread_before_a_move) {
  for EACH_EXCHANGES(n)
    for (int who = 0; who < 2; who++) {
      union address target;
      int listener = listen_on(V4, &target), client = dial(&target);
      int server = SYS(accept(listener, NULL, NULL));
      for (int i = 0; i < n; i++) {
        put(client, "?"), get(server, "?"), put(server, "!"), get(client, "!");
        /* Between hosts the ends meet in the background. */
        if (is_between_hosts()) usleep(200);
      }
      int from = who ? server : client, to = who ? client : server;
      EQ(send(from, "0123456789abcdefghij!", 21, MSG_OOB | MSG_NOSIGNAL), 21);
      char byte, bytes[700];
      UNTIL(recv(to, &byte, 1, MSG_OOB) == 1);
      EQ(byte, '!');
      put(from, "y");
      get(to, "0123456789");
      memset(bytes, 'z', sizeof bytes);
      EQ(send(from, bytes, sizeof bytes, 0), (ssize_t)sizeof bytes);
      get(to, "abcdefghij");
      get(to, "y");
      EQ(recv(to, bytes, sizeof bytes, MSG_WAITALL), (ssize_t)sizeof bytes);
      CHECK(bytes[0] == 'z' && memcmp(bytes, bytes + 1, sizeof bytes - 1) == 0);
      ERR(recv(to, bytes, 1, MSG_DONTWAIT), EAGAIN);
      SYS(close(to));
      expect_eof(from);
      SYS(close(from)), SYS(close(listener));
    }
}

static _Atomic int urgent_signals;
static void on_urgent(int number) {
  (void)number;
  urgent_signals++;
}
MIXED_CASE(urgent_signal_and_event) {
  struct pair p = open_pair(V4);
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLPRI, .data.u64 = 4}, got;
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event));
  handle_signal(SIGURG, on_urgent, SA_RESTART);
  SYS(fcntl(p.server, F_SETOWN, getpid()));
  put(p.client, "plain");
  wait_for(p.server, POLLIN);
  EQ(epoll_wait(set, &got, 1, 10), 0);
  EQ(urgent_signals, 0);
  EQ(send(p.client, "!", 1, MSG_OOB), 1);
  UNTIL(urgent_signals > 0);
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  EQ(got.events, EPOLLPRI);
  get(p.server, "plain");
}

/* Its coming is an edge, also behind what is unread and once it is taken. */
MIXED_CASE(urgent_edge_behind_unread) {
  struct pair p = open_pair(V4);
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN | EPOLLPRI | EPOLLET}, got;
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event));
  put(p.client, "unread");
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  EQ(got.events, EPOLLIN);
  EQ(epoll_wait(set, &got, 1, 0), 0);
  char byte;
  EQ(send(p.client, "!", 1, MSG_OOB), 1);
  wait_for(p.server, POLLPRI);
  EQ(recv(p.server, &byte, 1, MSG_OOB), 1);
  EQ(epoll_wait(set, &got, 1, 0), 1);
  EQ(got.events, EPOLLIN);
  EQ(epoll_wait(set, &got, 1, 0), 0);
  get(p.server, "unread");
}

/* The exception set, alone and beside the others; select and pselect. */
MIXED_CASE(urgent_in_select) {
  struct pair p = open_pair(V4);
  fd_set readable, exceptional;
  put(p.client, "plain");
  for (int urgent = 0; urgent < 2; urgent++) {
    for (int both = 0; both < 2; both++) {
      FD_ZERO(&readable);
      FD_ZERO(&exceptional);
      FD_SET(p.server, &exceptional);
      if (both) FD_SET(p.server, &readable);
      struct timeval moment = {0, urgent || both ? HANG_MS * 1000 : 10000};
      struct timespec same = {0, 0};
      fd_set *in = both ? &readable : NULL;
      EQ(select(p.server + 1, in, NULL, &exceptional, &moment), both + urgent);
      EQ(FD_ISSET(p.server, &exceptional) != 0, urgent);
      FD_SET(p.server, &exceptional);
      if (both) FD_SET(p.server, &readable);
      EQ(pselect(p.server + 1, in, NULL, &exceptional, &same, NULL), both + urgent);
      EQ(FD_ISSET(p.server, &exceptional) != 0, urgent);
    }
    if (urgent) break;
    EQ(send(p.client, "!", 1, MSG_OOB), 1);
    wait_for(p.server, POLLPRI);
  }
  char byte;
  EQ(recv(p.server, &byte, 1, MSG_OOB), 1);
  EQ(byte, '!');
  FD_ZERO(&exceptional);
  FD_SET(p.server, &exceptional);
  struct timeval moment = {0, 10000};
  EQ(select(p.server + 1, NULL, NULL, &exceptional, &moment), 0);
  get(p.server, "plain");
}

MIXED_CASE(urgent_inline) {
  struct pair p = open_pair(V4);
  set_option(p.server, SOL_SOCKET, SO_OOBINLINE, 1);
  put(p.client, "abc");
  EQ(send(p.client, "!", 1, MSG_OOB), 1);
  put(p.client, "def");
  CHECK(wait_for(p.server, POLLPRI) & POLLPRI);
  char byte;
  ERR(recv(p.server, &byte, 1, MSG_OOB), EINVAL);
  get(p.server, "abc!def");
}

/* Much data right behind the urgent byte, into a receive that waits for it: the byte keeps its place. */
enum { BEHIND_ROUNDS = 60, BEHIND = 96 << 10 };
enum { READING };
static void send_behind(int fd) {
  for (long round = 0; round < BEHIND_ROUNDS; round++) {
    UNTIL(bt_shared->value[READING] > round);
    /* Mostly the receive waits by now. */
    if (round % 4) usleep(200);
    EQ(send(fd, "!", 1, MSG_OOB), 1);
    send_pattern(fd, round * BEHIND, BEHIND);
  }
}
static void receive_inline(int fd) {
  static uint8_t buffer[BEHIND + 1];
  set_option(fd, SOL_SOCKET, SO_OOBINLINE, 1);
  for (long round = 0; round < BEHIND_ROUNDS; round++) {
    size_t got = 0;
    bt_shared->value[READING] = round + 1;
    while (got < sizeof buffer) got += SYS(recv(fd, buffer + got, sizeof buffer - got, 0));
    EQ(buffer[0], '!');
    check_pattern(buffer + 1, round * BEHIND, BEHIND);
  }
}
static void receive_behind(int fd) {
  for (long round = 0; round < BEHIND_ROUNDS; round++) {
    bt_shared->value[READING] = round + 1;
    recv_pattern(fd, round * BEHIND, BEHIND);
  }
}
CARRIED_ENDS(urgent_inline_before_much, send_behind, receive_inline, BT_MIXED)
CARRIED_ENDS(urgent_byte_before_much, send_behind, receive_behind, BT_MIXED)

/* It waits for its reader, however often somebody waits for something else meanwhile. */
MIXED_CASE(urgent_byte_outlives_waiting) {
  struct pair p = open_pair(V4);
  char byte = 0;
  put(p.client, "abc");
  get(p.server, "abc");
  EQ(send(p.client, "!", 1, MSG_OOB), 1);
  wait_for(p.server, POLLPRI);
  struct pollfd one = {.fd = p.server, .events = POLLIN};
  for (int i = 0; i < 3; i++) EQ(poll(&one, 1, 5), 0);
  CHECK(wait_for(p.server, POLLPRI) & POLLPRI);
  put(p.client, "def");
  wait_for(p.server, POLLIN);
  CHECK(ready_now(p.server, POLLPRI) & POLLPRI);
  EQ(recv(p.server, &byte, 1, MSG_OOB | MSG_PEEK), 1);
  EQ(recv(p.server, &byte, 1, MSG_OOB), 1);
  EQ(byte, '!');
  EQ(ready_now(p.server, POLLPRI), 0);
  get(p.server, "def");
}

/* The server has read up to the mark; "def" lies behind it. */
static struct pair pair_at_mark(void) {
  struct pair p = open_pair(V4);
  put(p.client, "abc");
  EQ(send(p.client, "!", 1, MSG_OOB), 1);
  put(p.client, "def");
  wait_for(p.server, POLLPRI);
  get(p.server, "abc");
  return p;
}

/* Whoever reads past it has no more of it. */
MIXED_CASE(urgent_byte_is_passed) {
  struct pair p = pair_at_mark();
  char byte = 0;
  CHECK(ready_now(p.server, POLLPRI) & POLLPRI);
  get(p.server, "def");
  EQ(ready_now(p.server, POLLPRI), 0);
  ERR(recv(p.server, &byte, 1, MSG_OOB), EINVAL);
  exercise(p.client, p.server);
}

/* Equal ones, with nothing between them. */
MIXED_CASE(urgent_bytes_in_a_row) {
  struct pair p = open_pair(V4);
  for (int i = 0; i < 3; i++) {
    char byte = 0;
    EQ(send(p.client, "!", 1, MSG_OOB), 1);
    wait_for(p.server, POLLPRI);
    EQ(recv(p.server, &byte, 1, MSG_OOB), 1);
    EQ(byte, '!');
    EQ(ready_now(p.server, POLLPRI), 0);
  }
  put(p.client, "x");
  get(p.server, "x");
}

MIXED_CASE(urgent_byte_in_a_message) {
  struct pair p = open_pair(V4);
  char bytes[4] = {0};
  EQ(send(p.client, "ab!", 3, MSG_OOB), 3);
  wait_for(p.server, POLLPRI);
  struct iovec iov = {bytes, sizeof bytes};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
  EQ(recvmsg(p.server, &message, MSG_OOB), 1);
  EQ(message.msg_flags, MSG_OOB);
  EQ(bytes[0], '!');
  EQ(recvmsg(p.server, &message, 0), 2);
  EQ(message.msg_flags, 0);
  EQ(memcmp(bytes, "ab", 2), 0);
}

/* Each is one edge; one that is never read neither comes again nor keeps the waiter awake. */
MIXED_CASE(urgent_byte_is_an_edge) {
  struct pair p = open_pair(V4);
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLPRI | EPOLLET}, got;
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event));
  EQ(epoll_wait(set, &got, 1, 10), 0);
  for (int i = 0; i < 3; i++) {
    EQ(send(p.client, "!", 1, MSG_OOB), 1);
    EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
    EQ(got.events, EPOLLPRI);
    clock_t before = clock();
    EQ(epoll_wait(set, &got, 1, 100), 0);
    CHECK(clock() - before < CLOCKS_PER_SEC / 20);
  }
}

/* Two threads wait, each for its own. */
static void *wait_for_urgent(void *fd) {
  wait_for(*(int *)fd, POLLPRI);
  return NULL;
}
static void *wait_for_data(void *fd) {
  wait_for(*(int *)fd, POLLIN);
  return NULL;
}
MIXED_CASE(urgent_byte_wakes_who_waits_for_it) {
  struct pair p = open_pair(V4);
  pthread_t reader = start_thread(wait_for_data, &p.server), urgent = start_thread(wait_for_urgent, &p.server);
  sleep_ms(20);
  EQ(send(p.client, "!", 1, MSG_OOB), 1);
  end_thread(urgent);
  put(p.client, "data");
  end_thread(reader);
  get(p.server, "data");
}

/* A read of nothing passes nothing. */
MIXED_CASE(urgent_byte_outlives_an_empty_read) {
  struct pair p = pair_at_mark();
  char byte = 0;
  wait_for(p.server, POLLIN);
  EQ(recv(p.server, &byte, 0, 0), 0);
  EQ(recv(p.server, &byte, 1, MSG_OOB), 1);
  EQ(byte, '!');
  get(p.server, "def");
}

/* To a server that is without the library, before anybody knows that it is. */
PART(urgent_reader) {
  int fd = SYS(accept(atoi(bt_arguments[0]), NULL, NULL)), mark = -1;
  char bytes[16];
  sleep_ms(20);
  put(fd, "banner");
  wait_for(fd, POLLPRI);
  EQ(recv(fd, bytes, sizeof bytes, MSG_WAITALL), 3);
  EQ(memcmp(bytes, "abc", 3), 0);
  SYS(ioctl(fd, SIOCATMARK, &mark));
  EQ(mark, 1);
  EQ(recv(fd, bytes, 1, MSG_OOB), 1);
  EQ(bytes[0], '!');
  get(fd, "def");
}
CASE(urgent_byte_for_a_plain_server) {
  union address target;
  char number[12];
  int listener = listen_on(V4, &target);
  SYS(fcntl(listener, F_SETFD, 0));
  snprintf(number, sizeof number, "%d", listener);
  pid_t pid = start_program("@urgent_reader", false, number, "");
  int fd = dial(&target);
  put(fd, "abc");
  EQ(send(fd, "!", 1, MSG_OOB), 1);
  put(fd, "def");
  get(fd, "banner");
  end_child(pid);
}

/* ---- a mark that a newer one replaces ------------------------------------------------------- */

static void put_urgent(int fd, char byte) { EQ(send(fd, &byte, 1, MSG_OOB), 1); }
static void expect_urgent(int fd, char wanted) {
  char byte = 0;
  UNTIL(recv(fd, &byte, 1, MSG_OOB | MSG_PEEK) == 1 && byte == wanted);
  EQ(recv(fd, &byte, 1, MSG_OOB), 1);
  EQ(byte, wanted);
}
/* The older byte is an ordinary one then, */
static struct pair open_pair_with_urgent_data(void) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  put(p.client, "a"), put_urgent(p.client, '!'), expect_urgent(p.server, '!');
  put(p.client, "b"), get(p.server, "a"), get(p.server, "b");
  return p;
}
MIXED_CASE(urgent_byte_replaced_by_another) {
  struct pair p = open_pair_with_urgent_data();
  put(p.client, "abc"), put_urgent(p.client, '!');
  put(p.client, "def"), put_urgent(p.client, '?');
  put(p.client, "ghi");
  expect_urgent(p.server, '?');
  get(p.server, "abc!def");
  get(p.server, "ghi");
  exercise(p.client, p.server);
}
/* also where it was read, */
MIXED_CASE(urgent_byte_replaced_when_it_was_read) {
  struct pair p = open_pair_with_urgent_data();
  put(p.client, "abc"), put_urgent(p.client, '!');
  expect_urgent(p.server, '!');
  put_urgent(p.client, '?'), put(p.client, "def");
  expect_urgent(p.server, '?');
  get(p.server, "abc!"), get(p.server, "def");
}
/* but is gone where all before it was read. */
MIXED_CASE(urgent_byte_replaced_at_its_mark) {
  struct pair p = open_pair(V4);
  put(p.client, "abc"), get(p.server, "abc");
  put_urgent(p.client, '1'), wait_for(p.server, POLLPRI);
  put_urgent(p.client, '2'), expect_urgent(p.server, '2');
  EQ(sockatmark(p.server), 1);
  put_urgent(p.client, '3'), expect_urgent(p.server, '3');
  put(p.client, "def"), put_urgent(p.client, '4');
  expect_urgent(p.server, '4');
  put(p.client, "ghi");
  get(p.server, "def"), get(p.server, "ghi");
  exercise(p.client, p.server);
}
MIXED_CASE(urgent_bytes_inline) {
  struct pair p = open_pair(V4);
  char bytes[16];
  int mark = -1;
  set_option(p.server, SOL_SOCKET, SO_OOBINLINE, 1);
  put(p.client, "abc"), put_urgent(p.client, '!');
  put(p.client, "def"), put_urgent(p.client, '?');
  put(p.client, "ghi");
  UNTIL(recv(p.server, bytes, sizeof bytes, MSG_PEEK) == 7);
  EQ(recv(p.server, bytes, sizeof bytes, 0), 7);
  EQ(memcmp(bytes, "abc!def", 7), 0);
  SYS(ioctl(p.server, SIOCATMARK, &mark));
  EQ(mark, 1);
  get(p.server, "?ghi");
  put_urgent(p.client, '1'), put_urgent(p.client, '2');
  get(p.server, "12");
  exercise(p.client, p.server);
}

/* A receive that has bytes in hand and waits for more ends at a mark, wherever that comes from. */
enum { RECEIVES };
static void send_as_it_waits(int fd) {
  for (int inline_ = 0; inline_ < 2; inline_++) {
    put(fd, "ping"), get(fd, "pong");
    put(fd, "abc");
    step_wait(RECEIVES);
    wait_asleep(bt_shared->value[RECEIVES]);
    put_urgent(fd, '!');
    get(fd, "3");
    put(fd, "def");
  }
  expect_eof(fd);
}
static void receive_up_to_marks(int fd) {
  char bytes[16];
  bt_shared->value[RECEIVES] = gettid();
  for (int inline_ = 0; inline_ < 2; inline_++) {
    set_option(fd, SOL_SOCKET, SO_OOBINLINE, inline_);
    get(fd, "ping"), put(fd, "pong");
    step_done(RECEIVES);
    EQ(recv(fd, bytes, 6 + inline_, MSG_WAITALL), 3);
    put(fd, "3");
    get(fd, inline_ ? "!def" : "def");
  }
  struct pair p = open_pair(V4);
  put(p.client, "abc"), put_urgent(p.client, '!'), put(p.client, "def");
  wait_for(p.server, POLLPRI);
  EQ(recv(p.server, bytes, sizeof bytes, MSG_PEEK | MSG_WAITALL), 3);
  SYS(close(fd));
}
CARRIED_ENDS(urgent_byte_ends_a_waiting_receive, send_as_it_waits, receive_up_to_marks, BT_MIXED)

/* Peeking passes the byte over, and the mark stays; the byte does not count as one to read. */
MIXED_CASE(urgent_byte_outlives_peeking) {
  struct pair p = pair_at_mark();
  char bytes[16] = {0};
  int n = -1;
  wait_for(p.server, POLLIN);
  EQ(recv(p.server, bytes, sizeof bytes, MSG_PEEK), 3);
  EQ(memcmp(bytes, "def", 3), 0);
  EQ(sockatmark(p.server), 1);
  SYS(ioctl(p.server, FIONREAD, &n));
  EQ(n, 0);
  expect_urgent(p.server, '!');
  get(p.server, "def");
  put(p.client, "abc"), put_urgent(p.client, '!'), put(p.client, "def");
  UNTIL(ioctl(p.server, FIONREAD, &n) == 0 && n == 3);
  sleep_ms(5);
  SYS(ioctl(p.server, FIONREAD, &n));
  EQ(n, 3);
  get(p.server, "abcdef");
}
/* A close leaves it unread. */
MIXED_CASE(urgent_byte_is_unread_at_the_close) {
  for (int reads = 0; reads < 2; reads++) {
    struct pair p = open_pair(V4);
    char byte;
    put_urgent(p.client, '!');
    wait_for(p.server, POLLPRI);
    if (reads) expect_urgent(p.server, '!');
    SYS(close(p.server));
    ERR(recv(p.client, &byte, 1, 0), ECONNRESET);
    SYS(close(p.client));
  }
}
/* Much around each, in pieces of all sizes: every byte comes, the urgent ones in their places. */
enum { MARKS = 300 };
static void send_with_marks(int fd) {
  put(fd, "ping"), get(fd, "pong");
  for (int i = 0; i < MARKS; i++) {
    size_t n = (size_t)i * 997 % 40000;
    send_pattern(fd, 0, n);
    put_urgent(fd, '!');
    if (i % 7 == 0) usleep(300);
  }
  expect_eof(fd);
}
static void receive_marks_inline(int fd) {
  char byte;
  set_option(fd, SOL_SOCKET, SO_OOBINLINE, 1);
  get(fd, "ping"), put(fd, "pong");
  for (int i = 0; i < MARKS; i++) {
    recv_pattern(fd, 0, (size_t)i * 997 % 40000);
    EQ(recv(fd, &byte, 1, 0), 1);
    EQ(byte, '!');
  }
  SYS(close(fd));
}
CARRIED_ENDS(urgent_bytes_inline_among_others, send_with_marks, receive_marks_inline, BT_MIXED)
