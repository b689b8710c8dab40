/* Copies of descriptors, numbers used again, closing of ranges, and started programs. */
#include "bt.h"

#include <spawn.h>

extern char **environ;

/* ---- copies --------------------------------------------------------------------------------- */

static int copy_of(int way, int fd) {
  switch (way) {
    case 0: return dup(fd);
    case 1: return dup2(fd, 200);
    case 2: return dup3(fd, 201, O_CLOEXEC);
    case 3: return fcntl(fd, F_DUPFD, 300);
    default: return fcntl(fd, F_DUPFD_CLOEXEC, 300);
  }
}
enum { WAYS = 5 };

SAN_CASE(copy_used_original_closed) {
  for (int way = 0; way < WAYS; way++) {
    struct pair p = open_pair(V4);
    put(p.client, "before");
    int copy = SYS(copy_of(way, p.server));
    SYS(close(p.server));
    get(copy, "before");
    exercise(copy, p.client);
    int cloexec = way == 2 || way == 4;
    EQ(fcntl(copy, F_GETFD), cloexec ? FD_CLOEXEC : 0);
    EQ(ready_now(p.client, POLLIN | POLLRDHUP), 0);
    SYS(close(copy));
    expect_eof(p.client);
    SYS(close(p.client));
  }
}

SAN_CASE(copies_share_the_stream) {
  struct pair p = open_pair(V4);
  int copy = SYS(dup(p.server));
  send_pattern(p.client, 0, 3000);
  recv_pattern(copy, 0, 1000);
  recv_pattern(p.server, 1000, 1000);
  recv_pattern(copy, 2000, 1000);
  put(copy, "one"), put(p.server, "two");
  get(p.client, "onetwo");
  SYS(close(copy));
  exercise(p.client, p.server);
  copy = SYS(dup(p.server));
  SYS(shutdown(copy, SHUT_WR));
  ERR(send(p.server, "x", 1, MSG_NOSIGNAL), EPIPE);
  expect_eof(p.client);
}

SAN_CASE(copy_of_a_listener) {
  union address target;
  int listener = listen_on(V4, &target), copy = SYS(dup(listener));
  SYS(close(listener));
  int client = dial(&target), server = accept_warm_both(copy, client);
  exercise(client, server);
  SYS(close(copy));
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  ERR(connect(fd, &target.any, sizeof target.v4), ECONNREFUSED);
  exercise(client, server); /* accepted ones live on */
}

/* Copied before it is connected. */
SAN_CASE(copy_made_before_connecting) {
  union address target;
  int listener = listen_on(V4, &target);
  int fd = SYS(socket(AF_INET, SOCK_STREAM, 0)), copy = SYS(dup(fd));
  SYS(connect(copy, &target.any, sizeof target.v4));
  SYS(close(copy));
  exercise(fd, accept_warm_both(listener, fd));
}

/* dup2() over an open connection closes it. */
SAN_CASE(replaced_by_another) {
  struct pair p = open_pair(V4), q = open_pair(V4);
  EQ(dup2(q.client, p.client), p.client);
  expect_eof(p.server);
  exercise(p.client, q.server);
  SYS(close(q.client));
  exercise(p.client, q.server);
  /* By something that is no socket, and back. */
  int null = SYS(open("/dev/null", O_RDWR));
  EQ(dup3(null, p.client, O_CLOEXEC), p.client);
  expect_eof(q.server);
  EQ(write(p.client, "gone", 4), 4);
  ERR(send(p.client, "x", 1, MSG_NOSIGNAL), ENOTSOCK);
  char byte;
  EQ(read(p.client, &byte, 1), 0);
  struct pair r = open_pair(V4);
  EQ(dup2(r.client, null), null);
  exercise(null, r.server);
}

SAN_CASE(copy_errors) {
  struct pair p = open_pair(V4);
  EQ(dup2(p.client, p.client), p.client);
  ERR(dup3(p.client, p.client, 0), EINVAL);
  ERR(dup2(p.client, -1), EBADF);
  ERR(dup2(77, p.client), EBADF);
  ERR(dup2(p.client, INT_MAX), EBADF);
  ERR(fcntl(p.client, F_DUPFD, INT_MAX), EINVAL);
  exercise(p.client, p.server);
}

/* A connection as standard input and output of this process. */
/* Mixed: libc's streams may use them, so the connection goes back to TCP. */
MIXED_CASE(standard_descriptors) {
  struct pair p = open_pair(V4);
  EQ(dup2(p.server, 0), 0);
  EQ(dup2(p.server, 1), 1);
  SYS(close(p.server));
  put(p.client, "question");
  char buffer[8];
  EQ(read(0, buffer, 8), 8);
  EQ(write(1, "answer", 6), 6);
  get(p.client, "answer");
  SYS(close(0)), SYS(close(1));
  expect_eof(p.client);
}

