/* A process of another user, without rights, finds the sockets of a process (/proc/net/unix shows their names to all) and
 * does there what it can; and one of the same user does what no library does. The process's connections go on and come to
 * the SAN meanwhile. Natively there are no such sockets. */
#include "bt.h"

#include <dirent.h>
#include <sched.h>
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
  snprintf(path, sizeof path, "/proc/%d/fd", atoi(pid));
  DIR *folder = opendir(path);
  CHECK(folder);
  for (struct dirent *one; (one = readdir(folder)) != NULL;) {
    snprintf(path, sizeof path, "/proc/%d/fd/%s", atoi(pid), one->d_name);
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    if (sscanf(target, "socket:[%lu]", &inode) == 1) look_up(inode);
  }
  closedir(folder);
}
/* Stays its user if the number has a sign. */
static void find_and_become_a_stranger(const char *pid) {
  find_sockets(pid);
  if (pid[0] == '+') return;
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
static void *close_it(void *fd) {
  close(*(int *)fd);
  return NULL;
}
/* Once it was sent the receiver's close is the last one. If the kernel took it for nothing, this process's is. */
static void send_to_all(int count) {
  static int fds[MOST_SOCKETS];
  for (int i = 0; i < found_count; i++) {
    fds[i] = lingering();
    if (!send_there(&found[i], fds[i], count)) continue;
    start_thread(close_it, &fds[i]);
    UNTIL(fcntl(fds[i], F_GETFD) < 0);
  }
}
static void tell(const char *pipe_end) {
  EQ(SYS(write(atoi(pipe_end), "", 1)), 1);
  pause();
}
/* Arguments of all: the process; where to say that it is done. They stay until they are killed. */
PART(sender_of_one) {
  find_and_become_a_stranger(bt_arguments[0]);
  send_to_all(1);
  tell(bt_arguments[1]);
}
PART(sender_of_many) {
  find_and_become_a_stranger(bt_arguments[0]);
  send_to_all(DESCRIPTORS);
  tell(bt_arguments[1]);
}
/* Says nothing, and stays. */
PART(silent_one) {
  enum { CONNECTIONS = 200 };
  find_and_become_a_stranger(bt_arguments[0]);
  for (int i = 0; i < found_count * CONNECTIONS; i++) {
    const struct found *to = &found[i % found_count];
    connect((int)SYS(socket(AF_UNIX, to->kind | SOCK_NONBLOCK, 0)), (const struct sockaddr *)&to->name, to->length);
  }
  tell(bt_arguments[1]);
}
/* As fast as it can. A stranger does not even connect; but those who connect over what other hosts would use have to. */
PART(flood) {
  bool may_connect = bt_arguments[0][0] == '+' || getenv("SANSHIM_PROVIDERS");
  find_and_become_a_stranger(bt_arguments[0]);
  EQ(SYS(write(atoi(bt_arguments[1]), "", 1)), 1);
  while (getppid() != 1)
    for (int i = 0; i < found_count; i++) {
      bool sent = send_there(&found[i], 0, 1);
      CHECK(!sent || may_connect);
    }
}

/* ---- the process ------------------------------------------------------------------------------- */

static pid_t start_other(const char *part, const char *sign) {
  int done[2];
  char pid[16], end[16], byte;
  SYS(pipe(done));
  snprintf(pid, sizeof pid, "%s%d", sign, getpid()), snprintf(end, sizeof end, "%d", done[1]);
  pid_t other = start_program(part, false, pid, end);
  SYS(close(done[1]));
  EQ(SYS(read(done[0], &byte, 1)), 1);
  SYS(close(done[0]));
  return other;
}
static pid_t start_stranger(const char *part) {
  if (geteuid() != 0) bt_skip("another user's process needs root");
  return start_other(part, "");
}
static pid_t start_relative(const char *part) { return start_other(part, "+"); }
static void end_other(pid_t pid) { SYS(kill(pid, SIGKILL)), SYS(waitpid(pid, NULL, 0)); }

/* One that strangers' programs do not inherit. */
static struct pair open_own(void) {
  struct pair p = open_pair(V4);
  SYS(fcntl(p.server, F_SETFD, FD_CLOEXEC));
  return p;
}
/* New connections have the process look for who offers one a session. */
static void go_on(bool there) {
  enum { CONNECTIONS = 5, MESSAGES = 1000, SIZE = 4096 };
  for (int i = 0; i < CONNECTIONS; i++) {
    struct pair p = open_pair(V4);
    for (uint64_t at = 0; at < MESSAGES * SIZE; at += SIZE) {
      send_pattern(p.client, at, SIZE);
      recv_pattern(p.server, at, SIZE);
    }
    if (there) on_san(p.client);
    close_pair(&p);
  }
}
static void withstand(pid_t start(const char *part), const char *part) {
  struct pair p = open_own();
  pid_t other = start(part);
  go_on(true);
  exercise(p.client, p.server);
  close_pair(&p);
  end_other(other);
}
SAN_CASE(a_descriptor_that_takes_long_to_close) { withstand(start_stranger, "@sender_of_one"); }
SAN_CASE(descriptors_that_take_long_to_close) { withstand(start_stranger, "@sender_of_many"); }
SAN_CASE(a_descriptor_of_the_same_user) { withstand(start_relative, "@sender_of_one"); }
SAN_CASE(descriptors_of_the_same_user) { withstand(start_relative, "@sender_of_many"); }
SAN_CASE(silence_of_the_same_user) { withstand(start_relative, "@silent_one"); }
static void withstand_a_flood(pid_t start(const char *part), bool there) {
  enum { OTHERS = 3 };
  pid_t others[OTHERS];
  struct pair p = open_own();
  for (int i = 0; i < OTHERS; i++) others[i] = start("@flood");
  go_on(there);
  close_pair(&p);
  for (int i = 0; i < OTHERS; i++) end_other(others[i]);
}
SAN_CASE(a_flood) { withstand_a_flood(start_stranger, true); }
/* It may keep connections on TCP, but holds nobody up. */
MIXED_CASE(a_flood_of_the_same_user) { withstand_a_flood(start_relative, false); }

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
/* Removes the folders that processes of this user made. */
static void remove_folders(uid_t uid) {
  char name[64];
  size_t length = (size_t)snprintf(name, sizeof name, "sanshim-user-%u", uid);
  DIR *shared = opendir("/dev/shm");
  CHECK(shared);
  for (struct dirent *one; (one = readdir(shared)) != NULL;) {
    char command[400];
    if (strncmp(one->d_name, name, length) != 0 || (one->d_name[length] != 0 && one->d_name[length] != '.')) continue;
    snprintf(command, sizeof command, "rm -r '/dev/shm/%s'", one->d_name);
    EQ(system(command), 0);
  }
  closedir(shared);
}
/* Does what follows in a child of a user who has no folder yet. */
static void as_new_user(uid_t uid, void (*act)(void)) {
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(setresgid(uid, uid, uid)), SYS(setresuid(uid, uid, uid));
    act();
    _exit(0);
  }
  int status;
  SYS(waitpid(pid, &status, 0));
  remove_folders(uid);
  EQ(status, 0);
}
static void take_all_rights(void) {
  umask(0777);
  go_on(true);
}
/* Nobody but a user himself reaches his process, whatever rights his files get otherwise. Root needs no rights. */
SAN_CASE(a_umask_that_takes_all_rights) {
  if (geteuid() == 0) {
    as_new_user(200000 + (uid_t)getpid(), take_all_rights);
  } else {
    take_all_rights();
  }
}
/* The library makes a thread only to close what no library sends. */
SAN_CASE(no_thread_for_honest_peers) {
  go_on(true);
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks);
  int count = 0;
  for (struct dirent *one; (one = readdir(tasks)) != NULL;) count += one->d_name[0] != '.';
  closedir(tasks);
  EQ(count, getenv("SANSHIM_PROVIDERS") ? 2 : 1);
}

