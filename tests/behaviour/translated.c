/* Connections that the kernel's address translation (NAT) lets look alike, each from one of its ends: no byte of one
 * may come out of the other. Each case has a network namespace of its own, which needs root, and nft. */
#include "bt.h"
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/syscall.h>

enum { ROUNDS = 600, SERVER = 8080, PUBLISHED = 80, LIKE = 5000, HIDDEN = 6000 };

/* False where there is no nft, or it refuses the rules. */
__attribute__((format(printf, 1, 2))) static bool nft(const char *rules, ...) {
  /* It takes all of its input, also where there is no nft. */
  FILE *to = popen("LD_PRELOAD= nft -f - 2>/dev/null || { cat >/dev/null; false; }", "w");
  CHECK(to);
  va_list words;
  va_start(words, rules);
  vfprintf(to, rules, words);
  va_end(words);
  return pclose(to) == 0;
}

/* A namespace with a loopback device and these rules, of which %s stands for the family. */
static void live_behind(enum family family, const char *chain, const char *rule) {
  /* By instruction: what a program does with its namespaces is not what this is about. */
  if (past_libc(SYS_unshare, CLONE_NEWNET, 0, 0, 0, 0) < 0) bt_skip("a network namespace needs root");
  struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
  int fd = SYS(socket(AF_INET, SOCK_DGRAM, 0));
  SYS(ioctl(fd, SIOCSIFFLAGS, &lo));
  SYS(close(fd));
  bool translates = nft("table %s t {\n chain c {\n  type nat hook %s;\n  %s\n }\n}\n", family == V4 ? "ip" : "ip6", chain, rule);
  if (!translates) bt_skip("no nft, or no address translation in the kernel");
}

static union address at(enum family family, int port) {
  return family == V4 ? address_v4("127.0.0.1", port) : address_v6("::1", port);
}

static int dial_from(enum family family, int from, int to) {
  union address source = at(family, from), target = at(family, to);
  int fd = SYS(socket(source.any.sa_family, SOCK_STREAM, 0));
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  SYS(bind(fd, &source.any, address_len(&source)));
  SYS(connect(fd, &target.any, address_len(&target)));
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  return fd;
}

/* Sends back what comes, which must always be the same letter on one connection. */
static void answer_two(int listener) {
  struct pollfd ends[2];
  char names[2] = {0};
  for (int i = 0; i < 2; i++) {
    ends[i] = (struct pollfd){SYS(accept(listener, NULL, NULL)), POLLIN, 0};
    set_option(ends[i].fd, IPPROTO_TCP, TCP_NODELAY, 1);
    step_done(i);
  }
  for (int open = 2; open > 0;) {
    if (SYS(poll(ends, 2, HANG_MS)) == 0) FAIL("nothing comes any more");
    for (int i = 0; i < 2; i++) {
      char letter;
      if (!ends[i].revents) continue;
      if (SYS(recv(ends[i].fd, &letter, 1, 0)) == 0) {
        SYS(close(ends[i].fd)), ends[i].fd = -1, open--;
        continue;
      }
      if (!names[i]) names[i] = letter;
      EQ(letter, names[i]);
      EQ(send(ends[i].fd, &letter, 1, 0), 1);
    }
  }
}

/* The second one's addresses are translated because of the first one's. */
static void look_alike(enum family family, int from, int to) {
  union address where = at(family, SERVER);
  int listener = listen_at(&where);
  pid_t pid = start_child();
  if (pid == 0) {
    answer_two(listener);
    _exit(0);
  }
  SYS(close(listener));
  int fds[2];
  fds[0] = dial_from(family, from, to), step_wait(0);
  fds[1] = dial_from(family, LIKE, SERVER), step_wait(1);
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < 2; i++) EQ(send(fds[i], &"AB"[i], 1, 0), 1);
    for (int i = 0; i < 2; i++) {
      char letter;
      EQ(recv(fds[i], &letter, 1, 0), 1);
      EQ(letter, "AB"[i]);
    }
  }
  SYS(close(fds[0])), SYS(close(fds[1]));
  end_child(pid);
}

