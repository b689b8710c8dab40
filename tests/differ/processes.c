/* Threads, forks and new programs, which become actors too; their ends; and signals. */
#include "differ.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static int actor_of(const struct step *step) { return (int)(number(step, "new", 0) % ACTORS); }

static void *begin(void *as) { serve((int)(intptr_t)as); }
static pthread_t threads[ACTORS];
static void thread_step(struct step *step) {
  int as = actor_of(step);
  int error = pthread_create(&threads[as], NULL, begin, (void *)(intptr_t)as);
  tell(step, " %d", error);
}
/* A thread may not have begun, if who was to begin it was held up. */
static void cancel_step(struct step *step) {
  pthread_t *thread = &threads[actor_of(step)];
  if (*thread) tell(step, " %d", pthread_cancel(*thread));
  else tell(step, " none");
  *thread = 0;
}
static void leave_step(struct step *step) {
  (void)step;
  pthread_exit(NULL);
}

static void fork_step(struct step *step) {
  int as = actor_of(step);
  errno = UNCHANGED;
  pid_t pid = fork();
  if (pid == 0) {
    process = as;
    serve(as);
  }
  told(step, pid < 0 ? -1 : 0, errno);
}

/* What a new program needs to be this actor, or another one: its slots. */
static char **command(int as) {
  static char texts[SLOTS + 2][24], *values[SLOTS + 3];
  int count = 0;
  values[count++] = arguments[0];
  snprintf(texts[SLOTS], sizeof texts[0], "%d", as);
  values[count++] = texts[SLOTS];
  for (int i = 0; i < SLOTS; i++) {
    if (slots[i] < 0) continue;
    snprintf(texts[i], sizeof texts[0], "%d:%d", i, slots[i]);
    values[count++] = texts[i];
  }
  values[count] = NULL;
  return values;
}
/* With `bare=1` the new program runs without the library. */
static void make_bare(const struct step *step) {
  if (number(step, "bare", 0)) unsetenv("LD_PRELOAD");
}
static void exec_step(struct step *step) {
  const char *how = word(step, "how");
  char **values = command(actor);
  make_bare(step);
  if (strcmp(how, "fail") == 0) {
    TOLD(step, execl("/nonexistent", "nonexistent", (char *)NULL));
    return;
  }
  if (strcmp(how, "execvp") == 0) TOLD(step, execvp(arguments[0], values));
  else if (strcmp(how, "fexecve") == 0) TOLD(step, fexecve(open(arguments[0], O_RDONLY | O_CLOEXEC), values, environ));
  else TOLD(step, execv(arguments[0], values));
}
static void spawn_step(struct step *step) {
  pid_t pid;
  make_bare(step);
  int error = posix_spawn(&pid, arguments[0], NULL, NULL, command(actor_of(step)), environ);
  tell(step, " %d", error);
}
static void system_step(struct step *step) {
  const char *how = word(step, "how");
  shared->naps[actor]++;
  if (strcmp(how, "popen") == 0) {
    FILE *file = popen("echo", "r");
    tell(step, " %d", file ? fgetc(file) : -2);
    tell(step, " %d", file ? pclose(file) : -1);
  } else if (strcmp(how, "vfork") == 0) {
    int status = -1;
    pid_t pid = vfork();
    if (pid == 0) execl("/bin/true", "true", (char *)NULL), _exit(99);
    tell(step, " %d %d", waitpid(pid, &status, 0) == pid, status);
  } else {
    TOLD(step, system("true"));
  }
  shared->naps[actor]--;
}

static void exit_step(struct step *step) {
  const char *how = word(step, "how");
  if (strcmp(how, "_exit") == 0) _exit(0);
  if (strcmp(how, "kill") == 0) kill(getpid(), SIGKILL);
  if (strcmp(how, "abort") == 0) signal(SIGABRT, SIG_DFL), abort();
  exit(0);
}

/* Which signals came since the last such step, not how often: TCP leaves open how many SIGURG and SIGIO there are. */
static void signals_step(struct step *step) {
  static const struct { const char *name; int number; } all[] = {{"pipe", SIGPIPE}, {"urg", SIGURG}, {"io", SIGIO}, {"usr1", SIGUSR1}, {"usr2", SIGUSR2}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (atomic_exchange(&shared->signals[process][all[i].number], 0)) tell(step, " %s", all[i].name);
}
static void raise_step(struct step *step) { TOLD(step, raise((int)number(step, "sig", SIGUSR1))); }
static void own_step(struct step *step) { TOLD(step, fcntl(slot(step, "s"), F_SETOWN, getpid())); }

static void nap_step(struct step *step) {
  nap(number(step, "us", 1000));
  tell(step, " 0");
}

const struct entry process_steps[] = {{"thread", thread_step}, {"cancel", cancel_step}, {"leave", leave_step},     {"fork", fork_step},
                                      {"exec", exec_step},     {"spawn", spawn_step},   {"system", system_step},   {"exit", exit_step},
                                      {"signals", signals_step}, {"raise", raise_step}, {"own", own_step},         {"nap", nap_step},
                                      {NULL, NULL}};
