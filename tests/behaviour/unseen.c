/* What libc, libraries and the kernel do to connections past every hook: the standard streams, fclose, daemon, what is bound to
 * libc's own functions or makes system calls of its own, time stamps, kernel TLS. */
#include "bt.h"
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/net_tstamp.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* ---- standard streams on a connection, as bash has them for /dev/tcp ------------------------- */

MIXED_CASE(standard_output_writes_to_a_connection) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  EQ(dup2(p.server, 1), 1);
  EQ(printf("hello %d\n", 7), 8);
  EQ(fflush(stdout), 0);
  get(p.client, "hello 7\n");
  exercise(p.client, 1);
  close_pair(&p);
}
MIXED_CASE(standard_input_reads_from_a_connection) {
  struct pair p = open_pair(V6);
  exercise(p.client, p.server);
  put(p.client, "first\n");
  EQ(dup3(p.server, 0, 0), 0);
  put(p.client, "second\n");
  char line[64];
  CHECK(fgets(line, sizeof line, stdin) && strcmp(line, "first\n") == 0);
  CHECK(fgets(line, sizeof line, stdin) && strcmp(line, "second\n") == 0);
  SYS(shutdown(p.client, SHUT_WR));
  CHECK(fgets(line, sizeof line, stdin) == NULL && feof(stdin));
}

/* ---- fclose ---------------------------------------------------------------------------------- */

static long resident_pages(void) {
  long pages;
  FILE *file = fopen("/proc/self/statm", "r");
  CHECK(file && fscanf(file, "%*d %ld", &pages) == 1);
  EQ(fclose(file), 0);
  return pages;
}
static void streams_of_short_connections(int count, int listener, const union address *target) {
  for (int i = 0; i < count; i++) {
    FILE *client = fdopen(dial(target), "r+"), *server = fdopen(SYS(accept(listener, NULL, NULL)), "w");
    CHECK(client && server);
    EQ(fputs("hi\n", server), 1);
    EQ(fclose(server), 0);
    char line[8];
    CHECK(fgets(line, sizeof line, client) && strcmp(line, "hi\n") == 0);
    EQ(fclose(client), 0);
  }
}
CASE(fclose_leaves_nothing_behind) {
  enum { ROUNDS = 6000, MOST_PAGES = 128 };
  union address target;
  int listener = listen_on(V4, &target);
  streams_of_short_connections(100, listener, &target);
  long before = resident_pages();
  streams_of_short_connections(ROUNDS, listener, &target);
  long more = resident_pages() - before;
  if (more > MOST_PAGES) FAIL("%ld pages more after %d connections", more, ROUNDS);
  SYS(close(listener));
}

/* ---- forks of which one process is left ---------------------------------------------------------- */

/* On TCP still, where several processes would keep it. */
struct ends {
  int client, server;
};
static struct ends cold_ends(void) {
  union address target;
  int listener = listen_on(V4, &target), client = dial(&target);
  struct ends ends = {client, SYS(accept(listener, NULL, NULL))};
  SYS(close(listener));
  return ends;
}
static void forbid_forks(void) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof code[0], code};
  EQ(past_libc(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  EQ(past_libc(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program, 0, 0), 0);
}
SAN_CASE(a_fork_that_failed_shares_nothing) {
  struct ends ends = cold_ends();
  forbid_forks();
  for (int i = 0; i < 3; i++) ERR(fork(), EAGAIN);
  warm_up_both(ends.client, ends.server);
  exercise(ends.client, ends.server);
  SYS(close(ends.client)), SYS(close(ends.server));
}
SAN_CASE(a_daemon_has_its_connections_alone) {
  pid_t pid = start_child();
  if (pid == 0) {
    struct ends ends = cold_ends();
    SYS(daemon(1, 1));
    alarm(HANG_MS / 1000);
    warm_up_both(ends.client, ends.server);
    exercise(ends.client, ends.server);
    SYS(close(ends.client)), SYS(close(ends.server));
    step_done(0);
    _exit(0);
  }
  end_child(pid);
  step_wait(0);
}

/* ---- a library that finds libc first ----------------------------------------------------------- */

MIXED_CASE(a_library_that_finds_libc_first) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  put(p.client, "before");
  void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_DEEPBIND);
  ssize_t (*read_past)(int, void *, size_t), (*write_past)(int, const void *, size_t);
  CHECK(libc);
  *(void **)&read_past = dlsym(libc, "read");
  *(void **)&write_past = dlsym(libc, "write");
  char bytes[16];
  EQ(read_past(p.server, bytes, sizeof bytes), 6);
  CHECK(memcmp(bytes, "before", 6) == 0);
  EQ(write_past(p.server, "behind", 6), 6);
  get(p.client, "behind");
  exercise(p.client, p.server);
  close_pair(&p);
}
/* A libc of its own, in a namespace of its own. */
MIXED_CASE(a_library_in_another_namespace) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  put(p.client, "before");
  void *libc = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
  if (!libc) FAIL("%s", dlerror());
  ssize_t (*read_past)(int, void *, size_t), (*write_past)(int, const void *, size_t);
  *(void **)&read_past = dlsym(libc, "read");
  *(void **)&write_past = dlsym(libc, "write");
  char bytes[16];
  EQ(read_past(p.server, bytes, sizeof bytes), 6);
  CHECK(memcmp(bytes, "before", 6) == 0);
  EQ(write_past(p.server, "behind", 6), 6);
  get(p.client, "behind");
  exercise(p.client, p.server);
  /* New ones too. */
  struct pair q = open_pair(V4);
  EQ(write_past(q.server, "behind", 6), 6);
  get(q.client, "behind");
  close_pair(&p);
}
SAN_CASE(a_library_in_the_same_namespace) {
  struct pair p = open_pair(V4);
  CHECK(dlmopen(LM_ID_BASE, "libm.so.6", RTLD_NOW));
  exercise(p.client, p.server);
}

