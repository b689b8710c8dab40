/* Connections over fork(): either process uses, ignores or closes what both hold (D1). */
#include "bt.h"
#include <sched.h>

/* A connection to a process of its own that answers every byte, so that our end can be shared. */
static pid_t echo_pid;
static int open_echo(enum family family) {
  union address target;
  int listener = listen_on(family, &target);
  echo_pid = start_child();
  if (echo_pid == 0) {
    SYS(close(listener));
    int fd = dial_warm(&target);
    static char buffer[65536];
    ssize_t n;
    while ((n = SYS(recv(fd, buffer, sizeof buffer, 0))) > 0)
      for (ssize_t done = 0; done < n;) done += SYS(send(fd, buffer + done, n - done, MSG_NOSIGNAL));
    _exit(0);
  }
  int fd = accept_warm(listener);
  SYS(close(listener));
  return fd;
}
static void echo(int fd, uint64_t at, uint64_t len) {
  send_pattern(fd, at, len);
  recv_pattern(fd, at, len);
}

SAN_CASE(child_ignores_the_connection) {
  int fd = open_echo(V4);
  echo(fd, 0, 1000);
  pid_t child = start_child();
  if (child == 0) {
    step_wait(0);
    _exit(0);
  }
  for (int i = 0; i < 50; i++) echo(fd, i, 20000);
  step_done(0);
  end_child(child);
  for (int i = 0; i < 50; i++) echo(fd, i, 20000); /* its exit ended nothing */
  SYS(close(fd));
  end_child(echo_pid);
}

/* The BGSAVE pattern: snapshots while the parent goes on serving, one child after the other. */
SAN_CASE(snapshots_under_load) {
  int fd = open_echo(V4);
  for (int round = 0; round < 5; round++) {
    pid_t child = start_child();
    if (child == 0) {
      char *memory = calloc(1, 1 << 20);
      for (int i = 0; i < 1 << 20; i += 4096) memory[i] = 1;
      if (round % 2) exit(0); /* through the exit handlers */
      _exit(0);
    }
    for (int i = 0; i < 20; i++) echo(fd, i, 5000);
    end_child(child);
    for (int i = 0; i < 20; i++) echo(fd, i, 5000);
  }
  SYS(close(fd));
  end_child(echo_pid);
}

SAN_CASE(child_closes_its_copy) {
  int fd = open_echo(V6);
  pid_t child = start_child();
  if (child == 0) {
    SYS(close(fd));
    _exit(0);
  }
  end_child(child);
  for (int i = 0; i < 20; i++) echo(fd, i, 5000);
  SYS(close(fd));
  end_child(echo_pid);
}

SAN_CASE(child_is_killed) {
  int fd = open_echo(V4);
  pid_t child = start_child();
  if (child == 0)
    for (;;) pause();
  echo(fd, 0, 5000);
  SYS(kill(child, SIGKILL));
  SYS(waitpid(child, NULL, 0));
  for (int i = 0; i < 20; i++) echo(fd, i, 5000);
  SYS(close(fd));
  end_child(echo_pid);
}

SAN_CASE(child_uses_what_the_parent_ignores) {
  int fd = open_echo(V4);
  echo(fd, 0, 100);
  pid_t child = start_child();
  if (child == 0) {
    for (int i = 0; i < 50; i++) echo(fd, i, 20000);
    _exit(0);
  }
  end_child(child);
  for (int i = 0; i < 50; i++) echo(fd, i, 20000); /* and then the parent again */
  SYS(close(fd));
  end_child(echo_pid);
}

SAN_CASE(child_uses_what_the_parent_closed) {
  int fd = open_echo(V4);
  pid_t child = start_child();
  if (child == 0) {
    step_wait(0);
    for (int i = 0; i < 50; i++) echo(fd, i, 20000);
    SYS(close(fd));
    _exit(0);
  }
  SYS(close(fd));
  step_done(0);
  end_child(child);
  end_child(echo_pid); /* the last close was the end of the stream */
}

