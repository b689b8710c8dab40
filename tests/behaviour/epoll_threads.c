/* epoll with several threads or processes in one set, and sockets shared by threads. */
#include "bt.h"

static void add(int set, int fd, uint32_t events, uint64_t data) {
  struct epoll_event event = {.events = events, .data.u64 = data};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

enum { CONNECTIONS = 16, ROUNDS = 100, THREADS = 4 };
static struct pair pairs[CONNECTIONS];
static int shared_set, stop_pipe[2];
static uint32_t shared_events;

/* Which connection the set reports next; CONNECTIONS: the pipe says stop. */
static int next_to_serve(void) {
  struct epoll_event got;
  if (SYS(epoll_wait(shared_set, &got, 1, HANG_MS)) != 1) FAIL("nothing to serve");
  return (int)got.data.u64;
}
/* Serves whatever the set reports. */
static void *server_thread(void *arg) {
  (void)arg;
  for (int at; (at = next_to_serve()) != CONNECTIONS;) {
    int fd = pairs[at].server;
    char buffer[256];
    ssize_t n;
    while ((n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)) > 0)
      for (ssize_t done = 0; done < n;) done += SYS(send(fd, buffer + done, n - done, MSG_NOSIGNAL));
    if (n < 0) EQ(errno, EAGAIN);
    if (shared_events & EPOLLONESHOT) {
      struct epoll_event event = {.events = shared_events, .data.u64 = (uint64_t)at};
      SYS(epoll_ctl(shared_set, EPOLL_CTL_MOD, fd, &event));
    }
  }
  return NULL;
}
static void serve_with_threads(uint32_t events) {
  shared_set = SYS(epoll_create1(0)), shared_events = events;
  SYS(pipe(stop_pipe));
  add(shared_set, stop_pipe[0], EPOLLIN, CONNECTIONS);
  for (int i = 0; i < CONNECTIONS; i++) {
    pairs[i] = open_pair(V4);
    add(shared_set, pairs[i].server, events, i);
  }
  pthread_t thread[THREADS];
  for (int i = 0; i < THREADS; i++) thread[i] = start_thread(server_thread, NULL);
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < CONNECTIONS; i++) put(pairs[i].client, "0123456789");
    for (int i = 0; i < CONNECTIONS; i++) {
      char buffer[10];
      EQ(recv(pairs[i].client, buffer, 10, MSG_WAITALL), 10);
      /* Level-triggered threads may answer parts out of turn; each byte still comes once. */
      int sum = 0;
      for (int j = 0; j < 10; j++) sum += buffer[j] - '0';
      EQ(sum, 45);
    }
  }
  SYS(write(stop_pipe[1], "s", 1));
  for (int i = 0; i < THREADS; i++) end_thread(thread[i]);
}
SAN_CASE(threads_level) { serve_with_threads(EPOLLIN); }
SAN_CASE(threads_edge) { serve_with_threads(EPOLLIN | EPOLLET); }
SAN_CASE(threads_oneshot) { serve_with_threads(EPOLLIN | EPOLLONESHOT); }
SAN_CASE(threads_edge_oneshot) { serve_with_threads(EPOLLIN | EPOLLET | EPOLLONESHOT); }

/* A handler that does not come back keeps no other connection of the set waiting. */
static int release_pipe[2];
static void *handler_thread(void *arg) {
  (void)arg;
  for (int at; (at = next_to_serve()) != CONNECTIONS;) {
    int fd = pairs[at].server;
    char byte;
    while (recv(fd, &byte, 1, MSG_DONTWAIT) == 1) {
      if (byte == 'B') SYS(read(release_pipe[0], &(char){0}, 1));
      SYS(send(fd, &byte, 1, MSG_NOSIGNAL));
    }
  }
  return NULL;
}
static void answer_beside_a_busy_handler(uint32_t events) {
  shared_set = SYS(epoll_create1(0));
  SYS(pipe(stop_pipe));
  SYS(pipe(release_pipe));
  add(shared_set, stop_pipe[0], EPOLLIN, CONNECTIONS);
  for (int i = 0; i < 2; i++) {
    pairs[i] = open_pair(V4);
    add(shared_set, pairs[i].server, events, i);
  }
  pthread_t thread[3];
  for (int i = 0; i < 3; i++) thread[i] = start_thread(handler_thread, NULL);
  for (int round = 0; round < 200; round++) {
    put(pairs[1].client, "x");
    if (round % 2) get(pairs[1].client, "x");
    put(pairs[0].client, "B");
    if (round % 2 == 0) get(pairs[1].client, "x");
    for (int i = 0; i < 5; i++) {
      if (i == 3) usleep(round % 10 * 100);
      put(pairs[1].client, "y");
      get(pairs[1].client, "y");
    }
    SYS(write(release_pipe[1], "g", 1));
    get(pairs[0].client, "B");
  }
  SYS(write(stop_pipe[1], "s", 1));
  for (int i = 0; i < 3; i++) end_thread(thread[i]);
}
SAN_CASE(busy_handler_level) { answer_beside_a_busy_handler(EPOLLIN); }
SAN_CASE(busy_handler_edge) { answer_beside_a_busy_handler(EPOLLIN | EPOLLET); }

