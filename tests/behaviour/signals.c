/* Signals and cancellation: what a blocked call does when its thread is interrupted. */
#include "bt.h"
#include <setjmp.h>
#include <sys/sendfile.h>

static _Atomic int hits;
static void count_hit(int number) {
  (void)number;
  hits++;
}

/* Every blocking call on a connected socket or a listener, as one function each. */
enum call { RECV, READ, READV, PREADV2, RECVMSG, RECVMMSG, RECVFROM, PEEK, SPLICE, ACCEPT, ACCEPT4, READERS,
            SEND = READERS, SENDTO, WRITE, WRITEV, PWRITEV2, SENDMSG, SENDMMSG, SENDFILE, TRANSFERS,
            POLLS = TRANSFERS, PPOLLS, SELECTS, PSELECTS, EPOLLS, EPOLL_PWAITS, EPOLL_PWAIT2S, ALL };

static int use_fd, use_set, listen_fd, pipe_ends[2], big_file;
static char *big;
enum { BIG = 32 << 20 };

static ssize_t perform(enum call call) {
  char byte;
  struct iovec in = {&byte, 1}, out = {big, BIG};
  struct msghdr in_msg = {.msg_iov = &in, .msg_iovlen = 1};
  struct msghdr out_msg = {.msg_iov = &out, .msg_iovlen = 1};
  struct mmsghdr in_messages = {.msg_hdr = in_msg}, out_messages = {.msg_hdr = out_msg};
  off_t start = 0;
  struct pollfd p = {use_fd, POLLIN, 0};
  struct epoll_event event;
  fd_set set;
  FD_ZERO(&set);
  FD_SET(use_fd, &set);
  switch (call) {
    case RECV: return recv(use_fd, &byte, 1, 0);
    case READ: return read(use_fd, &byte, 1);
    case READV: return readv(use_fd, &in, 1);
    case PREADV2: return preadv2(use_fd, &in, 1, -1, 0);
    case RECVMSG: return recvmsg(use_fd, &in_msg, 0);
    case RECVMMSG: return recvmmsg(use_fd, &in_messages, 1, 0, NULL);
    case SPLICE: return splice(use_fd, NULL, pipe_ends[1], NULL, 1, 0);
    case RECVFROM: return recvfrom(use_fd, &byte, 1, 0, NULL, NULL);
    case PEEK: return recv(use_fd, &byte, 1, MSG_PEEK);
    case ACCEPT: return accept(listen_fd, NULL, NULL);
    case ACCEPT4: return accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    case SEND: return send(use_fd, big, BIG, 0);
    case SENDTO: return sendto(use_fd, big, BIG, 0, NULL, 0);
    case WRITE: return write(use_fd, big, BIG);
    case WRITEV: return writev(use_fd, &out, 1);
    case PWRITEV2: return pwritev2(use_fd, &out, 1, -1, 0);
    case SENDMSG: return sendmsg(use_fd, &out_msg, 0);
    case SENDMMSG: return sendmmsg(use_fd, &out_messages, 1, 0) == 1 ? (ssize_t)out_messages.msg_len : -1;
    case SENDFILE: return sendfile(use_fd, big_file, &start, BIG);
    case POLLS: return poll(&p, 1, -1);
    case PPOLLS: return ppoll(&p, 1, NULL, NULL);
    case SELECTS: return select(use_fd + 1, &set, NULL, NULL, NULL);
    case PSELECTS: return pselect(use_fd + 1, &set, NULL, NULL, NULL, NULL);
    case EPOLLS: return epoll_wait(use_set, &event, 1, -1);
    case EPOLL_PWAITS: return epoll_pwait(use_set, &event, 1, -1, NULL);
    case EPOLL_PWAIT2S: return epoll_pwait2(use_set, &event, 1, NULL, NULL);
    default: FAIL("no such call");
  }
}

struct result {
  enum call call;
  ssize_t value;
  int error;
};
static void *perform_thread(void *arg) {
  struct result *r = arg;
  bt_shared->value[0] = gettid();
  errno = 0;
  r->value = perform(r->call);
  r->error = errno;
  return NULL;
}

