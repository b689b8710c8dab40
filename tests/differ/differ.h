/* What the files of the actor share: `scripts/differ` runs it, natively and under the library.
 *
 * An actor is a thread of a process that carries out steps, one line of text each, which the coordinator
 * (scripts/differing/) sends over a channel of its own. The answer is a line too. All actors share one memory, in
 * which each knows how far every numbered stream of bytes is, so that each knows every byte that may come.
 */
#ifndef DIFFER_H
#define DIFFER_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
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
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  ACTORS = 12,
  SLOTS = 40,
  STREAMS = 64,
  PORTS = 16,
  WAYS = 4,
  LINE = 1024,
  /* Descriptors that the coordinator hands to every actor: above those a program comes to, below the library's own. */
  MEMORY_FD = 499,
  CHANNEL_FD = 500, /* + actor */
  WAY_FD = 520,     /* + 2 * way: to send descriptors into, + 1: to receive them from */
  LARGEST = 1 << 20,
};

/* One direction of a connection. */
struct stream {
  _Atomic int64_t tried; /* bytes that its senders gave to calls, whether they returned or not */
  _Atomic int64_t sent;  /* bytes that calls took */
  _Atomic int64_t got;   /* bytes that its receivers have */
  /* Its receiver saw an error, or shut the direction down: its end may come early. */
  _Atomic int64_t failed;
  /* It carries urgent bytes, or its receiver was killed: only a comparison tells whether it is right. */
  _Atomic int64_t unchecked;
  /* It was filled, so which of its bytes come when TCP leaves open. */
  _Atomic int64_t varies;
  /* Bytes, with those that a stream under way has still to send. */
  _Atomic int64_t coming;
};
/* scripts/differing/memory.py has the same layout. */
struct shared {
  struct stream stream[STREAMS];
  _Atomic int64_t port[PORTS];
  _Atomic int64_t pid[ACTORS], tid[ACTORS];
  _Atomic int64_t naps[ACTORS]; /* the actor sleeps because its step says so */
  _Atomic int64_t signals[ACTORS][65];
};
extern struct shared *shared;
extern int slots[SLOTS];
extern char **arguments;
extern int process; /* the actor that this process began as */
extern _Thread_local int actor;

/* ---- steps ---- */

struct step {
  char *name, *arguments;
  char answer[LINE];
  size_t length;
};
typedef void step_fn(struct step *);
struct entry {
  const char *name;
  step_fn *run;
};
extern const struct entry transfer_steps[], stream_steps[], readiness_steps[], descriptor_steps[], option_steps[], process_steps[],
    indirect_steps[];

/* The number that a step's argument `key=` has, or `otherwise`. */
long number(const struct step *step, const char *key, long otherwise);
/* Its text, valid until the thread asks for the next; never NULL. */
const char *word(const struct step *step, const char *key);
bool has(const struct step *step, const char *key, const char *part);
int slot(const struct step *step, const char *key);
void keep(const struct step *step, const char *key, int fd);
void tell(struct step *step, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Tells the result of a call, its errno, and whether it changed errno in vain. */
long told(struct step *step, long result, int error);
enum { UNCHANGED = 77 };
#define CALL(expression) (errno = UNCHANGED, (long)(expression))
#define TOLD(step, expression)                                                \
  ({                                                                          \
    long result_ = CALL(expression);                                          \
    told(step, result_, errno);                                               \
  })

void serve(int as) __attribute__((noreturn));
void nap(long microseconds);

/* ---- bytes ---- */

uint8_t *buffer(void);
/* Fills bytes as they stand in the stream from a position on. */
void fill(uint8_t *bytes, int stream, int64_t at, size_t count);
/* Checks received bytes, and tells what is wrong with them. */
void check(struct step *step, int stream, const uint8_t *bytes, int64_t at, size_t count);
void sending(int stream, long count);
void sent(int stream, long tried, long result);
/* What a receive call returned: moves the stream on, unless it only looked, and checks its end. */
void received(struct step *step, int stream, const uint8_t *bytes, long result, int error, size_t asked, bool looked);
#endif
