/* A program that needs nearly all descriptors it may have: it finds as many as it does without the library. */
#include "bt.h"

enum { LIMIT = 1024, SPARE = 12, OTHERS = 12, CONNECTIONS = LIMIT - SPARE - OTHERS - 16, EXCHANGES = 60 };

static void exchange_by_client(int fd) {
  char byte = 'x';
  EQ(send(fd, &byte, 1, 0), 1);
  EQ(recv(fd, &byte, 1, 0), 1);
}
static void exchange_by_server(int fd) {
  char byte;
  EQ(recv(fd, &byte, 1, 0), 1);
  EQ(send(fd, &byte, 1, 0), 1);
}

/* The client has room for all, and looks at all of them now and then, as an event loop does. */
static void client(const union address *target) {
  static int fds[CONNECTIONS];
  struct epoll_event events[64];
  int set = SYS(epoll_create1(EPOLL_CLOEXEC));
  for (int i = 0; i < CONNECTIONS; i++) {
    fds[i] = dial(target);
    struct epoll_event wanted = {.events = EPOLLIN, .data.fd = fds[i]};
    SYS(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &wanted));
    for (int k = 0; k < EXCHANGES; k++) exchange_by_client(fds[i]);
    EQ(epoll_wait(set, events, 64, 1), 0);
  }
  step_done(0);
  for (int round = 0; round < 2; round++)
    for (int i = 0; i < CONNECTIONS; i++) {
      exchange_by_client(fds[i]);
      if (i % 64 == 0) EQ(epoll_wait(set, events, 64, 1), 0);
    }
  step_done(1);
  for (int i = 0; i < CONNECTIONS; i++) SYS(close(fds[i]));
}

/* As many files as natively, by functions that nobody looks at. */
static void files_are_there(int used) {
  int files[LIMIT], count = 0;
  while ((files[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) count++;
  EQ(errno, EMFILE);
  bt_shared->value[10] = count;
  for (int i = 0; i < count; i++) SYS(close(files[i]));
  if (count < LIMIT - used) FAIL("%d files beside %d descriptors of %d", count, used, LIMIT);
}

static void serve(int listener, rlim_t hard) {
  static int fds[CONNECTIONS];
  SYS(setrlimit(RLIMIT_NOFILE, &(struct rlimit){LIMIT, hard}));
  for (int i = 0; i < CONNECTIONS; i++) {
    fds[i] = SYS(accept(listener, NULL, NULL));
    CHECK(fds[i] < LIMIT);
    for (int k = 0; k < EXCHANGES; k++) exchange_by_server(fds[i]);
    if (i % 32 == 0) {
      int file = SYS(open("/dev/null", O_RDONLY | O_CLOEXEC));
      SYS(close(file));
    }
  }
  for (int round = 0; round < 2; round++)
    for (int i = 0; i < CONNECTIONS; i++) exchange_by_server(fds[i]);
  step_wait(1);
  for (int i = 0; i < CONNECTIONS; i++) SYS(close(fds[i]));
}

static void with_limits(rlim_t hard) {
  struct rlimit now;
  SYS(getrlimit(RLIMIT_NOFILE, &now));
  if (now.rlim_max < 4 * LIMIT) bt_skip("needs 4096 descriptors");
  now.rlim_cur = now.rlim_max;
  SYS(setrlimit(RLIMIT_NOFILE, &now));
  union address target;
  int listener = listen_on(V4, &target);
  pid_t child = start_child();
  if (child == 0) {
    SYS(close(listener));
    client(&target);
    _exit(0);
  }
  serve(listener, hard ? hard : now.rlim_max);
  end_child(child);
}
static void all_to_be_had(void) { with_limits(LIMIT); }
BT_REGISTER(all_to_be_had, "all_that_may_be_had", all_to_be_had, BT_MIXED)
static void all_but_hard(void) { with_limits(0); }
BT_REGISTER(all_but_hard, "all_below_a_higher_hard_limit", all_but_hard, BT_MIXED)

/* Of few connections, with the hard limit above: the program has all numbers below its own limit for itself. */
static void all_files(void) {
  struct rlimit now;
  SYS(getrlimit(RLIMIT_NOFILE, &now));
  if (now.rlim_max < 4 * LIMIT) bt_skip("needs 4096 descriptors");
  SYS(setrlimit(RLIMIT_NOFILE, &(struct rlimit){LIMIT, now.rlim_max}));
  enum { PAIRS = 100 };
  struct pair pairs[PAIRS];
  for (int i = 0; i < PAIRS; i++) pairs[i] = open_pair(V4);
  /* Standard ones, the harness's and the library's own. */
  files_are_there(2 * PAIRS + 32);
  for (int i = 0; i < PAIRS; i++) exercise(pairs[i].client, pairs[i].server), close_pair(&pairs[i]);
}
BT_REGISTER(all_files, "all_files_below_a_higher_hard_limit", all_files, BT_SAN)

static int files_to_be_had(void) {
  int files[LIMIT], count = 0;
  while ((files[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) count++;
  EQ(errno, EMFILE);
  for (int i = 0; i < count; i++) SYS(close(files[i]));
  return count;
}
/* So few that the library takes none. */
CASE(a_small_limit) {
  SYS(setrlimit(RLIMIT_NOFILE, &(struct rlimit){24, 24}));
  int before = files_to_be_had();
  struct pair p = open_pair(V4);
  for (int k = 0; k < EXCHANGES; k++) {
    put(p.client, "x");
    get(p.server, "x");
    put(p.server, "y");
    get(p.client, "y");
  }
  SYS(close(p.client));
  SYS(close(p.server));
  EQ(files_to_be_had(), before);
}