/* Edge-triggered and one event: exactly one of the blocked threads gets it. */
static _Atomic int woken;
static void *one_event(void *arg) {
  struct epoll_event got;
  bt_shared->value[(intptr_t)arg] = gettid();
  int n = SYS(epoll_wait(shared_set, &got, 1, HANG_MS));
  if (n == 1 && got.data.u64 == 1) woken++;
  return NULL;
}
SAN_CASE(edge_wakes_one_thread) {
  struct pair p = open_pair(V4);
  shared_set = SYS(epoll_create1(0));
  SYS(pipe(stop_pipe));
  add(shared_set, p.server, EPOLLIN | EPOLLET, 1);
  add(shared_set, stop_pipe[0], EPOLLIN, 2);
  pthread_t thread[THREADS];
  for (intptr_t i = 0; i < THREADS; i++) {
    thread[i] = start_thread(one_event, (void *)i);
    UNTIL(bt_shared->value[i] != 0);
    wait_asleep(bt_shared->value[i]);
  }
  put(p.client, "x");
  UNTIL(woken > 0);
  sleep_ms(20);
  EQ(woken, 1);
  SYS(write(stop_pipe[1], "s", 1));
  for (int i = 0; i < THREADS; i++) end_thread(thread[i]);
  EQ(woken, 1);
  get(p.server, "x");
}

/* EPOLLEXCLUSIVE: of several sets on one socket at least one is told, and nothing is lost. */
static _Atomic int told;
static void *exclusive_waiter(void *arg) {
  int set = SYS(epoll_create1(0));
  struct epoll_event got;
  add(set, *(int *)arg, EPOLLIN | EPOLLEXCLUSIVE, 1);
  add(set, stop_pipe[0], EPOLLIN, 2);
  bt_shared->value[8]++;
  for (;;) {
    EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
    if (got.data.u64 == 2) return NULL;
    char buffer[64];
    ssize_t n = recv(*(int *)arg, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) told += n;
  }
}
SAN_CASE(exclusive_waiters) {
  struct pair p = open_pair(V4);
  SYS(pipe(stop_pipe));
  pthread_t thread[THREADS];
  for (int i = 0; i < THREADS; i++) thread[i] = start_thread(exclusive_waiter, &p.server);
  UNTIL(bt_shared->value[8] == THREADS);
  for (int i = 1; i <= 50; i++) {
    put(p.client, "x");
    UNTIL(told == i);
  }
  SYS(write(stop_pipe[1], "s", 1));
  for (int i = 0; i < THREADS; i++) end_thread(thread[i]);
}

/* What EPOLLEXCLUSIVE does not go with is refused before anything else is. */
SAN_CASE(exclusive_errors) {
  struct pair p = open_pair(V4);
  int set = SYS(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE};
  struct epoll_event wrong = {.events = EPOLLIN | EPOLLRDHUP | EPOLLEXCLUSIVE};
  ERR(epoll_ctl(set, EPOLL_CTL_ADD, p.client, &wrong), EINVAL);
  ERR(epoll_ctl(set, EPOLL_CTL_MOD, p.client, &event), EINVAL);
  ERR(epoll_ctl(set, EPOLL_CTL_MOD, p.client, &wrong), EINVAL);
  add(set, p.client, EPOLLIN, 1);
  ERR(epoll_ctl(set, EPOLL_CTL_ADD, p.client, &wrong), EINVAL);
  ERR(epoll_ctl(set, EPOLL_CTL_ADD, p.client, &event), EEXIST);
  ERR(epoll_ctl(set, EPOLL_CTL_MOD, p.client, &event), EINVAL);
  SYS(epoll_ctl(set, EPOLL_CTL_DEL, p.client, &event));
  add(set, p.client, EPOLLIN | EPOLLEXCLUSIVE, 1);
  SYS(epoll_ctl(set, EPOLL_CTL_DEL, p.client, &event));
  ERR(epoll_ctl(set, EPOLL_CTL_ADD, p.client, &wrong), EINVAL);
  ERR(epoll_ctl(set, EPOLL_CTL_DEL, p.client, &wrong), ENOENT);
}

