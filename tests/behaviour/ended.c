/* What an end says after its connection ended, in every way and order: which events, errors, state and peer it has. */
#include "bt.h"

#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

/* ---- connections on which only one end sent ------------------------------------------------- */

enum { SENT_BEFORE = 1000000 };
static void *receives_much(void *fd) {
  recv_pattern((int)(intptr_t)fd, 0, SENT_BEFORE);
  return NULL;
}
static struct pair open_one_way(bool server_sends) {
  union address target;
  int listener = listen_on(V4, &target);
  struct pair p = {.client = dial(&target), .server = SYS(accept(listener, NULL, NULL))};
  int sender = server_sends ? p.server : p.client, receiver = server_sends ? p.client : p.server;
  pthread_t thread = start_thread(receives_much, (void *)(intptr_t)receiver);
  for (int i = 0; i < 5; i++) {
    send_pattern(sender, i * SENT_BEFORE / 5, SENT_BEFORE / 5);
    sleep_ms(1);
  }
  end_thread(thread);
  SYS(close(listener));
  return p;
}
/* The server's end received nothing, or sent nothing. */
static struct pair open_sender(void) { return open_one_way(true); }
static struct pair open_receiver(void) { return open_one_way(false); }
static struct pair open_used(void) { return open_pair(V4); }

/* ---- how it ends ---------------------------------------------------------------------------- */

/* What both ends do, a letter each. The peer: sends a byte, shuts down for writing, for reading or for both, closes, or resets (l).
 * In capitals: the end that is asked afterwards does it. */
static void act(struct pair *p, char what) {
  switch (what) {
  case 's': EQ(send(p->client, "p", 1, MSG_NOSIGNAL), 1); break;
  case 'w': SYS(shutdown(p->client, SHUT_WR)); break;
  case 'r': SYS(shutdown(p->client, SHUT_RD)); break;
  case 'b': SYS(shutdown(p->client, SHUT_RDWR)); break;
  case 'c': SYS(close(p->client)); break;
  case 'l': close_reset(p->client); break;
  case 'S': EQ(send(p->server, "o", 1, MSG_NOSIGNAL), 1); break;
  case 'W': SYS(shutdown(p->server, SHUT_WR)); break;
  case 'R': SYS(shutdown(p->server, SHUT_RD)); break;
  case 'B': SYS(shutdown(p->server, SHUT_RDWR)); break;
  default: FAIL("no act %c", what);
  }
  /* Between hosts a reset takes its time. */
  sleep_ms(is_between_hosts() ? 10 : 1);
}

/* ---- what is asked -------------------------------------------------------------------------- */

