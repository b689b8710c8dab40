/* Signal handlers on a small stack of their own: how much of it the calls take. */
#include "bt.h"

#include <sys/mman.h>

/* What a handler's stack has to have room for, beside the kernel's frame and the handler's own (docs/reference/signals-and-threads.md).
 * Where connections lead to other hosts it is more. */
enum { MOST = 3584, SIZE = 64 << 10, PAINT = 0x5a };

static uint8_t *stack;
static int fd, set;
static const char *call;
/* Not yet where the dynamic linker has still to find the functions, which takes as much natively. */
static bool measures;

/* Paints all of the stack that is below the caller's frame, which is this one's caller's. */
__attribute__((noinline)) static void paint(void) {
  volatile uint8_t *end = (uint8_t *)__builtin_frame_address(0) - 256;
  for (volatile uint8_t *at = stack; at < end; at++) *at = PAINT;
}
/* How much was used below that since. */
__attribute__((noinline)) static void measure(void) {
  uint8_t *at = stack, *end = __builtin_frame_address(0);
  while (at < end && *at == PAINT) at++;
  if (end - at > MOST) FAIL("%s takes %d bytes of the stack", call, (int)(end - at));
  if (getenv("STACKS_SHOW")) fprintf(stderr, "%s: %d\n", call, (int)(end - at));
}
#define MEASURED(expression, wanted)                                          \
  do {                                                                        \
    call = #expression;                                                       \
    if (measures) paint();                                                    \
    long result_ = (expression);                                              \
    if (measures) measure();                                                  \
    EQ(result_, wanted);                                                      \
  } while (0)

/* Every call that a handler may make of a connection; where they wait the peer answers late. */
static void use(bool waits) {
  char bytes[64] = "";
  struct iovec piece = {bytes, sizeof bytes};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
  struct pollfd one = {fd, POLLIN, 0}, several[8];
  for (int i = 0; i < 8; i++) several[i] = one;
  struct epoll_event event;
  struct timeval limit = {HANG_MS / 1000, 0};
  fd_set readers;
  FD_ZERO(&readers);
  FD_SET(fd, &readers);
  if (!waits) {
    MEASURED(recv(fd, bytes, 64, MSG_DONTWAIT), -1);
    MEASURED(poll(&one, 1, 0), 0);
    MEASURED(epoll_wait(set, &event, 1, 0), 0);
  }
  MEASURED(send(fd, bytes, 64, 0), 64);
  MEASURED(recv(fd, bytes, 64, MSG_WAITALL), 64);
  MEASURED(sendmsg(fd, &message, 0), 64);
  MEASURED(recvmsg(fd, &message, MSG_WAITALL), 64);
  MEASURED(write(fd, bytes, 64), 64);
  MEASURED(poll(&one, 1, HANG_MS), 1);
  MEASURED(recv(fd, bytes, 64, MSG_PEEK | MSG_WAITALL), 64);
  MEASURED(read(fd, bytes, 64), 64);
  MEASURED(writev(fd, &piece, 1), 64);
  MEASURED(select(fd + 1, &readers, NULL, NULL, &limit), 1);
  MEASURED(readv(fd, &piece, 1), 64);
  MEASURED(send(fd, bytes, 64, MSG_MORE), 64);
  MEASURED(epoll_wait(set, &event, 1, HANG_MS), 1);
  MEASURED(recv(fd, bytes, 64, 0), 64);
  MEASURED(send(fd, bytes, 64, 0), 64);
  /* The answer may come while the kernel has looked at some of them. */
  MEASURED(poll(several, 8, HANG_MS) > 0, 1);
  MEASURED(recv(fd, bytes, 64, 0), 64);
}

static void (*volatile work)(void);
static void handler(int number) {
  (void)number;
  work();
}
/* Has a handler do this work, on a painted stack. */
static void in_handler(void (*its)(void)) {
  work = its;
  measures = true;
  raise(SIGUSR1);
}
static void watch(void) {
  set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event wanted = {.events = EPOLLIN};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted));
}
/* The peer sends back what comes. */
static void prepare(int connection) {
  fd = connection;
  watch();
  stack = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(stack != MAP_FAILED);
  handle_signal(SIGUSR1, handler, SA_ONSTACK);
  SYS(sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = SIZE}, NULL));
  measures = false;
  use(true);
  ERR(shutdown(-1, SHUT_WR), EBADF);
  ERR(close(-1), EBADF);
}

/* Sends back what comes, 64 bytes each; late if it is to. */
static void echo(int connection, bool late) {
  char bytes[64];
  for (;;) {
    ssize_t n = SYS(recv(connection, bytes, 64, MSG_WAITALL));
    if (n == 0) return;
    if (late) sleep_ms(2);
    EQ(send(connection, bytes, n, 0), n);
  }
}
static void echo_at_once(int connection) { echo(connection, false); }
static void echo_late(int connection) { echo(connection, true); }

/* What use() sends once. */
static void echo_first(int connection) {
  char bytes[64];
  for (int i = 0; i < 6; i++) {
    EQ(recv(connection, bytes, 64, MSG_WAITALL), 64);
    EQ(send(connection, bytes, 64, 0), 64);
  }
}

enum { ROUNDS = 20 };
static void use_often(void) {
  for (int i = 0; i < ROUNDS; i++) use(true);
  use(false);
}
static void uses_it(int connection) {
  prepare(connection);
  in_handler(use_often);
  SYS(close(fd));
}
ENDS(of_a_busy_connection, uses_it, echo_at_once)
ENDS(of_a_quiet_connection, uses_it, echo_late)

