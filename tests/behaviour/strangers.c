/* A process of another user, without rights, finds the sockets of a process (/proc/net/unix shows their names to all) and
 * does there what it can. The process's connections go on and come to the SAN meanwhile. Natively there are no such
 * sockets. */
#include "bt.h"

#include <dirent.h>
#include <stddef.h>
#include <sys/un.h>

enum { NOBODY = 65534, MOST_SOCKETS = 64, DESCRIPTORS = 100 };

/* ---- the sockets of a process ------------------------------------------------------------------ */

static struct found {
  struct sockaddr_un name;
  socklen_t length;
  int kind;
} found[MOST_SOCKETS];
static int found_count;

static void note(const char *name, int kind) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  size_t length = strlen(name);
  CHECK(length < sizeof address.sun_path);
  memcpy(address.sun_path, name, length);
  if (name[0] == '@') address.sun_path[0] = 0;
  for (int i = 0; i < found_count; i++)
    if (memcmp(&found[i].name, &address, sizeof address) == 0) return;
  CHECK(found_count < MOST_SOCKETS);
  found[found_count++] = (struct found){address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length), kind};
}
/* The name of a Unix socket that has one, of those of this network namespace. */
static void look_up(unsigned long socket) {
  char line[512], name[256];
  unsigned long inode;
  int kind;
  FILE *all = fopen("/proc/net/unix", "r");
  CHECK(all);
  while (fgets(line, sizeof line, all))
    if (sscanf(line, "%*s %*s %*s %*s %x %*s %lu %255s", &kind, &inode, name) == 3 && inode == socket) note(name, kind);
  fclose(all);
}
/* As the process's own user, who may see its descriptors. Any other one would take those whose names are like that. */
static void find_sockets(const char *pid) {
  char path[300], target[64];
  unsigned long inode;
  snprintf(path, sizeof path, "/proc/%s/fd", pid);
  DIR *folder = opendir(path);
  CHECK(folder);
  for (struct dirent *one; (one = readdir(folder)) != NULL;) {
    snprintf(path, sizeof path, "/proc/%s/fd/%s", pid, one->d_name);
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    if (sscanf(target, "socket:[%lu]", &inode) == 1) look_up(inode);
  }
  closedir(folder);
}
static void become_a_stranger(const char *pid) {
  find_sockets(pid);
  SYS(setresgid(NOBODY, NOBODY, NOBODY)), SYS(setresuid(NOBODY, NOBODY, NOBODY));
}

/* ---- what a stranger does ---------------------------------------------------------------------- */

/* A connection whose last close waits for a day: its peer, which this process keeps, takes nothing more. */
static int lingering(void) {
  union address target;
  int listener = listen_on(V4, &target);
  set_option(listener, SOL_SOCKET, SO_RCVBUF, 4096);
  int fd = dial(&target);
  SYS(accept(listener, NULL, NULL));
  SYS(close(listener));
  struct linger linger = {1, 86400};
  SYS(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
  fill(fd, 0);
  return fd;
}
/* Sends so many of that descriptor there; false if that is not possible. */
static bool send_there(const struct found *to, int fd, int count) {
  _Alignas(8) char control[CMSG_SPACE(DESCRIPTORS * sizeof fd)] = {0};
  int fds[DESCRIPTORS];
  for (int i = 0; i < DESCRIPTORS; i++) fds[i] = fd;
  struct iovec iov = {"nonsense", 8};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
                           .msg_controllen = CMSG_SPACE((size_t)count * sizeof fd)};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN((size_t)count * sizeof fd);
  memcpy(CMSG_DATA(c), fds, (size_t)count * sizeof fd);
  int from = SYS(socket(AF_UNIX, to->kind | SOCK_NONBLOCK, 0));
  bool sent = connect(from, (const struct sockaddr *)&to->name, to->length) == 0 && sendmsg(from, &message, MSG_NOSIGNAL) >= 0;
  close(from);
  return sent;
}
/* Once it was sent the receiver's close is the last one. */
static void send_to_all(int count) {
  for (int i = 0; i < found_count; i++) {
    int fd = lingering();
    if (send_there(&found[i], fd, count)) SYS(close(fd));
  }
}
static void tell(const char *pipe_end) {
  EQ(SYS(write(atoi(pipe_end), "", 1)), 1);
  pause();
}
/* Arguments of all: the process; where to say that it is done. They stay until they are killed. */
PART(sender_of_one) {
  become_a_stranger(bt_arguments[0]);
  send_to_all(1);
  tell(bt_arguments[1]);
}
PART(sender_of_many) {
  become_a_stranger(bt_arguments[0]);
  send_to_all(DESCRIPTORS);
  tell(bt_arguments[1]);
}
/* As fast as it can. */
PART(flood) {
  become_a_stranger(bt_arguments[0]);
  EQ(SYS(write(atoi(bt_arguments[1]), "", 1)), 1);
  while (getppid() != 1)
    for (int i = 0; i < found_count; i++) send_there(&found[i], 0, 1);
}

