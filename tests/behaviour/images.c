/* Connections and listeners that go on in another program image: over exec and posix_spawn, through images that leave them
 * alone. Connections go back to TCP for that; what a listener accepts there comes to the SAN. */
#include "handed_on.h"
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

extern char **environ;

/* ---- the other image ------------------------------------------------------------------------ */

/* Arguments: the descriptor, and how many more images come before the one that echoes. */
PART(echo) {
  int fd = atoi(bt_arguments[0]), more = atoi(bt_arguments[1]);
  if (more > 0) {
    char number[16];
    snprintf(number, sizeof number, "%d", more - 1);
    execl("/proc/self/exe", "images", "@echo", bt_arguments[0], number, (char *)NULL);
    FAIL("exec");
  }
  echo_all(fd);
}

enum how { FORK, VFORK, SPAWN, SPAWN_DUP, REPLACE, SHELL, ENV };
static enum how how;
static int hops;

static char *own_path(void) {
  static char path[PATH_MAX];
  ssize_t n = SYS(readlink("/proc/self/exe", path, sizeof path - 1));
  path[n] = 0;
  return path;
}
static char number[16], more[16];

static void become(int fd) {
  snprintf(number, sizeof number, "%d", fd);
  snprintf(more, sizeof more, "%d", hops);
  if (how == SHELL) {
    char command[PATH_MAX + 100];
    snprintf(command, sizeof command, "/bin/true; cat /dev/null; (true); '%s' @echo %s %s; exit $?",
             own_path(), number, more);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
  } else if (how == ENV) {
    execlp("env", "env", own_path(), "@echo", number, more, (char *)NULL);
  } else {
    execl("/proc/self/exe", "images", "@echo", number, more, (char *)NULL);
  }
  _exit(99);
}
static void inherit(int fd) { SYS(fcntl(fd, F_SETFD, 0)); }

