/* Connections in use that a program gets by exec which does not load the preloaded library although LD_PRELOAD stays
 * set: a static one, one that runs with other rights (setuid), one of Go. They use the socket by
 * instruction, so all these connections go back to TCP. */
#include "handed_on.h"
#include <netinet/tcp.h>
#include <spawn.h>
#include <sys/epoll.h>

extern char **environ;

static const char source[] =
    "static long call(long number, long a, long b, long c) {\n"
    "  long result;\n"
    "  __asm__ volatile(\"syscall\" : \"=a\"(result) : \"a\"(number), \"D\"(a), \"S\"(b), \"d\"(c)\n"
    "                   : \"rcx\", \"r11\", \"memory\");\n"
    "  return result;\n"
    "}\n"
    "#ifdef GO\n" /* What Go's linker writes. */
    "__asm__(\".section .note.go.buildid,\\\"a\\\",@note\\n.align 4\\n.long 4, 4, 4\\n\"\n"
    "        \".ascii \\\"Go\\\\0\\\\0abcd\\\"\\n.previous\");\n"
    "#endif\n"
    "int main(int count, char **arguments) {\n"
    "  static char bytes[65536];\n"
    "  long fd = 0, n, done;\n"
    "  for (char *digit = arguments[count - 1]; *digit; digit++) fd = fd * 10 + *digit - '0';\n"
    "  while ((n = call(0, fd, (long)bytes, sizeof bytes)) > 0)\n"
    "    for (done = 0; done < n;) {\n"
    "      long sent = call(1, fd, (long)bytes + done, n - done);\n"
    "      if (sent < 0) return 1;\n"
    "      done += sent;\n"
    "    }\n"
    "  return n < 0 ? 2 : 0;\n"
    "}\n";

enum kind { STATIC, SETUID, GO };
static bool spawned, is_full;

