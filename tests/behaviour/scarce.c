/* Processes that may have little, or no more: what they have goes on as it does natively. */
#include "bt.h"

#include <sys/mman.h>

/* A worker that locks itself in, as privilege-separated daemons do: it may open nothing any more, and the kernel refuses
 * it any poll. What it has it uses on. */
enum { BULK = 8 << 20, ROUNDS = 5 };

static void let_no_descriptors(void) { SYS(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, 0})); }

/* send or recv of all, without the harness's own polls. */
static void send_all(int fd, uint64_t offset, size_t n) {
  for (size_t done = 0; done < n;) {
    size_t piece = n - done < 65536 ? n - done : 65536;
    done += SYS(send(fd, pattern(offset + done), piece, 0));
  }
}
static void recv_all(int fd, uint64_t offset, size_t n) {
  static uint8_t bytes[65536];
  for (size_t done = 0; done < n;) {
    ssize_t got = SYS(recv(fd, bytes, n - done < sizeof bytes ? n - done : sizeof bytes, 0));
    CHECK(got > 0);
    check_pattern(bytes, offset + done, got), done += got;
  }
}

static bool selected(int fd, bool writes, int ms) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  struct timeval limit = {ms / 1000, ms % 1000 * 1000};
  int n = SYS(select(fd + 1, writes ? NULL : &set, writes ? &set : NULL, NULL, &limit));
  EQ(FD_ISSET(fd, &set) != 0, n);
  return n == 1;
}

static void locked_in(int fd) {
  let_no_descriptors();
  /* The reader is slow: sends wait. */
  send_all(fd, 0, BULK);
  /* Answers come late: receives wait, once with a time-out that is over before. */
  set_timeout(fd, SO_RCVTIMEO, 20);
  char byte;
  ERR(recv(fd, &byte, 1, 0), EAGAIN);
  step_done(0);
  set_timeout(fd, SO_RCVTIMEO, HANG_MS);
  for (int i = 0; i < ROUNDS; i++) recv_all(fd, i * 100, 100), send_all(fd, BULK + i * 100, 100);
  /* Nothing is there, and there is room. */
  CHECK(!selected(fd, false, 20));
  CHECK(selected(fd, true, HANG_MS));
  step_done(1);
  CHECK(selected(fd, false, HANG_MS));
  recv_all(fd, ROUNDS * 100, 100);
  ERR(poll(&(struct pollfd){fd, POLLIN, 0}, 1, 20), EINVAL);
  step_done(2);
  CHECK(selected(fd, false, HANG_MS));
  EQ(recv(fd, &byte, 1, 0), 0);
}
static void slow_peer(int fd) {
  for (int i = 0; i < 8; i++) sleep_ms(20), recv_pattern(fd, (uint64_t)i * (BULK / 8), BULK / 8);
  step_wait(0);
  for (int i = 0; i < ROUNDS; i++) {
    sleep_ms(20);
    send_pattern(fd, i * 100, 100), recv_pattern(fd, BULK + i * 100, 100);
  }
  step_wait(1);
  send_pattern(fd, ROUNDS * 100, 100);
  step_wait(2);
  sleep_ms(20);
  SYS(close(fd));
}
PROCESS_ENDS(no_descriptors_allowed, locked_in, slow_peer)

/* The same where it sleeps on a set that it made before. */
static void locked_in_with_set(int fd) {
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event wanted = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = fd}, event;
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted));
  EQ(epoll_wait(set, &event, 1, 0), 0);
  let_no_descriptors();
  step_done(0);
  for (int i = 0; i < ROUNDS; i++) {
    EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
    EQ(event.events, EPOLLIN);
    recv_all(fd, i * 100, 100), send_all(fd, i * 100, 100);
  }
  EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
  EQ(event.events, EPOLLIN | EPOLLRDHUP);
  char byte;
  EQ(recv(fd, &byte, 1, 0), 0);
}
static void peer_of_set(int fd) {
  step_wait(0);
  for (int i = 0; i < ROUNDS; i++) {
    sleep_ms(20);
    send_pattern(fd, i * 100, 100), recv_pattern(fd, i * 100, 100);
  }
  SYS(close(fd));
}
PROCESS_ENDS(no_descriptors_allowed_with_a_set, locked_in_with_set, peer_of_set)

