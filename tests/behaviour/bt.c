/* Harness of the behaviour test programs: see bt.h. */
#include "bt.h"

#include <semaphore.h>
#include <stdarg.h>
#include <sys/mman.h>

/* ---- registration and failing --------------------------------------------------------------- */

struct bt_case {
  const char *name;
  bt_fn *fn;
  enum bt_carrier carrier;
};
static struct bt_case cases[512];
static int case_count;
static pid_t main_pid;
static const char *running = "?";
char **bt_arguments;

struct bt_shared *bt_shared;
static sem_t *steps;

void bt_register(const char *name, bt_fn *fn, enum bt_carrier carrier) {
  if (case_count == (int)(sizeof cases / sizeof cases[0])) abort();
  cases[case_count++] = (struct bt_case){name, fn, carrier};
}

void bt_fail(const char *file, int line, const char *format, ...) {
  char text[1024];
  const char *base = strrchr(file, '/');
  int n = snprintf(text, sizeof text, "%s: %s:%d: ", running, base ? base + 1 : file, line);
  va_list args;
  va_start(args, format);
  n += vsnprintf(text + n, sizeof text - n - 1, format, args);
  va_end(args);
  if (n > (int)sizeof text - 2) n = sizeof text - 2;
  text[n++] = '\n';
  if (write(STDERR_FILENO, text, n) < 0) {
    /* Nobody reads the reason: the exit status still tells. */
  }
  /* Any process of the case may be the one that fails: none of them goes on. */
  if (getpid() != main_pid || running[0] == '@') kill(0, SIGKILL);
  _exit(1);
}

void bt_skip(const char *reason) {
  fprintf(stderr, "%s: skipped: %s\n", running, reason);
  _exit(77);
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: %s list | CASE\n", argv[0]);
    return 2;
  }
  if (strcmp(argv[1], "list") == 0) {
    const char *const carrier[] = {"", " san", " swaps", " mixed"};
    for (int i = 0; i < case_count; i++)
      if (cases[i].name[0] != '@') printf("%s%s\n", cases[i].name, carrier[cases[i].carrier]);
    return 0;
  }
  main_pid = getpid();
  bt_arguments = argv + 2;
  /* nohup and shells without job control leave some ignored. */
  const int terminal[] = {SIGHUP, SIGINT, SIGQUIT};
  for (int i = 0; i < 3 && argv[1][0] != '@'; i++) signal(terminal[i], SIG_DFL);
  /* A program started by a case stays in its group. */
  if (argv[1][0] != '@' && getpgrp() != main_pid) setpgid(0, 0);
  void *shared = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) FAIL("mmap: %s", strerrorname_np(errno));
  bt_shared = shared;
  steps = (sem_t *)((char *)shared + 4096);
  for (int i = 0; i < 32; i++) sem_init(&steps[i], 1, 0);
  for (int i = 0; i < case_count; i++) {
    if (strcmp(argv[1], cases[i].name) != 0) continue;
    running = cases[i].name;
    cases[i].fn();
    return 0;
  }
  fprintf(stderr, "%s: no case named %s\n", argv[0], argv[1]);
  return 2;
}

void step_done(int step) {
  if (sem_post(&steps[step]) != 0) FAIL("sem_post: %s", strerrorname_np(errno));
}

void step_wait(int step) {
  while (sem_wait(&steps[step]) != 0)
    if (errno != EINTR) FAIL("sem_wait: %s", strerrorname_np(errno));
}

/* ---- addresses and connections -------------------------------------------------------------- */

long count_lines(const char *path, const char *with) {
  char line[1024];
  long count = 0;
  FILE *file = fopen(path, "r");
  if (!file) FAIL("%s: %s", path, strerrorname_np(errno));
  while (fgets(line, sizeof line, file)) count += strstr(line, with) != NULL;
  fclose(file);
  return count;
}

socklen_t address_len(const union address *address) {
  return address->any.sa_family == AF_INET6 ? sizeof address->v6 : sizeof address->v4;
}

