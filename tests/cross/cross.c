/* Two programs that exchange records over connections, each of which knows every byte that may come:
 *   cross serve PORT[,PORT...]                                  listens on each port of all addresses, and answers for ever
 *   cross ask ADDRESS PORT CONNECTIONS ROUNDS BESIDE [FIRST]    so many connections, BESIDE of them at a time; from source
 *                                                               port FIRST on, if that is given (zero: from any)
 *   cross up|down ... FIRST LARGEST PAUSE                       the same, but records go from the asker alone, or to it: of up to
 *                                                               LARGEST bytes, and with a pause of PAUSE microseconds
 * Of a connection each record says which connection the record is of, by a number that is the asker's alone, and which round. What is
 * not of this connection, or not of this round, ends the program with 3. Something that fails ends it with 1. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { USUAL = 1200, LARGEST = 1 << 17, STREAM = 1 << 30 };

struct head {
  uint64_t connection;
  uint32_t round, length;
};

/* How records go in one direction. Comes first over such a connection, behind a head whose round is STREAM. */
struct stream {
  uint32_t is_up, rounds, largest, pause;
};

static _Noreturn void end(int status, const char *what) {
  fprintf(stderr, "%s (%s)\n", what, strerror(errno));
  exit(status);
}

static uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

/* The record of a connection's round, in one direction. */
static uint32_t record_within(char *to, uint32_t largest, uint64_t connection, uint32_t round, int is_answer) {
  uint64_t state = mixed(connection ^ (uint64_t)round << 33 ^ (uint64_t)is_answer << 32);
  uint32_t length = sizeof(struct head) + state % (largest - sizeof(struct head));
  memcpy(to, &(struct head){connection, round, length}, sizeof(struct head));
  for (uint32_t at = sizeof(struct head); at < length; at += sizeof state) {
    state = mixed(state);
    memcpy(to + at, &state, length - at < sizeof state ? length - at : sizeof state);
  }
  return length;
}

static uint32_t record(char *to, uint64_t connection, uint32_t round, int is_answer) {
  return record_within(to, USUAL, connection, round, is_answer);
}

static int send_all(int fd, const char *bytes, size_t length) {
  while (length > 0) {
    ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);
    if (sent < 0) return -1;
    bytes += sent, length -= (size_t)sent;
  }
  return 0;
}

/* 0 at the end of the stream, before the first byte. */
static int receive_all(int fd, char *bytes, size_t length) {
  for (size_t have = 0; have < length;) {
    ssize_t got = recv(fd, bytes + have, length - have, 0);
    if (got < 0 || (got == 0 && have > 0)) return -1;
    if (got == 0) return 0;
    have += (size_t)got;
  }
  return 1;
}

/* Sends all records of a stream, and waits for the other end to say that all of them came. */
static int push(int fd, uint64_t connection, struct stream how) {
  char *bytes = malloc(how.largest), said;
  for (uint32_t round = 0; round < how.rounds; round++) {
    uint32_t length = record_within(bytes, how.largest, connection, round, !how.is_up);
    if (send_all(fd, bytes, length) != 0) return -1;
    if (how.pause > 0) usleep(how.pause);
  }
  free(bytes);
  return receive_all(fd, &said, 1) == 1 ? 0 : -1;
}

/* Receives them. */
static int pull(int fd, uint64_t connection, struct stream how) {
  char *wanted = malloc(how.largest), *got = malloc(how.largest);
  for (uint32_t round = 0; round < how.rounds; round++) {
    uint32_t length = record_within(wanted, how.largest, connection, round, !how.is_up);
    if (receive_all(fd, got, length) != 1) return -1;
    if (memcmp(got, wanted, length) != 0) end(3, "a stream has other bytes, or another connection's");
  }
  free(wanted), free(got);
  return send_all(fd, "!", 1);
}

static void *answer(void *argument) {
  int fd = (int)(intptr_t)argument;
  char wanted[USUAL], got[USUAL];
  uint64_t connection = 0;
  for (uint32_t round = 0;; round++) {
    struct head head;
    int is_there = receive_all(fd, (char *)&head, sizeof head);
    if (is_there <= 0) break;
    if (round == 0) connection = head.connection;
    if (round == 0 && head.round == STREAM) {
      struct stream how;
      if (receive_all(fd, (char *)&how, sizeof how) != 1) break;
      if ((how.is_up ? pull : push)(fd, connection, how) == 0) receive_all(fd, got, 1);
      break;
    }
    uint32_t length = record(wanted, connection, round, 0);
    if (memcmp(&head, wanted, sizeof head) != 0) end(3, "a request of another connection or round came");
    if (receive_all(fd, got, length - sizeof head) < 0) break;
    if (memcmp(got, wanted + sizeof head, length - sizeof head) != 0) end(3, "a request came with other bytes");
    if (send_all(fd, wanted, record(wanted, connection, round, 1)) != 0) break;
  }
  close(fd);
  return NULL;
}