/* The end of the stream comes at the last close, not before. */
SAN_CASE(last_close_ends_the_stream) {
  struct pair p = open_pair(V4);
  pid_t child = start_child();
  if (child == 0) {
    SYS(close(p.client));
    step_wait(0);
    put(p.server, "from the child");
    SYS(close(p.server));
    _exit(0);
  }
  SYS(close(p.server));
  expect_nothing(p.client);
  EQ(ready_now(p.client, POLLIN | POLLRDHUP), 0);
  step_done(0);
  get(p.client, "from the child");
  expect_eof(p.client);
  end_child(child);
}

/* shutdown() acts on the connection, whoever calls it. */
SAN_CASE(child_shuts_down) {
  struct pair p = open_pair(V4);
  put(p.server, "before");
  pid_t child = start_child();
  if (child == 0) {
    SYS(shutdown(p.server, SHUT_WR));
    _exit(0);
  }
  end_child(child);
  ERR(send(p.server, "x", 1, MSG_NOSIGNAL), EPIPE);
  get(p.client, "before");
  expect_eof(p.client);
  put(p.client, "after"), get(p.server, "after");
}

/* Data that was there before the fork can be read by either, each byte once. */
SAN_CASE(data_from_before_the_fork) {
  struct pair p = open_pair(V4);
  send_pattern(p.client, 0, 20000);
  recv_pattern(p.server, 0, 5000);
  pid_t child = start_child();
  if (child == 0) {
    recv_pattern(p.server, 5000, 5000);
    _exit(0);
  }
  end_child(child);
  recv_pattern(p.server, 10000, 10000);
  expect_nothing(p.server);
}

/* Turns: parent and children use one connection one after the other. */
SAN_CASE(taking_turns) {
  int fd = open_echo(V4);
  for (int round = 0; round < 10; round++) {
    echo(fd, round, 3000);
    pid_t child = start_child();
    if (child == 0) {
      echo(fd, round + 1, 3000);
      _exit(0);
    }
    end_child(child);
  }
  SYS(close(fd));
  end_child(echo_pid);
}

/* One process reads and the other writes. */
SAN_CASE(child_reads_parent_writes) {
  int fd = open_echo(V4);
  pid_t child = start_child();
  if (child == 0) {
    recv_pattern(fd, 0, 2 << 20);
    _exit(0);
  }
  send_pattern(fd, 0, 2 << 20);
  end_child(child);
  echo(fd, 0, 1000);
  SYS(close(fd));
  end_child(echo_pid);
}

/* Both write; every record arrives whole in number. */
SAN_CASE(parent_and_child_write) {
  struct pair p = open_pair(V4);
  pid_t child = start_child();
  for (int i = 0; i < 200; i++) put(p.client, child == 0 ? "c" : "p");
  if (child == 0) _exit(0);
  int count[2] = {0, 0};
  for (int i = 0; i < 400; i++) {
    char byte;
    EQ(recv(p.server, &byte, 1, 0), 1);
    count[byte == 'c']++;
  }
  EQ(count[0], 200);
  EQ(count[1], 200);
  end_child(child);
}

/* The child waits for an event on an inherited connection while the parent does not. */
SAN_CASE(child_waits_in_poll_and_epoll) {
  for (int way = 0; way < 2; way++) {
    struct pair p = open_pair(V4);
    pid_t child = start_child();
    if (child == 0) {
      bt_shared->value[0] = getpid();
      if (way == 0) {
        EQ(wait_for(p.server, POLLIN), POLLIN);
      } else {
        int set = SYS(epoll_create1(0));
        struct epoll_event event = {.events = EPOLLIN | EPOLLET};
        SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event));
        EQ(epoll_wait(set, &event, 1, -1), 1);
      }
      get(p.server, "event");
      put(p.server, "seen");
      _exit(0);
    }
    UNTIL(bt_shared->value[0] == child);
    wait_asleep(child);
    put(p.client, "event");
    get(p.client, "seen");
    end_child(child);
    exercise(p.client, p.server);
  }
}

/* A grandchild, with the child in between gone: the way daemons start. */
SAN_CASE(daemon_keeps_the_connection) {
  int fd = open_echo(V4);
  pid_t child = start_child();
  if (child == 0) {
    if (start_child() != 0) _exit(0);
    SYS(setsid());
    for (int i = 0; i < 20; i++) echo(fd, i, 3000);
    SYS(close(fd));
    step_done(0);
    _exit(0);
  }
  SYS(close(fd));
  end_child(child);
  step_wait(0);
  end_child(echo_pid);
}

