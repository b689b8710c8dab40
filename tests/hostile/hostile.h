/* Peers that write anything into the memory of a connection: what the process at its other end, the victim, does then. See main.c. */
#ifndef HOSTILE_H
#define HOSTILE_H
#include "../plans/plans.h"

/* ---- the plan, made from a seed (plan.c) ------------------------------------------------------ */

/* How the victim waits. With THREADS each hostile connection has two threads that wait in recv and send. */
enum style { POLL, SELECT, EPOLL, EDGE, THREADS, STYLES };
/* What the victim does with a hostile connection between its transfers. */
enum act { FORKS, FORKS_BESIDE, SPAWNS, EXECUTES, ENDS_SENDING, ENDS_RECEIVING, ENDS_BOTH, DETACHES, ASYNCHRONOUS, PASSES, URGENT, DUPLICATES,
           OPTIONS, RESETS, CLOSES, ACTS };
enum { MOST_HONEST = 3, MOST_HOSTILE = 2, MOST_STEPS = 4, MOST_CHOSEN = 3, BUFFER = 1 << 16 };
enum { VICTIM, PEER };

struct step { enum act act; int at; };
struct hostile {
    int victim_listens;
    int knows_layout;
    int chosen, fields[MOST_CHOSEN]; /* it writes these fields alone, so that the connection lives; zero: it writes everything */
    int is_early;      /* it writes from the moment that there is memory, and not once the connection moved */
    int is_continuous; /* a thread writes as fast as it can; else each call is followed by so many writes */
    int burst, calls;  /* calls: of the peer */
    int sends, receives; /* of eight calls */
    int killed_at;     /* this call of its own; zero: it lives */
    int victim_calls, count;
    struct step steps[MOST_STEPS];
    int killed_in_the_end; /* else the victim closes first */
};
struct honest { int victim_listens, rounds, bits; };
struct plan {
    enum style style;
    int honest_count, hostile_count;
    struct honest honest[MOST_HONEST];
    struct hostile hostile[MOST_HOSTILE];
};
struct plan plan_of(long seed);
void describe(FILE *to, long seed);

/* ---- what all processes of a plan see --------------------------------------------------------- */

struct peer {
    _Atomic int port, pid, is_quiet;
    _Atomic long calls, writes, segments, rings;
};
struct shared {
    struct peer hostile[MOST_HOSTILE], honest[MOST_HONEST];
    _Atomic int quiet;      /* nobody writes, or calls, any more */
    _Atomic int is_paced;   /* honest peers rest before they answer */
    _Atomic int detach;     /* sanctl is to bring all back to TCP */
    _Atomic int failures;
    _Atomic int where;      /* the line of the victim, for a plan that hangs */
    _Atomic long own_reads; /* of this program's, to count what others do */
    _Atomic long calls, sleeps, empty, rounds, quiet_cpu, reference_cpu, due, used_sleeps, used_calls, used_cpu, asleep;
};
extern struct shared *shared;
extern struct plan plan;
extern long seed_;
/* Whether peers write: not natively, nor where the program is checked. */
extern int scribbles;
#define HERE() (shared->where = __LINE__)
void fail(const char *what, long value);
uint64_t stream_of(int is_hostile, int index, int side);

/* ---- the victim ------------------------------------------------------------------------------- */

/* Goes through the plan of a seed (victim.c). */
void suffer(long seed);
/* A hostile connection as the victim has it (acts.c). */
struct end {
    int index, fd;
    const struct hostile *plan;
    uint64_t state;
    int calls, is_over, is_full;
    long sent, received;
    pid_t beside;
    char *buffer;
};
/* One call that does not wait; with the acts of the plan that are due. */
void call_once(struct end *e);
/* Receives, or sends, once: as many bytes; zero: the other end does not give any; below: this is no connection any more. */
long receive_once(struct end *e, int flags);
long send_once(struct end *e, long n, int flags);
void close_end(struct end *e);
/* Before and after a call that may not wait, or naps at most, or starts a process (waits.c). */
enum patience { TRANSFERS, NAPS, STARTS };
void begin_call(void);
void end_call(const char *what, enum patience patience);
/* Of all those since it was called last. */
void expect_no_waits(void);

/* An honest connection as the victim has it (honest.c). */
struct exchange { int index, fd, is_waiting; long round, goal, sent, received, to_send, to_receive; };
/* Goes on; what it waits for: POLLIN, POLLOUT; zero: it moved, or has reached its goal. */
short advance(struct exchange *x);
void end_exchange(struct exchange *x);

/* What the calling process used (count.c). */
struct count { long cpu_us, sleeps, calls; };
struct count count_now(void);
struct count used_since(struct count before);
/* The same of the calling thread within one call: how often and how long it slept, and how long it worked. */
struct span { long sleeps, cpu_us, held_us, now_us; };
struct span begin_span(void);
struct span end_span(struct span before); /* now_us: how long it slept */

/* ---- the peers -------------------------------------------------------------------------------- */

void run_honest(int index);
void run_hostile(int index);
/* How a segment is divided, from its first line. */
struct sizes { uint32_t buffers, message, send_buffer, largest_message, largest_send_buffer; };
/* The memory of the process's one connection (memory.c). */
struct memory { char *at; long bytes; unsigned long inode; struct sizes sizes; };
int find_memory(struct memory *m);
struct field { const char *name; long at; int bytes; };
enum { MOST_FIELDS = 128 };
extern const struct field fields[MOST_FIELDS];
extern const int field_count;
long slot_at(const struct sizes *s, int sender, uint32_t sequence);
long large_slot_at(const struct sizes *s, int sender, uint32_t sequence);
long send_buffer_at(const struct sizes *s, int sender);
long large_send_buffer_at(const struct sizes *s, int sender);
long total_of(const struct sizes *s);
/* Ends the program where these do not agree with the core crate's. */
void check_layout(void);
/* Writes once; how often it rang a bell (scribble.c). */
int scribble(const struct memory *m, const struct hostile *h, uint64_t *state);
#endif
