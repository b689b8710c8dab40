/* The actor's beginning, and its loop: takes a step from its channel, carries it out, answers. */
#include "differ.h"
#include <stdarg.h>
#include <sys/prctl.h>

struct shared *shared;
int slots[SLOTS];
char **arguments;
int process;
_Thread_local int actor;

/* The channels are no part of the program, so the library sees nothing of them: system calls by instruction. */
static long by_instruction(long call, long a, long b, long c) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(call), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
}

long number(const struct step *step, const char *key, long otherwise) {
  const char *text = word(step, key);
  return *text ? strtol(text, NULL, 0) : otherwise;
}

const char *word(const struct step *step, const char *key) {
  static _Thread_local char values[4][128];
  static _Thread_local unsigned next;
  size_t length = strlen(key);
  for (const char *at = step->arguments; (at = strstr(at, key)); at += length) {
    if ((at == step->arguments || at[-1] == ' ') && at[length] == '=') {
      char *value = values[next++ % 4];
      size_t count = strcspn(at + length + 1, " ");
      snprintf(value, sizeof values[0], "%.*s", (int)count, at + length + 1);
      return value;
    }
  }
  return "";
}

/* Whether a value such as `in,out` has this part. */
bool has(const struct step *step, const char *key, const char *part) {
  const char *value = word(step, key);
  size_t length = strlen(part);
  for (const char *at = value; (at = strstr(at, part)); at += length)
    if ((at == value || at[-1] == ',') && (at[length] == ',' || !at[length])) return true;
  return false;
}

int slot(const struct step *step, const char *key) {
  long index = number(step, key, -1);
  return index >= 0 && index < SLOTS ? slots[index] : -1;
}

void keep(const struct step *step, const char *key, int fd) {
  long index = number(step, key, -1);
  if (fd >= 0 && index >= 0 && index < SLOTS) slots[index] = fd;
}

void tell(struct step *step, const char *format, ...) {
  va_list list;
  va_start(list, format);
  int length = vsnprintf(step->answer + step->length, sizeof step->answer - step->length, format, list);
  va_end(list);
  step->length += (size_t)length;
  if (step->length >= sizeof step->answer) step->length = sizeof step->answer - 1;
}

long told(struct step *step, long result, int error) {
  if (result < 0) tell(step, " %s", strerrorname_np(error) ? strerrorname_np(error) : "?");
  else tell(step, " %ld", result);
  if (result >= 0 && error != UNCHANGED) tell(step, " errno-changed-to-%d", error);
  errno = error;
  return result;
}

/* A sleep of the step's own: the coordinator does not take the actor for blocked. */
void nap(long microseconds) {
  struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
  shared->naps[actor]++;
  while (nanosleep(&time, &time) < 0 && errno == EINTR) {}
  shared->naps[actor]--;
}

static step_fn *find(const char *name) {
  const struct entry *tables[] = {transfer_steps, stream_steps, readiness_steps, descriptor_steps, option_steps, process_steps, indirect_steps};
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
    for (const struct entry *entry = tables[i]; entry->name; entry++)
      if (strcmp(entry->name, name) == 0) return entry->run;
  return NULL;
}

static void answer(const char *text, size_t length) {
  while (by_instruction(SYS_write, CHANNEL_FD + actor, (long)text, (long)length) == -EINTR) {}
}

void serve(int as) {
  actor = as;
  shared->pid[as] = getpid();
  shared->tid[as] = gettid();
  shared->naps[as] = 0;
  answer("here", 4);
  for (;;) {
    char line[LINE];
    struct step step = {.length = 0};
    long count = by_instruction(SYS_read, CHANNEL_FD + actor, (long)line, sizeof line - 1);
    if (count == -EINTR) continue;
    if (count <= 0) _exit(0);
    line[count] = 0;
    step.name = line;
    step.arguments = line + strcspn(line, " ");
    if (*step.arguments) *step.arguments++ = 0;
    step_fn *run = find(step.name);
    step.answer[0] = 0;
    if (run) run(&step);
    else tell(&step, " no such step");
    answer(step.answer[0] ? step.answer : " ", step.length ? step.length : 1);
  }
}

static void count_signal(int number) { shared->signals[process][number]++; }

/* `actor INDEX first`, by the coordinator, with which it ends; `actor INDEX [SLOT:FD...]` after exec, with what the slots had. */
int main(int count, char **values) {
  arguments = values;
  if (count < 2) {
    fprintf(stderr, "usage: actor INDEX [SLOT:DESCRIPTOR...]; scripts/differ runs it\n");
    return 2;
  }
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, MEMORY_FD, 0);
  if (shared == MAP_FAILED) {
    perror("the shared memory: scripts/differ runs this program");
    return 2;
  }
  for (int i = 0; i < SLOTS; i++) slots[i] = -1;
  for (int i = 2; i < count; i++) {
    int index, fd;
    if (sscanf(values[i], "%d:%d", &index, &fd) == 2 && index >= 0 && index < SLOTS) slots[index] = fd;
  }
  process = atoi(values[1]);
  if (count > 2 && strcmp(values[2], "first") == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct sigaction handler = {.sa_handler = count_signal};
  int counted[] = {SIGPIPE, SIGURG, SIGIO};
  handler.sa_flags = SA_RESTART;
  for (size_t i = 0; i < sizeof counted / sizeof *counted; i++) sigaction(counted[i], &handler, NULL);
  sigaction(SIGUSR2, &handler, NULL);
  handler.sa_flags = 0;
  sigaction(SIGUSR1, &handler, NULL);
  serve(process);
}