static void *accept_all(void *argument) {
  int listener = (int)(intptr_t)argument;
  for (;;) {
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) end(1, "accept");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 1 << 18);
    if (pthread_create(&thread, &attributes, answer, (void *)(intptr_t)fd) != 0) end(1, "a thread");
  }
}

static int serve(char *ports) {
  pthread_t thread;
  for (char *port = strtok(ports, ","); port != NULL; port = strtok(NULL, ",")) {
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port))};
    int listener = socket(AF_INET6, SOCK_STREAM, 0);
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0) end(1, "bind");
    if (listen(listener, 512) != 0) end(1, "listen");
    if (pthread_create(&thread, NULL, accept_all, (void *)(intptr_t)listener) != 0) end(1, "a thread");
  }
  puts("listens");
  fflush(stdout);
  for (;;) pause();
}

static struct {
  struct sockaddr_in6 to;
  int connections, rounds, first;
  struct stream how;
  _Atomic int next;
} plan;

static int dial(int number) {
  for (int attempt = 0;; attempt++) {
    int fd = socket(plan.to.sin6_family, SOCK_STREAM, 0);
    if (fd < 0) end(1, "socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (plan.first > 0) {
      struct sockaddr_in6 from = {.sin6_family = plan.to.sin6_family};
      from.sin6_port = htons((uint16_t)(plan.first + number % 8192));
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
      /* A reset at the end: the next one may have the same port. */
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
      if (bind(fd, (struct sockaddr *)&from, sizeof from) != 0) end(1, "bind");
    }
    if (connect(fd, (struct sockaddr *)&plan.to, sizeof plan.to) == 0) return fd;
    if (attempt == 20) end(1, "connect");
    close(fd);
    usleep(20000);
  }
}

static void *ask(void *unused) {
  (void)unused;
  char wanted[USUAL], got[USUAL];
  for (int number; (number = plan.next++) < plan.connections;) {
    int fd = dial(number);
    uint64_t connection;
    if (getrandom(&connection, sizeof connection, 0) != sizeof connection) end(1, "getrandom");
    if (plan.how.largest > 0) {
      struct head head = {connection, STREAM, sizeof plan.how};
      if (send_all(fd, (char *)&head, sizeof head) != 0) end(1, "send");
      if (send_all(fd, (char *)&plan.how, sizeof plan.how) != 0) end(1, "send");
      if ((plan.how.is_up ? push : pull)(fd, connection, plan.how) != 0) end(1, "a stream");
      close(fd);
      continue;
    }
    for (uint32_t round = 0; round < (uint32_t)plan.rounds; round++) {
      if (send_all(fd, wanted, record(wanted, connection, round, 0)) != 0) end(1, "send");
      uint32_t length = record(wanted, connection, round, 1);
      if (receive_all(fd, got, length) != 1) end(1, "receive");
      if (memcmp(got, wanted, length) != 0) end(3, "an answer of another connection or round came");
    }
    close(fd);
  }
  return NULL;
}

int main(int count, char **arguments) {
  signal(SIGPIPE, SIG_IGN);
  if (count == 3 && strcmp(arguments[1], "serve") == 0) return serve(arguments[2]);
  int is_stream = strcmp(arguments[1], "up") == 0 || strcmp(arguments[1], "down") == 0;
  if (count < (is_stream ? 10 : 7) || (!is_stream && strcmp(arguments[1], "ask") != 0))
    return fprintf(stderr, "see the source\n"), 2;
  struct sockaddr_in *v4 = (struct sockaddr_in *)&plan.to;
  uint16_t port = htons((uint16_t)atoi(arguments[3]));
  if (inet_pton(AF_INET, arguments[2], &v4->sin_addr) == 1)
    v4->sin_family = AF_INET, v4->sin_port = port;
  else if (inet_pton(AF_INET6, arguments[2], &plan.to.sin6_addr) == 1)
    plan.to.sin6_family = AF_INET6, plan.to.sin6_port = port;
  else
    return fprintf(stderr, "no address: %s\n", arguments[2]), 2;
  plan.connections = atoi(arguments[4]), plan.rounds = atoi(arguments[5]);
  plan.first = count > 7 ? atoi(arguments[7]) : 0;
  if (is_stream) {
    plan.how = (struct stream){strcmp(arguments[1], "up") == 0, (uint32_t)plan.rounds, (uint32_t)atoi(arguments[8]),
                               (uint32_t)atoi(arguments[9])};
    if (plan.how.largest <= sizeof(struct head) || plan.how.largest > LARGEST) return fprintf(stderr, "too large\n"), 2;
  }
  int beside = atoi(arguments[6]);
  pthread_t threads[256];
  for (int i = 0; i < beside && i < 256; i++)
    if (pthread_create(&threads[i], NULL, ask, NULL) != 0) end(1, "a thread");
  for (int i = 0; i < beside && i < 256; i++) pthread_join(threads[i], NULL);
  printf("%d connections, all bytes right\n", plan.connections);
}