/* ---- the process ------------------------------------------------------------------------------- */

static pid_t start_stranger(const char *part) {
  if (geteuid() != 0) bt_skip("another user's process needs root");
  int done[2];
  char pid[16], end[16], byte;
  SYS(pipe(done));
  snprintf(pid, sizeof pid, "%d", getpid()), snprintf(end, sizeof end, "%d", done[1]);
  pid_t stranger = start_program(part, false, pid, end);
  SYS(close(done[1]));
  EQ(SYS(read(done[0], &byte, 1)), 1);
  SYS(close(done[0]));
  return stranger;
}
static void end_stranger(pid_t stranger) { SYS(kill(stranger, SIGKILL)), SYS(waitpid(stranger, NULL, 0)); }

/* One that strangers' programs do not inherit. */
static struct pair open_own(void) {
  struct pair p = open_pair(V4);
  SYS(fcntl(p.server, F_SETFD, FD_CLOEXEC));
  return p;
}
/* New connections have the process look for who offers one a session. */
static void go_on(void) {
  for (int i = 0; i < 5; i++) {
    struct pair p = open_pair(V4);
    exercise(p.client, p.server);
    close_pair(&p);
  }
}
static void withstand(const char *part) {
  struct pair p = open_own();
  pid_t stranger = start_stranger(part);
  go_on();
  exercise(p.client, p.server);
  close_pair(&p);
  end_stranger(stranger);
}
SAN_CASE(a_descriptor_that_takes_long_to_close) { withstand("@sender_of_one"); }
SAN_CASE(descriptors_that_take_long_to_close) { withstand("@sender_of_many"); }

SAN_CASE(a_flood) {
  enum { STRANGERS = 3 };
  pid_t strangers[STRANGERS];
  struct pair p = open_own();
  for (int i = 0; i < STRANGERS; i++) strangers[i] = start_stranger("@flood");
  go_on();
  close_pair(&p);
  for (int i = 0; i < STRANGERS; i++) end_stranger(strangers[i]);
}

/* ---- who is no stranger ------------------------------------------------------------------------ */

static void twenty_exchanges(int fd, const char *out, const char *in) {
  for (int i = 0; i < 20; i++) {
    if (out[0] == '?') put(fd, out), get(fd, in);
    else get(fd, in), put(fd, out);
  }
}
PART(two_users) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(listener));
    SYS(setresgid(NOBODY, NOBODY, NOBODY)), SYS(setresuid(NOBODY, NOBODY, NOBODY));
    int fd = dial_warm(&target);
    twenty_exchanges(fd, "?", "!");
    SYS(close(fd));
    _exit(0);
  }
  int fd = accept_warm(listener);
  twenty_exchanges(fd, "!", "?");
  expect_eof(fd);
  SYS(close(fd));
  end_child(pid);
}
/* The configuration admits a user without rights to a process of root's. */
SAN_CASE(an_allowed_user) {
  if (geteuid() != 0) bt_skip("another user's process needs root");
  FILE *rules = fopen("allowed.toml", "w");
  CHECK(rules);
  fprintf(rules, "allow_users = [%d]\n", NOBODY);
  fclose(rules);
  setenv("SANSHIM_CONFIG", "allowed.toml", 1);
  end_child(start_program("@two_users", true, NULL, NULL));
}
/* Nobody but a user himself reaches his process, whatever rights his files get otherwise. */
SAN_CASE(a_umask_that_takes_all_rights) {
  /* Root needs no rights. */
  if (geteuid() == 0) SYS(setresgid(NOBODY, NOBODY, NOBODY)), SYS(setresuid(NOBODY, NOBODY, NOBODY));
  umask(0777);
  go_on();
}