/* ---- names in shared memory -------------------------------------------------------------------- */

static void move_here(void) { go_on(true); }
/* Another user made the folder first that this one's processes would have. Here that is root's. */
SAN_CASE(a_name_that_another_user_took) {
  if (geteuid() != 0) bt_skip("another user's process needs root");
  char taken[64];
  uid_t uid = 100000 + (uid_t)getpid();
  snprintf(taken, sizeof taken, "/dev/shm/sanshim-user-%u", uid);
  SYS(mkdir(taken, 0755));
  as_new_user(uid, move_here);
}
PART(unmapped) { go_on(false); }
/* A user without a number in his user namespace: everybody in there has the same. Nothing is left behind in the name of
 * whoever has that number outside. */
CASE(a_user_without_a_number) {
  pid_t pid = start_child();
  if (pid == 0) {
    if (unshare(CLONE_NEWUSER) != 0) _exit(77);
    EQ(geteuid(), NOBODY);
    end_child(start_program("@unmapped", true, NULL, NULL));
    _exit(0);
  }
  int status;
  SYS(waitpid(pid, &status, 0));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) bt_skip("this machine makes no user namespaces");
  EQ(status, 0);
  DIR *shared = opendir("/dev/shm");
  CHECK(shared);
  for (struct dirent *one; (one = readdir(shared)) != NULL;) {
    struct stat left;
    bool is_named = strncmp(one->d_name, "sanshim-user-65534", strlen("sanshim-user-65534")) == 0;
    if (is_named && fstatat(dirfd(shared), one->d_name, &left, 0) == 0) CHECK(left.st_uid == NOBODY);
  }
  closedir(shared);
}
