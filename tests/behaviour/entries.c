/* Entries by their other names: those that libc exports for itself and old programs, those with a size in the
 * name, and the same operations through syscall(). */
#include "bt.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

/* What a program linked to that name calls; its type is the plain one's. */
#define ENTRY(name, like) ((__typeof__(&like))entry(name))
static void *entry(const char *name) {
  void *found = dlsym(RTLD_DEFAULT, name);
  if (!found) FAIL("no %s", name);
  return found;
}

SAN_CASE(underscored) {
  union address target;
  int listener = listen_on(V4, &target), client = SYS(socket(AF_INET, SOCK_STREAM, 0));
  EQ(ENTRY("__connect", connect)(client, &target.any, sizeof target.v4), 0);
  int server = accept_warm_both(listener, client);
  exercise(client, server);
  char got[4];
  EQ(ENTRY("__send", send)(client, "abc", 3, 0), 3);
  struct pollfd one = {server, POLLIN, 0};
  EQ(ENTRY("__poll", poll)(&one, 1, HANG_MS), 1);
  fd_set in;
  FD_ZERO(&in);
  FD_SET(server, &in);
  struct timeval much = {HANG_MS / 1000, 0};
  EQ(ENTRY("__select", select)(server + 1, &in, NULL, NULL, &much), 1);
  EQ(ENTRY("__read", read)(server, got, 3), 3);
  EQ(memcmp(got, "abc", 3), 0);
  EQ(ENTRY("__write", write)(server, "de", 2), 2);
  get(client, "de");
  EQ(ENTRY("__fcntl", fcntl)(client, F_SETFL, O_NONBLOCK), 0);
  ERR(read(client, got, 1), EAGAIN);
  EQ(ENTRY("fcntl64", fcntl)(client, F_SETFL, 0), 0);
  EQ(ENTRY("__dup2", dup2)(client, 70), 70);
  EQ(ENTRY("__close", close)(client), 0);
  exercise(70, server);
  EQ(ENTRY("__close", close)(70), 0);
  expect_eof(server);
}

/* stdio, as programs of the last century were linked. */
MIXED_CASE(streams_by_old_names) {
  struct pair p = open_pair(V4);
  FILE *stream = ENTRY("_IO_fdopen", fdopen)(p.server, "w");
  CHECK(stream && fputs("by stream", stream) >= 0 && ENTRY("_IO_fclose", fclose)(stream) == 0);
  get(p.client, "by stream");
  expect_eof(p.client);
  char line[16] = "";
  FILE *command = ENTRY("_IO_popen", popen)("echo said", "r");
  CHECK(command && fgets(line, sizeof line, command) && pclose(command) == 0);
  CHECK(strcmp(line, "said\n") == 0);
}

SAN_CASE(with_a_size) {
  struct pair p = open_pair(V4);
  char buffer[8] = "abcd", got[8];
  struct iovec out = {buffer, 4}, in = {got, 4};
  EQ(ENTRY("pwritev64v2", pwritev2)(p.client, &out, 1, -1, 0), 4);
  EQ(ENTRY("preadv64v2", preadv2)(p.server, &in, 1, -1, 0), 4);
  EQ(memcmp(got, "abcd", 4), 0);
  ERR(ENTRY("preadv64v2", preadv2)(p.server, &in, 1, 0, 0), ESPIPE);
  int file = SYS(open("f", O_RDWR | O_CREAT, 0600));
  EQ(write(file, "content", 7), 7);
  off_t from = 1;
  EQ(ENTRY("sendfile64", sendfile)(p.client, file, &from, 6), 6);
  EQ(from, 7);
  get(p.server, "ontent");
}

static int old_set(void) { return SYS(epoll_create(1)); }
SAN_CASE(a_set_of_a_size) {
  struct pair p = open_pair(V4);
  int set = old_set();
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, p.server, &event));
  put(p.client, "x");
  EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
  EQ(event.data.u64, 7);
}

typedef int checked_print(int, int, const char *, ...);
typedef int checked_list(int, int, const char *, va_list);
static int print_list(int fd, const char *format, ...) {
  va_list list;
  va_start(list, format);
  int n = ((checked_list *)entry("__vdprintf_chk"))(fd, 1, format, list);
  va_end(list);
  return n;
}
SAN_CASE(checked_prints) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  EQ(((checked_print *)entry("__dprintf_chk"))(p.client, 1, "%s %d %.1f\n", "a", 7, 0.5), 8);
  get(p.server, "a 7 0.5\n");
  EQ(print_list(p.client, "%d-%s", 12, "z"), 4);
  get(p.server, "12-z");
}

SAN_CASE(batches_files_and_pipes_by_number) {
  struct pair p = open_pair(V4);
  char got[8] = {0};
  struct iovec out = {"abcd", 4}, in = {got, 4};
  struct mmsghdr one = {.msg_hdr = {.msg_iov = &out, .msg_iovlen = 1}};
  EQ(syscall(SYS_sendmmsg, p.client, &one, 1, 0), 1);
  EQ(one.msg_len, 4);
  one.msg_hdr.msg_iov = &in;
  EQ(syscall(SYS_recvmmsg, p.server, &one, 1, MSG_WAITALL, NULL), 1);
  EQ(memcmp(got, "abcd", 4), 0);
  int file = SYS(open("f", O_RDWR | O_CREAT, 0600)), ends[2];
  EQ(write(file, "content", 7), 7);
  off_t from = 3;
  EQ(syscall(SYS_sendfile, p.client, file, &from, 4), 4);
  get(p.server, "tent");
  SYS(pipe(ends));
  EQ(write(ends[1], "piped", 5), 5);
  EQ(syscall(SYS_splice, ends[0], NULL, p.client, NULL, 5, 0), 5);
  wait_for(p.server, POLLIN);
  EQ(syscall(SYS_splice, p.server, NULL, ends[1], NULL, 5, 0), 5);
  EQ(read(ends[0], got, 5), 5);
  EQ(memcmp(got, "piped", 5), 0);
#ifdef SYS_select
  put(p.client, "x");
  fd_set set;
  FD_ZERO(&set);
  FD_SET(p.server, &set);
  struct timeval much = {HANG_MS / 1000, 0};
  EQ(syscall(SYS_select, p.server + 1, &set, NULL, NULL, &much), 1);
  get(p.server, "x");
#endif
#ifdef SYS_dup2
  EQ(syscall(SYS_dup2, p.client, 71), 71);
  SYS(close(p.client));
  exercise(71, p.server);
#endif
}

CASE(a_socket_pair_by_number) {
  int ends[2];
  EQ(syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, ends), 0);
  EQ(fcntl(ends[0], F_GETFD), 0);
  exercise(ends[0], ends[1]);
}

/* Its operations could not be seen, so under the shim there is no io_uring, and programs take their other path. */
CASE(no_io_uring) {
  if (!getenv("LD_PRELOAD")) return;
  char parameters[256] = {0};
  ERR(syscall(SYS_io_uring_setup, 8, parameters), ENOSYS);
}
