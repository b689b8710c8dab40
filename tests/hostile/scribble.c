/* What a hostile peer writes, and where: it knows what lies there, or it does not. */
#include "hostile.h"
#include "layout.h"
#include <dirent.h>
#include <sys/syscall.h>

static int is_told = -1;
static void tell(const char *name, long at, uint64_t value) {
    if (is_told < 0) is_told = getenv("HOSTILE_TELL") != 0;
    if (is_told) fprintf(stderr, "  [%d] %s (%ld) = %#llx\n", (int)getpid(), name, at, (unsigned long long)value);
}
static uint64_t now_there(const struct memory *m, const struct field *f) {
    return f->bytes == 8 ? atomic_load((_Atomic uint64_t *)(m->at + f->at)) : atomic_load((_Atomic uint32_t *)(m->at + f->at));
}
static void put(const struct memory *m, const struct field *f, uint64_t value) {
    tell(f->name, f->at, value);
    if (f->bytes == 8) atomic_store((_Atomic uint64_t *)(m->at + f->at), value);
    else atomic_store((_Atomic uint32_t *)(m->at + f->at), (uint32_t)value);
}

/* ---- values ----------------------------------------------------------------------------------- */

/* What lay in the fields at some times before. */
enum { TIMES = 4 };
static uint64_t stale[TIMES][MOST_FIELDS];
static long writes;
static void remember(const struct memory *m) {
    if (writes++ % 32) return;
    for (int i = 0; i < field_count; i++) stale[writes / 32 % TIMES][i] = now_there(m, &fields[i]);
}
static uint64_t boundary(const struct sizes *s, uint64_t *state) {
    const uint64_t edges[] = {0, 1, s->buffers, s->message, s->message - HEADER_SIZE, s->send_buffer, s->largest_message,
                              s->largest_message - HEADER_SIZE, s->largest_send_buffer, 1ULL << 16, 1ULL << 30, 1ULL << 31, 1ULL << 32, 1ULL << 63, ~0ULL};
    uint64_t edge = edges[drawn(state, sizeof edges / sizeof *edges)];
    return edge + (uint64_t)drawn(state, 3) - 1;
}
static uint64_t value_for(const struct memory *m, const struct sizes *s, const struct field *f, uint64_t *state) {
    uint64_t old = now_there(m, f);
    switch (drawn(state, 10)) {
    case 0: return boundary(s, state);
    case 1: return old + 1;
    case 2: return old - 1;
    case 3: return old + boundary(s, state);
    case 4: return old - boundary(s, state);
    case 5: return old ^ 1ULL << drawn(state, f->bytes * 8);
    case 6: return now_there(m, &fields[drawn(state, field_count)]);
    case 7: return stale[drawn(state, TIMES)][drawn(state, field_count)];
    case 8: return f >= fields && f < fields + field_count ? stale[drawn(state, TIMES)][f - fields] : old - s->buffers;
    default: return mixed(*state);
    }
}

/* ---- places ----------------------------------------------------------------------------------- */