static void server(int fd) {
  begin_server(fd);
  inherit(fd);
  pid_t pid = -1;
  if (how == VFORK) {
    pid = vfork();
    if (pid == 0) become(fd);
  } else if (how == SPAWN || how == SPAWN_DUP) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    int there = fd;
    if (how == SPAWN_DUP) {
      there = 77;
      SYS(fcntl(fd, F_SETFD, FD_CLOEXEC));
      posix_spawn_file_actions_addclose(&actions, 60);
      posix_spawn_file_actions_adddup2(&actions, fd, there);
    }
    snprintf(number, sizeof number, "%d", there);
    snprintf(more, sizeof more, "%d", hops);
    char *argv[] = {"images", "@echo", number, more, NULL};
    EQ(posix_spawn(&pid, own_path(), &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  } else if (how == REPLACE) {
    become(fd);
  } else {
    pid = start_child();
    if (pid == 0) become(fd);
  }
  SYS(close(fd));
  end_child(pid);
}
#define GOES_ON(name, how_, hops_)                                            \
  MIXED_CASE(name) {                                                            \
    how = how_, hops = hops_;                                                 \
    run_processes(V4, client, server);                                        \
  }                                                                           \
  MIXED_CASE(name##_at_the_connector) {                                         \
    how = how_, hops = hops_;                                                 \
    run_processes(V6, server, client);                                        \
  }
GOES_ON(fork_exec, FORK, 0)
GOES_ON(vfork_exec, VFORK, 0)
GOES_ON(spawn, SPAWN, 0)
GOES_ON(spawn_to_another_number, SPAWN_DUP, 0)
GOES_ON(exec_in_the_same_process, REPLACE, 0)
GOES_ON(five_images, FORK, 5)
GOES_ON(five_images_after_vfork, VFORK, 5)
GOES_ON(through_a_shell, SHELL, 2)
GOES_ON(through_env, ENV, 0)

/* ---- both ends ------------------------------------------------------------------------------ */

enum { FURTHER = 5000 };
static int unread;
static bool bare, in_turn, by_child, has_little_room;

/* Arguments: the descriptor, how much is unread, and whether that is all. */
PART(reads_on) {
  int fd = atoi(bt_arguments[0]);
  uint64_t there = (uint64_t)atoi(bt_arguments[1]);
  recv_pattern(fd, 0, there);
  if (atoi(bt_arguments[2])) {
    expect_eof(fd);
    return;
  }
  send_pattern(fd, there, FURTHER);
  recv_pattern(fd, there, FURTHER);
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
}
static void read_on(int fd, bool is_all) {
  static char *without_library[] = {"PATH=/usr/bin:/bin", NULL};
  snprintf(number, sizeof number, "%d", fd);
  snprintf(more, sizeof more, "%d", unread);
  char *argv[] = {"images", "@reads_on", number, more, is_all ? "1" : "0", NULL};
  execve("/proc/self/exe", argv, bare ? without_library : environ);
  _exit(99);
}
/* Each end has sent something that the other has not read, and executes. */
static void executes(int fd, bool first) {
  if (first) put(fd, "ping"), get(fd, "pong");
  else get(fd, "ping"), put(fd, "pong");
  inherit(fd);
  if (has_little_room) set_option(fd, SOL_SOCKET, SO_SNDBUF, 4608);
  send_pattern(fd, 0, (uint64_t)unread);
  step_done(first ? 0 : 1);
  step_wait(first ? 1 : 0);
  if (in_turn && !first) sleep_ms(60);
  read_on(fd, false);
}
static void executes_first(int fd) { executes(fd, true); }
static void executes_second(int fd) { executes(fd, false); }
#define BOTH_EXECUTE(name, unread_, bare_)                                      \
  MIXED_CASE(both_ends_execute_##name) {                                        \
    unread = unread_, bare = bare_;                                             \
    for (int i = 0; i < 10; i++) run_processes(V4, executes_first, executes_second); \
  }                                                                           \
  MIXED_CASE(one_end_executes_after_the_other_##name) {                         \
    unread = unread_, bare = bare_, in_turn = true;                             \
    run_processes(V6, executes_first, executes_second);                         \
  }
BOTH_EXECUTE(with_a_little_unread, 7, false)
BOTH_EXECUTE(with_much_unread, 400000, false)
BOTH_EXECUTE(without_the_library, 7, true)
BOTH_EXECUTE(without_the_library_and_with_much_unread, 400000, true)

/* An end cannot send at once what its peer has not read. */
MIXED_CASE(both_ends_execute_with_little_room) {
  unread = 30000, bare = true, has_little_room = true;
  for (int i = 0; i < 10; i++) run_processes(V4, executes_first, executes_second);
}
MIXED_CASE(one_end_executes_after_the_other_with_little_room) {
  unread = 30000, bare = true, has_little_room = true, in_turn = true;
  run_processes(V6, executes_first, executes_second);
}

/* The peer has closed, and what it sent is unread. */
static void sends_and_closes(int fd) {
  put(fd, "ping"), get(fd, "pong");
  send_pattern(fd, 0, (uint64_t)unread);
  SYS(close(fd));
  step_done(0);
}
static void executes_behind_the_end(int fd) {
  get(fd, "ping"), put(fd, "pong");
  inherit(fd);
  step_wait(0);
  if (!by_child) read_on(fd, true);
  pid_t pid = start_child();
  if (pid == 0) read_on(fd, true);
  /* This one has it too. */
  end_child(pid);
  SYS(close(fd));
}
#define BEHIND_THE_END(name, unread_, by_child_)                                \
  MIXED_CASE(an_image_reads_##name) {                                           \
    unread = unread_, by_child = by_child_, bare = true;                        \
    run_processes(V4, sends_and_closes, executes_behind_the_end);               \
  }
BEHIND_THE_END(what_who_closed_had_sent, 400000, false)
BEHIND_THE_END(what_who_closed_had_sent_beside_its_parent, 40000, true)
BEHIND_THE_END(a_little_beside_its_parent, 7, true)

/* The peer executes, and its image does not read until this end has executed as well, which closes the connection here.
 * More is unread than the kernel has room for. */
static int started[2], sent[2];
PART(reads_late) {
  int fd = atoi(bt_arguments[0]);
  uint64_t total;
  EQ(SYS(write(atoi(bt_arguments[1]), "", 1)), 1);
  EQ(SYS(read(atoi(bt_arguments[2]), &total, sizeof total)), sizeof total);
  recv_pattern(fd, 0, total);
  expect_eof(fd);
}
PART(says) {
  uint64_t total = strtoull(bt_arguments[1], NULL, 10);
  EQ(SYS(write(atoi(bt_arguments[0]), &total, sizeof total)), sizeof total);
}
static void executes_and_reads_late(int fd) {
  get(fd, "ping"), put(fd, "pong");
  inherit(fd);
  char to[16], from[16];
  snprintf(number, sizeof number, "%d", fd);
  snprintf(to, sizeof to, "%d", started[1]), snprintf(from, sizeof from, "%d", sent[0]);
  step_wait(0);
  execl("/proc/self/exe", "images", "@reads_late", number, to, from, (char *)NULL);
  _exit(99);
}
/* Sends as much as there is room for. Returns when the peer's image has begun. */
static uint64_t fill_all(int fd) {
  put(fd, "ping"), get(fd, "pong");
  uint64_t total = fill(fd, 0);
  step_done(0);
  char byte;
  EQ(SYS(read(started[0], &byte, 1)), 1);
  return total;
}
static void fills_and_executes(int fd) {
  uint64_t total = fill_all(fd);
  char count[32];
  SYS(fcntl(fd, F_SETFD, FD_CLOEXEC));
  snprintf(number, sizeof number, "%d", sent[1]);
  snprintf(count, sizeof count, "%llu", (unsigned long long)total);
  execl("/proc/self/exe", "images", "@says", number, count, (char *)NULL);
  _exit(99);
}
MIXED_CASE(exec_does_not_wait_for_room) {
  SYS(pipe(started)), SYS(pipe(sent));
  run_processes(V4, fills_and_executes, executes_and_reads_late);
}

/* ---- what stays as it is -------------------------------------------------------------------- */

static void run(const char *program, const char *argument, const char *second) {
  pid_t pid = start_child();
  if (pid == 0) {
    execlp(program, program, argument, second, (char *)NULL);
    _exit(99);
  }
  end_child(pid);
}
/* While more is unread than the kernel has room for, a child with the connection executes something else. */
static void fills_and_has_a_helper(int fd) {
  set_option(fd, SOL_SOCKET, SO_SNDBUF, 4608);
  uint64_t total = fill_all(fd), with_rest = total + FURTHER;
  inherit(fd);
  run("/bin/true", NULL, NULL);
  EQ(SYS(write(sent[1], &with_rest, sizeof with_rest)), sizeof with_rest);
  send_pattern(fd, total, FURTHER);
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
}
static void executes_with_little_room(int fd) {
  set_option(fd, SOL_SOCKET, SO_RCVBUF, 4096);
  executes_and_reads_late(fd);
}
MIXED_CASE(a_helper_loses_nothing_that_waits_for_room) {
  SYS(pipe(started)), SYS(pipe(sent));
  run_processes(V4, fills_and_has_a_helper, executes_with_little_room);
}
/* The peer is gone, and so is a child with the connection that executed something else. */
static void executes_after_a_helper(int fd) {
  get(fd, "ping"), put(fd, "pong");
  inherit(fd);
  step_wait(0);
  run("/bin/true", NULL, NULL);
  run("/bin/true", NULL, NULL);
  read_on(fd, true);
}
MIXED_CASE(an_image_reads_what_who_closed_had_sent_after_a_helper) {
  unread = 400000, bare = true;
  run_processes(V4, sends_and_closes, executes_after_a_helper);
}
MIXED_CASE(a_helper_does_not_disturb) {
  struct pair p = open_pair(V4);
  inherit(p.client), inherit(p.server);
  for (int i = 0; i < 5; i++) {
    run("sh", "-c", "true; /bin/true; (/bin/true)");
    exercise(p.client, p.server);
    run("/bin/true", NULL, NULL);
    exercise(p.client, p.server);
    pid_t pid;
    char *argv[] = {"true", NULL};
    EQ(posix_spawnp(&pid, "true", NULL, NULL, argv, environ), 0);
    exercise(p.client, p.server);
    end_child(pid);
  }
  send_pattern(p.client, 0, 300000);
  run("/bin/true", NULL, NULL);
  recv_pattern(p.server, 0, 300000);
  close_pair(&p);
}
MIXED_CASE(failed_exec_and_spawn) {
  struct pair p = open_pair(V4);
  inherit(p.client), inherit(p.server);
  send_pattern(p.client, 0, 500000);
  char *const argv[] = {"none", NULL};
  ERR(execv("/nowhere/none", argv), ENOENT);
  pid_t pid;
  EQ(posix_spawn(&pid, "/nowhere/none", NULL, NULL, argv, environ), ENOENT);
  recv_pattern(p.server, 0, 500000);
  exercise(p.client, p.server);
  close_pair(&p);
}

/* The parent and the image use it in turn. */
PART(turns) {
  int fd = atoi(bt_arguments[0]), told = atoi(bt_arguments[1]);
  char byte;
  while (SYS(read(told, &byte, 1)) == 1) get(fd, "to image"), put(fd, "of image");
}
MIXED_CASE(parent_and_image_take_turns) {
  struct pair p = open_pair(V4);
  inherit(p.client), inherit(p.server);
  SYS(fcntl(p.client, F_SETFD, FD_CLOEXEC));
  int ends[2];
  SYS(pipe(ends));
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(ends[1]));
    snprintf(number, sizeof number, "%d", p.server);
    snprintf(more, sizeof more, "%d", ends[0]);
    execl("/proc/self/exe", "images", "@turns", number, more, (char *)NULL);
    _exit(99);
  }
  SYS(close(ends[0]));
  for (int i = 0; i < 200; i++) {
    exercise(p.client, p.server);
    put(p.client, "to image");
    EQ(SYS(write(ends[1], "", 1)), 1);
    get(p.client, "of image");
  }
  SYS(close(ends[1]));
  end_child(pid);
  exercise(p.client, p.server);
  close_pair(&p);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Holds it until its input ends. */