static struct pair p;
static union address target;
static void set_up(void) {
  big = calloc(1, BIG);
  SYS(pipe(pipe_ends));
  big_file = SYS(open("big", O_RDWR | O_CREAT, 0600));
  SYS(ftruncate(big_file, BIG));
  p = open_pair(V4);
  use_fd = p.server;
  listen_fd = listen_on(V4, &target);
  use_set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN};
  SYS(epoll_ctl(use_set, EPOLL_CTL_ADD, use_fd, &event));
}
/* Starts a thread that says who it is, and waits until it blocks. */
static pthread_t start_asleep(void *(*fn)(void *), void *arg) {
  bt_shared->value[0] = 0;
  pthread_t thread = start_thread(fn, arg);
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep(bt_shared->value[0]);
  return thread;
}
static pthread_t start_blocked(struct result *r) { return start_asleep(perform_thread, r); }
static void interrupt(pthread_t thread) {
  int before = hits;
  EQ(pthread_kill(thread, SIGUSR1), 0);
  UNTIL(hits > before);
}

/* Without SA_RESTART each of them fails with EINTR, and the socket goes on. */
static void interrupted(enum call first, enum call end) {
  set_up();
  handle_signal(SIGUSR1, count_hit, 0);
  for (enum call call = first; call < end; call++) {
    struct result r = {.call = call};
    pthread_t thread = start_blocked(&r);
    interrupt(thread);
    end_thread(thread);
    if (r.value != -1 || r.error != EINTR)
      FAIL("call %d gives %zd %s", call, r.value, strerrorname_np(r.error));
    exercise(p.client, p.server);
  }
}
SAN_CASE(interrupted_reading) { interrupted(RECV, READERS); }
SAN_CASE(interrupted_waiting) { interrupted(POLLS, ALL); }

/* A send that had begun reports what went in. */
static void interrupted_send(int flags) {
  set_up();
  handle_signal(SIGUSR1, count_hit, flags);
  for (enum call call = SEND; call < TRANSFERS; call++) {
    struct result r = {.call = call};
    pthread_t thread = start_blocked(&r);
    interrupt(thread);
    end_thread(thread);
    CHECK(r.value > 0 && r.value < BIG);
    ssize_t sent = r.value;
    /* Nothing fits now: interrupted before the first byte. */
    if (flags == 0) {
      sent += fill(use_fd, 0);
      thread = start_blocked(&r);
      interrupt(thread);
      end_thread(thread);
      if (r.value > 0) sent += r.value; /* room appeared after all */
      else EQ(r.error, EINTR);
    }
    static char buffer[1 << 18];
    while (sent > 0) {
      size_t want = sent < (ssize_t)sizeof buffer ? (size_t)sent : sizeof buffer;
      sent -= SYS(recv(p.client, buffer, want, 0));
    }
    expect_nothing(p.client);
    exercise(p.client, p.server);
  }
}
SAN_CASE(interrupted_sending) { interrupted_send(0); }
SAN_CASE(interrupted_sending_restart) { interrupted_send(SA_RESTART); }

/* With SA_RESTART transfers and accept() go on, and the waiting calls still fail. */
SAN_CASE(restarted_reading) {
  set_up();
  handle_signal(SIGUSR1, count_hit, SA_RESTART);
  for (enum call call = RECV; call < READERS; call++) {
    struct result r = {.call = call};
    pthread_t thread = start_blocked(&r);
    for (int i = 0; i < 3; i++) {
      interrupt(thread);
      wait_asleep(bt_shared->value[0]);
    }
    int client = -1;
    if (call == ACCEPT || call == ACCEPT4)
      client = dial(&target);
    else
      put(p.client, "x");
    end_thread(thread);
    if (client >= 0) {
      CHECK(r.value >= 0);
      warm_up_both(client, r.value);
      exercise(client, r.value);
    } else {
      EQ(r.value, 1);
      if (call == PEEK) get(p.server, "x");
    }
  }
}
SAN_CASE(restart_does_not_cover_waiting) {
  set_up();
  handle_signal(SIGUSR1, count_hit, SA_RESTART);
  for (enum call call = POLLS; call < ALL; call++) {
    struct result r = {.call = call};
    pthread_t thread = start_blocked(&r);
    interrupt(thread);
    end_thread(thread);
    EQ(r.value, -1);
    EQ(r.error, EINTR);
  }
  exercise(p.client, p.server);
}