static void run(char *const argv[]) {
  pid_t pid = start_child();
  if (pid == 0) {
    unsetenv("LD_PRELOAD");
    execvp(argv[0], argv);
    _exit(99);
  }
  end_child(pid);
}
/* The program, in the current folder. */
static void build(enum kind kind) {
  FILE *file = fopen("echo.c", "w");
  CHECK(file && fputs(source, file) >= 0 && fclose(file) == 0);
  char *const compilers[] = {getenv("CC"), "cc"};
  char *compiler = compilers[0] ? compilers[0] : compilers[1];
  char *const argv[] = {compiler, "-O1", "-o", "echo", "echo.c",
                        kind == STATIC ? "-static" : kind == GO ? "-DGO" : NULL, NULL};
  run(argv);
  if (kind == SETUID) {
    enum { NOBODY = 65534 };
    if (geteuid() != 0) bt_skip("a program of another user needs root");
    SYS(chown("echo", NOBODY, NOBODY));
    SYS(chmod("echo", 04755));
  }
}
static void server(int fd) {
  begin_server(fd);
  SYS(fcntl(fd, F_SETFD, 0));
  char number[16];
  snprintf(number, sizeof number, "%d", fd);
  char *const argv[] = {"echo", number, NULL};
  pid_t pid;
  if (spawned) {
    EQ(posix_spawn(&pid, "./echo", NULL, NULL, argv, environ), 0);
  } else if ((pid = start_child()) == 0) {
    if (is_full) {
      struct rlimit few = {64, 64};
      SYS(setrlimit(RLIMIT_NOFILE, &few));
      while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0);
    }
    execv("./echo", argv);
    _exit(99);
  }
  SYS(close(fd));
  end_child(pid);
}
static void hand_on(enum kind kind, bool spawn, bool connector) {
  build(kind);
  spawned = spawn;
  if (connector) run_processes(V6, server, client);
  else run_processes(V4, client, server);
}
#define FOREIGN(name, kind)                                                   \
  MIXED_CASE(name##_by_exec) { hand_on(kind, false, false); }                   \
  MIXED_CASE(name##_by_exec_at_the_connector) { hand_on(kind, false, true); }   \
  MIXED_CASE(name##_by_spawn) { hand_on(kind, true, false); }
FOREIGN(a_static_program, STATIC)
FOREIGN(a_setuid_program, SETUID)
FOREIGN(a_go_program, GO)
/* /proc cannot be read then. */
MIXED_CASE(a_static_program_with_no_descriptor_left) {
  is_full = true;
  hand_on(STATIC, false, false);
}

/* ---- a peer that has ended its direction, or closed ----------------------------------------- */

enum { MUCH = 200000 };
/* In a child: what comes over `fd` goes to `output`. */
static _Noreturn void become_cat(int fd, int output) {
  unsetenv("LD_PRELOAD");
  dup2(fd, 0), dup2(output, 1);
  SYS(close(fd));
  execlp("cat", "cat", (char *)NULL);
  _exit(99);
}
static void *await_end(void *fd) {
  expect_eof(*(int *)fd);
  return NULL;
}
/* Reads to the end, behind the `got` bytes that are there. Gives how many are there then. */
static size_t read_rest(int fd, uint8_t *bytes, size_t got, size_t size) {
  for (ssize_t n; (n = SYS(read(fd, bytes + got, size - got))) > 0;) got += (size_t)n;
  return got;
}
static bool is_for_a_moment;
/* What `cat`, without the library, reads of a connection whose peer sent so much that nobody read yet. */
static void cat_after_the_end(size_t unread, bool closed, bool shared) {
  struct pair p = open_pair(V4);
  int output[2];
  SYS(pipe2(output, O_CLOEXEC));
  exercise(p.client, p.server);
  send_pattern(p.server, 0, unread);
  pthread_t peer = 0;
  if (closed) {
    SYS(close(p.server));
  } else {
    SYS(shutdown(p.server, SHUT_WR));
    peer = start_thread(await_end, &p.server);
  }
  pid_t pid = start_child();
  if (pid == 0) {
    if (!closed) SYS(close(p.server));
    if (!shared && !is_for_a_moment) step_wait(2);
    become_cat(p.client, output[1]);
  }
  SYS(close(output[1]));
  if (is_for_a_moment) sleep_ms(20);
  if (!shared) SYS(close(p.client)), step_done(2);
  static uint8_t bytes[MUCH + 1];
  size_t got = read_rest(output[0], bytes, 0, sizeof bytes);
  EQ(got, unread);
  check_pattern(bytes, 0, got);
  end_child(pid);
  if (shared) {
    expect_eof(p.client);
    SYS(close(p.client));
  }
  if (!closed) end_thread(peer), SYS(close(p.server));
  SYS(close(output[0]));
}
MIXED_CASE(cat_after_a_half_close) { cat_after_the_end(MUCH, false, false); }
MIXED_CASE(cat_after_a_half_close_shares) { cat_after_the_end(MUCH, false, true); }
MIXED_CASE(cat_after_a_half_close_with_all_read) { cat_after_the_end(0, false, false); }
MIXED_CASE(cat_after_a_close) { cat_after_the_end(MUCH, true, false); }
MIXED_CASE(cat_after_a_close_with_all_read) { cat_after_the_end(0, true, false); }
MIXED_CASE(cat_after_a_close_with_all_read_shares) { cat_after_the_end(0, true, true); }
/* Its parent closes the connection while the child is on the way to that program. */
MIXED_CASE(cat_after_a_close_shares_for_a_moment) {
  is_for_a_moment = true;
  cat_after_the_end(MUCH, true, false);
}

/* Its parent keeps the connection, and reads what `cat` did not get: no byte is lost, and none comes twice. */
MIXED_CASE(cat_after_a_close_shares_for_good) {
  struct pair p = open_pair(V4);
  int output[2];
  SYS(pipe2(output, O_CLOEXEC));
  exercise(p.client, p.server);
  send_pattern(p.server, 0, MUCH);
  SYS(close(p.server));
  pid_t pid = start_child();
  if (pid == 0) {
    /* It complains of the reset. */
    SYS(close(2));
    become_cat(p.client, output[1]);
  }
  SYS(close(output[1]));
  static uint8_t bytes[MUCH + 1];
  size_t got = read_rest(output[0], bytes, 0, sizeof bytes);
  SYS(waitpid(pid, NULL, 0));
  got = read_rest(p.client, bytes, got, sizeof bytes);
  EQ(got, MUCH);
  check_pattern(bytes, 0, got);
  SYS(close(p.client)), SYS(close(output[0]));
}

/* A connection that nobody accepted yet. */
CASE(cat_of_a_connection_that_is_not_accepted) {
  union address target;
  int listener = listen_on(V4, &target), fd = dial(&target), output[2], running[2];
  SYS(pipe2(output, O_CLOEXEC)), SYS(pipe2(running, O_CLOEXEC));
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(running[0]));
    become_cat(fd, output[1]);
  }
  char byte;
  SYS(close(output[1])), SYS(close(fd)), SYS(close(running[1]));
  EQ(SYS(read(running[0], &byte, 1)), 0);
  int server = SYS(accept(listener, NULL, NULL));
  put(server, "late");
  SYS(close(server)), SYS(close(listener));
  char bytes[5] = "";
  for (ssize_t n, at = 0; (n = SYS(read(output[0], bytes + at, sizeof bytes - (size_t)at))) > 0;) at += n;
  EQ(memcmp(bytes, "late", 5), 0);
  end_child(pid);
  SYS(close(output[0])), SYS(close(running[0]));
}

/* Urgent data that is unread then has its place and its meaning: the last byte before a mark is where a read stops. */
enum { IN_LINE = 1, WAS_READ = 2, PEER_CLOSES = 4, REPLACED = 8 };
static void cat_of_urgent_data(int how) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  char byte;
  if (how & IN_LINE) set_option(p.client, SOL_SOCKET, SO_OOBINLINE, 1);
  put(p.server, "early"), get(p.client, "early");
  /* From the first urgent byte on the connection is TCP's, as soon as the other end has looked. */
  EQ(SYS(send(p.server, "^", 1, MSG_OOB)), 1);
  UNTIL(poll(&(struct pollfd){p.client, POLLPRI, 0}, 1, 0) == 1);
  put(p.server, "on"), get(p.client, how & IN_LINE ? "^on" : "on");
  put(p.server, "before");
  if (how & REPLACED) {
    EQ(SYS(send(p.server, "?", 1, MSG_OOB)), 1);
    put(p.server, "between");
  }
  EQ(SYS(send(p.server, "!", 1, MSG_OOB)), 1);
  put(p.server, "behind");
  UNTIL(poll(&(struct pollfd){p.client, POLLPRI, 0}, 1, 0) == 1);
  if (how & WAS_READ) {
    EQ(SYS(recv(p.client, &byte, 1, MSG_OOB)), 1);
    EQ(byte, '!');
  }
  if (how & PEER_CLOSES) SYS(close(p.server));
  else SYS(shutdown(p.server, SHUT_WR));
  pthread_t peer = how & PEER_CLOSES ? 0 : start_thread(await_end, &p.server);
  int output[2];
  SYS(pipe2(output, O_CLOEXEC));
  pid_t pid = start_child();
  if (pid == 0) {
    if (!(how & PEER_CLOSES)) SYS(close(p.server));
    step_wait(2);
    become_cat(p.client, output[1]);
  }
  SYS(close(output[1])), SYS(close(p.client)), step_done(2);
  char got[64] = "", wanted[64];
  size_t at = 0;
  for (ssize_t n; (n = SYS(read(output[0], got + at, sizeof got - 1 - at))) > 0;) at += (size_t)n;
  snprintf(wanted, sizeof wanted, "before%s%sbehind", how & REPLACED ? "?between" : "", how & IN_LINE ? "!" : "");
  CHECK(strcmp(got, wanted) == 0);
  end_child(pid);
  if (peer) end_thread(peer), SYS(close(p.server));
  SYS(close(output[0]));
}
MIXED_CASE(cat_of_urgent_data_out_of_line) { cat_of_urgent_data(0); }
MIXED_CASE(cat_of_urgent_data_inline) { cat_of_urgent_data(IN_LINE); }
MIXED_CASE(cat_of_urgent_data_that_was_read) { cat_of_urgent_data(WAS_READ); }
MIXED_CASE(cat_of_urgent_data_that_was_replaced) { cat_of_urgent_data(REPLACED); }
MIXED_CASE(cat_of_urgent_data_after_a_close) { cat_of_urgent_data(PEER_CLOSES); }
MIXED_CASE(cat_of_urgent_data_inline_after_a_close) { cat_of_urgent_data(IN_LINE | PEER_CLOSES); }
MIXED_CASE(cat_of_urgent_data_that_was_read_after_a_close) { cat_of_urgent_data(WAS_READ | PEER_CLOSES); }