PART(hold) {
  char byte;
  EQ(read(atoi(bt_arguments[0]), &byte, 1), 0);
}
static pid_t start_holder(int *input) {
  int ends[2];
  SYS(pipe2(ends, O_CLOEXEC));
  pid_t pid = start_child();
  if (pid == 0) {
    int there = SYS(fcntl(ends[0], F_DUPFD, 3));
    snprintf(number, sizeof number, "%d", there);
    execl("/proc/self/exe", "images", "@hold", number, (char *)NULL);
    _exit(99);
  }
  SYS(close(ends[0]));
  *input = ends[1];
  return pid;
}
/* The last of all that have it ends the connection, whoever that is. */
MIXED_CASE(the_last_holder_ends_it) {
  struct pair p = open_pair(V4);
  inherit(p.client), inherit(p.server);
  SYS(fcntl(p.client, F_SETFD, FD_CLOEXEC));
  exercise(p.client, p.server);
  int input;
  pid_t pid = start_holder(&input);
  put(p.server, "last words");
  SYS(close(p.server));
  get(p.client, "last words");
  sleep_ms(20);
  expect_nothing(p.client);
  SYS(close(input));
  end_child(pid);
  expect_eof(p.client);
  SYS(close(p.client));
}
MIXED_CASE(the_starter_ends_it) {
  struct pair p = open_pair(V4);
  inherit(p.client), inherit(p.server);
  SYS(fcntl(p.client, F_SETFD, FD_CLOEXEC));
  int input;
  pid_t pid = start_holder(&input);
  SYS(close(input));
  end_child(pid);
  exercise(p.client, p.server);
  put(p.server, "last words");
  SYS(close(p.server));
  get(p.client, "last words");
  expect_eof(p.client);
  SYS(close(p.client));
}
MIXED_CASE(a_killed_image_ends_it) {
  struct pair p = open_pair(V4);
  inherit(p.client), inherit(p.server);
  SYS(fcntl(p.client, F_SETFD, FD_CLOEXEC));
  exercise(p.client, p.server);
  int input;
  pid_t pid = start_holder(&input);
  SYS(close(p.server));
  SYS(kill(pid, SIGKILL));
  int status;
  EQ(SYS(waitpid(pid, &status, 0)), pid);
  expect_eof(p.client);
  SYS(close(p.client));
}
/* Wherever on the way into another image a process is killed: the connection ends if it had it alone, and
 * goes on elsewhere if not. */