/* A time-out on the socket takes SA_RESTART away (signal(7)). */
SAN_CASE(restart_does_not_cover_timeouts) {
  set_up();
  handle_signal(SIGUSR1, count_hit, SA_RESTART);
  set_timeout(p.server, SO_RCVTIMEO, HANG_MS);
  set_timeout(listen_fd, SO_RCVTIMEO, HANG_MS);
  for (enum call call = RECV; call < READERS; call++) {
    struct result r = {.call = call};
    pthread_t thread = start_blocked(&r);
    interrupt(thread);
    end_thread(thread);
    EQ(r.value, -1);
    EQ(r.error, EINTR);
  }
  exercise(p.client, p.server);
}

/* Interrupted in MSG_WAITALL: what is there is handed out. */
static void *wait_for_ten(void *arg) {
  char buffer[10];
  bt_shared->value[0] = gettid();
  EQ(recv(p.server, buffer, 10, MSG_WAITALL), 4);
  CHECK(memcmp(buffer, "half", 4) == 0);
  (void)arg;
  return NULL;
}
SAN_CASE(interrupted_waitall) {
  set_up();
  handle_signal(SIGUSR1, count_hit, SA_RESTART);
  put(p.client, "half");
  pthread_t thread = start_asleep(wait_for_ten, NULL);
  interrupt(thread);
  end_thread(thread);
  exercise(p.client, p.server);
}

/* A wait that may be made of many is interrupted wherever a signal finds it: here nobody has accepted yet. */
enum { INTERRUPTED = 1, TIMES = 8 };
static void *wait_in_vain(void *arg) {
  bt_shared->value[0] = gettid();
  while (bt_shared->value[INTERRUPTED] < TIMES) {
    ERR(perform(*(enum call *)arg), EINTR);
    bt_shared->value[INTERRUPTED]++;
  }
  return NULL;
}
SAN_CASE(interrupted_before_it_is_accepted) {
  set_up();
  int client = dial(&target), before = use_fd;
  use_fd = client;
  struct epoll_event event = {.events = EPOLLIN};
  SYS(epoll_ctl(use_set, EPOLL_CTL_ADD, client, &event));
  handle_signal(SIGUSR1, count_hit, 0);
  for (enum call call = RECV; call < ALL; call++) {
    if (call != RECV && call != POLLS && call != EPOLLS) continue;
    bt_shared->value[0] = bt_shared->value[INTERRUPTED] = 0;
    pthread_t thread = start_thread(wait_in_vain, &call);
    UNTIL(bt_shared->value[0] != 0);
    for (int i = 0; i < TIMES; i++) {
      wait_asleep(bt_shared->value[0]);
      /* Best where it is awake for a moment. */
      for (int64_t end = now_ms() + 20; task_state(bt_shared->value[0]) == 'S' && now_ms() < end;) usleep(1);
      interrupt(thread);
      UNTIL(bt_shared->value[INTERRUPTED] > i);
    }
    end_thread(thread);
  }
  int server = accept_warm_both(listen_fd, client);
  exercise(client, server);
  exercise(p.client, before);
}

/* An ignored or blocked signal disturbs nothing. */
SAN_CASE(ignored_signal_disturbs_nothing) {
  set_up();
  signal(SIGUSR1, SIG_IGN);
  struct result r = {.call = RECV};
  pthread_t thread = start_blocked(&r);
  for (int i = 0; i < 3; i++) EQ(pthread_kill(thread, SIGUSR1), 0);
  wait_asleep(bt_shared->value[0]);
  put(p.client, "x");
  end_thread(thread);
  EQ(r.value, 1);
}

