/* Where the segment of a connection is, and what lies where in it. */
#include "hostile.h"
#include "layout.h"
#include <sys/mman.h>

const struct field fields[MOST_FIELDS] = {FIELDS};
static const struct field counted[] = {FIELDS};
const int field_count = sizeof counted / sizeof *counted;
_Static_assert(sizeof counted / sizeof *counted <= MOST_FIELDS, "room for all fields");

enum { PAGE = 4096, SKEW = PAGE + 64 };
static long up(long n) { return (n + PAGE - 1) / PAGE * PAGE; }
static long pairs_at(const struct sizes *s) { return up(send_buffer_at(s, 0) + 2L * s->send_buffer); }
static long messages_at(const struct sizes *s) { return up(pairs_at(s) + 2L * (s->buffers - 1) * s->message); }
static long messages_bytes(const struct sizes *s) { return up(s->buffers * (s->largest_message + (long)SKEW)); }

long send_buffer_at(const struct sizes *s, int sender) { return HEAD_SIZE + 2L * s->message + sender * (long)s->send_buffer; }
long slot_at(const struct sizes *s, int sender, uint32_t sequence) {
    uint32_t last = s->buffers - 1, index = (sequence - 2) & last;
    long pair = index == 0 ? HEAD_SIZE : index == last ? pairs_at(s) : pairs_at(s) + 2L * index * s->message;
    return pair + sender * (long)s->message;
}
long large_slot_at(const struct sizes *s, int sender, uint32_t sequence) {
    return messages_at(s) + sender * messages_bytes(s) + (sequence & (s->buffers - 1)) * (s->largest_message + (long)SKEW);
}
long large_send_buffer_at(const struct sizes *s, int sender) {
    return messages_at(s) + 2 * messages_bytes(s) + sender * (long)s->largest_send_buffer;
}
long total_of(const struct sizes *s) { return large_send_buffer_at(s, 2); }

/* As core/src/provider/shm/field_tests.rs writes them. */
static const struct { struct sizes sizes; long small[4], large[4], send_buffers[2], parts[3]; } divisions[] = {DIVISIONS};
void check_layout(void) {
    int is_stale = 0;
    for (size_t i = 0; i < sizeof divisions / sizeof *divisions; i++) {
        const struct sizes *s = &divisions[i].sizes;
        for (int n = 0; n < 4; n++) {
            uint32_t sequence = (uint32_t)(n + 3) / 2;
            is_stale |= slot_at(s, n / 2, sequence) != divisions[i].small[n] || large_slot_at(s, n / 2, sequence) != divisions[i].large[n];
        }
        is_stale |= send_buffer_at(s, 0) != divisions[i].send_buffers[0] || send_buffer_at(s, 1) != divisions[i].send_buffers[1];
        is_stale |= messages_at(s) != divisions[i].parts[0] || large_send_buffer_at(s, 0) != divisions[i].parts[1] || total_of(s) != divisions[i].parts[2];
    }
    if (!is_stale) return;
    fprintf(stderr, "tests/hostile/memory.c does not compute the layout as core/src/provider/shm/layout.rs does: mend it\n");
    exit(2);
}

/* A second mapping, which stays when the library gives its own back. True: there is a new one. */
int find_memory(struct memory *m) {
    char line[512], name[64];
    unsigned long from, to, inode;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) return 0;
    int is_new = 0;
    while (!is_new && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %*s %*s %*s %lu %63s", &from, &to, &inode, name) < 4) continue;
        if (strcmp(name, "/memfd:sanshim") != 0 || inode == m->inode) continue;
        void *mapped = mremap((void *)from, 0, to - from, MREMAP_MAYMOVE);
        if (mapped == MAP_FAILED) continue;
        /* It is made at this moment where that is not there yet. */
        if (atomic_load((_Atomic uint64_t *)mapped) != MAGIC) {
            munmap(mapped, to - from);
            continue;
        }
        const uint32_t *first = mapped;
        struct memory found = {mapped, (long)(to - from), inode, {first[3], first[4], first[5], first[6], first[7]}};
        if (first[2] != SEGMENT_VERSION || total_of(&found.sizes) != found.bytes)
            fail("a segment that is not as layout.h has it, bytes", found.bytes);
        if (m->at) munmap(m->at, (size_t)m->bytes);
        *m = found, is_new = 1;
    }
    fclose(maps);
    return is_new;
}