/* ---- numbers -------------------------------------------------------------------------------- */

SAN_CASE(numbers_are_the_lowest_free) {
  closefrom(3); /* whoever started the tests may have left some, with holes between them */
  int low = SYS(open("/dev/null", O_RDONLY));
  SYS(close(low));
  struct pair p = open_pair(V4); /* listener, client, server; the listener is closed */
  EQ(p.client, low + 1);
  EQ(p.server, low + 2);
  EQ(open("/dev/null", O_RDONLY), low);
  SYS(close(p.client));
  EQ(SYS(socket(AF_INET, SOCK_STREAM, 0)), p.client);
}

SAN_CASE(open_and_close_many_times) {
  for (int i = 0; i < 500; i++) {
    struct pair p = open_pair(i % 3);
    put(p.client, "x"), get(p.server, "x");
    if (i % 2) SYS(close(p.client)), SYS(close(p.server));
    else close_pair(&p);
    /* The numbers go to things that are no sockets, too. */
    int fd[2];
    SYS(pipe(fd));
    EQ(write(fd[1], "pipe", 4), 4);
    char buffer[4];
    EQ(read(fd[0], buffer, 4), 4);
    ERR(recv(fd[0], buffer, 4, 0), ENOTSOCK);
    SYS(close(fd[0])), SYS(close(fd[1]));
  }
}

/* At the limit of open descriptors calls fail as the kernel's do, and recover. */
SAN_CASE(descriptor_limit) {
  struct pair p = open_pair(V4);
  union address target;
  int listener = listen_on(V4, &target), waiting = dial(&target), count = 0, fds[64];
  struct rlimit limit = {40, 40};
  SYS(setrlimit(RLIMIT_NOFILE, &limit));
  while ((fds[count] = dup(0)) >= 0 && count < 60) count++;
  EQ(errno, EMFILE);
  ERR(socket(AF_INET, SOCK_STREAM, 0), EMFILE);
  ERR(accept(listener, NULL, NULL), EMFILE);
  exercise(p.client, p.server);
  for (int i = 0; i < count; i++) SYS(close(fds[i]));
  exercise(waiting, SYS(accept(listener, NULL, NULL)));
}

SAN_CASE(close_range_of_connections) {
  struct pair p = open_pair(V4), kept = open_pair(V4);
  unsigned first = p.client < p.server ? p.client : p.server;
  int far_client = SYS(fcntl(p.client, F_DUPFD, 500));
  SYS(close_range(first, first + 1, 0));
  ERR(recv(p.server, &first, 1, 0), EBADF);
  ERR(send(p.client, "x", 1, 0), EBADF);
  expect_eof(far_client);
  exercise(kept.client, kept.server);
  ERR(close_range(10, 5, 0), EINVAL);
}

/* Programs that close everything above their standard descriptors, each in its own manner. */
static void close_all(int way) {
  if (way == 0) SYS(close_range(3, ~0u, 0));
  if (way == 1) closefrom(3);
  if (way == 2)
    for (int fd = 3; fd < 1024; fd++) close(fd);
  if (way == 3)
    for (int fd = sysconf(_SC_OPEN_MAX) > 4096 ? 4096 : (int)sysconf(_SC_OPEN_MAX); fd-- > 3;) close(fd);
}
SAN_CASE(close_everything_and_go_on) {
  for (int way = 0; way < 4; way++) {
    struct pair p = open_pair(V4);
    exercise(p.client, p.server);
    close_all(way);
    ERR(send(p.client, "x", 1, 0), EBADF);
    p = open_pair(V4);
    exercise(p.client, p.server);
    send_pattern(p.client, 0, 50000), recv_pattern(p.server, 0, 50000);
    int set = SYS(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 3};
    SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event));
    put(p.client, "x");
    EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
    SYS(close(set));
    close_pair(&p);
  }
}
/* A forked child does so while the parent's connections are in use. */
SAN_CASE(child_closes_everything) {
  for (int way = 0; way < 4; way++) {
    struct pair p = open_pair(V4);
    pid_t child = start_child();
    if (child == 0) {
      close_all(way);
      struct pair q = open_pair(V4);
      exercise(q.client, q.server);
      _exit(0);
    }
    for (int i = 0; i < 20; i++) exercise(p.client, p.server);
    end_child(child);
    for (int i = 0; i < 20; i++) exercise(p.client, p.server);
    EQ(ready_now(p.client, POLLIN | POLLRDHUP), 0);
  }
}

SAN_CASE(close_range_sets_cloexec) {
  struct pair p = open_pair(V4);
  SYS(fcntl(p.client, F_SETFD, 0));
  SYS(close_range(3, ~0u, CLOSE_RANGE_CLOEXEC));
  EQ(fcntl(p.client, F_GETFD), FD_CLOEXEC);
  exercise(p.client, p.server);
}