static void killed_on_the_way(bool alone) {
  for (int round = 0; round < 25; round++) {
    struct pair p = open_pair(V4);
    inherit(p.client), inherit(p.server);
    SYS(fcntl(p.client, F_SETFD, FD_CLOEXEC));
    exercise(p.client, p.server);
    pid_t pid = start_child();
    if (pid == 0) {
      SYS(close(p.client));
      hops = 1000, how = FORK;
      become(p.server);
    }
    if (alone) SYS(close(p.server));
    struct timespec pause = {0, (long)round * 200000};
    nanosleep(&pause, NULL);
    SYS(kill(pid, SIGKILL));
    int status;
    EQ(SYS(waitpid(pid, &status, 0)), pid);
    if (alone) {
      expect_eof(p.client);
      SYS(close(p.client));
    } else {
      exercise(p.client, p.server);
      put(p.server, "last words");
      SYS(close(p.server));
      get(p.client, "last words");
      expect_eof(p.client);
      SYS(close(p.client));
    }
  }
}
MIXED_CASE(killed_on_the_way_with_the_last_copy) { killed_on_the_way(true); }
MIXED_CASE(killed_on_the_way_with_a_copy) { killed_on_the_way(false); }
/* What close-on-exec closes is closed. */
SAN_CASE(close_on_exec_closes) {
  struct pair p = open_pair(V4);
  inherit(p.client), inherit(p.server);
  SYS(fcntl(p.client, F_SETFD, FD_CLOEXEC));
  SYS(fcntl(p.server, F_SETFD, FD_CLOEXEC));
  exercise(p.client, p.server);
  int input;
  pid_t pid = start_holder(&input);
  put(p.server, "last words");
  SYS(close(p.server));
  get(p.client, "last words");
  expect_eof(p.client);
  SYS(close(input));
  end_child(pid);
  SYS(close(p.client));
}