struct told {
  char text[100];
  int length;
};
static void tell(struct told *told, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void tell(struct told *told, const char *format, ...) {
  va_list list;
  va_start(list, format);
  told->length += vsnprintf(told->text + told->length, sizeof told->text - told->length, format, list);
  va_end(list);
}
static void tell_result(struct told *told, long long n) {
  if (n < 0) tell(told, " %s", strerrorname_np(errno));
  else tell(told, " %lld", n);
}
static void tell_events(struct told *told, int fd) {
  static const struct { short bit; char letter; } all[] = {
    {POLLIN, 'i'}, {POLLOUT, 'o'}, {POLLRDHUP, 'r'}, {POLLHUP, 'h'}, {POLLERR, 'e'}};
  short events = ready_now(fd, POLLIN | POLLOUT | POLLRDHUP);
  tell(told, " ");
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (events & all[i].bit) tell(told, "%c", all[i].letter);
}
static void tell_state(struct told *told, int fd) {
  struct tcp_info info;
  socklen_t len = sizeof info;
  SYS(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
  /* When its own end is acknowledged is a matter of timers. */
  int state = info.tcpi_state == TCP_FIN_WAIT1 ? TCP_FIN_WAIT2 : info.tcpi_state;
  union address address;
  len = sizeof address;
  tell(told, " %d%s", state, getpeername(fd, &address.any, &len) < 0 ? "-" : "");
}
static void ask(struct told *told, int fd, char what) {
  const int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
  char byte;
  struct iovec iov = {&byte, 1};
  struct mmsghdr message = {.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1}};
  int error;
  switch (what) {
  case 'p': tell_events(told, fd); break;
  case 't': tell_state(told, fd); break;
  case 'r': tell_result(told, recv(fd, &byte, 1, MSG_DONTWAIT)); break;
  case 'q': tell_result(told, recv(fd, bad_pointer(), 1, MSG_DONTWAIT)); break;
  case 's': tell_result(told, send(fd, "x", 1, flags)); break;
  case 'o': tell_result(told, send(fd, "x", 1, flags | MSG_OOB)); break;
  case 'z': tell_result(told, send(fd, "", 0, flags)); break;
  case 'm': tell_result(told, recvmmsg(fd, &message, 1, MSG_DONTWAIT, NULL)); break;
  case 'w': tell_result(told, shutdown(fd, SHUT_WR)); break;
  case 'b': tell_result(told, shutdown(fd, SHUT_RDWR)); break;
  case 'e':
    error = get_option(fd, SOL_SOCKET, SO_ERROR);
    tell(told, " %s", error ? strerrorname_np(error) : "0");
    break;
  default: FAIL("no question %c", what);
  }
}

/* On a fresh connection for each series of questions, after each series of acts. */
static const char *const questions[] = {"ptrrs", "ptssr", "ptmm", "pteep", "twp", "pto", "tzr", "bp", "qrq"};
enum { SERIES = sizeof questions / sizeof *questions };
static void after(struct pair (*open)(void), const char *acts, const char *const (*answers)[SERIES]) {
  for (int i = 0; i < SERIES; i++) {
    struct pair p = open();
    struct told told = {"", 0};
    for (const char *at = acts; *at; at++) act(&p, *at);
    for (const char *at = questions[i]; *at; at++) ask(&told, p.server, *at);
    if (strcmp(told.text, (*answers)[i]) != 0)
      FAIL("after %s, asked %s: \"%s\", want \"%s\"", acts, questions[i], told.text, (*answers)[i]);
    close(p.client);
    SYS(close(p.server));
  }
}
#define AFTER(name, acts, ...)                                                        \
  static void after_##name(struct pair (*open)(void)) {                               \
    static const char *const answers[SERIES] = {__VA_ARGS__}, *const each[] = acts;   \
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) after(open, each[i], &answers); \
  }                                                                                   \
  MIXED_CASE(name) { after_##name(open_used); }                                       \
  CASE(name##_of_a_sender) { after_##name(open_sender); }                             \
  CASE(name##_of_a_receiver) { after_##name(open_receiver); }
#define ACTS(...) {__VA_ARGS__}

AFTER(nothing, ACTS("", "S"),
      " o 1 EAGAIN EAGAIN 1", " o 1 1 1 EAGAIN", " o 1 EAGAIN EAGAIN", " o 1 0 0 o", " 1 0 o", " o 1 1", " 1 0 EAGAIN",
      " 0 iorh", " EAGAIN EAGAIN EAGAIN")
AFTER(peer_ended, ACTS("c", "wc", "bc", "Sb", "rc", "Rc"),
      " ior 8 0 0 1", " ior 8 1 EPIPE 0", " ior 8 1 1", " ior 8 0 0 ior", " 8 0 iorh", " ior 8 1", " 8 0 0", " 0 iorh",
      " 0 0 0")
AFTER(peer_sent_and_ended, ACTS("sc", "swc", "Rsc"),
      " ior 8 1 0 1", " ior 8 1 EPIPE 1", " ior 8 1 1", " ior 8 0 0 ior", " 8 0 iorh", " ior 8 1", " 8 0 1", " 0 iorh",
      " EFAULT 1 0")
AFTER(reset, ACTS("l", "Sc", "Sl", "Wl", "rSc", "Rl", "Bl", "SBc"),
      " iorhe 7- ECONNRESET 0 EPIPE", " iorhe 7- ECONNRESET EPIPE 0", " iorhe 7- ECONNRESET 1",
      " iorhe 7- ECONNRESET 0 iorh", " 7- ENOTCONN iorhe", " iorhe 7- ECONNRESET", " 7- ECONNRESET 0", " ENOTCONN iorhe",
      " ECONNRESET 0 0")
/* What comes after both directions were shut down resets the connection. */
AFTER(reset_by_what_came, ACTS("Bs", "SBs", "WRs", "RWs"),
      " iorhe 7- ECONNRESET 0 EPIPE", " iorhe 7- ECONNRESET EPIPE 0", " iorhe 7- ECONNRESET 1",
      " iorhe 7- ECONNRESET 0 iorh", " 7- ENOTCONN iorhe", " iorhe 7- ECONNRESET", " 7- ECONNRESET 0", " ENOTCONN iorhe",
      " ECONNRESET 0 0")
AFTER(reset_with_something_unread, ACTS("sl", "sBs", "sSc", "Ssc", "Ssl", "rSsc"),
      " iorhe 7- 1 ECONNRESET EPIPE", " iorhe 7- ECONNRESET EPIPE 1", " iorhe 7- ECONNRESET 1",
      " iorhe 7- ECONNRESET 0 iorh", " 7- ENOTCONN iorhe", " iorhe 7- ECONNRESET", " 7- ECONNRESET 1", " ENOTCONN iorhe",
      " EFAULT 1 ECONNRESET")
/* A reset behind the end of the stream is a broken pipe. */
AFTER(broken_pipe, ACTS("wSc", "wSl", "Swc", "bSc", "bS", "SbS", "Sbc", "cS"),
      " iorhe 7- 0 0 EPIPE", " iorhe 7- EPIPE EPIPE 0", " iorhe 7- EPIPE 1", " iorhe 7- EPIPE 0 iorh",
      " 7- ENOTCONN iorhe", " iorhe 7- EPIPE", " 7- EPIPE 0", " ENOTCONN iorhe", " 0 0 0")
AFTER(broken_pipe_with_something_unread, ACTS("sbS", "scS", "Sswc", "sSwc", "sSbc", "sSwl"),
      " iorhe 7- 1 0 EPIPE", " iorhe 7- EPIPE EPIPE 1", " iorhe 7- EPIPE 1", " iorhe 7- EPIPE 0 iorh",
      " 7- ENOTCONN iorhe", " iorhe 7- EPIPE", " 7- EPIPE 1", " ENOTCONN iorhe", " EFAULT 1 0")
AFTER(both_ended, ACTS("Wc", "Ww", "Wb", "Bc", "Bw", "wB"),
      " iorh 7- 0 0 EPIPE", " iorh 7- EPIPE EPIPE 0", " iorh 7- 1 1", " iorh 7- 0 0 iorh", " 7- ENOTCONN iorh",
      " iorh 7- EPIPE", " 7- EPIPE 0", " ENOTCONN iorh", " 0 0 0")
AFTER(this_end_shut_both, ACTS("B", "SB", "WR"),
      " iorh 5 0 0 EPIPE", " iorh 5 EPIPE EPIPE 0", " iorh 5 1 1", " iorh 5 0 0 iorh", " 5 0 iorh", " iorh 5 EPIPE",
      " 5 EPIPE 0", " 0 iorh", " 0 0 0")

/* An end that shut down for reading reads on what comes. Where nothing is there it is told of an end. */
static void go_on_reading(int client, int server) {
  char piece[100];
  SYS(shutdown(client, SHUT_RD));
  for (uint64_t at = 0; at < 100 * sizeof piece; at += sizeof piece) {
    EQ(recv(client, piece, sizeof piece, MSG_DONTWAIT), 0);
    send_pattern(server, at, sizeof piece);
    ssize_t n;
    UNTIL((n = SYS(recv(client, piece, sizeof piece, 0))) > 0);
    EQ(n, sizeof piece);
    check_pattern(piece, at, sizeof piece);
    put(client, "x"), get(server, "x");
  }
}
SAN_CASE(shut_for_reading) {
  struct pair p = open_pair(V4);
  go_on_reading(p.client, p.server);
  close_pair(&p);
}
CASE(shut_for_reading_before_it_moves) {
  union address target;
  int listener = listen_on(V4, &target);
  struct pair p = {.client = dial(&target), .server = SYS(accept(listener, NULL, NULL))};
  go_on_reading(p.client, p.server);
  close_pair(&p);
  SYS(close(listener));
}

/* What is unread lies in the segment, and the kernel alone knows of the reset. */
MIXED_CASE(reset_on_tcp_behind_unread_bytes) {
  struct pair p = open_pair(V4);
  put(p.client, "unread");
  EQ(send(p.server, "!", 1, MSG_OOB), 1);
  wait_for(p.client, POLLPRI);
  SYS(close(p.client));
  const short all = POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR;
  wait_revents(p.server, POLLIN | POLLOUT | POLLRDHUP, all);
  EQ(ready_now(p.server, 0), POLLHUP | POLLERR);
  get(p.server, "unread");
  char byte;
  ERR(recv(p.server, &byte, 1, 0), ECONNRESET);
  SYS(close(p.server));
}

/* ---- who goes on with it -------------------------------------------------------------------- */

/* The kernel's socket is as dead as the connection, for who goes on with it past the library. */
SAN_CASE(kernel_knows_of_a_broken_pipe) {
  struct pair p = open_pair(V4);
  SYS(close(p.client));
  EQ(send(p.server, "x", 1, MSG_NOSIGNAL), 1);
  UNTIL(past_libc(SYS_sendto, p.server, (long)"x", 1, MSG_NOSIGNAL, 0) == -EPIPE);
  SYS(close(p.server));
}

/* A peer that has shut both directions down closes, or exits, with something unread: TCP resets, and a set that is asleep hears. */
static void *resets(void *fd) {
  sleep_ms(50);
  SYS(close((int)(intptr_t)fd));
  return NULL;
}
static void reset_asleep(uint32_t events) {
  struct pair p = open_pair(V4);
  int set = SYS(epoll_create1(0));
  exercise(p.client, p.server);
  send_pattern(p.client, 0, 3000);
  SYS(shutdown(p.server, SHUT_RDWR));
  struct epoll_event event = {.events = events};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.client, &event));
  while (SYS(epoll_wait(set, &event, 1, 50)) == 1) CHECK(!(event.events & EPOLLERR));
  pthread_t thread = start_thread(resets, (void *)(intptr_t)p.server);
  EQ(SYS(epoll_wait(set, &event, 1, HANG_MS)), 1);
  EQ(event.events, (events & ~EPOLLET) | EPOLLERR | EPOLLHUP);
  end_thread(thread);
  SYS(close(p.client)), SYS(close(set));
}
SAN_CASE(a_reset_behind_both_shutdowns_wakes_a_set) { reset_asleep(0); }
SAN_CASE(a_reset_behind_both_shutdowns_makes_an_edge) { reset_asleep(EPOLLIN | EPOLLRDHUP | EPOLLET); }
static void exits_behind_both(int fd) {
  step_wait(0);
  SYS(shutdown(fd, SHUT_RDWR));
  step_done(1);
  step_wait(2);
  sleep_ms(50);
  exit(0);
}
static void hears_asleep(int fd) {
  int set = SYS(epoll_create1(0));
  send_pattern(fd, 0, 3000);
  step_done(0);
  step_wait(1);
  struct epoll_event event = {.events = 0};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  EQ(SYS(epoll_wait(set, &event, 1, 50)), 0);
  step_done(2);
  EQ(SYS(epoll_wait(set, &event, 1, HANG_MS)), 1);
  EQ(event.events, EPOLLERR | EPOLLHUP);
  SYS(close(fd)), SYS(close(set));
}
SAN_CASE(an_exit_behind_both_shutdowns_wakes_a_set) { run_processes(V4, exits_behind_both, hears_asleep); }

/* ---- other threads, and processes that are killed ------------------------------------------- */

static void nothing(int number) { (void)number; }
static void *interrupted_on_closed(void *fd) {
  char byte;
  bt_shared->value[0] = gettid();
  ERR(recv((int)(intptr_t)fd, &byte, 1, 0), EINTR);
  return NULL;
}
/* Closes the server's end while a thread waits on it, which sleeps on. */
static pthread_t closed_asleep(void *(*waits)(void *), struct pair p) {
  pthread_t thread = start_thread(waits, (void *)(intptr_t)p.server);
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep((pid_t)bt_shared->value[0]);
  SYS(close(p.server));
  sleep_ms(10);
  wait_asleep((pid_t)bt_shared->value[0]);
  return thread;
}
/* A signal has the kernel look once more. */
static void closed_then_signalled(void *(*waits)(void *), struct pair p) {
  handle_signal(SIGUSR1, nothing, 0);
  pthread_t thread = closed_asleep(waits, p);
  pthread_kill(thread, SIGUSR1);
  end_thread(thread);
  expect_eof(p.client);
}
SAN_CASE(signal_after_another_thread_closed) { closed_then_signalled(interrupted_on_closed, open_pair(V4)); }
/* The end that is closed received nothing on the SAN. */
CASE(signal_after_another_thread_closed_a_sender) { closed_then_signalled(interrupted_on_closed, open_sender()); }

static void *ended_on_closed(void *fd) {
  char byte;
  bt_shared->value[0] = gettid();
  EQ(recv((int)(intptr_t)fd, &byte, 1, 0), 0);
  return NULL;
}
static void *receives_what_is_right(void *fd) {
  char byte;
  bt_shared->value[0] = gettid();
  EQ(recv((int)(intptr_t)fd, &byte, 1, 0), 1);
  EQ(byte, 'r');
  return NULL;
}
static void closed_then_ended(struct pair p) {
  pthread_t thread = closed_asleep(ended_on_closed, p);
  SYS(close(p.client));
  end_thread(thread);
}
SAN_CASE(end_after_another_thread_closed) { closed_then_ended(open_pair(V4)); }
CASE(end_after_another_thread_closed_a_sender) { closed_then_ended(open_sender()); }
/* And the number is another file's, of which nothing comes: the call sleeps on the connection all the same. */
enum { BY_CLOSE, BY_SHUTDOWN, BY_BYTES };
static void replaced_then(struct pair p, int how) {
  int other = SYS(eventfd(0, 0));
  pthread_t thread = closed_asleep(how == BY_BYTES ? receives_what_is_right : ended_on_closed, p);
  EQ(SYS(dup2(other, p.server)), p.server);
  if (how == BY_BYTES) put(p.client, "right!");
  if (how == BY_SHUTDOWN) SYS(shutdown(p.client, SHUT_WR));
  if (how == BY_CLOSE) SYS(close(p.client));
  end_thread(thread);
  if (how != BY_CLOSE) SYS(close(p.client));
  SYS(close(other)), SYS(close(p.server));
}
SAN_CASE(close_after_another_file_came_to_the_number) { replaced_then(open_pair(V4), BY_CLOSE); }
SAN_CASE(shutdown_after_another_file_came_to_the_number) { replaced_then(open_pair(V4), BY_SHUTDOWN); }
SAN_CASE(bytes_after_another_file_came_to_the_number) { replaced_then(open_pair(V4), BY_BYTES); }
CASE(close_of_a_sender_after_another_file_came_to_the_number) { replaced_then(open_sender(), BY_CLOSE); }
CASE(shutdown_of_a_sender_after_another_file_came_to_the_number) { replaced_then(open_sender(), BY_SHUTDOWN); }

/* A thread waits; another one puts another connection at the number; then the first one goes back to TCP. */
MIXED_CASE(another_connection_at_the_number) {
  struct pair p = open_pair(V4), other = open_pair(V4);
  pthread_t thread = start_thread(receives_what_is_right, (void *)(intptr_t)p.server);
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep((pid_t)bt_shared->value[0]);
  EQ(SYS(dup2(other.server, p.server)), p.server);
  put(other.client, "wrong");
  EQ(send(p.client, "right!", 6, MSG_OOB | MSG_NOSIGNAL), 6);
  end_thread(thread);
  get(p.server, "wrong");
  SYS(close(p.server)), SYS(close(p.client));
  close_pair(&other);
}

static void *polls_a_closed_one(void *fd) {
  struct pollfd one = {(int)(intptr_t)fd, POLLIN, 0};
  bt_shared->value[0] = gettid();
  EQ(poll(&one, 1, -1), 1);
  EQ(one.revents, POLLNVAL);
  return NULL;
}
SAN_CASE(polled_while_another_thread_closes) {
  struct pair p = open_pair(V4);
  pthread_t thread = closed_asleep(polls_a_closed_one, p);
  put(p.client, "x");
  end_thread(thread);
}

static void *selects_a_closed_one(void *fd) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET((int)(intptr_t)fd, &set);
  bt_shared->value[0] = gettid();
  EQ(select((int)(intptr_t)fd + 1, &set, NULL, NULL, NULL), 1);
  CHECK(FD_ISSET((int)(intptr_t)fd, &set));
  return NULL;
}
SAN_CASE(signal_to_who_polls_a_closed_one) { closed_then_signalled(polls_a_closed_one, open_pair(V4)); }
SAN_CASE(signal_to_who_selects_a_closed_one) { closed_then_signalled(selects_a_closed_one, open_pair(V4)); }
CASE(signal_to_who_selects_a_closed_one_on_tcp) {
  union address target;
  int listener = listen_on(V4, &target);
  struct pair p = {.client = dial(&target), .server = SYS(accept(listener, NULL, NULL))};
  closed_then_signalled(selects_a_closed_one, p);
}

