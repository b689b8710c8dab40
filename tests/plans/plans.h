/* What the programs share that carry out random plans: numbers drawn from a seed, bytes that are known by their place,
 * connections, the process that goes through all plans, and what it has at the end. */
#ifndef PLANS_H
#define PLANS_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- numbers and time (numbers.c) ------------------------------------------------------------- */

uint64_t mixed(uint64_t value);
/* The next number of a generator, below n. */
long drawn(uint64_t *state, long n);
/* One of up to so many bits, each number of bits as often. */
long drawn_bits(uint64_t *state, int bits);
int64_t now_ns(void);
void rest(long us);
long least(long a, long b);
long most(long a, long b);

/* ---- bytes known by their place: each is below 0x80 (bytes.c) ---------------------------------- */

/* The bytes of a stream from a place on. */
void pattern(uint64_t stream, long at, char *to, long n);
/* The first of these bytes that is not the one of its place, or n. */
long agreeing(uint64_t stream, long at, const char *from, long n);

/* ---- connections (connections.c) --------------------------------------------------------------- */

/* Listens, at first: the port is told. Later accepts the connection. Or connects to a port once it is told. -1: it listens now. */
int make_connection(_Atomic int *port, int listens, int *listener);
/* So many exchanges bring a connection to the SAN. */
void warm_up(int fd, int begins);
/* Sends the descriptor in a message, takes it there, and closes what was taken. 0, or errno of the send; NO_SOCKETS: there were
 * none to send by, and errno says why. */
enum { NO_SOCKETS = -1 };
int pass_to_oneself(int fd);

/* ---- the process that goes through all plans (worker.c) ----------------------------------------- */

/* What a process has. */
struct footprint { long descriptors, mappings, kib; };
struct worker { pid_t pid; int orders, answers; };
/* `run` is called for each seed that the worker is told. */
void start_worker(struct worker *w, void run(long seed));
/* Asks for a plan. */
void ask_worker(struct worker *w, long seed);
/* Its footprint after the plan; false: it did not come. */
int hear_worker(struct worker *w, int64_t deadline, struct footprint *now);

/* What it has must not grow: what it had at most while it settled, and at least in as many plans at the end; so many
 * descriptors more may come and go. */
struct growth { long settling, descriptors; struct footprint settled, lowest; };
void note_footprint(struct growth *g, long done, long plans, const struct footprint *now);
/* Says so. */
int has_grown(const struct growth *g, long plans);
#endif