/* A socket is added while another thread already waits in the set. */
static void *late_event(void *arg) {
  struct epoll_event got;
  bt_shared->value[0] = gettid();
  EQ(epoll_wait(shared_set, &got, 1, HANG_MS), 1);
  EQ(got.data.u64, 42);
  (void)arg;
  return NULL;
}
SAN_CASE(added_while_waiting) {
  for (int with_data = 0; with_data < 2; with_data++) {
    struct pair p = open_pair(V4);
    shared_set = SYS(epoll_create1(0));
    bt_shared->value[0] = 0;
    pthread_t thread = start_thread(late_event, NULL);
    UNTIL(bt_shared->value[0] != 0);
    wait_asleep(bt_shared->value[0]);
    if (with_data) {
      put(p.client, "x");
      wait_for(p.server, POLLIN);
    }
    add(shared_set, p.server, EPOLLIN, 42);
    if (!with_data) {
      sleep_ms(5);
      put(p.client, "x");
    }
    end_thread(thread);
    get(p.server, "x");
  }
}

/* The same for a change of interest. */
SAN_CASE(modified_while_waiting) {
  struct pair p = open_pair(V4);
  shared_set = SYS(epoll_create1(0));
  add(shared_set, p.server, 0, 42);
  put(p.client, "x");
  wait_for(p.server, POLLIN);
  pthread_t thread = start_thread(late_event, NULL);
  UNTIL(bt_shared->value[0] != 0);
  wait_asleep(bt_shared->value[0]);
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 42};
  SYS(epoll_ctl(shared_set, EPOLL_CTL_MOD, p.server, &event));
  end_thread(thread);
}

/* One thread blocks in recv() and one in send() on the same socket. */
static void *blocked_reader(void *arg) {
  bt_shared->value[0] = gettid();
  get(*(int *)arg, "answer");
  return NULL;
}
static void *blocked_writer(void *arg) {
  bt_shared->value[1] = gettid();
  send_pattern(*(int *)arg, 0, 16 << 20);
  return NULL;
}
static void both_blocked(int fd) {
  pthread_t reader = start_thread(blocked_reader, &fd), writer = start_thread(blocked_writer, &fd);
  UNTIL(bt_shared->value[0] != 0 && bt_shared->value[1] != 0);
  wait_asleep(bt_shared->value[0]), wait_asleep(bt_shared->value[1]);
  step_done(0);
  end_thread(reader); /* its data comes while the writer is still stuck */
  step_done(1);
  end_thread(writer);
  SYS(close(fd));
}
static void free_both(int fd) {
  step_wait(0);
  put(fd, "answer");
  step_wait(1);
  recv_pattern(fd, 0, 16 << 20);
  expect_eof(fd);
}
ENDS(reader_and_writer_blocked, both_blocked, free_both)

/* One thread waits in poll() and another reads; poll() must see what comes next. */
static void *polling_thread(void *arg) {
  bt_shared->value[0] = gettid();
  EQ(wait_for(*(int *)arg, POLLIN), POLLIN);
  return NULL;
}
static void poller_and_reader(int fd) {
  for (int i = 0; i < 20; i++) {
    bt_shared->value[0] = 0;
    pthread_t thread = start_thread(polling_thread, &fd);
    if (i % 2) {
      UNTIL(bt_shared->value[0] != 0);
      wait_asleep(bt_shared->value[0]);
    }
    step_done(0);
    end_thread(thread);
    get(fd, "tick");
  }
  SYS(close(fd));
}
static void ticker(int fd) {
  for (int i = 0; i < 20; i++) step_wait(0), put(fd, "tick");
  expect_eof(fd);
}
ENDS(poller_and_reader, poller_and_reader, ticker)

/* Processes that share the set itself. */
SAN_CASE(set_inherited_by_a_child) {
  struct pair p = open_pair(V4);
  int set = SYS(epoll_create1(0));
  add(set, p.server, EPOLLIN, 6);
  pid_t child = start_child();
  if (child == 0) {
    struct epoll_event got;
    EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
    EQ(got.data.u64, 6);
    get(p.server, "for the child");
    put(p.server, "done");
    _exit(0);
  }
  put(p.client, "for the child");
  end_child(child);
  get(p.client, "done");
  put(p.client, "for the parent");
  struct epoll_event got;
  EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
  get(p.server, "for the parent");
}