/* ---- functions that the program looks up in a library ------------------------------------------------- */

#define LOOKED_UP(library, name) ((__typeof__(&name))looked_up(library, #name))
static void *looked_up(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) FAIL("%s", dlerror());
  return found;
}
static void use_functions_of(void *library) {
  struct pair p = open_pair(V4);
  char bytes[16];
  struct pollfd one = {p.server, POLLIN, 0};
  EQ(LOOKED_UP(library, send)(p.client, "abcd", 4, 0), 4);
  EQ(LOOKED_UP(library, poll)(&one, 1, HANG_MS), 1);
  EQ(LOOKED_UP(library, recv)(p.server, bytes, 4, MSG_WAITALL), 4);
  CHECK(memcmp(bytes, "abcd", 4) == 0);
  EQ(LOOKED_UP(library, write)(p.server, "efgh", 4), 4);
  EQ(LOOKED_UP(library, syscall)(SYS_read, p.client, bytes, 4), 4);
  CHECK(memcmp(bytes, "efgh", 4) == 0);
  EQ(LOOKED_UP(library, dprintf)(p.client, "%d-%s", 12, "x"), 4);
  get(p.server, "12-x");
  EQ(LOOKED_UP(library, dup2)(p.server, 70), 70);
  EQ(LOOKED_UP(library, close)(p.server), 0);
  pid_t pid = LOOKED_UP(library, fork)();
  if (pid == 0) {
    put(70, "child");
    LOOKED_UP(library, _exit)(0);
  }
  end_child(pid);
  get(p.client, "child");
  exercise(p.client, 70);
  EQ(LOOKED_UP(library, shutdown)(70, SHUT_WR), 0);
  expect_eof(p.client);
}
SAN_CASE(functions_of_libc) {
  use_functions_of(dlopen("libc.so.6", RTLD_NOW | RTLD_LOCAL));
}
/* Whose libraries libc is among. */
SAN_CASE(functions_of_another_library) {
  use_functions_of(dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL));
}
SAN_CASE(functions_of_the_program) { use_functions_of(dlopen(NULL, RTLD_NOW)); }
SAN_CASE(functions_of_whoever_has_them) { use_functions_of(RTLD_DEFAULT); }
SAN_CASE(functions_that_come_next) { use_functions_of(RTLD_NEXT); }
SAN_CASE(functions_found_by_a_dlsym_of_libc) {
  void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_LOCAL);
  void *(*lookup)(void *, const char *) = LOOKED_UP(libc, dlsym);
  struct pair p = open_pair(V4);
  ssize_t (*write_there)(int, const void *, size_t);
  *(void **)&write_there = lookup(libc, "write");
  EQ(write_there(p.client, "abcd", 4), 4);
  get(p.server, "abcd");
}
CASE(look_ups_that_fail) {
  void *libm = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL), *libc = dlopen("libc.so.6", RTLD_NOW);
  CHECK(!dlerror());
  CHECK(dlsym(libm, "cos") && dlsym(libc, "send") && dlsym(libc, "getpid") == (void *)getpid);
  CHECK(!dlerror());
  CHECK(!dlsym(libc, "sendd"));
  CHECK(strstr(dlerror(), "sendd"));
  CHECK(!dlsym(libc, "io_uring_submit"));
  CHECK(strstr(dlerror(), "io_uring_submit"));
  CHECK(!dlerror());
}