static void write_field(const struct memory *m, const struct sizes *s, const struct field *f, uint64_t *state) {
    /* The first line is read once. */
    if (f->at >= 64 || drawn(state, 64) == 0) put(m, f, value_for(m, s, f, state));
}
static struct field word_at(const char *name, long at) { return (struct field){name, at, 4}; }
static uint32_t last_published(const struct memory *m, const struct sizes *s, int sender, int is_large) {
    uint32_t last = 0;
    for (uint32_t i = 1; i <= s->buffers; i++) {
        struct field f = word_at("", is_large ? large_slot_at(s, sender, i) : slot_at(s, sender, i));
        uint32_t sequence = (uint32_t)now_there(m, &f);
        if ((int32_t)(sequence - last) > 0) last = sequence;
    }
    return last;
}
/* Any word of a message's header or body. */
static void write_slot(const struct memory *m, const struct sizes *s, uint64_t *state) {
    int sender = (int)drawn(state, 2), is_large = drawn(state, 4) == 0;
    uint32_t sequence = last_published(m, s, sender, is_large) + (uint32_t)drawn(state, 5) - 2;
    long at = is_large ? large_slot_at(s, sender, sequence) : slot_at(s, sender, sequence);
    struct field f = word_at("a message's word", at + 4 * drawn(state, drawn(state, 2) ? 4 : 4 + LARGEST_BODY / 4));
    put(m, &f, value_for(m, s, &f, state));
}
/* A whole message that an honest peer might have sent, or nearly so. */
static void forge_message(const struct memory *m, const struct sizes *s, uint64_t *state) {
    int sender = (int)drawn(state, 2), is_large = drawn(state, 6) == 0;
    uint32_t sequence = last_published(m, s, sender, is_large) + 1;
    if (drawn(state, 8) == 0) sequence += (uint32_t)drawn(state, 40) - 20;
    long at = is_large ? large_slot_at(s, sender, sequence) : slot_at(s, sender, sequence);
    uint32_t kind = 1 + (uint32_t)drawn(state, 18), payload = (is_large ? s->largest_message : s->message) - HEADER_SIZE;
    uint32_t length = drawn(state, 3) ? (uint32_t)drawn(state, 5) * 8 : (uint32_t)(drawn(state, 2) ? drawn(state, payload + 2) : (long)boundary(s, state));
    uint32_t posted = (uint32_t)(drawn(state, 4) ? drawn(state, s->buffers + 2) : (long)(boundary(s, state) & 0xffff));
    uint32_t flags = drawn(state, 8) ? kind == 1 ? (uint32_t)drawn(state, 2) : 0 : (uint32_t)drawn(state, 256);
    uint32_t received = last_published(m, s, 1 - sender, is_large) - (uint32_t)drawn(state, 3) + (uint32_t)(drawn(state, 8) == 0);
    for (long i = 0; i < LARGEST_BODY; i += 4) {
        struct field f = word_at("a forged body", at + HEADER_SIZE + i);
        put(m, &f, drawn(state, 2) ? (uint64_t)drawn(state, 8) : value_for(m, s, &f, state));
    }
    struct field words[4] = {word_at("a forged message", at), word_at("its received", at + 4), word_at("its kind", at + 8), word_at("its length", at + 12)};
    put(m, &words[1], received), put(m, &words[2], posted | kind << 16 | flags << 24), put(m, &words[3], length), put(m, &words[0], sequence);
}
static void write_bytes(const struct memory *m, const struct sizes *s, uint64_t *state) {
    int sender = (int)drawn(state, 2), is_large = drawn(state, 3) == 0;
    long at = is_large ? large_send_buffer_at(s, sender) : send_buffer_at(s, sender);
    struct field f = word_at("a byte sent", at + drawn(state, is_large ? s->largest_send_buffer : s->send_buffer) / 4 * 4);
    put(m, &f, mixed(*state));
}
/* The bells are pipes among the hidden descriptors. */
static int ring_bells(uint64_t *state) {
    int rings = 0;
    static char bytes[4096];
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[300], target[64] = "";
        int fd = atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        if (fd < 900 || readlink(path, target, sizeof target - 1) < 0 || strncmp(target, "pipe:", 5) != 0) continue;
        rings++;
        /* They do not block, and the hooks do not see this. */
        switch (drawn(state, 3)) {
        case 0: syscall(SYS_write, fd, bytes, 1); break;
        case 1: syscall(SYS_write, fd, bytes, sizeof bytes); break;
        default: syscall(SYS_read, fd, bytes, sizeof bytes); break;
        }
    }
    if (folder) closedir(folder);
    return rings;
}

static void scribble_anywhere(const struct memory *m, uint64_t *state) {
    struct field f = word_at("a word", drawn(state, drawn(state, 2) ? 4096 : m->bytes) / 4 * 4);
    if (f.at < 64 && drawn(state, 64)) return;
    switch (drawn(state, 4)) {
    case 0: put(m, &f, 0); break;
    case 1: put(m, &f, now_there(m, &f) ^ 1ULL << drawn(state, 32)); break;
    default: put(m, &f, mixed(*state)); break;
    }
}
int scribble(const struct memory *m, const struct hostile *h, uint64_t *state) {
    if (!h->knows_layout) return scribble_anywhere(m, state), 0;
    const struct sizes *s = &m->sizes;
    remember(m);
    if (h->chosen) return write_field(m, s, &fields[h->fields[drawn(state, h->chosen)]], state), 0;
    long choice = drawn(state, 64);
    if (choice < 34) write_field(m, s, &fields[drawn(state, field_count)], state);
    else if (choice < 46) write_slot(m, s, state);
    else if (choice < 58) forge_message(m, s, state);
    else if (choice < 63) write_bytes(m, s, state);
    else if (drawn(state, 8) == 0) return ring_bells(state);
    return 0;
}
