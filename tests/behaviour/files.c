/* Files and pipes next to sockets: sendfile(), splice(), tee(), and stdio on a socket. */
#include "bt.h"

#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

/* A file of that many bytes of the pattern. */
static int pattern_file(size_t size) {
  int fd = SYS(memfd_create("pattern", MFD_CLOEXEC));
  for (size_t at = 0; at < size;) {
    size_t n = size - at < PATTERN_SPAN ? size - at : PATTERN_SPAN;
    at += SYS(write(fd, pattern(at), n));
  }
  SYS(lseek(fd, 0, SEEK_SET));
  return fd;
}

enum { FILE_SIZE = 5000000 };
static void sendfile_end(int fd) {
  int file = pattern_file(FILE_SIZE);
  off_t offset = 1000;
  while (offset < FILE_SIZE) CHECK(SYS(sendfile(fd, file, &offset, FILE_SIZE - offset)) > 0);
  EQ(lseek(file, 0, SEEK_CUR), 0); /* with an offset the file's own does not move */
  EQ(sendfile(fd, file, &offset, 100), 0);
  EQ(sendfile(fd, file, NULL, 1000), 1000);
  EQ(lseek(file, 0, SEEK_CUR), 1000);
  SYS(close(fd));
}
static void sendfile_reader(int fd) {
  recv_pattern(fd, 1000, FILE_SIZE - 1000);
  recv_pattern(fd, 0, 1000);
  expect_eof(fd);
}
ENDS(sendfile_whole, sendfile_end, sendfile_reader)

/* As a web server does it: header, file, non-blocking, one event after the other. */
static void serving_end(int fd) {
  int file = pattern_file(FILE_SIZE);
  off_t offset = 0;
  set_nonblocking(fd, true);
  set_option(fd, IPPROTO_TCP, TCP_CORK, 1);
  put(fd, "header");
  while (offset < FILE_SIZE) {
    ssize_t n = sendfile(fd, file, &offset, 300000);
    if (n < 0) {
      EQ(errno, EAGAIN);
      wait_for(fd, POLLOUT);
    }
  }
  set_option(fd, IPPROTO_TCP, TCP_CORK, 0);
  expect_eof(fd);
}
static void fetching_end(int fd) {
  get(fd, "header");
  recv_pattern(fd, 0, FILE_SIZE);
  SYS(close(fd));
}
ENDS(sendfile_nonblocking, serving_end, fetching_end)

/* Answers of more than a segment each, from the first one on. */
enum { ANSWER = 200000, ANSWERS = 200 };
static void answer_by_vectors(int fd) {
  for (int i = 0; i < ANSWERS; i++) {
    wait_for(fd, POLLIN), get(fd, "request");
    for (size_t at = 0; at < ANSWER;) {
      size_t half = (ANSWER - at) / 2;
      struct iovec pieces[] = {{(void *)pattern(at), half}, {(void *)pattern(at + half), ANSWER - at - half}};
      ssize_t n = writev(fd, pieces, 2);
      if (n < 0) wait_for(fd, POLLOUT);
      else at += n;
    }
  }
}
static void answer_with_a_file(int fd) {
  int file = pattern_file(ANSWER - 4);
  for (int i = 0; i < ANSWERS; i++) {
    off_t offset = 0;
    wait_for(fd, POLLIN), get(fd, "request");
    set_option(fd, IPPROTO_TCP, TCP_CORK, 1);
    EQ(send(fd, pattern(0), 4, MSG_MORE), 4);
    while (offset < ANSWER - 4)
      if (sendfile(fd, file, &offset, ANSWER) < 0) wait_for(fd, POLLOUT);
    set_option(fd, IPPROTO_TCP, TCP_CORK, 0);
  }
  SYS(close(file));
}
static void *answers_by_vectors(void *fd) { return answer_by_vectors(*(int *)fd), NULL; }
static void *answers_with_files(void *fd) { return answer_with_a_file(*(int *)fd), NULL; }
static void ask_for_answers(void *(*answers)(void *fd), size_t header) {
  union address target;
  int listener = listen_on(V4, &target), client = dial(&target), server = SYS(accept(listener, NULL, NULL));
  set_nonblocking(server, true);
  /* Otherwise a header that goes ahead makes the rest wait for an acknowledgement. */
  set_option(server, IPPROTO_TCP, TCP_NODELAY, 1);
  /* So it has sent something before the library looks at it for the first time, as on a slow host. */
  EQ(past_libc(SYS_write, server, (long)"greeting", 8, 0, 0), 8);
  get(client, "greeting");
  pthread_t thread = start_thread(answers, &server);
  for (int i = 0; i < ANSWERS; i++) {
    put(client, "request");
    recv_pattern(client, 0, header);
    recv_pattern(client, 0, ANSWER - header);
    /* Between hosts the ends meet in the background. */
    if (is_between_hosts()) usleep(1000);
  }
  end_thread(thread);
  SYS(close(client)), SYS(close(server)), SYS(close(listener));
}
SAN_CASE(answers_by_vectors_from_the_first_on) { ask_for_answers(answers_by_vectors, 0); }
SAN_CASE(answers_with_files_from_the_first_on) { ask_for_answers(answers_with_files, 4); }

