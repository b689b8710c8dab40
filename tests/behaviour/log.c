/* A program whose library logs to standard error, whatever that is: what it sends and gets is what it would be without, it
 * gets no signal, and waits for nobody. Natively there is no log. */
#include "bt.h"

#include <pty.h>
#include <sys/syscall.h>
#include <termios.h>

static bool is_preloaded(void) { return getenv("LD_PRELOAD") != NULL; }

/* Starts a part with this standard error; it logs to the file, or to that. */
static pid_t start_logging(const char *part, int standard_error, const char *file) {
  setenv("SANSHIM_LOG", "info", 1);
  if (file) setenv("SANSHIM_LOG_FILE", file, 1);
  else unsetenv("SANSHIM_LOG_FILE");
  pid_t pid = start_child();
  if (pid == 0) {
    if (standard_error < 0) SYS(close(2));
    else if (standard_error != 2) SYS(dup2(standard_error, 2));
    execl("/proc/self/exe", "log", part, (char *)NULL);
    _exit(3);
  }
  return pid;
}

/* What a part says of itself: standard error may be anything. */
#define SURE(condition)                                                       \
  do {                                                                        \
    if (!(condition)) _exit(10 + __LINE__ % 100);                             \
  } while (0)

/* Exchanges bytes over a connection that no other may be among. */
static void talk(struct pair p) {
  for (int i = 0; i < 200; i++) {
    char out[100], in[100];
    memset(out, i, sizeof out);
    for (int back = 0; back < 2; back++) {
      SURE(send(back ? p.server : p.client, out, sizeof out, 0) == sizeof out);
      SURE(recv(back ? p.client : p.server, in, sizeof in, MSG_WAITALL) == sizeof in);
      SURE(memcmp(in, out, sizeof in) == 0);
    }
  }
}
/* Both ends in numbers as low as there are. */
static struct pair connect_low(void) {
  union address target;
  int listener = listen_on(V4, &target), high = fcntl(listener, F_DUPFD, 100);
  close(listener);
  struct pair p = {dial(&target), accept(high, NULL, NULL)};
  close(high);
  return p;
}
static void end_quietly(struct pair p) {
  close(p.client), close(p.server);
  sigset_t pending;
  SURE(sigpending(&pending) == 0 && !sigismember(&pending, SIGPIPE));
  _exit(0);
}

PART(talks) {
  struct pair p = connect_low();
  talk(p);
  end_quietly(p);
}
/* The same where the signal would only wait. */
PART(talks_with_signals_held_back) {
  sigset_t pipe;
  sigemptyset(&pipe), sigaddset(&pipe, SIGPIPE);
  SURE(sigprocmask(SIG_BLOCK, &pipe, NULL) == 0);
  struct pair p = connect_low();
  talk(p);
  end_quietly(p);
}
PART(talks_on_2) {
  close(2);
  struct pair p = connect_low();
  SURE(p.client == 2 || p.server == 2);
  talk(p);
  end_quietly(p);
}

static int null(void) { return SYS(open("/dev/null", O_RDWR | O_CLOEXEC)); }
static void fill_up(int fd) {
  static char bytes[4096];
  int flags = SYS(fcntl(fd, F_GETFL));
  SYS(fcntl(fd, F_SETFL, flags | O_NONBLOCK));
  while (write(fd, bytes, sizeof bytes) > 0);
  while (write(fd, bytes, 1) > 0);
  EQ(errno, EAGAIN);
  SYS(fcntl(fd, F_SETFL, flags));
}

/* ---- pipes ----------------------------------------------------------------------------------------- */

CASE(a_pipe_that_nobody_reads) {
  int ends[2];
  SYS(pipe2(ends, O_CLOEXEC)), SYS(close(ends[0]));
  end_child(start_logging("@talks", ends[1], NULL));
  end_child(start_logging("@talks_with_signals_held_back", ends[1], NULL));
}
CASE(a_pipe_that_is_full) {
  int ends[2];
  SYS(pipe2(ends, O_CLOEXEC));
  fill_up(ends[1]);
  end_child(start_logging("@talks", ends[1], NULL));
}
/* It fills while the program talks, and is left with less than a line. */
CASE(a_pipe_that_fills) {
  int ends[2];
  SYS(pipe2(ends, O_CLOEXEC));
  SYS(fcntl(ends[1], F_SETPIPE_SZ, 4096));
  for (int left = 1; left < 300; left += 60) {
    static char bytes[4096];
    EQ(write(ends[1], bytes, sizeof bytes - left), sizeof bytes - left);
    end_child(start_logging("@talks", ends[1], NULL));
    set_nonblocking(ends[0], true);
    while (read(ends[0], bytes, sizeof bytes) > 0);
  }
}
CASE(a_pipe_that_is_read_gets_the_log) {
  int ends[2];
  char log[4096];
  SYS(pipe2(ends, O_CLOEXEC));
  end_child(start_logging("@talks", ends[1], NULL));
  SYS(close(ends[1]));
  ssize_t n = SYS(read(ends[0], log, sizeof log));
  if (is_preloaded()) CHECK(memmem(log, n, "sanshim[", 8));
  else EQ(n, 0);
}