static void *selects_for_exceptions(void *fd) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET((int)(intptr_t)fd, &set);
  bt_shared->value[0] = gettid();
  ERR(select((int)(intptr_t)fd + 1, NULL, NULL, &set, NULL), EINTR);
  return NULL;
}
/* What poll always reports select does not count as an exception. */
SAN_CASE(an_end_is_no_exception) {
  struct pair p = open_pair(V4);
  SYS(shutdown(p.server, SHUT_WR));
  SYS(close(p.client));
  CHECK(wait_for(p.server, 0) & POLLHUP);
  handle_signal(SIGUSR1, nothing, 0);
  pthread_t thread = start_thread(selects_for_exceptions, (void *)(intptr_t)p.server);
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep((pid_t)bt_shared->value[0]);
  pthread_kill(thread, SIGUSR1);
  end_thread(thread);
  SYS(close(p.server));
}

/* The first look after a pause sees that the peer was killed meanwhile, also where something else is ready. */
SAN_CASE(kill_is_seen_at_once) {
  for (int way = 0; way < 2; way++) {
    union address target;
    int listener = listen_on(V4, &target);
    pid_t child = start_child();
    if (child == 0) {
      SYS(close(listener));
      int fd = dial_warm(&target);
      put(fd, "x");
      for (;;) pause();
    }
    int fd = accept_warm(listener);
    char byte;
    get(fd, "x");
    sleep_ms(20);
    SYS(kill(child, SIGKILL));
    EQ(waitpid(child, NULL, 0), child);
    if (way == 0) EQ(recv(fd, &byte, 1, MSG_DONTWAIT), 0);
    else EQ(ready_now(fd, POLLIN | POLLOUT | POLLRDHUP), POLLIN | POLLOUT | POLLRDHUP);
    SYS(close(fd));
    SYS(close(listener));
  }
}