/* A thread closes the number another blocks on: that call goes on, as Linux does it. */
static void *blocked_on_closed(void *arg) {
  bt_shared->value[0] = gettid();
  char buffer[4];
  EQ(recv((int)(intptr_t)arg, buffer, 4, MSG_WAITALL), 4);
  CHECK(memcmp(buffer, "data", 4) == 0);
  return NULL;
}
SAN_CASE(closed_while_another_thread_reads) {
  struct pair p = open_pair(V4);
  pthread_t thread = start_thread(blocked_on_closed, (void *)(intptr_t)p.server);
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep(bt_shared->value[0]);
  SYS(close(p.server));
  put(p.client, "data");
  end_thread(thread);
  expect_eof(p.client); /* the call held the last reference */
}

/* A signal ends such a call all the same. */
static void nothing(int number) { (void)number; }
static void *interrupted_on_closed(void *arg) {
  bt_shared->value[0] = gettid();
  char buffer[4];
  ERR(recv((int)(intptr_t)arg, buffer, 4, 0), EINTR);
  return NULL;
}
SAN_CASE(interrupted_after_its_descriptor_is_closed) {
  struct pair p = open_pair(V4);
  handle_signal(SIGUSR1, nothing, 0);
  pthread_t thread = start_thread(interrupted_on_closed, (void *)(intptr_t)p.server);
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep(bt_shared->value[0]);
  SYS(close(p.server));
  EQ(pthread_kill(thread, SIGUSR1), 0);
  end_thread(thread);
  expect_eof(p.client);
}

/* ---- started programs ----------------------------------------------------------------------- */

static void run_true(int way) {
  char *const argv[] = {"true", NULL};
  pid_t pid;
  int status;
  switch (way) {
    case 0:
      EQ(posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ), 0);
      return end_child(pid);
    case 1:
      EQ(posix_spawnp(&pid, "true", NULL, NULL, argv, environ), 0);
      return end_child(pid);
    case 2: EQ(system("true"), 0); return;
    case 3:
      pid = vfork();
      if (pid == 0) {
        execv("/bin/true", argv);
        _exit(1);
      }
      return end_child(SYS(pid));
    case 4:
      pid = start_child();
      if (pid == 0) {
        execlp("true", "true", (char *)NULL);
        _exit(1);
      }
      return end_child(pid);
    case 5: {
      FILE *f = popen("echo out", "r");
      char line[16];
      CHECK(f && fgets(line, sizeof line, f) && strcmp(line, "out\n") == 0);
      EQ(pclose(f), 0);
      return;
    }
    default:
      pid = vfork();
      if (pid == 0) _exit(7);
      SYS(waitpid(pid, &status, 0));
      EQ(WEXITSTATUS(status), 7);
  }
}
MIXED_CASE(started_programs_leave_connections_alone) {
  struct pair p = open_pair(V4);
  uint64_t at = 0;
  for (int way = 0; way < 7; way++) {
    send_pattern(p.client, at, 5000);
    run_true(way);
    recv_pattern(p.server, at, 5000);
    exercise(p.server, p.client);
    at += 5000;
  }
  EQ(ready_now(p.client, POLLIN | POLLRDHUP), 0);
}

/* Descriptors without CLOEXEC that the started program never uses. */
MIXED_CASE(inherited_by_a_program_that_ignores_them) {
  struct pair p = open_pair(V4);
  SYS(fcntl(p.client, F_SETFD, 0)), SYS(fcntl(p.server, F_SETFD, 0));
  for (int way = 0; way < 7; way++) run_true(way), exercise(p.client, p.server);
  /* It outlives our close: the stream ends when the program does. */
  int gate[2];
  SYS(pipe2(gate, O_CLOEXEC));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, gate[0], 0);
  posix_spawn_file_actions_addclose(&actions, p.client);
  char *const argv[] = {"cat", NULL};
  pid_t pid;
  EQ(posix_spawnp(&pid, "cat", &actions, NULL, argv, environ), 0);
  SYS(close(p.server));
  sleep_ms(10);
  expect_nothing(p.client);
  SYS(close(gate[1])), SYS(close(gate[0]));
  end_child(pid);
  expect_eof(p.client);
}

/* Spawned from a thread while others transfer. */
static _Atomic bool stop;
static void *transfer_loop(void *arg) {
  struct pair *p = arg;
  while (!stop) exercise(p->client, p->server);
  return NULL;
}
MIXED_CASE(spawned_while_threads_transfer) {
  struct pair p[2] = {open_pair(V4), open_pair(V6)};
  pthread_t thread[2];
  for (int i = 0; i < 2; i++) thread[i] = start_thread(transfer_loop, &p[i]);
  for (int round = 0; round < 2; round++)
    for (int way = 0; way < 7; way++) run_true(way);
  stop = true;
  for (int i = 0; i < 2; i++) end_thread(thread[i]);
}
