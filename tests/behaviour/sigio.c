/* O_ASYNC: SIGIO, or the signal chosen for it, whatever carries the bytes. */
#include "bt.h"

static _Atomic int io_signals;
static void on_io(int number) {
  (void)number;
  io_signals++;
}
static void signal_io(int fd) {
  handle_signal(SIGIO, on_io, SA_RESTART);
  SYS(fcntl(fd, F_SETOWN, getpid()));
  EQ(fcntl(fd, F_GETOWN), getpid());
  SYS(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC | O_NONBLOCK));
}
static void async_left(int fd) {
  signal_io(fd);
  for (int i = 0; i < 5; i++) {
    int before = io_signals;
    step_done(0);
    UNTIL(io_signals > before);
    get(fd, "tick");
    expect_nothing(fd);
    step_done(1);
  }
  SYS(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~(O_ASYNC | O_NONBLOCK)));
  expect_eof(fd);
}
static void async_right(int fd) {
  for (int i = 0; i < 5; i++) {
    step_wait(0);
    put(fd, "tick");
    step_wait(1);
  }
  SYS(close(fd));
}
CARRIED_ENDS(sigio, async_left, async_right, BT_MIXED)

/* One call for each signal, which sleeps until the next: none may be missing, whenever the bytes come. */
enum { ASYNC_ALL = 3000000 };
static sigset_t none_held_back;
static void hold_io_back(void) {
  sigset_t io;
  sigemptyset(&none_held_back), sigemptyset(&io), sigaddset(&io, SIGIO), sigaddset(&io, SIGRTMIN);
  pthread_sigmask(SIG_BLOCK, &io, NULL);
}
static void async_reader(int fd) {
  static uint8_t bytes[1 << 20];
  hold_io_back();
  signal_io(fd);
  step_done(0);
  for (uint64_t at = 0; at < ASYNC_ALL;) {
    sigsuspend(&none_held_back);
    ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    if (n < 0) EQ(errno, EAGAIN);
    if (n > 0) check_pattern(bytes, at, n), at += n;
  }
  SYS(close(fd));
}
static void write_in_pieces(int fd) {
  step_wait(0);
  for (uint64_t at = 0, n = 1; at < ASYNC_ALL; at += n, n = n * 7 % 9973) {
    if (n > ASYNC_ALL - at) n = ASYNC_ALL - at;
    send_pattern(fd, at, n);
    if (n % 3 == 0) usleep(n % 100);
  }
  expect_eof(fd);
}
CARRIED_PROCESS_ENDS(sigio_for_each_piece, async_reader, write_in_pieces, BT_MIXED)
static void async_writer(int fd) {
  hold_io_back();
  signal_io(fd);
  for (uint64_t at = 0; at < 4 * ASYNC_ALL;) {
    ssize_t n = send(fd, pattern(at), 4 * ASYNC_ALL - at < 100000 ? 4 * ASYNC_ALL - at : 100000, 0);
    if (n > 0) {
      at += n;
      continue;
    }
    EQ(errno, EAGAIN);
    sigsuspend(&none_held_back);
  }
  SYS(close(fd));
}
static void read_slowly(int fd) {
  static uint8_t bytes[70000];
  ssize_t n;
  for (uint64_t at = 0; (n = SYS(recv(fd, bytes, sizeof bytes, 0))) > 0; at += n) {
    check_pattern(bytes, at, n);
    if (n % 5 == 0) usleep(200);
  }
  SYS(close(fd));
}
CARRIED_PROCESS_ENDS(sigio_for_room, async_writer, read_slowly, BT_MIXED)

/* A signal that was chosen, in a thread that is not the first. */
static void *read_by_chosen_signal(void *fd) {
  async_reader(*(int *)fd);
  return NULL;
}
static void chosen_signal_reader(int fd) {
  hold_io_back();
  handle_signal(SIGRTMIN, on_io, SA_RESTART);
  SYS(fcntl(fd, F_SETSIG, SIGRTMIN));
  end_thread(start_thread(read_by_chosen_signal, &fd));
}
CARRIED_PROCESS_ENDS(chosen_signal_for_each_piece, chosen_signal_reader, write_in_pieces, BT_MIXED)

static void sigio_of_a_connection(bool connected_first) {
  union address target;
  int listener = listen_on(V4, &target), fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  handle_signal(SIGIO, on_io, SA_RESTART);
  if (connected_first) SYS(connect(fd, &target.any, sizeof target.v4));
  SYS(fcntl(fd, F_SETOWN, getpid()));
  SYS(fcntl(fd, F_SETFL, O_ASYNC));
  if (!connected_first) SYS(connect(fd, &target.any, sizeof target.v4));
  int server = SYS(accept(listener, NULL, NULL));
  for (int i = 0; i < 6; i++) {
    if (i == 3) warm_up_both(fd, server);
    int before = io_signals;
    put(server, "x");
    UNTIL(io_signals > before);
    get(fd, "x");
  }
}
CASE(sigio_set_before_connecting) { sigio_of_a_connection(false); }
CASE(sigio_set_before_it_is_accepted) { sigio_of_a_connection(true); }

MIXED_CASE(sigio_by_fioasync) {
  struct pair p = open_pair(V4);
  handle_signal(SIGIO, on_io, SA_RESTART);
  SYS(fcntl(p.server, F_SETOWN, getpid()));
  SYS(ioctl(p.server, FIOASYNC, &(int){1}));
  put(p.client, "x");
  UNTIL(io_signals > 0);
  get(p.server, "x");
  int before = io_signals;
  SYS(close(p.client));
  UNTIL(io_signals > before); /* the end of the stream is an event too */
  expect_eof(p.server);
}