/* An error that the kernel keeps, of a connection on TCP, is told before what can be read. */
CASE(recvmmsg_on_tcp_tells_the_error_first) {
  union address target;
  int listener = listen_on(V4, &target), client = dial(&target), server = SYS(accept(listener, NULL, NULL));
  char byte;
  struct iovec iov = {&byte, 1};
  struct mmsghdr message = {.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1}};
  put(client, "x");
  SYS(close(client));
  EQ(send(server, "x", 1, MSG_NOSIGNAL), 1);
  ERR(recvmmsg(server, &message, 1, 0, NULL), EPIPE);
  EQ(recvmmsg(server, &message, 1, 0, NULL), 1);
  SYS(close(server));
}

/* Nothing was sent, so nothing was reset. */
SAN_CASE(bad_pointer_to_a_closed_peer) {
  struct pair p = open_pair(V4);
  SYS(close(p.client));
  wait_for(p.server, POLLRDHUP);
  ERR(send(p.server, bad_pointer(), 10, MSG_NOSIGNAL), EFAULT);
  EQ(ready_now(p.server, POLLIN | POLLOUT | POLLRDHUP), POLLIN | POLLOUT | POLLRDHUP);
  EQ(send(p.server, "x", 1, MSG_NOSIGNAL), 1);
  SYS(close(p.server));
}

