/* Makes a plan from a seed. The same seed makes the same plan everywhere. */
#include "hostile.h"

static const char *const styles[] = {"poll", "select", "epoll", "edge", "threads that wait"};
static const char *const acts[] = {"forks", "forks beside", "spawns", "executes", "ends sending", "ends receiving", "ends both", "detaches",
                                   "asynchronous", "passes", "urgent", "duplicates", "options", "resets", "closes"};

static uint64_t state;
static long below(long n) { return drawn(&state, n); }

/* Fields of the first line are read once: those behind them are chosen. */
enum { FIRST = 7 };
static struct hostile some_hostile(void) {
    struct hostile h = {.victim_listens = (int)below(2), .knows_layout = below(4) != 0, .is_early = below(3) == 0, .is_continuous = below(3) == 0};
    h.chosen = h.knows_layout && below(2) ? 1 + (int)below(MOST_CHOSEN) : 0;
    for (int i = 0; i < h.chosen; i++) h.fields[i] = FIRST + (int)below(field_count - FIRST);
    h.burst = 1 + (int)below(below(3) ? 3 : 20);
    h.calls = 50 + (int)below(600), h.sends = (int)below(9), h.receives = (int)below(9);
    if (below(4) == 0) h.killed_at = 20 + (int)below(h.calls);
    h.victim_calls = 100 + (int)below(500);
    h.count = (int)below(MOST_STEPS + 1);
    for (int i = 0; i < h.count; i++) h.steps[i] = (struct step){(enum act)below(ACTS), 20 + (int)below(h.victim_calls)};
    h.killed_in_the_end = (int)below(2);
    return h;
}
struct plan plan_of(long seed) {
    struct plan p = {0};
    state = mixed((uint64_t)seed ^ 0x686f7374696c65);
    p.style = (enum style)below(STYLES);
    p.honest_count = 1 + (int)below(MOST_HONEST), p.hostile_count = 1 + (int)below(MOST_HOSTILE);
    for (int i = 0; i < p.honest_count; i++)
        p.honest[i] = (struct honest){.victim_listens = (int)below(2), .rounds = 50 + (int)below(200), .bits = 4 + (int)below(13)};
    for (int i = 0; i < p.hostile_count; i++) p.hostile[i] = some_hostile();
    return p;
}

void describe(FILE *to, long seed) {
    struct plan p = plan_of(seed);
    fprintf(to, "seed %ld: %s;", seed, styles[p.style]);
    for (int i = 0; i < p.honest_count; i++)
        fprintf(to, " honest %d: %s, %d rounds of %d bits;", i, p.honest[i].victim_listens ? "accepted" : "connected", p.honest[i].rounds, p.honest[i].bits);
    fputc('\n', to);
    for (int i = 0; i < p.hostile_count; i++) {
        const struct hostile *h = &p.hostile[i];
        fprintf(to, "  hostile %d: %s, %s, writes %s%s (%d), %d calls, sends %d, receives %d", i, h->victim_listens ? "accepted" : "connected",
                h->knows_layout ? "knows the layout" : "knows nothing", h->is_early ? "early, " : "", h->is_continuous ? "all the time" : "with calls",
                h->burst, h->calls, h->sends, h->receives);
        for (int n = 0; n < h->chosen; n++) fprintf(to, "%s %s", n ? "," : ", only", fields[h->fields[n]].name);
        if (h->killed_at) fprintf(to, ", killed at %d", h->killed_at);
        fprintf(to, "; victim: %d calls", h->victim_calls);
        for (int n = 0; n < h->count; n++) fprintf(to, ", %s at %d", acts[h->steps[n].act], h->steps[n].at);
        fprintf(to, "; in the end %s\n", h->killed_in_the_end ? "the peer is killed" : "the victim closes");
    }
}