/* What the server sees of the first has the second's addresses: its destination is another one. */
static void redirected(enum family family) {
  live_behind(family, "output priority -100", "tcp dport 80 redirect to :8080");
  look_alike(family, LIKE, PUBLISHED);
}
CASE(look_alikes_by_a_redirected_port) { redirected(V4); }
CASE(look_alikes_by_a_redirected_port_ipv6) { redirected(V6); }

/* The same: its source is another one, which the kernel tells nobody. */
static void hidden(enum family family) {
  live_behind(family, "postrouting priority 100",
              family == V4 ? "tcp sport 6000 snat to 127.0.0.1:5000" : "tcp sport 6000 snat to [::1]:5000");
  look_alike(family, HIDDEN, SERVER);
}
CASE(look_alikes_by_a_hidden_source) { hidden(V4); }
CASE(look_alikes_by_a_hidden_source_ipv6) { hidden(V6); }

/* One whose addresses are translated is on TCP, and works. */
static void echo(enum family family, int port, int most) {
  union address where = at(family, SERVER);
  int listener = listen_at(&where);
  pid_t pid = start_child();
  if (pid == 0) {
    int fd = SYS(accept(listener, NULL, NULL));
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    for (char bytes[7]; SYS(recv(fd, bytes, sizeof bytes, MSG_WAITALL)) > 0;) put(fd, "answer");
    _exit(0);
  }
  SYS(close(listener));
  union address target = at(family, port);
  int fd = dial(&target);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  unsigned long long before = 0;
  for (int round = 0; round < most; round++) {
    put(fd, "request"), get(fd, "answer");
    if (round % ROUNDS != ROUNDS - 1) continue;
    /* On the SAN nothing goes over TCP. */
    if (bytes_over_tcp(fd) < before + ROUNDS * 13) break;
    before = bytes_over_tcp(fd);
  }
  SYS(close(fd));
  end_child(pid);
}
CASE(a_redirected_port_works) {
  live_behind(V4, "output priority -100", "tcp dport 80 redirect to :8080");
  echo(V4, PUBLISHED, 2 * ROUNDS);
}
/* One that the kernel tracks, but does not translate, may move. */
SAN_CASE(beside_a_redirected_port) {
  live_behind(V4, "output priority -100", "tcp dport 80 redirect to :8080");
  echo(V4, SERVER, 20 * ROUNDS);
}
SAN_CASE(beside_a_redirected_port_ipv6) {
  live_behind(V6, "output priority -100", "tcp dport 80 redirect to :8080");
  echo(V6, SERVER, 20 * ROUNDS);
}

/* The network loses the first segment, which the kernel sends again. To wait for the answer is to sleep all the same. */
CASE(a_lost_first_segment_is_waited_for) {
  enum { FEW = 10, PAUSE_MS = 700 };
  live_behind(V4, "output priority -100", "tcp dport 80 redirect to :8080");
  union address where = at(V4, SERVER);
  int listener = listen_at(&where), fd = dial(&where);
  int server = SYS(accept(listener, NULL, NULL));
  CHECK(nft("table ip lost {\n chain c {\n  type filter hook input priority 0; policy drop;\n }\n}\n"));
  put(fd, "request");
  int woken = 0;
  struct pollfd one = {fd, POLLIN, 0};
  for (int64_t end = now_ms() + PAUSE_MS, left = PAUSE_MS; left > 0; left = end - now_ms()) {
    if (SYS(poll(&one, 1, (int)left)) == 0) continue;
    ERR(recv(fd, &(char){0}, 1, MSG_DONTWAIT), EAGAIN);
    CHECK(woken++ < FEW);
  }
  CHECK(nft("delete table ip lost\n"));
  get(server, "request"), put(server, "answer");
  while (SYS(poll(&one, 1, HANG_MS)) > 0 && !(one.revents & POLLIN)) {
    ERR(recv(fd, &(char){0}, 1, MSG_DONTWAIT), EAGAIN);
    CHECK(woken++ < FEW);
  }
  get(fd, "answer");
  EQ(SYS(poll(&one, 1, 0)), 0);
  int error = get_option(fd, SOL_SOCKET, SO_ERROR);
  EQ(error, 0);
  SYS(close(server)), SYS(close(fd)), SYS(close(listener));
}