/* ---- the image's own descriptors ------------------------------------------------------------ */

/* Arguments: the connection and how it is closed. */
PART(closer) {
  int fd = atoi(bt_arguments[0]);
  const char *how_to = bt_arguments[1];
  if (strcmp(how_to, "close_range") == 0) SYS(close_range(3, ~0U, 0));
  else if (strcmp(how_to, "closefrom") == 0) closefrom(3);
  else
    for (int i = 3; i < 2000; i++) close(i);
  errno = 0;
  ERR(fcntl(fd, F_GETFD), EBADF);
  /* The numbers are the program's again. */
  for (int i = 3; i < 40; i++) EQ(SYS(open("/dev/null", O_RDONLY)), i);
  pause();
}
static void image_closes(const char *how_to) {
  struct pair p = open_pair(V4);
  inherit(p.client), inherit(p.server);
  SYS(fcntl(p.client, F_SETFD, FD_CLOEXEC));
  exercise(p.client, p.server);
  pid_t pid = start_child();
  if (pid == 0) {
    snprintf(number, sizeof number, "%d", p.server);
    execl("/proc/self/exe", "images", "@closer", number, how_to, (char *)NULL);
    _exit(99);
  }
  SYS(close(p.server));
  expect_eof(p.client);
  SYS(kill(pid, SIGTERM));
  int status;
  EQ(SYS(waitpid(pid, &status, 0)), pid);
  SYS(close(p.client));
}
MIXED_CASE(image_closes_a_range) { image_closes("close_range"); }
MIXED_CASE(image_closes_from) { image_closes("closefrom"); }
MIXED_CASE(image_closes_each) { image_closes("each"); }

/* The first descriptors that an image sees, and gets, are those it would have without us. */
PART(numbers) {
  int count = atoi(bt_arguments[0]);
  int seen = 0;
  DIR *folder = opendir("/proc/self/fd");
  CHECK(folder != NULL);
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    int fd = atoi(entry->d_name);
    if (entry->d_name[0] == '.' || fd == dirfd(folder)) continue;
    if (fd < 99) {
      EQ(fd, seen);
      seen++;
    } else {
      CHECK(getenv("LD_PRELOAD") != NULL);
      CHECK(SYS(fcntl(fd, F_GETFD)) & FD_CLOEXEC);
    }
  }
  EQ(seen, count);
  SYS(closedir(folder));
  EQ(SYS(open("/dev/null", O_RDONLY)), count);
}
MIXED_CASE(numbers_are_as_without_us) {
  struct pair p = open_pair(V4);
  inherit(p.client), inherit(p.server);
  exercise(p.client, p.server);
  /* Nothing but the standard ones and these, without gaps. */
  int high[] = {SYS(fcntl(p.client, F_DUPFD, 50)), SYS(fcntl(p.server, F_DUPFD, 50))};
  for (int fd = 3; fd < 50; fd++) close(fd);
  int first = SYS(dup2(high[0], 3)), second = SYS(dup2(high[1], 4));
  SYS(close_range(5, ~0U, 0));
  pid_t pid = start_child();
  if (pid == 0) {
    execl("/proc/self/exe", "images", "@numbers", "5", (char *)NULL);
    _exit(99);
  }
  end_child(pid);
  exercise(first, second);
}