SAN_CASE(sendfile_errors) {
  struct pair p = open_pair(V4);
  int file = pattern_file(100);
  off_t offset = 0;
  ERR(sendfile(-1, file, NULL, 10), EBADF);
  ERR(sendfile(p.client, -1, NULL, 10), EBADF);
  ERR(sendfile(p.client, file, bad_pointer(), 10), EFAULT);
  EQ(sendfile(p.client, file, &offset, 0), 0);
  int pipes[2];
  SYS(pipe(pipes));
  SYS(shutdown(p.client, SHUT_WR));
  signal(SIGPIPE, SIG_IGN);
  ERR(sendfile(p.client, file, NULL, 10), EPIPE);
  EQ(lseek(file, 0, SEEK_CUR), 0); /* nothing taken */
  put(p.server, "x"), get(p.client, "x");
}

/* Whether the pipe's end waits is the pipe's matter, whether the connection's does is its own. */
SAN_CASE(splice_with_a_pipe_that_does_not_wait) {
  struct pair p = open_pair(V4);
  int full[2], empty[2];
  SYS(pipe2(full, O_NONBLOCK)), SYS(pipe2(empty, O_NONBLOCK));
  while (write(full[1], pattern(0), 4096) > 0);
  ERR(splice(empty[0], NULL, p.client, NULL, 1, 0), EAGAIN);
  EQ(splice(empty[0], NULL, p.client, NULL, 0, 0), 0);
  EQ(splice(p.server, NULL, empty[1], NULL, 0, 0), 0);
  put(p.client, "x");
  ERR(splice(p.server, NULL, full[1], NULL, 1, 0), EAGAIN);
  get(p.server, "x");
  exercise(p.client, p.server);
}

/* Out of a connection it goes into a pipe alone. */
SAN_CASE(sendfile_out_of_a_connection) {
  struct pair p = open_pair(V4);
  int pipes[2], file = pattern_file(10);
  off_t offset = 0;
  SYS(pipe(pipes));
  put(p.client, "hello");
  ERR(sendfile(file, p.server, NULL, 5), EINVAL);
  ERR(sendfile(pipes[1], p.server, &offset, 5), ESPIPE);
  EQ(sendfile(pipes[1], p.server, NULL, 100), 5);
  char bytes[8];
  EQ(read(pipes[0], bytes, sizeof bytes), 5);
  CHECK(memcmp(bytes, "hello", 5) == 0);
  exercise(p.client, p.server);
}

/* ---- splice --------------------------------------------------------------------------------- */

/* A proxy that moves bytes from socket to pipe to socket. */
static void splice_all(int from, int to) {
  int pipes[2];
  SYS(pipe(pipes));
  for (;;) {
    ssize_t n = SYS(splice(from, NULL, pipes[1], NULL, 65536, SPLICE_F_MOVE));
    if (n == 0) break;
    while (n > 0) n -= SYS(splice(pipes[0], NULL, to, NULL, n, SPLICE_F_MOVE | SPLICE_F_MORE));
  }
  SYS(shutdown(to, SHUT_WR));
  SYS(close(pipes[0])), SYS(close(pipes[1]));
}
static void *splice_thread(void *arg) {
  struct pair *way = arg;
  splice_all(way->client, way->server);
  return NULL;
}
SAN_CASE(splice_proxy) {
  struct pair in = open_pair(V4), out = open_pair(V6), way = {in.server, out.client};
  pthread_t thread = start_thread(splice_thread, &way);
  pid_t child = start_child();
  if (child == 0) {
    SYS(close(in.server)), SYS(close(out.client)), SYS(close(out.server));
    send_pattern(in.client, 0, 3000000);
    _exit(0);
  }
  SYS(close(in.client));
  recv_pattern(out.server, 0, 3000000);
  expect_eof(out.server);
  end_thread(thread);
  end_child(child);
}