/* A listener set up, then the process moves to the background: nginx, redis, memcached. */
SAN_CASE(daemon_keeps_the_listener) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t child = start_child();
  if (child == 0) {
    if (start_child() != 0) _exit(0);
    for (int i = 0; i < 3; i++) {
      int fd = accept_warm(listener);
      get(fd, "ping"), put(fd, "pong");
      SYS(close(fd));
    }
    _exit(0);
  }
  SYS(close(listener));
  end_child(child);
  for (int i = 0; i < 3; i++) {
    int fd = dial_warm(&target);
    put(fd, "ping"), get(fd, "pong");
    expect_eof(fd);
    SYS(close(fd));
  }
}

/* A process per connection: the parent accepts and closes, the child serves. The connection comes to the SAN when the
 * child has it alone. */
SAN_CASE(fork_per_connection) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t server = start_child();
  if (server == 0) {
    pid_t worker[30];
    for (int i = 0; i < 30; i++) {
      int fd = SYS(accept(listener, NULL, NULL));
      worker[i] = start_child();
      if (worker[i] == 0) {
        SYS(close(listener));
        for (int j = 0; j < 3; j++) get(fd, "ping"), put(fd, "pong");
        UNTIL(bt_shared->value[i]);
        warm_up(fd, false);
        for (int j = 0; j < 3; j++) get(fd, "ping"), put(fd, "pong");
        expect_eof(fd);
        SYS(close(fd));
        _exit(0);
      }
      SYS(close(fd));
      bt_shared->value[i] = 1;
    }
    for (int i = 0; i < 30; i++) end_child(worker[i]);
    _exit(0);
  }
  SYS(close(listener));
  for (int i = 0; i < 30; i += 3) {
    int fd[3];
    for (int j = 0; j < 3; j++) fd[j] = dial(&target);
    for (int round = 0; round < 6; round++) {
      for (int j = 0; j < 3 && round == 3; j++) warm_up(fd[j], true);
      for (int j = 0; j < 3; j++) put(fd[j], "ping"), get(fd[j], "pong");
    }
    for (int j = 0; j < 3; j++) SYS(close(fd[j]));
  }
  end_child(server);
}

/* The server writes first and the child closes: an inetd style answer. */
SAN_CASE(fork_per_connection_server_speaks) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t server = start_child();
  if (server == 0) {
    for (int i = 0; i < 10; i++) {
      int fd = SYS(accept(listener, NULL, NULL));
      pid_t worker = start_child();
      if (worker == 0) {
        put(fd, "banner");
        step_wait(0);
        warm_up(fd, false);
        send_pattern(fd, 0, 300000);
        _exit(0);
      }
      SYS(close(fd));
      step_done(0);
      end_child(worker);
    }
    _exit(0);
  }
  for (int i = 0; i < 10; i++) {
    int fd = dial(&target);
    get(fd, "banner");
    warm_up(fd, true);
    recv_pattern(fd, 0, 300000);
    expect_eof(fd);
    SYS(close(fd));
  }
  end_child(server);
}

/* New connections made in a forked child, while the parent has its own. */
SAN_CASE(child_makes_its_own_connections) {
  union address target;
  int listener = listen_on(V4, &target);
  int mine = dial(&target), other_end = accept_warm_both(listener, mine);
  exercise(mine, other_end);
  pid_t child = start_child();
  if (child == 0) {
    for (int i = 0; i < 10; i++) {
      int fd = dial_warm(&target);
      put(fd, "ping"), get(fd, "pong");
      SYS(close(fd));
    }
    struct pair p = open_pair(V6);
    exercise(p.client, p.server);
    _exit(0);
  }
  for (int i = 0; i < 10; i++) {
    int fd = accept_warm(listener);
    get(fd, "ping"), put(fd, "pong");
    expect_eof(fd);
    SYS(close(fd));
    exercise(mine, other_end);
  }
  end_child(child);
}