/* ---- standard input and output: inetd's way -------------------------------------------------- */

static void converse(int fd) {
  get(fd, "hello 1\nerror: ENOENT\n");
  put(fd, "first line\nsecond ");
  put(fd, "line\n42 x\n");
  get(fd, "[first line][second line]<42>");
  send_pattern(fd, 0, 300000);
  SYS(shutdown(fd, SHUT_WR));
  recv_pattern(fd, 0, 300000);
  get(fd, "end");
  expect_eof(fd);
}
PART(stdio) {
  int value;
  char line[100], other[100], letter;
  printf("hello %d\n", 1);
  CHECK(fflush(stdout) == 0);
  errno = ENOENT;
  fprintf(stderr, "error: %s\n", strerrorname_np(errno));
  CHECK(fgets(line, sizeof line, stdin) && fgets(other, sizeof other, stdin));
  EQ(scanf("%d %c", &value, &letter), 2);
  EQ(getchar(), '\n');
  line[strcspn(line, "\n")] = other[strcspn(other, "\n")] = 0;
  printf("[%s][%s]<%d>", line, other, value);
  CHECK(fflush(stdout) == 0);
  static char bytes[50000];
  size_t n;
  while ((n = fread(bytes, 1, sizeof bytes, stdin)) > 0) EQ(fwrite(bytes, 1, n, stdout), n);
  CHECK(feof(stdin) && !ferror(stdin));
  EQ(fileno(stdin), 0);
  EQ(fileno(stdout), 1);
  EQ(fileno(stderr), 2);
  /* Comes out when the process ends. */
  fputs("end", stdout);
}
static void run_with_streams(int fd) {
  pid_t pid = start_child();
  if (pid == 0) {
    for (int to = 0; to <= 2; to++) dup2(fd, to);
    SYS(close(fd));
    execl("/proc/self/exe", "images", "@stdio", (char *)NULL);
    _exit(99);
  }
  SYS(close(fd));
  end_child(pid);
}
MIXED_CASE(standard_streams) { run_processes(V4, converse, run_with_streams); }
static void shell(int fd) {
  pid_t pid = start_child();
  if (pid == 0) {
    for (int to = 0; to <= 2; to++) dup2(fd, to);
    SYS(close(fd));
    execlp("sh", "sh", "-c", "read a b; echo \"$b $a\"; printf '%s|' $b $a; exec cat", (char *)NULL);
    _exit(99);
  }
  SYS(close(fd));
  end_child(pid);
}
static void shell_client(int fd) {
  put(fd, "one two\n");
  get(fd, "two one\ntwo|one|");
  send_pattern(fd, 0, 300000);
  recv_pattern(fd, 0, 300000);
  SYS(shutdown(fd, SHUT_WR));
  expect_eof(fd);
}
MIXED_CASE(standard_streams_of_a_shell) { run_processes(V4, shell_client, shell); }

/* ---- seccomp: a filter that allows what TCP needs, and kills for anything else ---------------- */

static void confine(void) {
#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      ALLOW(__NR_read), ALLOW(__NR_write), ALLOW(__NR_close), ALLOW(__NR_shutdown),
      ALLOW(__NR_exit_group), ALLOW(__NR_exit), ALLOW(__NR_getpid), ALLOW(__NR_rt_sigprocmask),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog program = {sizeof code / sizeof code[0], code};
  SYS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  SYS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}