/* ---- what is no place for words ----------------------------------------------------------------------- */

CASE(standard_error_that_is_closed) { end_child(start_logging("@talks", -1, NULL)); }

CASE(a_connection_where_standard_error_was) {
  int ends[2];
  SYS(pipe2(ends, O_CLOEXEC));
  end_child(start_logging("@talks_on_2", ends[1], NULL));
  end_child(start_logging("@talks_on_2", null(), NULL));
  int file = SYS(open("words", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  end_child(start_logging("@talks_on_2", file, NULL));
}

/* As a super server starts it: the connection is all three. */
PART(answers) {
  char line[4];
  SURE(recv(0, line, 4, MSG_WAITALL) == 4);
  struct pair p = connect_low();
  talk(p);
  SURE(send(2, "done", 4, 0) == 4);
  _exit(0);
}
static void serve_as_a_super_server(int kind) {
  union address target;
  int listener = listen_on(V4, &target), client, server;
  if (kind == AF_INET) {
    client = dial(&target), server = SYS(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
  } else {
    int ends[2];
    SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
    client = ends[0], server = ends[1];
  }
  int stdin_before = SYS(fcntl(0, F_DUPFD_CLOEXEC, 50));
  SYS(dup2(server, 0));
  pid_t pid = start_logging("@answers", server, NULL);
  SYS(dup2(stdin_before, 0));
  SYS(close(server));
  put(client, "line");
  get(client, "done");
  expect_eof(client);
  end_child(pid);
}
CASE(a_connection_that_is_all_streams) { serve_as_a_super_server(AF_INET); }
CASE(a_unix_connection_that_is_all_streams) { serve_as_a_super_server(AF_UNIX); }

CASE(a_socket_to_who_keeps_the_log) {
  int ends[2];
  char log[4096];
  SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
  end_child(start_logging("@talks", ends[1], NULL));
  ssize_t n = recv(ends[0], log, sizeof log, MSG_DONTWAIT);
  if (is_preloaded()) CHECK(n > 0 && memmem(log, n, "sanshim[", 8));
  else EQ(n, -1);
  fill_up(ends[1]);
  end_child(start_logging("@talks", ends[1], NULL));
  SYS(close(ends[0]));
  end_child(start_logging("@talks", ends[1], NULL));
}

/* ---- terminals ------------------------------------------------------------------------------------------ */

struct terminal {
  int master, slave;
};
static struct terminal open_terminal(void) {
  struct terminal t;
  SYS(openpty(&t.master, &t.slave, NULL, NULL, NULL));
  SYS(fcntl(t.master, F_SETFD, FD_CLOEXEC)), SYS(fcntl(t.slave, F_SETFD, FD_CLOEXEC));
  return t;
}
CASE(a_terminal_gets_the_log) {
  struct terminal t = open_terminal();
  char log[4096];
  end_child(start_logging("@talks", t.slave, NULL));
  set_nonblocking(t.master, true);
  ssize_t n = read(t.master, log, sizeof log);
  if (is_preloaded()) CHECK(n > 0 && memmem(log, n, "sanshim[", 8));
  else EQ(n, -1);
}
CASE(a_terminal_that_is_full) {
  struct terminal t = open_terminal();
  fill_up(t.slave);
  end_child(start_logging("@talks", t.slave, NULL));
  /* And one with less room than a line. */
  char some[256];
  for (int i = 0; i < 8; i++) {
    SYS(read(t.master, some, 40));
    end_child(start_logging("@talks", t.slave, NULL));
  }
}
CASE(a_terminal_that_has_stopped) {
  struct terminal t = open_terminal();
  SYS(tcflow(t.slave, TCOOFF));
  end_child(start_logging("@talks", t.slave, NULL));
}
CASE(a_terminal_that_has_hung_up) {
  struct terminal t = open_terminal();
  SYS(close(t.master));
  end_child(start_logging("@talks", t.slave, NULL));
}
/* A process in the background must not write, as the terminal is set. */
CASE(a_terminal_for_the_foreground) {
  pid_t leader = start_child();
  if (leader == 0) {
    struct terminal t = open_terminal();
    struct termios settings;
    CHECK(setsid() > 0);
    SYS(ioctl(t.slave, TIOCSCTTY, 0));
    SYS(tcgetattr(t.slave, &settings));
    settings.c_lflag |= TOSTOP;
    SYS(tcsetattr(t.slave, TCSANOW, &settings));
    pid_t background = start_child();
    if (background == 0) {
      SYS(setpgid(0, 0));
      SYS(dup2(t.slave, 2));
      execl("/proc/self/exe", "log", "@talks", (char *)NULL);
      _exit(3);
    }
    int status;
    EQ(waitpid(background, &status, WUNTRACED), background);
    _exit(status != 0);
  }
  end_child(leader);
}
/* Who reads the terminal sees its end when the last program has let it go. */
enum { TELL = 60, HEAR };
PART(leaves_the_terminal) {
  char byte;
  struct pair p = connect_low();
  talk(p);
  SURE(dup2(open("/dev/null", O_RDWR), 2) == 2);
  SURE(write(TELL, "x", 1) == 1 && read(HEAR, &byte, 1) == 1);
  talk(p);
  end_quietly(p);
}
CASE(a_terminal_that_is_left) {
  struct terminal t = open_terminal();
  int left[2], seen[2];
  char bytes[4096];
  SYS(pipe2(left, O_CLOEXEC)), SYS(pipe2(seen, O_CLOEXEC));
  EQ(dup2(left[1], TELL), TELL);
  EQ(dup2(seen[0], HEAR), HEAR);
  pid_t pid = start_logging("@leaves_the_terminal", t.slave, NULL);
  SYS(close(t.slave));
  EQ(read(left[0], bytes, 1), 1);
  ssize_t n;
  while ((n = read(t.master, bytes, sizeof bytes)) > 0);
  EQ(n, -1);
  EQ(errno, EIO);
  EQ(write(seen[1], "x", 1), 1);
  end_child(pid);
}

/* ---- a file of the log's own -------------------------------------------------------------------------- */

CASE(a_named_pipe_that_nobody_reads) {
  SYS(mkfifo("fifo", 0600));
  end_child(start_logging("@talks", null(), "fifo"));
  int reader = SYS(open("fifo", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  end_child(start_logging("@talks", null(), "fifo"));
  fill_up(SYS(open("fifo", O_RDWR | O_CLOEXEC)));
  end_child(start_logging("@talks", null(), "fifo"));
  SYS(close(reader));
}
/* The reader goes when the program has the pipe open. */
PART(talks_when_the_reader_has_gone) {
  char byte;
  SURE(write(TELL, "x", 1) == 1 && read(HEAR, &byte, 1) == 1);
  struct pair p = connect_low();
  talk(p);
  end_quietly(p);
}
CASE(a_named_pipe_whose_reader_goes) {
  int left[2], seen[2];
  char byte;
  SYS(pipe2(left, O_CLOEXEC)), SYS(pipe2(seen, O_CLOEXEC));
  EQ(dup2(left[1], TELL), TELL);
  EQ(dup2(seen[0], HEAR), HEAR);
  SYS(mkfifo("fifo", 0600));
  int reader = SYS(open("fifo", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  pid_t pid = start_logging("@talks_when_the_reader_has_gone", null(), "fifo");
  EQ(read(left[0], &byte, 1), 1);
  SYS(close(reader));
  EQ(write(seen[1], "x", 1), 1);
  end_child(pid);
}

/* The number of the log's descriptor is another file's, in a way that no hook sees. */
static int number_of(const char *path) {
  struct stat wanted, found;
  if (stat(path, &wanted) < 0) return -1;
  for (int fd = 3; fd < 2000; fd++)
    if (fstat(fd, &found) == 0 && found.st_ino == wanted.st_ino && found.st_dev == wanted.st_dev) return fd;
  return -1;
}
PART(talks_after_it_took_the_number) {
  int number = number_of("own.log"), data = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (number < 0) number = 950;
  SURE(past_libc(SYS_close, number, 0, 0, 0, 0) <= 0);
  SURE(past_libc(SYS_dup2, data, number, 0, 0, 0) == number);
  struct pair p = connect_low();
  talk(p);
  struct stat status;
  SURE(fstat(data, &status) == 0 && status.st_size == 0);
  end_quietly(p);
}
CASE(another_file_at_the_number_of_the_log) {
  end_child(start_logging("@talks_after_it_took_the_number", null(), "own.log"));
}

/* A child that borrows its parent's memory has another standard error than it. */
PART(starts_a_program_and_talks) {
  for (int i = 0; i < 2; i++) {
    talk(connect_low());
    pid_t pid = vfork();
    if (pid == 0) {
      close(2);
      dup2(0, 2);
      execl("/bin/true", "true", (char *)NULL);
      _exit(3);
    }
    int status;
    SURE(waitpid(pid, &status, 0) == pid && status == 0);
  }
  _exit(0);
}
CASE(a_child_with_another_standard_error) {
  struct terminal t = open_terminal();
  char log[65536];
  size_t had = 0;
  pid_t pid = start_logging("@starts_a_program_and_talks", t.slave, NULL);
  set_nonblocking(t.master, true);
  end_child(pid);
  for (ssize_t n; (n = read(t.master, log + had, sizeof log - 1 - had)) > 0;) had += n;
  log[had] = 0;
  int entered = 0;
  for (char *at = log; (at = strstr(at, "on-san")); at++) entered++;
  EQ(entered, is_preloaded() ? 4 : 0);
}
