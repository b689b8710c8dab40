/* Harness of the behaviour test programs.
 *
 * Responsible for: registering cases, reporting failures, building connections and the few
 * helpers every area shares. It must not contain expectations about TCP: those belong to the cases.
 *
 * A program prints its cases with `PROGRAM list` (one per line, with what must carry its connections
 * under the shim: "san", "swaps" or "mixed") and runs one with `PROGRAM CASE`: exit 0 passed, 1 failed
 * (reason on stderr), 77 skipped.
 */
#ifndef BT_H
#define BT_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- registration ------------------------------------------------------------------------- */

typedef void bt_fn(void);
/* What carries a case's connections under the shim. */
enum bt_carrier { BT_ANY, BT_SAN, BT_SWAPS, BT_MIXED };
void bt_register(const char *name, bt_fn *fn, enum bt_carrier carrier);

#define BT_REGISTER(id, text, fn, carrier)                                       \
  __attribute__((constructor)) static void id##_register(void) {              \
    bt_register(text, fn, carrier);                                           \
  }
#define BT_CASE(name, carrier)                                                \
  static void name##_case(void);                                              \
  BT_REGISTER(name, #name, name##_case, carrier)                              \
  static void name##_case(void)

/* A case without a connection that must be on the SAN. */
#define CASE(name) BT_CASE(name, BT_ANY)
/* A case whose connections must all be on the SAN under the shim, and stay there. */
#define SAN_CASE(name) BT_CASE(name, BT_SAN)
/* The same of one whose processes take turns on them so often that some of the swaps of control suspend the session
 * where they all are to. */
#define SWAP_CASE(name) BT_CASE(name, BT_SWAPS)
/* A case of which at least one connection must be on the SAN, while others are on TCP or go back to it: that is
 * what it is about. */
#define MIXED_CASE(name) BT_CASE(name, BT_MIXED)

/* A part that start_program() runs in a program of its own; not a case. */
#define PART(id)                                                              \
  static void id##_part(void);                                                \
  BT_REGISTER(id##_part, "@" #id, id##_part, BT_ANY)                          \
  static void id##_part(void)
/* Its arguments. */
extern char **bt_arguments;

/* ---- failing ------------------------------------------------------------------------------ */

_Noreturn void bt_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void bt_skip(const char *reason);

#define FAIL(...) bt_fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) FAIL("%s is false", #condition);                        \
  } while (0)
#define EQ(left, right)                                                       \
  do {                                                                        \
    long long l_ = (long long)(left), r_ = (long long)(right);                \
    int e_ = errno;                                                           \
    if (l_ != r_)                                                             \
      FAIL("%s is %lld, want %s = %lld (errno %s)", #left, l_, #right, r_,    \
           strerrorname_np(e_));                                              \
  } while (0)
/* The call succeeds; its value is the value of the expression. */
#define SYS(call)                                                             \
  ({                                                                          \
    long long v_ = (long long)(call);                                         \
    if (v_ < 0) FAIL("%s: %s", #call, strerrorname_np(errno));                \
    v_;                                                                       \
  })
/* The call returns -1 with this errno. */
#define ERR(call, wanted)                                                     \
  do {                                                                        \
    errno = 0;                                                                \
    long long v_ = (long long)(call);                                         \
    int e_ = errno;                                                           \
    if (v_ != -1 || e_ != (wanted))                                           \
      FAIL("%s gives %lld %s, want -1 %s", #call, v_, strerrorname_np(e_),    \
           #wanted);                                                          \
  } while (0)

/* ---- memory shared by every process of the case ------------------------------------------- */

struct bt_shared {
  _Atomic long value[64];
};
extern struct bt_shared *bt_shared;
/* Signals between the ends, whatever process or thread they are in. Steps are 0..31. */
void step_done(int step);
void step_wait(int step);

/* Lines of a file that have these words in them. */
long count_lines(const char *path, const char *with);

/* ---- connections -------------------------------------------------------------------------- */

enum family { V4, V6, DUAL };
union address {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
};
socklen_t address_len(const union address *address);
union address address_v4(const char *text, int port);
union address address_v6(const char *text, int port);
int address_port(const union address *address);
union address local_address(int fd);
union address peer_address(int fd);
bool address_equal(const union address *a, const union address *b);

/* A blocking listener on loopback (DUAL: the IPv6 wildcard without V6ONLY) and where a client of
 * that family connects to. */
int listen_on(enum family family, union address *target);
int listen_at(const union address *where);
/* listen(), and a look at the listener where connectors on other hosts only find one that is served. */
void start_listening(int fd, int backlog);
/* A blocking connection to the target. */
int dial(const union address *target);

/* Both ends of one connection, made by one thread. */
struct pair {
  int client;
  int server;
};
struct pair open_pair(enum family family);
void close_pair(struct pair *pair);
/* Exchanges bytes over a new connection until it is where it is to be: at one end each, who sends first at the connector;
 * or at both by one thread. A non-blocking end stays one. */
void warm_up(int fd, bool first);
void warm_up_both(int client, int server);
/* The same right after dial() and accept(), at one end each; and for one thread that has both. */
int dial_warm(const union address *target);
int accept_warm(int listener);
int accept_warm_both(int listener, int client);

/* Two ends that each run a function with their own blocking socket; both must return. The socket
 * is closed by the end itself or left open: the process then goes on with it. A client that closes without having
 * received anything must wait for a step of the server's: what is closed before it is accepted goes over TCP. */
typedef void end_fn(int fd);
void run_threads(enum family family, end_fn *client, end_fn *server);
void run_processes(enum family family, end_fn *client, end_fn *server);

/* Two ends as a case in three topologies: two threads, two processes, and two processes over IPv6
 * with the roles of connector and acceptor exchanged. */
#define ENDS(name, left, right) CARRIED_ENDS(name, left, right, BT_SAN)
#define CARRIED_ENDS(name, left, right, carrier)                              \
  static void name##_t(void) { run_threads(V4, left, right); }                \
  BT_REGISTER(name##_t, #name "-threads", name##_t, carrier)                  \
  static void name##_p(void) { run_processes(V4, left, right); }              \
  BT_REGISTER(name##_p, #name "-processes", name##_p, carrier)                \
  static void name##_s(void) { run_processes(V6, right, left); }              \
  BT_REGISTER(name##_s, #name "-swapped", name##_s, carrier)
/* The same with the two processes only, for ends that need a process of their own. */
#define PROCESS_ENDS(name, left, right) CARRIED_PROCESS_ENDS(name, left, right, BT_SAN)
#define CARRIED_PROCESS_ENDS(name, left, right, carrier)                      \
  static void name##_p(void) { run_processes(V4, left, right); }              \
  BT_REGISTER(name##_p, #name "-processes", name##_p, carrier)                \
  static void name##_s(void) { run_processes(V6, right, left); }              \
  BT_REGISTER(name##_s, #name "-swapped", name##_s, carrier)

/* ---- bytes -------------------------------------------------------------------------------- */

/* The byte stream all transfers use: byte i depends on i alone, with a long period. */
#define PATTERN_PERIOD 65521
/* At least 4 MiB of it from any offset. */
#define PATTERN_SPAN ((size_t)4 << 20)
const uint8_t *pattern(uint64_t offset);
void check_pattern(const void *data, uint64_t offset, size_t len);
/* Sends all, blocking or not (waits with poll when the socket is non-blocking). */
void send_pattern(int fd, uint64_t offset, uint64_t len);
/* Receives exactly len bytes and checks them. */
void recv_pattern(int fd, uint64_t offset, uint64_t len);
/* Exact strings, without their terminator. */
void put(int fd, const char *text);
void get(int fd, const char *text);
void expect_eof(int fd);
/* Nothing to read now: recv(MSG_DONTWAIT) says EAGAIN. */
void expect_nothing(int fd);
/* "ping" there and "pong" back: the connection works in both directions. Blocking sockets in one
 * thread. */
void exercise(int a, int b);

/* ---- waiting ------------------------------------------------------------------------------ */

enum { HANG_MS = 50000 }; /* A wait that long failed. */
/* Polls until one of the events (or an error condition) is there; returns revents. */
short wait_for(int fd, short events);
/* Revents right now. */
short ready_now(int fd, short events);
/* Waits until poll() for these events reports exactly `wanted`. */
void wait_revents(int fd, short events, short wanted);
int64_t now_ms(void);
void sleep_ms(int ms);
/* Waits until a thread (by kernel id) sleeps in the kernel, i.e. its call blocks. */
void wait_asleep(pid_t tid);
/* What /proc says of it at this moment: 'S' if it sleeps. */
char task_state(pid_t tid);
/* Waits until a condition holds. */
#define UNTIL(condition)                                                      \
  do {                                                                        \
    int64_t end_ = now_ms() + HANG_MS;                                        \
    while (!(condition)) {                                                    \
      if (now_ms() > end_) FAIL("%s never held", #condition);                 \
      sleep_ms(1);                                                            \
    }                                                                         \
  } while (0)

/* ---- processes, threads, options ---------------------------------------------------------- */

pid_t start_child(void);      /* fork; 0 in the child, which must end with _exit(). */
void end_child(pid_t pid);    /* Waits; the child must have exited with 0. */
/* Starts this executable anew for a part ("@name"), with the preloaded library or without. */
pid_t start_program(const char *part, bool preload, const char *first, const char *second);
pthread_t start_thread(void *(*fn)(void *), void *arg);
void end_thread(pthread_t thread);
void set_nonblocking(int fd, bool on);
void set_option(int fd, int level, int name, int value);
int get_option(int fd, int level, int name);
void set_timeout(int fd, int name, int ms);
/* Fills the send direction of a non-blocking socket until EAGAIN; bytes sent. */
uint64_t fill(int fd, uint64_t offset);
/* An address that is never mapped, unknown to the compiler. */
void *bad_pointer(void);
/* close() that resets the connection (SO_LINGER on, 0 s). */
void close_reset(int fd);
/* Leaves a descriptor to a child alone, which is killed. */
void kill_holder(int fd);
void handle_signal(int number, void (*handler)(int), int flags);
/* The connections are as between hosts. */
bool is_between_hosts(void);
/* Numbers of exchanges after which something happens, from none to one when the connection is on the SAN for certain.
 * Between hosts the ends meet in the background, which takes more of them. */
int most_exchanges(void);
int next_exchanges(int count);
#define EACH_EXCHANGES(n) (int n = 0; n <= most_exchanges(); n = next_exchanges(n))
/* Fails if more went over TCP than before the move, of a connection of megabytes; natively nothing. */
void on_san(int fd);
/* Bytes that went over the TCP connection, both ways. */
unsigned long long bytes_over_tcp(int fd);
/* A system call by instruction, past every hook; the kernel's own answer. */
long past_libc(long number, long a, long b, long c, long d, long e);

#endif