/* fork() in a process whose other threads are in the middle of transfers. */
static _Atomic bool stop;
static void *busy_echo(void *arg) {
  int fd = (int)(intptr_t)arg;
  char buffer[4096];
  ssize_t n;
  while ((n = SYS(recv(fd, buffer, sizeof buffer, 0))) > 0)
    for (ssize_t done = 0; done < n;) done += SYS(send(fd, buffer + done, n - done, 0));
  return NULL;
}
static void *busy_client(void *arg) {
  int fd = (int)(intptr_t)arg;
  for (uint64_t i = 0; !stop; i++) echo(fd, i, 1 + i * 37 % 4000);
  SYS(shutdown(fd, SHUT_WR));
  return NULL;
}
SAN_CASE(fork_while_threads_transfer) {
  enum { N = 3 };
  struct pair p[N];
  pthread_t thread[2 * N];
  for (int i = 0; i < N; i++) {
    p[i] = open_pair(V4);
    thread[2 * i] = start_thread(busy_echo, (void *)(intptr_t)p[i].server);
    thread[2 * i + 1] = start_thread(busy_client, (void *)(intptr_t)p[i].client);
  }
  for (int round = 0; round < 15; round++) {
    pid_t child = start_child();
    if (child == 0) {
      /* The child is one thread: it may make and use connections, whatever was locked. */
      struct pair q = open_pair(V4);
      exercise(q.client, q.server);
      close_pair(&q);
      for (int i = 0; i < N; i++) SYS(close(p[i].client));
      _exit(0);
    }
    end_child(child);
  }
  stop = true;
  for (int i = 0; i < 2 * N; i++) end_thread(thread[i]);
}

/* Connections that are open in the child under the same number as closed ones in the parent. */
SAN_CASE(numbers_differ_after_fork) {
  struct pair p = open_pair(V4);
  pid_t child = start_child();
  if (child == 0) {
    close_pair(&p);
    struct pair q = open_pair(V4); /* the same numbers */
    exercise(q.client, q.server);
    step_wait(0);
    exercise(q.client, q.server);
    _exit(0);
  }
  exercise(p.client, p.server);
  step_done(0);
  end_child(child);
  exercise(p.client, p.server);
}

/* ---- a child whose numbers are of another PID namespace ---------------------------------------- */

enum { RECORD = 300000, RECORDS = 12, LATER = 20000 };
static void write_records(int fd, char of) {
  static char record[RECORD];
  memset(record, of, RECORD);
  for (int i = 0; i < RECORDS; i++)
    for (size_t done = 0; done < RECORD;) done += SYS(send(fd, record + done, RECORD - done, MSG_NOSIGNAL));
}
/* Parent and child write at once: over TCP, as neither can tell whether the other lives. */
static void written_by_both(int fd) {
  put(fd, "begin"), get(fd, "begin");
  if (unshare(CLONE_NEWPID) < 0) bt_skip("may not make a PID namespace");
  pid_t child = start_child();
  if (child == 0) write_records(fd, 'c'), _exit(0);
  write_records(fd, 'p');
  end_child(child);
  /* One that fails changes nothing. */
  ERR(unshare(CLONE_NEWPID | 1), EINVAL);
  struct pair later = open_pair(V4);
  send_pattern(later.client, 0, LATER), recv_pattern(later.server, 0, LATER);
  CHECK(bytes_over_tcp(later.client) >= LATER);
  SYS(close(fd));
}
static void counts_both(int fd) {
  static char bytes[40000];
  size_t of[256] = {0};
  ssize_t n;
  get(fd, "begin"), put(fd, "begin");
  while ((n = SYS(recv(fd, bytes, sizeof bytes, 0))) > 0) {
    for (ssize_t i = 0; i < n; i++) of[(unsigned char)bytes[i]]++;
    sleep_ms(1);
  }
  EQ(of['c'], RECORD * RECORDS);
  EQ(of['p'], RECORD * RECORDS);
  CHECK(bytes_over_tcp(fd) > 2 * RECORD * RECORDS);
  SYS(close(fd));
}
MIXED_CASE(child_in_another_pid_namespace) { run_processes(V4, written_by_both, counts_both); }