/* Threads that wait, each in another call, use no processor time to speak of. */
static void *idle_thread(void *arg) {
  struct pair *p = arg;
  char byte;
  struct epoll_event got;
  int set = SYS(epoll_create1(0));
  add(set, p[2].server, EPOLLIN, 1);
  int which = bt_shared->value[9]++;
  if (which == 0) EQ(recv(p[0].server, &byte, 1, 0), 1);
  if (which == 1) EQ(wait_for(p[1].server, POLLIN), POLLIN);
  if (which == 2) EQ(epoll_wait(set, &got, 1, -1), 1);
  return NULL;
}
SAN_CASE(idle_threads_use_no_processor) {
  struct pair p[3] = {open_pair(V4), open_pair(V4), open_pair(V6)};
  pthread_t thread[3];
  for (int i = 0; i < 3; i++) exercise(p[i].client, p[i].server);
  for (int i = 0; i < 3; i++) thread[i] = start_thread(idle_thread, p);
  sleep_ms(100);
  struct timespec before, after;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  sleep_ms(600);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  int64_t used = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
  for (int i = 0; i < 3; i++) put(p[i].client, "x");
  for (int i = 0; i < 3; i++) end_thread(thread[i]);
  if (used > 200) FAIL("%lld ms of processor time in 600 ms of waiting", (long long)used);
}

/* Hundreds of idle connections, and one at a time that talks. */
SAN_CASE(many_idle_connections) {
  enum { N = 400 };
  int set = SYS(epoll_create1(0));
  union address target;
  int listener = listen_on(V4, &target), client[N], server[N];
  for (int i = 0; i < N; i++) {
    client[i] = dial(&target);
    server[i] = accept_warm_both(listener, client[i]);
    add(set, server[i], EPOLLIN | EPOLLET, i);
  }
  struct epoll_event got[8];
  EQ(epoll_wait(set, got, 8, 0), 0);
  for (int i = 0; i < 1000; i++) {
    int j = i < 500 ? 7 : i * 7 % N;
    put(client[j], "x");
    EQ(epoll_wait(set, got, 8, HANG_MS), 1);
    EQ(got[0].data.u64, j);
    get(server[j], "x");
  }
}

/* Thousands of connections at which nothing happens, half of them watched in one set: no processor time, and no
 * wake-ups. */
static void *wait_in_set(void *set) {
  struct epoll_event got;
  EQ(epoll_wait(*(int *)set, &got, 1, -1), 1);
  return NULL;
}
SAN_CASE(thousands_of_idle_connections_cost_nothing) {
  enum { N = 2000, LEAST_FILES = 2 * N + 64 };
  struct rlimit files;
  SYS(getrlimit(RLIMIT_NOFILE, &files));
  if (files.rlim_max != RLIM_INFINITY && files.rlim_max < LEAST_FILES) bt_skip("too few descriptors are allowed");
  if (files.rlim_cur < LEAST_FILES) files.rlim_cur = LEAST_FILES, SYS(setrlimit(RLIMIT_NOFILE, &files));
  union address target;
  int listener = listen_on(V4, &target), set = SYS(epoll_create1(0));
  static int client[N], server[N];
  for (int i = 0; i < N; i++) {
    client[i] = dial(&target);
    server[i] = accept_warm_both(listener, client[i]);
    exercise(client[i], server[i]);
    add(set, server[i], EPOLLIN, i);
  }
  pthread_t thread = start_thread(wait_in_set, &set);
  /* What was begun before has its end; then a whole second. */
  sleep_ms(500);
  struct rusage before, after;
  SYS(getrusage(RUSAGE_SELF, &before));
  sleep_ms(1000);
  SYS(getrusage(RUSAGE_SELF, &after));
  struct timeval used, user, system;
  timersub(&after.ru_utime, &before.ru_utime, &user);
  timersub(&after.ru_stime, &before.ru_stime, &system);
  timeradd(&user, &system, &used);
  long wakeups = after.ru_nvcsw - before.ru_nvcsw;
  put(client[N / 2], "x");
  end_thread(thread);
  if (used.tv_sec > 0 || used.tv_usec > 50000)
    FAIL("%ld us of processor time in a second", (long)(used.tv_sec * 1000000 + used.tv_usec));
  if (wakeups > 20) FAIL("%ld wake-ups in a second", wakeups);
}