/* The handler itself uses another socket, in the middle of this one's calls. */
static struct pair other;
static void echo_in_handler(int number) {
  (void)number;
  int saved = errno;
  char byte;
  while (recv(other.server, &byte, 1, MSG_DONTWAIT) == 1)
    if (send(other.server, &byte, 1, MSG_NOSIGNAL) != 1) abort();
  errno = saved;
  hits++;
}
static void *signal_storm(void *arg) {
  pthread_t thread = *(pthread_t *)arg;
  for (int i = 0; i < 200; i++) {
    char byte = i, back;
    EQ(send(other.client, &byte, 1, 0), 1);
    EQ(pthread_kill(thread, SIGUSR1), 0);
    /* Two signals may become one: ask again until the handler has seen the byte. */
    for (set_timeout(other.client, SO_RCVTIMEO, 5); recv(other.client, &back, 1, 0) != 1;)
      EQ(pthread_kill(thread, SIGUSR1), 0);
    EQ(back, byte);
  }
  atomic_store(&bt_shared->value[1], 1);
  return NULL;
}
static void transfer_until_told(int fd) {
  uint64_t at = 0;
  for (; !atomic_load(&bt_shared->value[1]); at += 5000) {
    send_pattern(fd, at, 5000);
    recv_pattern(fd, at, 5000);
  }
  SYS(close(fd));
}
static void handler_end(int fd) {
  handle_signal(SIGUSR1, echo_in_handler, SA_RESTART);
  other = open_pair(V4);
  pthread_t self = pthread_self(), thread = start_thread(signal_storm, &self);
  transfer_until_told(fd);
  end_thread(thread);
  CHECK(hits > 0);
}
static void echo_end(int fd) {
  char buffer[5000];
  ssize_t n;
  while ((n = SYS(recv(fd, buffer, sizeof buffer, 0))) > 0)
    for (ssize_t done = 0; done < n;) done += SYS(send(fd, buffer + done, n - done, 0));
}
PROCESS_ENDS(handler_uses_another_socket, handler_end, echo_end)

/* A storm of signals over a transfer, with and without SA_RESTART: no byte lost or doubled. */
static void *storm(void *arg) {
  pthread_t thread = *(pthread_t *)arg;
  while (!atomic_load(&bt_shared->value[2])) {
    pthread_kill(thread, SIGUSR1);
    usleep(50);
  }
  return NULL;
}
static void storm_sender(int fd) {
  handle_signal(SIGUSR1, count_hit, 0);
  pthread_t self = pthread_self(), thread = start_thread(storm, &self);
  for (uint64_t at = 0; at < 8 << 20;) {
    ssize_t n = send(fd, pattern(at), 100000 < (8 << 20) - at ? 100000 : (8 << 20) - at, 0);
    if (n < 0) EQ(errno, EINTR);
    if (n > 0) at += n;
  }
  atomic_store(&bt_shared->value[2], 1);
  end_thread(thread);
  expect_eof(fd);
}
static void storm_receiver(int fd) {
  handle_signal(SIGUSR1, count_hit, SA_RESTART);
  recv_pattern(fd, 0, 8 << 20);
  SYS(close(fd));
}
ENDS(signals_during_a_transfer, storm_sender, storm_receiver)

/* ---- alarm-like interruption of a whole process --------------------------------------------- */

/* Only one thread, interrupted by another process. */
static void interrupted_process(int fd) {
  char byte;
  handle_signal(SIGUSR1, count_hit, 0);
  bt_shared->value[0] = getpid();
  step_done(0);
  ERR(recv(fd, &byte, 1, 0), EINTR);
  EQ(hits, 1);
  step_done(1);
  get(fd, "go on");
  SYS(close(fd));
}
static void interrupting_process(int fd) {
  step_wait(0);
  wait_asleep(bt_shared->value[0]);
  SYS(kill(bt_shared->value[0], SIGUSR1));
  step_wait(1);
  put(fd, "go on");
  expect_eof(fd);
}
PROCESS_ENDS(interrupted_by_another_process, interrupted_process, interrupting_process)