SAN_CASE(splice_single_steps) {
  struct pair p = open_pair(V4);
  int pipes[2];
  char buffer[16];
  SYS(pipe(pipes));
  set_nonblocking(p.server, true);
  ERR(splice(p.server, NULL, pipes[1], NULL, 100, 0), EAGAIN);
  set_nonblocking(p.server, false);
  put(p.client, "abcdef");
  wait_for(p.server, POLLIN);
  EQ(splice(p.server, NULL, pipes[1], NULL, 4, 0), 4);
  EQ(read(pipes[0], buffer, 16), 4);
  CHECK(memcmp(buffer, "abcd", 4) == 0);
  get(p.server, "ef");
  SYS(write(pipes[1], "to socket", 9));
  EQ(splice(pipes[0], NULL, p.server, NULL, 100, 0), 9);
  get(p.client, "to socket");
  loff_t offset = 0;
  ERR(splice(p.server, &offset, pipes[1], NULL, 4, 0), EINVAL);
  ERR(splice(p.server, NULL, p.client, NULL, 4, 0), EINVAL);
  SYS(shutdown(p.client, SHUT_WR));
  wait_for(p.server, POLLRDHUP);
  EQ(splice(p.server, NULL, pipes[1], NULL, 100, 0), 0);
}

/* From memory by vmsplice() through a pipe. */
SAN_CASE(vmsplice_to_a_socket) {
  struct pair p = open_pair(V4);
  int pipes[2];
  SYS(pipe(pipes));
  struct iovec iov = {(void *)pattern(0), 20000};
  EQ(vmsplice(pipes[1], &iov, 1, 0), 20000);
  for (int left = 20000; left > 0;) left -= SYS(splice(pipes[0], NULL, p.client, NULL, left, 0));
  recv_pattern(p.server, 0, 20000);
}

SAN_CASE(copy_file_range_refuses) {
  struct pair p = open_pair(V4);
  int file = pattern_file(100);
  ERR(copy_file_range(file, NULL, p.client, NULL, 10, 0), EINVAL);
  expect_nothing(p.server);
  exercise(p.client, p.server);
}

/* ---- stdio ---------------------------------------------------------------------------------- */

static FILE *stream(int fd, const char *mode) {
  FILE *file = fdopen(fd, mode);
  if (!file) FAIL("fdopen: %s", strerrorname_np(errno));
  return file;
}

SAN_CASE(dprintf_on_a_socket) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  EQ(dprintf(p.client, "%s %d\n", "line", 7), 7);
  get(p.server, "line 7\n");
  exercise(p.client, p.server);
}

MIXED_CASE(stdio_writes) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  FILE *out = stream(p.client, "w");
  for (int i = 0; i < 5000; i++) CHECK(fprintf(out, "%05d\n", i) == 6);
  EQ(fflush(out), 0);
  char want[8];
  for (int i = 0; i < 5000; i++) {
    snprintf(want, sizeof want, "%05d\n", i);
    get(p.server, want);
  }
  EQ(fclose(out), 0);
  expect_eof(p.server);
}

MIXED_CASE(stdio_reads) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  FILE *in = stream(p.server, "r");
  char line[64];
  put(p.client, "first\nsecond\n");
  CHECK(fgets(line, sizeof line, in) && strcmp(line, "first\n") == 0);
  CHECK(fgets(line, sizeof line, in) && strcmp(line, "second\n") == 0);
  put(p.client, "third\n");
  SYS(shutdown(p.client, SHUT_WR));
  CHECK(fgets(line, sizeof line, in) && strcmp(line, "third\n") == 0);
  CHECK(fgets(line, sizeof line, in) == NULL && feof(in));
  EQ(fclose(in), 0);
}