/* Two processes with a connection for which the kernel has little room. */
static void over_little_room(end_fn *connector, end_fn *acceptor) {
  union address target;
  int listener = listen_on(V4, &target);
  set_option(listener, IPPROTO_TCP, TCP_MAXSEG, 536);
  set_option(listener, SOL_SOCKET, SO_RCVBUF, 16384);
  pid_t other = start_child();
  if (other == 0) {
    SYS(close(listener));
    connector(dial_warm(&target));
    _exit(0);
  }
  int fd = accept_warm(listener);
  SYS(close(listener));
  acceptor(fd);
  end_child(other);
}

/* ---- a peer that makes no call -------------------------------------------------------------- */

enum { READ_BEFORE = 100, SENT_LATER = 300000 };
enum { SEEN, TURNS, HANDED_ON, DIED }; /* shared values */
static size_t sent_before;
static bool has_ended;
/* How long it computes, in us; negative: until all it sent is seen. */
static int computes_for;
static void computing_peer(int fd) {
  put(fd, "ping"), get(fd, "pong");
  send_pattern(fd, 0, sent_before);
  if (has_ended) SYS(shutdown(fd, SHUT_WR));
  step_done(0);
  if (computes_for < 0) UNTIL(bt_shared->value[SEEN]);
  else usleep((useconds_t)computes_for);
  if (!has_ended) {
    for (size_t at = 0; at < SENT_LATER; at += 3000) send_pattern(fd, sent_before + at, 3000);
    SYS(shutdown(fd, SHUT_WR));
  }
  expect_eof(fd);
  SYS(close(fd));
}
static void cats_end(int fd) {
  get(fd, "ping"), put(fd, "pong");
  step_wait(0);
  recv_pattern(fd, 0, READ_BEFORE);
  int output[2];
  SYS(pipe2(output, O_CLOEXEC));
  pid_t pid = start_child();
  if (pid == 0) {
    become_cat(fd, output[1]);
  }
  SYS(close(output[1])), SYS(close(fd));
  static uint8_t bytes[65536];
  size_t got = READ_BEFORE;
  for (ssize_t n; (n = SYS(read(output[0], bytes, sizeof bytes))) > 0; got += (size_t)n) {
    check_pattern(bytes, got, n);
    if (got + (size_t)n >= sent_before) bt_shared->value[SEEN] = 1;
  }
  bt_shared->value[SEEN] = 1;
  EQ(got, sent_before + (has_ended ? 0 : SENT_LATER));
  end_child(pid);
  SYS(close(output[0]));
}
static void cat_of_a_computing_peer(size_t sent, bool ended, int computes) {
  sent_before = sent, has_ended = ended, computes_for = computes;
  bt_shared->value[SEEN] = 0;
  run_processes(V4, computing_peer, cats_end);
}
MIXED_CASE(cat_of_a_peer_that_makes_no_call) { cat_of_a_computing_peer(20000, false, -1); }
MIXED_CASE(cat_of_a_peer_that_sent_little) { cat_of_a_computing_peer(READ_BEFORE + 1, false, -1); }
MIXED_CASE(cat_of_a_peer_that_sent_much) { cat_of_a_computing_peer(100000, false, -1); }
MIXED_CASE(cat_of_a_half_closed_peer_that_makes_no_call) { cat_of_a_computing_peer(20000, true, -1); }
MIXED_CASE(cat_of_a_half_closed_peer_with_all_read) { cat_of_a_computing_peer(READ_BEFORE, true, -1); }
/* It comes back just when its bytes are sent in its stead. */
MIXED_CASE(cat_of_a_peer_that_comes_back) {
  for (int round = 0; round < 12; round++) cat_of_a_computing_peer(10000u << round % 4, false, 15000 + round * 1000);
}