/* ---- cancellation --------------------------------------------------------------------------- */

static void cancel_in(enum call call) {
  struct result r = {.call = call};
  pthread_t thread = start_blocked(&r);
  void *value;
  EQ(pthread_cancel(thread), 0);
  EQ(pthread_join(thread, &value), 0);
  if (value != PTHREAD_CANCELED) FAIL("call %d was not cancelled", call);
}
SAN_CASE(cancelled_reading) {
  set_up();
  for (enum call call = RECV; call < READERS; call++) {
    cancel_in(call);
    exercise(p.client, p.server); /* the socket is as before */
  }
}
SAN_CASE(cancelled_waiting) {
  set_up();
  for (enum call call = POLLS; call < ALL; call++) {
    cancel_in(call);
    exercise(p.client, p.server);
  }
}
SAN_CASE(cancelled_sending) {
  set_up();
  for (enum call call = SEND; call < SENDFILE; call++) { /* sendfile is no cancellation point */
    cancel_in(call);
    /* How much went in nobody knows; all of it is zeroes and the rest follows. */
    put(p.client, "still here"), get(p.server, "still here");
    static char buffer[1 << 18];
    SYS(shutdown(p.server, SHUT_WR));
    ssize_t n;
    while ((n = SYS(recv(p.client, buffer, sizeof buffer, 0))) > 0)
      for (ssize_t i = 0; i < n; i++) EQ(buffer[i], 0);
    close_pair(&p);
    p = open_pair(V4);
    use_fd = p.server;
  }
}

/* A pending cancellation acts at the call, even when it would not block. */
static void *cancelled_at_entry(void *arg) {
  char byte;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  bt_shared->value[3] = 1;
  UNTIL(bt_shared->value[4] != 0);
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  recv(*(int *)arg, &byte, 1, 0);
  return NULL;
}
SAN_CASE(pending_cancellation) {
  set_up();
  put(p.client, "x");
  wait_for(p.server, POLLIN);
  pthread_t thread = start_thread(cancelled_at_entry, &p.server);
  UNTIL(bt_shared->value[3] != 0);
  EQ(pthread_cancel(thread), 0);
  bt_shared->value[4] = 1;
  void *value;
  EQ(pthread_join(thread, &value), 0);
  CHECK(value == PTHREAD_CANCELED);
  get(p.server, "x"); /* untouched */
  exercise(p.client, p.server);
}

/* ---- handlers that do not return ------------------------------------------------------------ */