static void confined_server(int fd) {
  begin_server(fd);
  pid_t pid = start_child();
  if (pid == 0) {
    confine();
    static char bytes[65536];
    ssize_t n;
    while ((n = SYS(read(fd, bytes, sizeof bytes))) > 0)
      for (ssize_t done = 0; done < n;) done += SYS(write(fd, bytes + done, (size_t)(n - done)));
    _exit(0);
  }
  SYS(close(fd));
  end_child(pid);
}
/* Mixed: it goes back to TCP before. */
MIXED_CASE(a_seccomp_filter) { run_processes(V4, client, confined_server); }

/* ---- listeners ------------------------------------------------------------------------------ */

PART(acceptor) {
  int listener = atoi(bt_arguments[0]);
  for (int i = 0; i < 4; i++) {
    int fd = accept_warm(listener);
    get(fd, "ping"), put(fd, "pong");
    recv_pattern(fd, 0, TOTAL);
    on_san(fd);
    SYS(close(fd));
  }
}
static void call(const union address *target) {
  int fd = dial_warm(target);
  put(fd, "ping"), get(fd, "pong");
  send_pattern(fd, 0, TOTAL);
  expect_eof(fd);
  on_san(fd);
  SYS(close(fd));
}
static void listener_goes_on(enum family family, bool keeps) {
  union address target;
  int listener = listen_on(family, &target);
  inherit(listener);
  pid_t pid = start_child();
  if (pid == 0) {
    snprintf(number, sizeof number, "%d", listener);
    execl("/proc/self/exe", "images", "@acceptor", number, (char *)NULL);
    _exit(99);
  }
  if (!keeps) SYS(close(listener));
  for (int i = 0; i < 4; i++) call(&target);
  end_child(pid);
  if (keeps) {
    pid = start_child();
    if (pid == 0) {
      call(&target);
      _exit(0);
    }
    int fd = accept_warm(listener);
    get(fd, "ping"), put(fd, "pong");
    recv_pattern(fd, 0, TOTAL);
    on_san(fd);
    SYS(close(fd));
    end_child(pid);
    SYS(close(listener));
  }
}
SAN_CASE(a_listener_goes_on) { listener_goes_on(V4, false); }
SAN_CASE(a_listener_goes_on_in_both) { listener_goes_on(V4, true); }
SAN_CASE(a_wildcard_listener_goes_on) { listener_goes_on(DUAL, false); }

/* ---- an image that does not want the SAN ---------------------------------------------------- */

static char *off[] = {"PATH=/usr/bin:/bin", NULL, "SANSHIM=off", NULL};

PART(echo_anywhere) { echo_all(atoi(bt_arguments[0])); }
static void server_off(int fd) {
  begin_server(fd);
  inherit(fd);
  pid_t pid = start_child();
  if (pid == 0) {
    char preload[PATH_MAX + 20];
    const char *library = getenv("LD_PRELOAD");
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", library ? library : "");
    off[1] = preload;
    snprintf(number, sizeof number, "%d", fd);
    char *argv[] = {"images", "@echo_anywhere", number, NULL};
    execve("/proc/self/exe", argv, off);
    _exit(99);
  }
  SYS(close(fd));
  end_child(pid);
}
MIXED_CASE(an_image_that_is_switched_off) { run_processes(V4, client, server_off); }

/* A rule keeps the image on TCP: it may do anything, past the library too. */
PART(echo_past_the_library) {
  int fd = atoi(bt_arguments[0]);
  static char bytes[65536];
  long n;
  while ((n = SYS(past_libc(SYS_read, fd, (long)bytes, sizeof bytes, 0, 0))) > 0)
    for (long done = 0; done < n;) done += SYS(past_libc(SYS_write, fd, (long)bytes + done, n - done, 0, 0));
}
static void server_with_rules(int fd) {
  begin_server(fd);
  inherit(fd);
  FILE *rules = fopen("rules.toml", "w");
  fprintf(rules, "[[rule]]\nprogram = \"forbidden\"\nsan = false\n");
  EQ(fclose(rules), 0);
  SYS(setenv("SANSHIM_CONFIG", "rules.toml", 1));
  pid_t pid = start_child();
  if (pid == 0) {
    snprintf(number, sizeof number, "%d", fd);
    execl("/proc/self/exe", "forbidden", "@echo_past_the_library", number, (char *)NULL);
    _exit(99);
  }
  SYS(close(fd));
  end_child(pid);
}
MIXED_CASE(an_image_that_a_rule_keeps_on_tcp) { run_processes(V4, client, server_with_rules); }