/* What was sent before a peer is killed arrives, also if it is killed so soon after the exec that a process that computes
 * would not have come to it. (In the first instants it is lost; and only rounds count that were quick.) */
enum { SOON = 12, SOON_AT_MOST = 18 }; /* ms */
static size_t got_of_killed;
static void killed_peer(int fd) {
  pid_t pid = start_child();
  if (pid == 0) {
    put(fd, "ping"), get(fd, "pong");
    send_pattern(fd, 0, sent_before);
    step_done(0);
    for (;;) pause();
  }
  SYS(close(fd));
  UNTIL(bt_shared->value[HANDED_ON]);
  sleep_ms(SOON);
  SYS(kill(pid, SIGKILL));
  SYS(waitpid(pid, NULL, 0));
  bt_shared->value[DIED] = now_ms();
}
static void cat_of_a_killed_peer(int fd) {
  get(fd, "ping"), put(fd, "pong");
  step_wait(0);
  recv_pattern(fd, 0, READ_BEFORE);
  int output[2];
  SYS(pipe2(output, O_CLOEXEC));
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(dup2(SYS(open("/dev/null", O_WRONLY)), 2));
    bt_shared->value[HANDED_ON] = now_ms();
    become_cat(fd, output[1]);
  }
  SYS(close(output[1])), SYS(close(fd));
  static uint8_t bytes[65536];
  got_of_killed = READ_BEFORE;
  for (ssize_t n; (n = SYS(read(output[0], bytes, sizeof bytes))) > 0; got_of_killed += (size_t)n)
    check_pattern(bytes, got_of_killed, (size_t)n);
  SYS(waitpid(pid, NULL, 0));
  SYS(close(output[0]));
}
MIXED_CASE(cat_of_a_peer_that_is_killed) {
  sent_before = 20000;
  int quick = 0, whole = 0;
  for (int round = 0; quick < 40 && round < 400; round++) {
    bt_shared->value[HANDED_ON] = 0;
    run_processes(V4, killed_peer, cat_of_a_killed_peer);
    bool counts = bt_shared->value[DIED] - bt_shared->value[HANDED_ON] < SOON_AT_MOST;
    whole += counts && got_of_killed == sent_before;
    if (whole == 5) return;
    quick += counts;
  }
  CHECK(quick < 40);
  bt_skip("too slow to kill anything soon");
}