static __thread sigjmp_buf away;
void __longjmp_chk(sigjmp_buf to, int value) __attribute__((noreturn));
static _Noreturn void other_longjmp(sigjmp_buf to, int value) { longjmp(to, value); }
static _Noreturn void old_longjmp(sigjmp_buf to, int value) { _longjmp(to, value); }
static _Noreturn void usual_longjmp(sigjmp_buf to, int value) { siglongjmp(to, value); }
typedef void longjmp_fn(sigjmp_buf to, int value);
static longjmp_fn *const longjmps[] = {usual_longjmp, other_longjmp, old_longjmp, __longjmp_chk};
enum { LONGJMPS = sizeof longjmps / sizeof *longjmps, HOW = 5 };
static void jump_away(int number) {
  (void)number;
  sigjmp_buf here;
  /* A jump inside the handler ends nothing outside. */
  if (sigsetjmp(here, 0) == 0) siglongjmp(here, 1);
  longjmps[bt_shared->value[HOW]](away, 1);
}
static char handlers_stack[1 << 16];
/* Begins the call, is thrown out of it, and goes on with the socket. */
static void *thrown_out(void *arg) {
  struct result *r = arg;
  stack_t stack = {.ss_sp = handlers_stack, .ss_size = sizeof handlers_stack};
  if (bt_shared->value[HOW] % 2) SYS(sigaltstack(&stack, NULL));
  if (sigsetjmp(away, 1) == 0) {
    perform_thread(r);
    FAIL("call %d returned", r->call);
  }
  if (r->call < READERS || r->call >= TRANSFERS) {
    exercise(p.client, p.server);
    return NULL;
  }
  /* How much went in nobody knows; all of it is zeroes, and what follows comes behind. */
  put(p.client, "still here"), get(p.server, "still here");
  static char bytes[1 << 18];
  ssize_t n, last = 0;
  while ((n = recv(p.client, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
    for (ssize_t i = 0; i < n; i++) EQ(bytes[i], 0);
  put(p.server, "x");
  SYS(shutdown(p.server, SHUT_WR));
  while ((n = SYS(recv(p.client, bytes, sizeof bytes, 0))) > 0)
    for (ssize_t i = 0; i < n; last = bytes[i++]) EQ(last, 0);
  EQ(last, 'x');
  close_pair(&p);
  p = open_pair(V4);
  use_fd = p.server;
  return NULL;
}
static void throw_out_of(enum call first, enum call end) {
  set_up();
  for (int how = 0; how < LONGJMPS; how++) {
    bt_shared->value[HOW] = how;
    handle_signal(SIGUSR1, jump_away, how % 2 ? SA_ONSTACK : 0);
    for (enum call call = first; call < end; call++) {
      struct result r = {.call = call};
      pthread_t thread = start_asleep(thrown_out, &r);
      EQ(pthread_kill(thread, SIGUSR1), 0);
      end_thread(thread);
    }
  }
}
SAN_CASE(thrown_out_of_reading) { throw_out_of(RECV, READERS); }
SAN_CASE(thrown_out_of_waiting) { throw_out_of(POLLS, ALL); }
SAN_CASE(thrown_out_of_sending) { throw_out_of(SEND, TRANSFERS); }

/* The peer is not held up by a thread that was thrown out and never comes again. */
static void *thrown_out_to_rest(void *arg) {
  if (sigsetjmp(away, 1) == 0) perform_thread(arg);
  bt_shared->value[1] = 1;
  UNTIL(bt_shared->value[2] != 0);
  return NULL;
}
SAN_CASE(thrown_out_to_rest) {
  set_up();
  handle_signal(SIGUSR1, jump_away, 0);
  struct result r = {.call = RECV};
  pthread_t thread = start_asleep(thrown_out_to_rest, &r);
  EQ(pthread_kill(thread, SIGUSR1), 0);
  UNTIL(bt_shared->value[1] != 0);
  for (int i = 0; i < 100; i++) exercise(p.client, p.server);
  set_timeout(p.server, SO_RCVTIMEO, 1);
  for (int i = 0; i < 100; i++) {
    char byte;
    ERR(recv(p.server, &byte, 1, 0), EAGAIN);
    exercise(p.client, p.server);
  }
  bt_shared->value[2] = 1;
  end_thread(thread);
}

/* Handlers inside handlers: each throws out of the call that it interrupted. */
static __thread sigjmp_buf outer;
static void receive_in_handler(int number) {
  (void)number;
  char byte;
  if (sigsetjmp(away, 1) == 0) {
    bt_shared->value[1] = 1;
    recv(other.server, &byte, 1, 0);
    abort();
  }
  siglongjmp(outer, 1);
}
static void *nested_thread(void *arg) {
  if (sigsetjmp(outer, 1) == 0) perform_thread(arg);
  exercise(p.client, p.server);
  exercise(other.client, other.server);
  return NULL;
}
SAN_CASE(thrown_out_of_both) {
  set_up();
  other = open_pair(V4);
  handle_signal(SIGUSR1, receive_in_handler, 0);
  handle_signal(SIGUSR2, jump_away, 0);
  struct result r = {.call = RECV};
  pthread_t thread = start_asleep(nested_thread, &r);
  EQ(pthread_kill(thread, SIGUSR1), 0);
  UNTIL(bt_shared->value[1] != 0);
  wait_asleep(bt_shared->value[0]);
  EQ(pthread_kill(thread, SIGUSR2), 0);
  end_thread(thread);
}