/* This host's address, or another one that the environment names: of a host at the end of a wire (scripts/fabric --rdma). */
static const char *placed(const char *text, const char *own, const char *name) {
  const char *elsewhere = getenv(name);
  return elsewhere && strcmp(text, own) == 0 ? elsewhere : text;
}

union address address_v4(const char *text, int port) {
  union address address = {.v4 = {.sin_family = AF_INET, .sin_port = htons(port)}};
  EQ(inet_pton(AF_INET, placed(text, "127.0.0.1", "BT_ADDRESS"), &address.v4.sin_addr), 1);
  return address;
}

union address address_v6(const char *text, int port) {
  union address address = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)}};
  EQ(inet_pton(AF_INET6, placed(text, "::1", "BT_ADDRESS_V6"), &address.v6.sin6_addr), 1);
  return address;
}

int address_port(const union address *address) { return ntohs(address->v4.sin_port); }

union address local_address(int fd) {
  union address address = {0};
  socklen_t len = sizeof address;
  SYS(getsockname(fd, &address.any, &len));
  return address;
}

union address peer_address(int fd) {
  union address address = {0};
  socklen_t len = sizeof address;
  SYS(getpeername(fd, &address.any, &len));
  return address;
}

bool address_equal(const union address *a, const union address *b) {
  if (a->any.sa_family != b->any.sa_family || a->v4.sin_port != b->v4.sin_port) return false;
  if (a->any.sa_family == AF_INET6)
    return memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof a->v6.sin6_addr) == 0;
  return a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
}

void start_listening(int fd, int backlog) {
  SYS(listen(fd, backlog));
  if (getenv("SANSHIM_PROVIDERS")) ready_now(fd, POLLIN);
}