CASE(a_library_is_found_where_its_loader_looks) {
  CHECK(!dlopen("libnobody.so.77", RTLD_NOW | RTLD_LOCAL));
  CHECK(strstr(dlerror(), "libnobody.so.77"));
}

/* ---- waits by instruction, as Rust's async-io does, for who is read and written by libc --------------- */

CASE(waits_by_instruction) {
  struct ends ends = cold_ends();
  pid_t client = start_child();
  if (client == 0) {
    SYS(close(ends.server));
    for (int i = 0; i < 2000; i++) put(ends.client, "ping"), get(ends.client, "pong");
    _exit(0);
  }
  SYS(close(ends.client));
  set_nonblocking(ends.server, true);
  int set = (int)SYS(past_libc(SYS_epoll_create1, EPOLL_CLOEXEC, 0, 0, 0, 0));
  struct epoll_event event = {.events = EPOLLIN | EPOLLET};
  SYS(past_libc(SYS_epoll_ctl, set, EPOLL_CTL_ADD, ends.server, (long)&event, 0));
  for (char bytes[4];;) {
    ssize_t n = recv(ends.server, bytes, sizeof bytes, 0);
    if (n == 0) break;
    if (n > 0) put(ends.server, "pong");
    else EQ(past_libc(SYS_epoll_wait, set, (long)&event, 1, HANG_MS, 0), 1);
  }
  SYS(close(set)), SYS(close(ends.server));
  end_child(client);
}

/* ---- what the kernel does with the stream by itself ------------------------------------------------ */

MIXED_CASE(times_of_what_is_sent) {
  struct pair p = open_pair(V4);
  set_option(p.server, SOL_SOCKET, SO_TIMESTAMPING,
             SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_TSONLY);
  exercise(p.client, p.server);
  CHECK(wait_for(p.server, POLLIN) & POLLERR);
  char control[512];
  struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
  EQ(recvmsg(p.server, &message, MSG_ERRQUEUE), 0);
  exercise(p.client, p.server);
}
MIXED_CASE(receiving_without_a_copy) {
  struct pair p = open_pair(V4);
  enum { TCP_RECEIVES_WITHOUT_A_COPY = 35 };
  struct {
    uint64_t address;
    uint32_t length, without, more[8];
  } receive = {0};
  put(p.client, "hello");
  wait_for(p.server, POLLIN);
  SYS(getsockopt(p.server, IPPROTO_TCP, TCP_RECEIVES_WITHOUT_A_COPY, &receive, &(socklen_t){16}));
  EQ(receive.without, 5);
  get(p.server, "hello");
  exercise(p.client, p.server);
}
SAN_CASE(state_after_a_reset) {
  struct pair p = open_pair(V4);
  close_reset(p.client);
  wait_for(p.server, POLLIN);
  struct tcp_info info;
  SYS(getsockopt(p.server, IPPROTO_TCP, TCP_INFO, &info, &(socklen_t){sizeof info}));
  EQ(info.tcpi_state, TCP_CLOSE);
  SYS(close(p.server));
}

/* ---- kernel TLS --------------------------------------------------------------------------------- */

/* Asked for with a length that is none of an int's, it is to keep the connection on TCP all the same. */
CASE(kernel_tls_is_tcps) {
  enum { ROUNDS = 500, SIZE = 1000 };
  union address target;
  int listener = listen_on(V4, &target), client = dial(&target), server = SYS(accept(listener, NULL, NULL));
  if (setsockopt(client, IPPROTO_TCP, TCP_ULP, "tls", 3) < 0) EQ(errno, ENOENT);
  for (int i = 0; i < ROUNDS; i++) {
    send_pattern(client, 0, SIZE), recv_pattern(server, 0, SIZE);
    send_pattern(server, 0, SIZE), recv_pattern(client, 0, SIZE);
  }
  CHECK(bytes_over_tcp(server) > (unsigned long long)ROUNDS * SIZE);
  SYS(close(client)), SYS(close(server)), SYS(close(listener));
}
SAN_CASE(kernel_tls_on_the_san) {
  struct pair p = open_pair(V4);
  if (setsockopt(p.client, IPPROTO_TCP, TCP_ULP, "tls", 3) < 0) EQ(errno, ENOENT);
  exercise(p.client, p.server);
  close_pair(&p);
}
