/* Thousands of connections that are opened, used, left idle and closed, again and again: both processes are then where they
 * were. And what happens where no more connections can go to the SAN.
 *
 * BT_MANY and BT_ROUNDS say how many connections and how often, BT_HANG_S how long a case may take. The long form, which takes
 * some minutes:
 * BT_MANY=10000 BT_ROUNDS=10 BT_HANG_S=1200 cargo test --release -p sanshim-tests --test behaviour -- shim::many::opened
 * A hard limit of 45000 descriptors is enough. */
#include "bt.h"

#include <dirent.h>
#include <sys/mman.h>

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

static void raise_descriptors(void) {
  struct rlimit limit;
  SYS(getrlimit(RLIMIT_NOFILE, &limit));
  limit.rlim_cur = limit.rlim_max;
  SYS(setrlimit(RLIMIT_NOFILE, &limit));
}

/* What this process has. */
struct holdings {
  long descriptors, mappings, segments, rss_kib;
};

static long rss_kib(void) {
  char line[1024];
  long kib = -1;
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  if (!file) FAIL("smaps_rollup: %s", strerrorname_np(errno));
  while (kib < 0 && fgets(line, sizeof line, file)) sscanf(line, "Rss: %ld", &kib);
  fclose(file);
  return kib;
}

static struct holdings look(void) {
  struct holdings now = {0};
  DIR *folder = opendir("/proc/self/fd");
  if (!folder) FAIL("opendir: %s", strerrorname_np(errno));
  while (readdir(folder)) now.descriptors++;
  closedir(folder);
  now.mappings = count_lines("/proc/self/maps", "");
  now.segments = count_lines("/proc/self/maps", "/memfd:sanshim");
  now.rss_kib = rss_kib();
  return now;
}

/* After all was closed. Between hosts that goes on in the background. */
static struct holdings look_at_rest(void) {
  struct holdings now = look(), before;
  if (!getenv("SANSHIM_PROVIDERS")) return now;
  do {
    before = now;
    sleep_ms(300);
    now = look();
  } while (now.descriptors != before.descriptors);
  return now;
}

/* Every process of the case comes here as often as it is called. */
static void meet(void) {
  static long times;
  long all = 2 * ++times;
  bt_shared->value[0]++;
  UNTIL(bt_shared->value[0] >= all);
}

/* One end: `next` gives its next connection, used. */
static void rounds(const char *who, int (*next)(int)) {
  int many = number("BT_MANY", is_between_hosts() ? 300 : 1000), times = number("BT_ROUNDS", 3);
  int *fds = calloc(many, sizeof *fds);
  struct holdings first = {0}, last, full;
  for (int round = 0; round < times; round++) {
    for (int i = 0; i < many; i++) fds[i] = next(round);
    meet();
    full = look();
    meet();
    for (int i = 0; i < many; i++) SYS(close(fds[i]));
    meet();
    last = look_at_rest();
    if (round == 0) first = last;
    meet();
  }
  free(fds);
  /* Less than a page for every fourth connection; of links the allocator keeps more. */
  bool has_links = getenv("LD_PRELOAD") && getenv("SANSHIM_PROVIDERS");
  long margin = has_links ? 8 * many : many, mappings = has_links ? many / 8 : 16;
  bool is_on_san = !getenv("LD_PRELOAD") || full.segments >= many;
  bool same = last.descriptors == first.descriptors && last.segments == first.segments &&
              last.mappings <= first.mappings + mappings && last.rss_kib <= first.rss_kib + margin;
  if (!same || full.descriptors < many || !is_on_san)
    FAIL("%s: after the first round %ld descriptors, %ld mappings (%ld segments), %ld KiB; after the last %ld, %ld (%ld), "
         "%ld; with all open %ld, %ld (%ld), %ld",
         who, first.descriptors, first.mappings, first.segments, first.rss_kib, last.descriptors, last.mappings,
         last.segments, last.rss_kib, full.descriptors, full.mappings, full.segments, full.rss_kib);
}

static int listener;
static union address target;
static int next_accepted(int round) { (void)round; return accept_warm(listener); }
static int next_dialed(int round) {
  /* The kernel keeps the ports of those that were closed for a while. Between hosts each address has an adapter, and that
   * descriptors. */
  union address one = target;
  if (getenv("SANSHIM_PROVIDERS")) round = 0;
  one.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK + round);
  return dial_warm(&one);
}

MIXED_CASE(opened_used_left_idle_and_closed) {
  raise_descriptors();
  union address any = address_v4("0.0.0.0", 0);
  listener = listen_at(&any);
  target = local_address(listener);
  pid_t child = start_child();
  if (child == 0) rounds("server", next_accepted), _exit(0);
  rounds("client", next_dialed);
  end_child(child);
}

/* Fills the process's table of mappings; how many there are, each of a page of its own. */
enum { FILLERS = 1 << 20 };
static void **fill_mappings(int *count) {
  void **all = calloc(FILLERS, sizeof *all);
  for (*count = 0; *count < FILLERS; ++*count) {
    /* Neighbours of different protection are not joined. */
    int protection = *count % 2 ? PROT_READ : PROT_NONE;
    void *at = mmap(NULL, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) break;
    all[*count] = at;
  }
  return all;
}

CASE(no_mapping_is_left) {
  enum { PAIRS = 8 };
  struct pair pairs[PAIRS];
  pairs[0] = open_pair(V4);
  int count;
  void **fillers = fill_mappings(&count);
  /* Room for one end of some session. */
  for (int i = 0; i < 5 && i < count; i++) SYS(munmap(fillers[count - 1 - i], 4096));
  for (int i = 1; i < PAIRS; i++) {
    pairs[i] = open_pair(V4);
    exercise(pairs[i].client, pairs[i].server);
  }
  for (int i = 0; i < count - 5; i++) munmap(fillers[i], 4096);
  for (int i = 0; i < PAIRS; i++) exercise(pairs[i].client, pairs[i].server), close_pair(&pairs[i]);
  const char *log = getenv("SANSHIM_LOG_FILE");
  if (log) EQ(count_lines(log, "no memory for the segment"), 1);
  struct pair after = open_pair(V4);
  exercise(after.client, after.server);
  close_pair(&after);
  free(fillers);
}