/* ---- a program that does not read ----------------------------------------------------------- */

/* What the kernel has no room for waits for that program; nobody else does. */
static size_t sent_in_all;
static enum { TURNS_ON, BLOCKS, SLEEPS, SHUTS } sender_does;
static void sender_to_lazy(int fd) {
  put(fd, "ping"), get(fd, "pong");
  size_t at = 0;
  if (sender_does != BLOCKS) set_nonblocking(fd, true);
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  step_done(0);
  while (at < sent_in_all) {
    if (sender_does != BLOCKS) SYS(epoll_wait(set, &event, 1, 5));
    bt_shared->value[TURNS]++;
    size_t n = sent_in_all - at < 50000 ? sent_in_all - at : 50000;
    ssize_t sent = send(fd, pattern(at), n, MSG_NOSIGNAL);
    if (sent < 0) EQ(errno, EAGAIN);
    else at += (size_t)sent;
  }
  if (sender_does == SHUTS) {
    while (!bt_shared->value[HANDED_ON]) SYS(epoll_wait(set, &event, 1, 0)), sleep_ms(1);
    SYS(shutdown(fd, SHUT_RDWR)), SYS(close(fd));
    return;
  }
  SYS(shutdown(fd, SHUT_WR));
  event.events = EPOLLIN;
  SYS(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
  while (SYS(epoll_wait(set, &event, 1, sender_does == SLEEPS ? -1 : 5)) == 0) bt_shared->value[TURNS]++;
  set_nonblocking(fd, false);
  expect_eof(fd);
  SYS(close(set)), SYS(close(fd));
}
static void lazy_cats_end(int fd) {
  get(fd, "ping"), put(fd, "pong");
  step_wait(0);
  recv_pattern(fd, 0, READ_BEFORE);
  int output[2];
  SYS(pipe2(output, O_CLOEXEC));
  sleep_ms(50); /* until much is there */
  pid_t pid = start_child();
  if (pid == 0) {
    unsetenv("LD_PRELOAD");
    dup2(fd, 0), dup2(output[1], 1);
    SYS(close(fd));
    execlp("sh", "sh", "-c", ": >here; until [ -e go ]; do sleep 0.01; done; exec cat", (char *)NULL);
    _exit(99);
  }
  SYS(close(output[1])), SYS(close(fd));
  UNTIL(access("here", F_OK) == 0);
  bt_shared->value[HANDED_ON] = 1;
  if (sender_does == TURNS_ON) {
    long turns = bt_shared->value[TURNS];
    UNTIL(bt_shared->value[TURNS] > turns + 5);
  }
  SYS(close(SYS(open("go", O_CREAT | O_WRONLY, 0600))));
  static uint8_t bytes[65536];
  size_t got = READ_BEFORE;
  for (ssize_t n; (n = SYS(read(output[0], bytes, sizeof bytes))) > 0; got += (size_t)n)
    check_pattern(bytes, got, (size_t)n);
  EQ(got, sent_in_all);
  end_child(pid);
  SYS(close(output[0]));
}
static void lazy_cat(size_t sent, int does) {
  sent_in_all = sent, sender_does = does;
  over_little_room(sender_to_lazy, lazy_cats_end);
}
MIXED_CASE(a_cat_that_does_not_read_yet) { lazy_cat(3000000, TURNS_ON); }
MIXED_CASE(a_cat_that_does_not_read_yet_and_a_blocking_sender) { lazy_cat(3000000, BLOCKS); }
MIXED_CASE(a_cat_that_does_not_read_yet_and_a_sleeping_sender) { lazy_cat(900000, SLEEPS); }
MIXED_CASE(a_cat_that_does_not_read_yet_and_a_sender_that_shuts_down) { lazy_cat(900000, SHUTS); }
