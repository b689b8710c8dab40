/* Processes that are killed: what their peers and relatives see. See main.c. */
#ifndef CRASH_H
#define CRASH_H
#include "../plans/plans.h"

/* ---- the plan, made from a seed (plan.c) ------------------------------------------------------ */

enum kind { STREAM, EXCHANGE, BOTH_WAYS, PAUSE, PASSED, CONTROL, KINDS };
/* How an end waits. A busy one does not. */
enum style { BLOCKING, WAITALL, POLL, SELECT, EPOLL, EDGE, BUSY, STYLES };
/* Who holds the victim's end: one process; two that take turns; one that sends and one that receives; one, and an idle one. */
enum family { ALONE, TURNS, SPLIT, IDLE, FAMILIES };
/* Nobody is killed; or: after a time; once the victim made so many calls; a timer within a call; so many instructions into a call;
 * while it is stopped. */
enum fate { LIVES, AT_TIME, AFTER_CALLS, BY_TIMER, STEPPED, WHILE_STOPPED, FATES };

enum { SURVIVOR, VICTIM };
enum { MOST_CONNECTIONS = 4, MOST_PHASES = 5, BUFFER = 1 << 18 };

struct phase {
    enum kind kind;
    int by;            /* the end that sends first, pauses or passes */
    long bytes, back;  /* each message's; back: of the other end in BOTH_WAYS */
    int rounds, chunk, read_chunk, pause; /* pause: in microseconds */
};
/* Nothing, or what a victim's process has little of. */
enum scarce { PLENTY, DESCRIPTORS, ADDRESSES };
struct link {
    int survivor_listens, small_buffer;
    enum scarce scarce;
    enum family family;
    enum fate fate;
    int target;        /* which of a family is killed */
    long calls;        /* at this call of the victim's end */
    long delay;        /* nanoseconds, or instructions */
    enum style style[2];
    int count;
    struct phase phases[MOST_PHASES];
};
/* A plan of a seed from here on kills at one instruction of one of some calls: so many seeds for each call. */
#define EACH 1000000000L
enum { INSTRUCTIONS = 10000 };
struct plan {
    int count, threads, storms;
    int stands_still;  /* all processes at once, for so many milliseconds */
    enum style loop;   /* of a survivor with one thread */
    struct link links[MOST_CONNECTIONS];
};
struct plan plan_of(long seed);
void describe(FILE *to, long seed);

/* ---- what all processes of a plan see --------------------------------------------------------- */

/* How far an end is. Relatives share it. */
struct progress {
    _Atomic int phase, round;          /* which step */
    _Atomic long steps;
    _Atomic long to_send, to_receive;  /* what the step still needs */
    _Atomic long sent, received;       /* by calls that returned */
    _Atomic long asked, wanted;        /* the same once the call under way returns, at most */
};
struct common {
    struct progress progress[2];
    _Atomic int port, calls, connected, stop, dead, noticed, step_me, stepped;
    _Atomic int over[2];               /* this end has done all */
    _Atomic int pids[2];               /* the victim's processes */
};
struct shared {
    struct common links[MOST_CONNECTIONS];
    _Atomic int failures;
    _Atomic int survivor_ready;
    _Atomic long resets, resets_short, ends_for_resets, taken_over;
    _Atomic int64_t clock; /* by how much it is ahead */
};
extern struct shared *shared;
extern struct plan plan;
extern long seed_;

/* ---- what is the matter with the machine (surroundings.c, clock.c), by the variable CRASH_WITH --- */

/* BETWEEN_HOSTS: connections are as between hosts, where a death costs more (docs/reference/other-hosts.md). */
enum surroundings { ORDINARY, NO_ROOM, LITTLE_MEMORY, CLOCKS_JUMP, STANDS_STILL, BETWEEN_HOSTS, SURROUNDINGS };
extern enum surroundings surroundings;
/* Before the first plan, and after the last. Says so and ends the program where this machine cannot. */
void surround(void);
void leave_surroundings(void);
/* Before a plan; a process that is to be killed after it, or 0. */
pid_t surround_plan(long seed);
/* In each process that goes through more than one plan. */
void jump_clocks(long seed);
/* Where a plan begins on the SAN. */
void bring_to_san(const struct link *l, int fd, int begins);

/* ---- one end of a connection (end.c) ---------------------------------------------------------- */

enum mode { STEPS, AFTERMATH, DRAINING, OVER };
struct end {
    int side, index, fd, self;         /* self: which of the family */
    enum mode mode;
    struct progress *progress;
    struct common *common;
    const struct link *link;
    /* After a relative was killed: a marker, and as many bytes again. */
    long mark_left, after_sent, after_received, unlocated;
    int marked, peer_marked, ended, broken, located, shut;
    char head[64];
    char *buffer;
};
void begin(struct end *e);
/* Does what can be done without waiting, or waits where the style is blocking. What it waits for else: POLLIN, POLLOUT. */
short advance(struct end *e, int may_wait);
/* Runs ends until all are over. */
void drive(struct end *ends, int count, enum style style);
void fail(struct end *e, const char *what, long value);
int is_killed_alone(const struct end *e);

/* ---- processes -------------------------------------------------------------------------------- */

/* Each call of a victim's end begins with this (victim.c). */
void before_call(struct end *e);
void run_victim(int index) __attribute__((noreturn));
/* Carries out the plan of a seed, as its survivor (survivor.c). */
void survive(long seed);
/* Nanoseconds without those in which this process, and so the machine, stood still. */
int64_t awake_ns(void);
/* Kills as the plan says (killer.c). False: it took too long. */
int kill_victims(int64_t deadline);
/* Stops processes and has them go on, in a process of its own. */
pid_t start_storm(pid_t survivor);
/* Counts what the killer did. */
struct kills { long made[FATES], relatives, storms; };
extern struct kills kills;
#endif