/* ---- nothing, and far too much -------------------------------------------------------------- */

SAN_CASE(no_bytes_to_a_broken_pipe) {
  struct pair p = open_pair(V4);
  struct iovec none = {"", 0};
  int file = SYS(open("/proc/self/exe", O_RDONLY));
  SYS(close(p.client));
  EQ(send(p.server, "x", 1, MSG_NOSIGNAL), 1);
  EQ(writev(p.server, &none, 1), 0);
  EQ(writev(p.server, &none, 0), 0);
  EQ(pwritev2(p.server, &none, 1, -1, 0), 0);
  EQ(sendfile(p.server, file, NULL, 0), 0);
  ERR(send(p.server, "", 0, MSG_NOSIGNAL), EPIPE);
  SYS(close(file));
  SYS(close(p.server));
}

/* Unknown to the compiler, which would warn. */
static ssize_t (*volatile past_compiler_write)(int, const void *, size_t) = write;
static ssize_t (*volatile past_compiler_read)(int, void *, size_t) = read;

SAN_CASE(absurd_lengths) {
  struct pair p = open_pair(V4);
  char buffer[16] = "0123456789abcde";
  struct iovec absurd[] = {{buffer, (size_t)1 << 62}, {buffer, 1}}, behind[] = {{buffer, 10}, {buffer, (size_t)1 << 62}};
  ERR(writev(p.server, absurd, 2), EFAULT);
  ERR(writev(p.server, behind, 2), EFAULT);
  ERR(readv(p.server, behind, 2), EFAULT);
  ERR(past_compiler_write(p.server, buffer, (size_t)1 << 62), EFAULT);
  ERR(past_compiler_write(p.server, buffer, SIZE_MAX), EFAULT);
  ERR(past_compiler_read(p.server, buffer, SIZE_MAX), EFAULT);
  exercise(p.client, p.server);
  close_pair(&p);
}

