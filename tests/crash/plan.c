/* Makes a plan from a seed. The same seed makes the same plan everywhere. */
#include "crash.h"

static const char *const kinds[] = {"stream", "exchange", "both", "pause", "pass", "control"};
static const char *const styles[] = {"blocking", "waitall", "poll", "select", "epoll", "edge", "busy"};
static const char *const families[] = {"alone", "turns", "split", "idle relative"};
static const char *const fates[] = {"lives", "killed after ns", "killed after its call", "killed by a timer", "killed at an instruction",
                                    "killed while stopped"};

static const char *const scarces[] = {"", ", few descriptors", ", few addresses"};

static uint64_t state;
static long below(long n) { return drawn(&state, n); }
static long up_to(int bits) { return drawn_bits(&state, bits); }

/* Ends a round: the victim's end says whether there is another, and the survivor's answers. So both read in each round. */
static const struct phase control = {.kind = CONTROL, .by = VICTIM, .bytes = 1, .chunk = 1, .read_chunk = 1};

static struct phase some_phase(void) {
    static const enum kind odds[] = {STREAM, STREAM, STREAM, EXCHANGE, EXCHANGE, EXCHANGE, EXCHANGE, BOTH_WAYS, BOTH_WAYS, PAUSE};
    struct phase f = {.kind = odds[below(10)], .by = (int)below(2), .rounds = (int)up_to(5), .chunk = (int)up_to(17)};
    if (below(60) == 0) f.kind = PASSED;
    int bits = f.kind == EXCHANGE ? 12 : below(8) ? 17 : 20;
    f.bytes = up_to(bits), f.back = up_to(bits), f.read_chunk = (int)up_to(17), f.pause = (int)up_to(below(6) ? 6 : 11);
    long most = f.bytes > f.back ? f.bytes : f.back;
    if (most / f.chunk > 100) f.chunk = (int)(most / 100);
    if (most / f.read_chunk > 100) f.read_chunk = (int)(most / 100);
    return f;
}

static struct link some_link(void) {
    static const enum fate odds[] = {LIVES, AT_TIME, AT_TIME, AFTER_CALLS, AFTER_CALLS, BY_TIMER, BY_TIMER, BY_TIMER, STEPPED, STEPPED, STEPPED,
                                     WHILE_STOPPED};
    struct link l = {.survivor_listens = (int)below(2), .small_buffer = below(8) == 0, .fate = odds[below(12)]};
    l.family = below(3) ? ALONE : (enum family)(1 + below(FAMILIES - 1));
    l.scarce = below(8) ? PLENTY : (enum scarce)(1 + below(2));
    l.target = l.family == ALONE ? 0 : (int)below(2);
    l.calls = below(3) ? up_to(7) : up_to(9);
    l.delay = l.fate == STEPPED ? 1 + below(below(4) ? 900 : 6000) : up_to(l.fate == AT_TIME ? 23 : 16);
    l.style[SURVIVOR] = (enum style)below(STYLES), l.style[VICTIM] = (enum style)below(STYLES);
    l.count = 1 + (int)below(MOST_PHASES - 1);
    for (int i = 0; i < l.count; i++) l.phases[i] = some_phase();
    l.phases[l.count++] = control;
    return l;
}

/* One victim dies at one instruction of one call, all else is always the same. */
static struct plan at_one_instruction(long scenario, long instruction) {
    struct plan p = {.count = 1, .threads = (int)(scenario & 1)};
    state = mixed((uint64_t)(EACH + scenario));
    p.loop = (enum style)(POLL + below(STYLES - POLL));
    static const enum kind ways[] = {EXCHANGE, STREAM, BOTH_WAYS};
    struct link l = {.survivor_listens = (int)below(2), .family = (enum family)(scenario / 2 % IDLE), .fate = STEPPED, .delay = instruction};
    l.target = l.family == ALONE ? 0 : (int)below(2);
    l.style[SURVIVOR] = (enum style)below(STYLES), l.style[VICTIM] = (enum style)below(STYLES);
    /* Who is busy sees what is published before anything else is done; who sleeps, once it is rung for. */
    if (scenario / 6 % 2 == 0) l.style[SURVIVOR] = p.loop = BUSY;
    /* Also the calls in which a connection moves. */
    l.calls = l.family == ALONE && below(3) == 0 ? 1 + below(40) : 80 + below(60);
    int bits = below(2) ? 6 : 15;
    l.phases[0] = (struct phase){.kind = ways[below(3)], .by = (int)below(2), .bytes = up_to(bits), .back = up_to(bits), .rounds = 5};
    l.phases[0].chunk = l.phases[0].read_chunk = BUFFER;
    l.phases[1] = control;
    l.count = 2;
    p.links[0] = l;
    return p;
}

struct plan plan_of(long seed) {
    if (seed >= EACH) return at_one_instruction((seed - EACH) / INSTRUCTIONS, 1 + (seed - EACH) % INSTRUCTIONS);
    struct plan p = {0};
    state = mixed((uint64_t)seed);
    p.count = 1 + (int)below(MOST_CONNECTIONS);
    p.threads = (int)below(2);
    p.loop = (enum style)(POLL + below(STYLES - POLL));
    p.storms = below(4) ? 0 : 1 + (int)below(12);
    p.stands_still = below(40) ? 0 : (int)up_to(11);
    for (int i = 0; i < p.count; i++) p.links[i] = some_link();
    if (surroundings == STANDS_STILL) p.stands_still = 500 + (int)below(2500);
    return p;
}

void describe(FILE *to, long seed) {
    struct plan p = plan_of(seed);
    fprintf(to, "seed %ld: %s, %d storms, stands still for %d ms\n", seed,
            p.threads ? "a thread per connection" : styles[p.loop], p.storms, p.stands_still);
    for (int i = 0; i < p.count; i++) {
        struct link *l = &p.links[i];
        fprintf(to, "  %d: %s; %s%s", i, l->survivor_listens ? "accepted" : "connected", families[l->family], scarces[l->scarce]);
        if (l->small_buffer) fprintf(to, ", small buffer");
        if (l->fate == LIVES) fprintf(to, ", lives");
        else fprintf(to, ", %d %s (call %ld, %ld)", l->target, fates[l->fate], l->calls, l->delay);
        fprintf(to, ", %s/%s:", styles[l->style[0]], styles[l->style[1]]);
        for (int n = 0; n < l->count - 1; n++) {
            struct phase *f = &l->phases[n];
            fprintf(to, " [%s by %d, %ld and %ld, %d rounds in %d/%d, %d us]", kinds[f->kind], f->by, f->bytes, f->back, f->rounds, f->chunk,
                    f->read_chunk, f->pause);
        }
        fputc('\n', to);
    }
}
