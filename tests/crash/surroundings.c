/* What is the matter with the machine on which plans are carried out: no room in shared memory, little memory, clocks that jump, or
 * everything stands still for seconds. All of it is as the seed says. */
#include "crash.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

enum surroundings surroundings;
static const char *const names[] = {"ordinary", "no-room", "little-memory", "clocks-jump", "stands-still", "between-hosts"};
static char group[512];
/* KiB of shared memory. */
enum { ROOM = 256 };

static void cannot(const char *what) {
    printf("%s: this machine cannot: %s: %s\n", names[surroundings], what, strerror(errno));
    exit(0);
}
static int write_number(const char *file, long value) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", group, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int failed = fd < 0 || dprintf(fd, "%ld\n", value) < 0;
    if (fd >= 0) close(fd);
    return failed;
}
static long used(void) {
    char path[600];
    long bytes = 0;
    snprintf(path, sizeof path, "%s/memory.usage_in_bytes", group);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%ld", &bytes) != 1) bytes = 0;
    if (file) fclose(file);
    return bytes;
}
/* A memory cgroup (version 1) of this process's own, below the one that it is in. */
static void enter_group(void) {
    char line[400], own[300] = "";
    FILE *file = fopen("/proc/self/cgroup", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "%*d:memory:%299s", own);
    if (file) fclose(file);
    snprintf(group, sizeof group, "/sys/fs/cgroup/memory%s/crash-%d", own, getpid());
    if (!own[0] || mkdir(group, 0755)) group[0] = 0, cannot("a memory cgroup");
    if (write_number("cgroup.procs", getpid())) cannot("a memory cgroup");
}

void surround(void) {
    const char *name = getenv("CRASH_WITH");
    if (!name) return;
    while (surroundings < SURROUNDINGS && strcmp(name, names[surroundings])) surroundings++;
    if (surroundings == SURROUNDINGS) fprintf(stderr, "CRASH_WITH=%s?\n", name), exit(2);
    if (surroundings == LITTLE_MEMORY) enter_group();
    if (surroundings != NO_ROOM) return;
    char size[40];
    snprintf(size, sizeof size, "mode=1777,size=%dk", ROOM);
    if (unshare(CLONE_NEWNS) || mount(0, "/", 0, MS_REC | MS_PRIVATE, 0)) cannot("a mount namespace");
    if (mount("crash", "/dev/shm", "tmpfs", 0, size)) cannot("a file system");
}
void leave_surroundings(void) {
    if (!group[0]) return;
    char *end = strrchr(group, '/'), path[600];
    snprintf(path, sizeof path, "%.*s/cgroup.procs", (int)(end - group), group);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || dprintf(fd, "0\n") < 0) perror(path);
    if (fd >= 0) close(fd);
    /* The last processes in it end. */
    for (int i = 0; rmdir(group) && i < 1000; i++) rest(1000);
}

void bring_to_san(const struct link *l, int fd, int begins) {
    /* Each victim opens the device anew. */
    int times = surroundings == BETWEEN_HOSTS ? 5 : l->family != ALONE;
    while (times-- > 0) warm_up(fd, begins);
}

/* Fills what is left of shared memory, and gives it back, in between. */
static void fill_room(uint64_t state) {
    int fd = open("/dev/shm/filler", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    for (;;) {
        long all = ROOM * 1024L, size = drawn(&state, 4) ? all : drawn(&state, all), at = 0;
        while (at < size && !posix_fallocate(fd, at, 4096)) at += 4096;
        rest(drawn_bits(&state, 12));
        if (drawn(&state, 8) && ftruncate(fd, 0)) perror("ftruncate");
        rest(drawn_bits(&state, 10));
    }
}
pid_t surround_plan(long seed) {
    uint64_t state = mixed((uint64_t)seed + 1);
    if (surroundings == CLOCKS_JUMP) jump_clocks(seed);
    /* What the plan itself needs, and next to nothing, or somewhat more. */
    if (surroundings == LITTLE_MEMORY && write_number("memory.limit_in_bytes", used() + (16 << 20) + drawn(&state, 32 << 20))) perror("memory.limit_in_bytes");
    if (surroundings != NO_ROOM) return 0;
    pid_t filler = fork();
    if (filler == 0) fill_room(state);
    return filler;
}