/* A send that waits for room, and a receive that waits for all. */
static uint8_t bulk[4 << 20];
static void send_bulk(void) { MEASURED(send(fd, pattern(0), sizeof bulk, 0), sizeof bulk); }
static void receive_bulk(void) { MEASURED(recv(fd, bulk, sizeof bulk, MSG_WAITALL), sizeof bulk); }
static void moves_bulk(int connection) {
  prepare(connection);
  in_handler(send_bulk);
  in_handler(receive_bulk);
  check_pattern(bulk, 0, sizeof bulk);
}
static void moves_it_back(int connection) {
  echo_first(connection);
  for (int i = 0; i < 4; i++) sleep_ms(5), recv_pattern(connection, (uint64_t)i << 20, 1 << 20);
  for (int i = 0; i < 4; i++) sleep_ms(5), send_pattern(connection, (uint64_t)i << 20, 1 << 20);
}
ENDS(of_a_stream, moves_bulk, moves_it_back)

/* A connection that is busy enough for the SAN, in a handler alone: it stays on TCP until the program itself uses it. */
static void on_its_way(void) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t child = start_child();
  if (child == 0) {
    for (int i = 0; i < 2; i++) echo(SYS(accept(listener, NULL, NULL)), false);
    _exit(0);
  }
  prepare(dial(&target));
  SYS(close(fd));
  fd = dial(&target);
  watch();
  in_handler(use_often);
  if (getenv("LD_PRELOAD")) CHECK(bytes_over_tcp(fd) >= ROUNDS * 64);
  char bytes[64] = "";
  for (int i = 0; i < 2000; i++) {
    EQ(send(fd, bytes, 64, 0), 64);
    EQ(recv(fd, bytes, 64, MSG_WAITALL), 64);
  }
  in_handler(use_often);
  SYS(close(fd));
  end_child(child);
}
BT_REGISTER(on_its_way, "of_one_on_its_way_to_the_san", on_its_way, BT_MIXED)

/* A connection that goes back to TCP between two calls of a handler, for its peer sends urgent data. */
static void use_to_the_end(void) {
  char bytes[64] = "";
  struct pollfd urgent = {fd, POLLPRI, 0};
  for (int i = 0; i < 4; i++) {
    MEASURED(send(fd, bytes, 64, 0), 64);
    MEASURED(recv(fd, bytes, 64, MSG_WAITALL), 64);
  }
  MEASURED(poll(&urgent, 1, HANG_MS), 1);
  MEASURED(recv(fd, bytes, 1, MSG_OOB), 1);
  use(true);
  MEASURED(shutdown(fd, SHUT_WR), 0);
  MEASURED(recv(fd, bytes, 64, 0), 0);
  MEASURED(close(fd), 0);
}
static void goes_back(int connection) {
  prepare(connection);
  in_handler(use_to_the_end);
}
static void sends_urgent(int connection) {
  char bytes[64];
  echo_first(connection);
  for (int i = 0; i < 4; i++) {
    EQ(recv(connection, bytes, 64, MSG_WAITALL), 64);
    EQ(send(connection, bytes, 64, 0), 64);
  }
  EQ(send(connection, "!", 1, MSG_OOB), 1);
  echo(connection, false);
  SYS(close(connection));
}
CARRIED_ENDS(of_one_that_goes_back, goes_back, sends_urgent, BT_MIXED)

/* All of a connection's life in a thread with the smallest stack that there is. */
static union address peer;
static void *whole_life(void *unused) {
  char bytes[64] = "";
  int pipe_ends[2], connection = dial(&peer);
  for (int i = 0; i < 2000; i++) {
    EQ(send(connection, bytes, 64, 0), 64);
    EQ(recv(connection, bytes, 64, MSG_WAITALL), 64);
  }
  SYS(pipe(pipe_ends));
  EQ(send(connection, bytes, 64, 0), 64);
  EQ(splice(connection, NULL, pipe_ends[1], NULL, 64, 0), 64);
  EQ(splice(pipe_ends[0], NULL, connection, NULL, 64, 0), 64);
  struct pollfd several[40];
  for (int i = 0; i < 40; i++) several[i] = (struct pollfd){connection, POLLIN, 0};
  /* What comes during the look is seen by the rest of it alone. */
  EQ(poll(several, 1, HANG_MS), 1);
  EQ(poll(several, 40, HANG_MS), 40);
  EQ(recv(connection, bytes, 64, MSG_WAITALL), 64);
  SYS(shutdown(connection, SHUT_WR));
  EQ(recv(connection, bytes, 64, 0), 0);
  SYS(close(connection));
  return unused;
}
static void smallest(void) {
  int listener = listen_on(V4, &peer);
  pid_t child = start_child();
  if (child == 0) {
    echo(SYS(accept(listener, NULL, NULL)), false);
    _exit(0);
  }
  pthread_attr_t how;
  pthread_t thread;
  EQ(pthread_attr_init(&how), 0);
  EQ(pthread_attr_setstacksize(&how, PTHREAD_STACK_MIN), 0);
  EQ(pthread_create(&thread, &how, whole_life, NULL), 0);
  end_thread(thread);
  end_child(child);
}
BT_REGISTER(smallest, "of_a_thread_with_the_smallest", smallest, BT_SAN)