/* A line protocol over one stream for each direction. */
static void stdio_client(int fd) {
  FILE *in = stream(dup(fd), "r"), *out = stream(fd, "w");
  char line[64];
  for (int i = 0; i < 100; i++) {
    fprintf(out, "request %d\n", i);
    EQ(fflush(out), 0);
    int answer = -1;
    CHECK(fgets(line, sizeof line, in) && sscanf(line, "answer %d", &answer) == 1);
    EQ(answer, i);
  }
  fclose(in), fclose(out);
}
static void stdio_server(int fd) {
  FILE *in = stream(dup(fd), "r"), *out = stream(fd, "w");
  char line[64];
  int n;
  while (fgets(line, sizeof line, in)) {
    CHECK(sscanf(line, "request %d", &n) == 1);
    fprintf(out, "answer %d\n", n);
    EQ(fflush(out), 0);
  }
  CHECK(feof(in));
  fclose(in), fclose(out);
}
CARRIED_ENDS(stdio_conversation, stdio_client, stdio_server, BT_MIXED)

/* Streams that are older than the connection. */
static void early_streams(bool nonblocking) {
  union address target;
  int listener = listen_on(V4, &target), fd = SYS(socket(AF_INET, SOCK_STREAM, 0));
  FILE *in = stream(SYS(dup(fd)), "r"), *out = stream(fd, "w");
  if (nonblocking) set_nonblocking(fd, true);
  if (connect(fd, &target.any, address_len(&target)) < 0) EQ(errno, nonblocking ? EINPROGRESS : 0);
  int server = SYS(accept(listener, NULL, NULL));
  if (nonblocking) wait_for(fd, POLLOUT), set_nonblocking(fd, false);
  char line[64];
  for (int i = 0; i < 100; i++) {
    CHECK(fprintf(out, "request %d\n", i) > 0);
    EQ(fflush(out), 0);
    snprintf(line, sizeof line, "request %d\n", i);
    get(server, line), put(server, line);
    CHECK(fgets(line, sizeof line, in));
    int answer = -1;
    EQ(sscanf(line, "request %d", &answer), 1);
    EQ(answer, i);
  }
  EQ(fileno(out), fd);
  EQ(fclose(out), 0);
  expect_nothing(server); /* the other stream has it */
  EQ(fclose(in), 0);
  expect_eof(server);
  SYS(close(server)), SYS(close(listener));
}
CASE(stdio_made_before_connect) { early_streams(false); }
CASE(stdio_made_before_a_nonblocking_connect) { early_streams(true); }

/* Streams made in the middle of a transfer both ways, dprintf among what they write. */
enum { EARLY = 100000, TRANSFER = 2000000, STEP = 7001 };
static void *stdio_sender(void *arg) {
  int fd = *(int *)arg;
  FILE *out = stream(SYS(dup(fd)), "w");
  uint64_t at = EARLY;
  while (at < TRANSFER) {
    size_t n = TRANSFER - at < STEP ? TRANSFER - at : STEP;
    EQ(fwrite(pattern(at), 1, n, out), n);
    at += n;
  }
  EQ(fflush(out), 0);
  EQ(dprintf(fd, "%s %d", "end", 7), 5);
  EQ(fclose(out), 0);
  SYS(shutdown(fd, SHUT_WR));
  return NULL;
}
static void stdio_in_the_middle(int fd) {
  send_pattern(fd, 0, EARLY);
  recv_pattern(fd, 0, 1000);
  pthread_t sender = start_thread(stdio_sender, &fd);
  FILE *in = stream(SYS(dup(fd)), "r");
  static uint8_t bytes[STEP];
  uint64_t at = 1000;
  for (size_t n; (n = fread(bytes, 1, sizeof bytes, in)) > 0; at += n) check_pattern(bytes, at, n);
  CHECK(feof(in) && !ferror(in));
  EQ(at, TRANSFER);
  EQ(fclose(in), 0);
  end_thread(sender);
  SYS(close(fd));
}
static void *pattern_sender(void *fd) {
  send_pattern(*(int *)fd, 0, TRANSFER);
  SYS(shutdown(*(int *)fd, SHUT_WR));
  return NULL;
}
static void beside_stdio(int fd) {
  pthread_t sender = start_thread(pattern_sender, &fd);
  recv_pattern(fd, 0, TRANSFER);
  get(fd, "end 7");
  expect_eof(fd);
  end_thread(sender);
  SYS(close(fd));
}
CARRIED_ENDS(stdio_in_flight, stdio_in_the_middle, beside_stdio, BT_MIXED)