/* A set is polled by nobody, but its members may be new to it. */
static void adds_late(int fd) {
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  struct epoll_event wanted = {.events = EPOLLIN, .data.fd = fd}, event;
  let_no_descriptors();
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted));
  step_done(0);
  for (int i = 0; i < ROUNDS; i++) {
    EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
    recv_all(fd, i * 100, 100), send_all(fd, i * 100, 100);
  }
  EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
  char byte;
  EQ(recv(fd, &byte, 1, 0), 0);
}
static void left_processes(void) { run_processes(V4, adds_late, peer_of_set); }
BT_REGISTER(left_processes, "no_descriptors_allowed_before_it_is_added", left_processes, BT_MIXED)

/* splice waits for a pipe where poll may not. */
static void splices(int fd) {
  int gate[2];
  SYS(pipe2(gate, O_CLOEXEC));
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(fd));
    sleep_ms(20);
    EQ(write(gate[1], pattern(0), 1000), 1000);
    _exit(0);
  }
  let_no_descriptors();
  EQ(splice(gate[0], NULL, fd, NULL, 1000, 0), 1000);
  end_child(pid);
  char byte;
  EQ(recv(fd, &byte, 1, 0), 0);
}
static void peer_of_splice(int fd) { recv_pattern(fd, 0, 1000), SYS(close(fd)); }
static void splices_processes(void) { run_processes(V4, splices, peer_of_splice); }
BT_REGISTER(splices_processes, "no_descriptors_allowed_for_a_splice", splices_processes, BT_MIXED)

/* Another thread closes the descriptor under a send that waits: only this process has lost it. */
static _Atomic int closed_fd;
static void *closes(void *arg) {
  wait_asleep((pid_t)(intptr_t)arg);
  SYS(close(closed_fd));
  return NULL;
}
static void closes_under_a_send(int fd) {
  pid_t pid = start_child();
  if (pid == 0) {
    uint64_t sent = 0;
    ssize_t n;
    while ((n = send(fd, pattern(sent), 65536, MSG_DONTWAIT)) > 0) sent += n;
    set_timeout(fd, SO_SNDTIMEO, 300);
    closed_fd = fd;
    pthread_t thread = start_thread(closes, (void *)(intptr_t)gettid());
    /* Natively it waits on; EBADF is right too. Either way it ends for nobody else. */
    for (;;) {
      if ((n = send(fd, pattern(sent), 65536, MSG_NOSIGNAL)) <= 0) break;
      sent += n;
    }
    end_thread(thread);
    bt_shared->value[0] = sent;
    _exit(0);
  }
  end_child(pid);
  step_done(0);
  put(fd, "still here"), get(fd, "so it is");
  SYS(close(fd));
}
static void peer_of_closer(int fd) {
  step_wait(0);
  recv_pattern(fd, 0, bt_shared->value[0]);
  get(fd, "still here"), put(fd, "so it is"), expect_eof(fd);
}
static void closer_processes(void) { run_processes(V4, closes_under_a_send, peer_of_closer); }
BT_REGISTER(closer_processes, "closed_under_a_send_in_one_process", closer_processes, BT_MIXED)

/* Connections that move bytes in both directions, of one process. */
enum { MANY_PAIRS = 60 };
static struct pair pairs[MANY_PAIRS];
static void open_pairs(int count) {
  for (int i = 0; i < count; i++) pairs[i] = open_pair(i % 2 ? V6 : V4);
}
static void exercise_pairs(int count) {
  for (int i = 0; i < count; i++) exercise(pairs[i].client, pairs[i].server);
}