SAN_CASE(message_flags_say_cloexec) {
  struct pair p = open_pair(V4);
  char byte;
  struct iovec iov = {&byte, 1};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
  put(p.client, "x");
  EQ(recvmsg(p.server, &message, MSG_CMSG_CLOEXEC), 1);
  EQ(message.msg_flags, MSG_CMSG_CLOEXEC);
  close_pair(&p);
}

/* The reset is told, as it is to a receive that wants bytes, and told once. */
static void wants_no_bytes(struct pair p) {
  close_reset(p.client);
  wait_for(p.server, POLLERR);
  ERR(recv(p.server, (char[1]){0}, 0, 0), ECONNRESET);
  EQ(recv(p.server, (char[1]){0}, 0, 0), 0);
  SYS(close(p.server));
}
SAN_CASE(no_bytes_from_a_reset) { wants_no_bytes(open_pair(V4)); }
CASE(no_bytes_from_a_reset_of_a_sender) { wants_no_bytes(open_sender()); }
CASE(no_bytes_from_a_reset_of_a_receiver) { wants_no_bytes(open_receiver()); }

/* It tells the end when both directions are shut, and the reset when the close follows, for something was not read. */
static void shuts_and_closes(int fd) {
  get(fd, "ping"), put(fd, "pong");
  step_wait(0);
  SYS(shutdown(fd, SHUT_RDWR));
  step_done(1);
  step_wait(2);
  SYS(close(fd));
  step_done(3);
}
static void sees_both(int fd) {
  const short all = POLLIN | POLLOUT | POLLRDHUP;
  put(fd, "ping"), get(fd, "pong");
  put(fd, "x");
  step_done(0);
  step_wait(1);
  for (int i = 0; i < 3; i++) {
    sleep_ms(20);
    EQ(recv(fd, (char[1]){0}, 1, 0), 0);
    EQ(ready_now(fd, all), all);
  }
  step_done(2);
  step_wait(3);
  EQ(recv(fd, (char[1]){0}, 1, 0), 0);
  EQ(ready_now(fd, all), all | POLLERR | POLLHUP);
  ERR(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
  SYS(close(fd));
}
ENDS(closed_behind_both_shutdowns, shuts_and_closes, sees_both)