int listen_at(const union address *where) {
  int fd = SYS(socket(where->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  SYS(bind(fd, &where->any, address_len(where)));
  start_listening(fd, 128);
  return fd;
}

int listen_on(enum family family, union address *target) {
  union address where = family == V4   ? address_v4("127.0.0.1", 0)
                        : family == V6 ? address_v6("::1", 0)
                                       : address_v6("::", 0);
  int fd = SYS(socket(where.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (family == DUAL) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  SYS(bind(fd, &where.any, address_len(&where)));
  start_listening(fd, 128);
  *target = local_address(fd);
  if (family == DUAL) *target = address_v4("127.0.0.1", address_port(target));
  return fd;
}

int dial(const union address *target) {
  int fd = SYS(socket(target->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SYS(connect(fd, &target->any, address_len(target)));
  return fd;
}

/* A byte each way, so often that both ends have passed by whatever it takes to come to the SAN. */
enum { MEETINGS = 12 };

/* The last byte is acknowledged at once, or the kernel would hold back what is sent behind it (Nagle): a new connection has
 * nothing to wait for. */
static void acknowledge(int fd) { set_option(fd, IPPROTO_TCP, TCP_QUICKACK, 1); }

/* Between hosts they meet in the background: until no byte goes over TCP any more, for as long as that can take. */
enum { MEETINGS_BETWEEN_HOSTS = 1500, LAST_MEETINGS = 3 };

static char get_one(int fd) {
  char byte;
  ssize_t n;
  while ((n = recv(fd, &byte, 1, 0)) < 0 && errno == EAGAIN) wait_for(fd, POLLIN);
  if (n <= 0) FAIL("recv gives %zd %s", n, strerrorname_np(errno));
  return byte;
}

bool is_between_hosts(void) { return getenv("SANSHIM_PROVIDERS") != NULL; }
int most_exchanges(void) { return is_between_hosts() ? 60 : 14; }
int next_exchanges(int count) { return is_between_hosts() && count > 3 ? count + 4 : count + 1; }

/* What was noted before an exchange. */
struct meeting {
  int count, quiet;
  unsigned long long bytes;
};

/* True if there is to be another exchange; for who sends first. */
static bool meet_again(struct meeting *meeting, int fd) {
  int count = meeting->count++;
  if (!is_between_hosts()) return count < MEETINGS;
  if (count > MEETINGS) usleep(100);
  unsigned long long bytes = bytes_over_tcp(fd);
  meeting->quiet = count > 0 && bytes == meeting->bytes ? meeting->quiet + 1 : 0;
  meeting->bytes = bytes;
  return meeting->quiet < LAST_MEETINGS && count < MEETINGS_BETWEEN_HOSTS;
}

void warm_up(int fd, bool first) {
  struct meeting meeting = {0};
  if (first) {
    while (meet_again(&meeting, fd)) put(fd, ">"), get(fd, "<");
    if (is_between_hosts()) put(fd, "."), get(fd, ".");
    acknowledge(fd);
    return;
  }
  for (int i = 0; is_between_hosts() || i < MEETINGS; i++) {
    char byte = get_one(fd);
    put(fd, byte == '>' ? "<" : ".");
    if (byte == '.') return;
    EQ(byte, '>');
  }
}

void warm_up_both(int client, int server) {
  struct meeting meeting = {0};
  while (meet_again(&meeting, client)) {
    put(client, ">"), get(server, ">");
    put(server, "<"), get(client, "<");
  }
  acknowledge(client);
}

int dial_warm(const union address *target) {
  int fd = dial(target);
  warm_up(fd, true);
  return fd;
}

int accept_warm(int listener) {
  int fd = SYS(accept(listener, NULL, NULL));
  warm_up(fd, false);
  return fd;
}

int accept_warm_both(int listener, int client) {
  int server = SYS(accept(listener, NULL, NULL));
  warm_up_both(client, server);
  return server;
}

struct pair open_pair(enum family family) {
  union address target;
  int listener = listen_on(family, &target);
  struct pair pair;
  pair.client = dial(&target);
  pair.server = accept_warm_both(listener, pair.client);
  SYS(close(listener));
  return pair;
}

void close_pair(struct pair *pair) {
  SYS(close(pair->client));
  SYS(close(pair->server));
}

struct end {
  end_fn *fn;
  union address target;
};

static void *client_thread(void *arg) {
  struct end *end = arg;
  end->fn(dial_warm(&end->target));
  return NULL;
}

void run_threads(enum family family, end_fn *client, end_fn *server) {
  struct end end = {.fn = client};
  int listener = listen_on(family, &end.target);
  pthread_t thread = start_thread(client_thread, &end);
  int fd = accept_warm(listener);
  SYS(close(listener));
  server(fd);
  end_thread(thread);
}

void run_processes(enum family family, end_fn *client, end_fn *server) {
  union address target;
  int listener = listen_on(family, &target);
  pid_t child = start_child();
  if (child == 0) {
    SYS(close(listener));
    client(dial_warm(&target));
    _exit(0);
  }
  int fd = accept_warm(listener);
  SYS(close(listener));
  server(fd);
  end_child(child);
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static uint8_t *pattern_bytes;
static pthread_once_t pattern_once = PTHREAD_ONCE_INIT;

static void make_pattern(void) {
  size_t size = PATTERN_PERIOD + PATTERN_SPAN;
  enum { HUGE = 2 << 20 };
  pattern_bytes = aligned_alloc(HUGE, (size + HUGE - 1) / HUGE * HUGE);
  if (!pattern_bytes) FAIL("out of memory");
  madvise(pattern_bytes, size / HUGE * HUGE, MADV_HUGEPAGE); /* or it takes a thousand page faults */
  uint32_t x = 2463534242u;
  for (size_t i = 0; i < PATTERN_PERIOD; i++) {
    x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    pattern_bytes[i] = (uint8_t)(x >> 11);
  }
  for (size_t i = PATTERN_PERIOD; i < size; i++) pattern_bytes[i] = pattern_bytes[i - PATTERN_PERIOD];
}

const uint8_t *pattern(uint64_t offset) {
  pthread_once(&pattern_once, make_pattern);
  return pattern_bytes + offset % PATTERN_PERIOD;
}

void check_pattern(const void *data, uint64_t offset, size_t len) {
  const uint8_t *bytes = data;
  while (len > 0) {
    size_t n = len < PATTERN_SPAN ? len : PATTERN_SPAN;
    const uint8_t *want = pattern(offset);
    if (memcmp(bytes, want, n) != 0) {
      size_t i = 0;
      while (bytes[i] == want[i]) i++;
      FAIL("byte %llu of the stream is %02x, want %02x", (unsigned long long)(offset + i), bytes[i],
           want[i]);
    }
    bytes += n, offset += n, len -= n;
  }
}

void send_pattern(int fd, uint64_t offset, uint64_t len) {
  while (len > 0) {
    size_t want = len < (1 << 18) ? len : (1 << 18);
    ssize_t n = send(fd, pattern(offset), want, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      wait_for(fd, POLLOUT);
      continue;
    }
    if (n <= 0) FAIL("send gives %zd %s, %llu left", n, strerrorname_np(errno), (unsigned long long)len);
    offset += n, len -= n;
  }
}

void recv_pattern(int fd, uint64_t offset, uint64_t len) {
  size_t room = 1 << 18;
  uint8_t *buffer = malloc(room);
  while (len > 0) {
    ssize_t n = recv(fd, buffer, len < room ? len : room, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      wait_for(fd, POLLIN);
      continue;
    }
    if (n <= 0) FAIL("recv gives %zd %s, %llu missing", n, strerrorname_np(errno), (unsigned long long)len);
    check_pattern(buffer, offset, n);
    offset += n, len -= n;
  }
  free(buffer);
}

void put(int fd, const char *text) {
  EQ(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

void get(int fd, const char *text) {
  char buffer[4096];
  size_t want = strlen(text), have = 0;
  CHECK(want <= sizeof buffer);
  while (have < want) {
    ssize_t n = recv(fd, buffer + have, want - have, 0);
    if (n < 0 && errno == EAGAIN) {
      wait_for(fd, POLLIN);
      continue;
    }
    if (n <= 0) FAIL("recv gives %zd %s, want \"%s\"", n, strerrorname_np(errno), text);
    have += n;
  }
  if (memcmp(buffer, text, want) != 0) FAIL("got \"%.*s\", want \"%s\"", (int)have, buffer, text);
}

void expect_eof(int fd) {
  char byte;
  ssize_t n;
  while ((n = recv(fd, &byte, 1, 0)) < 0 && errno == EAGAIN) wait_for(fd, POLLIN);
  EQ(n, 0);
}

void expect_nothing(int fd) {
  char byte;
  ERR(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
}

void exercise(int a, int b) {
  put(a, "ping"), get(b, "ping");
  put(b, "pong"), get(a, "pong");
}

/* ---- waiting -------------------------------------------------------------------------------- */

short wait_for(int fd, short events) {
  struct pollfd p = {.fd = fd, .events = events};
  int n;
  while ((n = poll(&p, 1, HANG_MS)) < 0 && errno == EINTR) continue;
  if (n != 1) FAIL("poll(%d, %#x) gives %d", fd, events, n);
  return p.revents;
}

short ready_now(int fd, short events) {
  struct pollfd p = {.fd = fd, .events = events};
  int n = SYS(poll(&p, 1, 0));
  EQ(n, p.revents != 0);
  return p.revents;
}

void wait_revents(int fd, short events, short wanted) {
  int64_t end = now_ms() + HANG_MS;
  short seen;
  while ((seen = ready_now(fd, events)) != wanted) {
    if (now_ms() > end) FAIL("poll(%#x) gives %#x, want %#x", events, seen, wanted);
    sleep_ms(1);
  }
}

int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void sleep_ms(int ms) {
  struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
  while (nanosleep(&t, &t) != 0) continue;
}

char task_state(pid_t tid) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)tid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return '?';
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return '?';
  text[n] = 0;
  char *paren = strrchr(text, ')');
  return paren ? paren[2] : '?';
}

void wait_asleep(pid_t tid) {
  int64_t end = now_ms() + HANG_MS;
  /* Several samples, so that a short sleep on the way into the call is not taken for the call. */
  for (int seen = 0; seen < 6; sleep_ms(2)) {
    seen = task_state(tid) == 'S' ? seen + 1 : 0;
    if (now_ms() > end) FAIL("thread %d never blocks", (int)tid);
  }
}

/* ---- processes, threads, options ------------------------------------------------------------ */

pid_t start_child(void) {
  pattern(0); /* once, not in each child */
  return SYS(fork());
}

void end_child(pid_t pid) {
  int status;
  while (waitpid(pid, &status, 0) != pid)
    if (errno != EINTR) FAIL("waitpid: %s", strerrorname_np(errno));
  if (status != 0) FAIL("child %d ended with status %#x", (int)pid, status);
}

pid_t start_program(const char *part, bool preload, const char *first, const char *second) {
  pid_t pid = start_child();
  if (pid != 0) return pid;
  if (!preload) unsetenv("LD_PRELOAD");
  execl("/proc/self/exe", running, part, first, second, (char *)NULL);
  FAIL("exec: %s", strerrorname_np(errno));
}

pthread_t start_thread(void *(*fn)(void *), void *arg) {
  pthread_t thread;
  EQ(pthread_create(&thread, NULL, fn, arg), 0);
  return thread;
}

void end_thread(pthread_t thread) { EQ(pthread_join(thread, NULL), 0); }

void set_nonblocking(int fd, bool on) {
  int flags = SYS(fcntl(fd, F_GETFL));
  SYS(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

void set_option(int fd, int level, int name, int value) {
  SYS(setsockopt(fd, level, name, &value, sizeof value));
}

int get_option(int fd, int level, int name) {
  int value = -1;
  socklen_t len = sizeof value;
  SYS(getsockopt(fd, level, name, &value, &len));
  return value;
}

void set_timeout(int fd, int name, int ms) {
  struct timeval t = {.tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000};
  SYS(setsockopt(fd, SOL_SOCKET, name, &t, sizeof t));
}

uint64_t fill(int fd, uint64_t offset) {
  uint64_t sent = 0;
  /* A delayed acknowledgement (40 ms) still makes room: full is full after that, too. */
  for (int refused = 0; refused < 2;) {
    ssize_t n = send(fd, pattern(offset + sent), 65536, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      EQ(errno, EAGAIN);
      if (++refused < 2) sleep_ms(50);
      continue;
    }
    refused = 0;
    sent += n;
  }
  return sent;
}

void *bad_pointer(void) {
  static void *volatile bad = (void *)8;
  return bad;
}

void close_reset(int fd) {
  struct linger linger = {.l_onoff = 1, .l_linger = 0};
  SYS(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
  SYS(close(fd));
}

void kill_holder(int fd) {
  pid_t holder = SYS(fork());
  if (holder == 0) {
    pause();
    _exit(0);
  }
  SYS(close(fd));
  SYS(kill(holder, SIGKILL));
  SYS(waitpid(holder, NULL, 0));
}

void handle_signal(int number, void (*handler)(int), int flags) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
  SYS(sigaction(number, &action, NULL));
}
unsigned long long bytes_over_tcp(int fd) {
  /* libc's struct tcp_info ends before tcpi_bytes_acked and tcpi_bytes_received. */
  uint64_t info[17] = {0};
  socklen_t length = sizeof info;
  SYS(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length));
  return info[15] + info[16];
}
void on_san(int fd) {
  enum { BEFORE_THE_MOVE = 100000 };
  /* Between hosts it goes back to TCP to get to another program. */
  if (getenv("LD_PRELOAD") == NULL || getenv("SANSHIM_PROVIDERS")) return;
  unsigned long long bytes = bytes_over_tcp(fd);
  if (bytes > BEFORE_THE_MOVE) FAIL("%llu bytes went over TCP", bytes);
}
long past_libc(long number, long a, long b, long c, long d, long e) {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                   : "rcx", "r11", "memory");
  return result;
}