static size_t bytes_of_addresses(void) {
  FILE *file = fopen("/proc/self/statm", "r");
  size_t pages;
  CHECK(file != NULL);
  EQ(fscanf(file, "%zu", &pages), 1);
  fclose(file);
  return pages * 4096;
}
/* The program may map what it leaves free natively, if that is as much as is reserved for it. */
MIXED_CASE(addresses_are_left_to_the_program) {
  enum { MIB = 1 << 20, LEFT = 800, MAPPED = 500 };
  size_t limit = bytes_of_addresses() + (size_t)LEFT * MIB;
  SYS(setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit}));
  open_pairs(MANY_PAIRS);
  exercise_pairs(MANY_PAIRS);
  for (int i = 0; i < MAPPED; i++)
    CHECK(mmap(NULL, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
  exercise_pairs(MANY_PAIRS);
}

static long number_in(const char *path) {
  FILE *file = fopen(path, "r");
  long number = -1;
  if (file) {
    if (fscanf(file, "%ld", &number) != 1) number = -1;
    fclose(file);
  }
  return number;
}
/* The same of mappings, by a program that has nearly all there are. */
CASE(mappings_are_left_to_the_program) {
  enum { SPARE = 400, TAKEN = 200 };
  long most = number_in("/proc/sys/vm/max_map_count");
  if (most < 10000 || most > 100000) bt_skip("another vm.max_map_count than usual");
  size_t own = most - count_lines("/proc/self/maps", "") - SPARE;
  char *area = mmap(NULL, (own + TAKEN + 2) * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(area != MAP_FAILED);
  /* Every second page differs from its neighbours: two mappings more each time. */
  for (size_t page = 1; page < own; page += 2) SYS(mprotect(area + page * 4096, 4096, PROT_READ));
  open_pairs(MANY_PAIRS);
  exercise_pairs(MANY_PAIRS);
  for (size_t page = own | 1; page < own + TAKEN; page += 2)
    SYS(mprotect(area + page * 4096, 4096, PROT_READ));
  exercise_pairs(MANY_PAIRS);
}

/* In a memory cgroup that what every connection could take does not fit in. */
static bool write_to(const char *folder, const char *file, const char *text) {
  char path[200];
  snprintf(path, sizeof path, "%s/%s", folder, file);
  FILE *to = fopen(path, "w");
  if (!to) return false;
  bool done = fputs(text, to) >= 0;
  return fclose(to) == 0 && done;
}
CASE(memory_of_a_cgroup_is_left_to_the_program) {
  static const struct { const char *mounted, *limit; } kinds[] = {
      {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}};
  char group[100];
  int kind = 0;
  for (;; kind++) {
    if (kind == 2) bt_skip("makes no memory cgroup");
    snprintf(group, sizeof group, "%s/sanshim-%d", kinds[kind].mounted, getpid());
    if (mkdir(group, 0755) != 0) continue;
    if (write_to(group, kinds[kind].limit, "33554432")) break;
    rmdir(group);
  }
  pid_t pid = start_child();
  if (pid == 0) {
    CHECK(write_to(group, "cgroup.procs", "0"));
    open_pairs(MANY_PAIRS);
    static uint64_t sent[MANY_PAIRS];
    for (int i = 0; i < MANY_PAIRS; i++) {
      ssize_t n;
      while (sent[i] < 1 << 20 && (n = send(pairs[i].client, pattern(sent[i]), 65536, MSG_DONTWAIT)) > 0)
        sent[i] += n;
    }
    for (int i = 0; i < MANY_PAIRS; i++) recv_pattern(pairs[i].server, 0, sent[i]);
    _exit(0);
  }
  int status;
  SYS(waitpid(pid, &status, 0));
  /* The kernel counts a process there for a moment after it is gone. */
  UNTIL(rmdir(group) == 0);
  EQ(status, 0);
}
