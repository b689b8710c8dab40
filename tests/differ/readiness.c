/* Waiting: poll, select and epoll in all modes. What they say is told in order of the slots. */
#include "differ.h"
#include <sys/epoll.h>
#include <sys/select.h>

static const struct { const char *name; unsigned bit; } bits[] = {
    {"in", EPOLLIN},       {"out", EPOLLOUT}, {"pri", EPOLLPRI},         {"rdhup", EPOLLRDHUP},         {"err", EPOLLERR},
    {"hup", EPOLLHUP},     {"nval", POLLNVAL}, {"et", EPOLLET}, {"once", EPOLLONESHOT}, {"exclusive", EPOLLEXCLUSIVE}};
enum { SHOWN = 7, ALL = 10, MOST = 16 };

static void show(struct step *step, unsigned events) {
  const char *before = "";
  for (int i = 0; i < SHOWN; i++)
    if (events & bits[i].bit) tell(step, "%s%s", before, bits[i].name), before = "+";
  if (!*before) tell(step, "-");
}
/* The events that stand before a comma or the end, joined by `+`. */
static unsigned events_of(const char *text) {
  unsigned events = 0;
  size_t length = strcspn(text, ",");
  for (const char *at = text; at < text + length; at += strcspn(at, "+,"), at += *at == '+') {
    size_t part = strcspn(at, "+,");
    for (int i = 0; i < ALL; i++)
      if (strlen(bits[i].name) == part && strncmp(bits[i].name, at, part) == 0) events |= bits[i].bit;
  }
  return events;
}

static void do_select(struct step *step, struct pollfd *all, int count, long ms, bool masked) {
  fd_set in, out, except;
  FD_ZERO(&in);
  FD_ZERO(&out);
  FD_ZERO(&except);
  int most = 0;
  for (int i = 0; i < count; i++) {
    if (all[i].fd < 0 || all[i].fd >= FD_SETSIZE) continue;
    if (all[i].events & POLLIN) FD_SET(all[i].fd, &in);
    if (all[i].events & POLLOUT) FD_SET(all[i].fd, &out);
    if (all[i].events & POLLPRI) FD_SET(all[i].fd, &except);
    if (all[i].fd >= most) most = all[i].fd + 1;
  }
  struct timeval time = {ms / 1000, ms % 1000 * 1000};
  struct timespec precise = {ms / 1000, ms % 1000 * 1000000};
  sigset_t none;
  sigemptyset(&none);
  long result = masked ? TOLD(step, pselect(most, &in, &out, &except, ms < 0 ? NULL : &precise, &none))
                       : TOLD(step, select(most, &in, &out, &except, ms < 0 ? NULL : &time));
  for (int i = 0; i < count && result > 0; i++) {
    if (all[i].fd < 0 || all[i].fd >= FD_SETSIZE) continue;
    tell(step, " %s%s%s-", FD_ISSET(all[i].fd, &in) ? "r" : "", FD_ISSET(all[i].fd, &out) ? "w" : "", FD_ISSET(all[i].fd, &except) ? "x" : "");
  }
}

/* `on=SLOT:EVENT+EVENT,...` */
static void poll_step(struct step *step) {
  struct pollfd all[MOST];
  char list[128];
  int count = 0;
  snprintf(list, sizeof list, "%s", word(step, "on"));
  for (const char *at = list; *at && count < MOST; at += strcspn(at, ","), at += *at == ',') {
    int index = atoi(at);
    const char *events = strchr(at, ':');
    if (!events || index < 0 || index >= SLOTS) break;
    all[count++] = (struct pollfd){slots[index], (short)events_of(events + 1), 0};
  }
  long ms = number(step, "ms", 0);
  const char *how = word(step, "how");
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  sigset_t none;
  sigemptyset(&none);
  if (ms > 0) shared->naps[actor]++;
  if (strcmp(how, "select") == 0 || strcmp(how, "pselect") == 0) {
    do_select(step, all, count, ms, how[0] == 'p');
  } else {
    long result = strcmp(how, "ppoll") == 0   ? TOLD(step, ppoll(all, (nfds_t)count, ms < 0 ? NULL : &time, &none))
                  : strcmp(how, "syscall") == 0 ? TOLD(step, syscall(SYS_poll, all, count, ms))
                                                : TOLD(step, poll(all, (nfds_t)count, (int)ms));
    for (int i = 0; i < count && result > 0; i++) tell(step, " "), show(step, (unsigned short)all[i].revents);
  }
  if (ms > 0) shared->naps[actor]--;
}

static void epoll_create_step(struct step *step) {
  keep(step, "e", (int)TOLD(step, number(step, "old", 0) ? epoll_create(5) : epoll_create1(number(step, "cloexec", 1) ? EPOLL_CLOEXEC : 0)));
}
static void epoll_ctl_step(struct step *step) {
  const char *name = word(step, "op");
  int operation = strcmp(name, "mod") == 0 ? EPOLL_CTL_MOD : strcmp(name, "del") == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_ADD;
  struct epoll_event event = {.events = events_of(word(step, "events")), .data.u64 = (uint64_t)number(step, "data", number(step, "s", 0))};
  TOLD(step, epoll_ctl(slot(step, "e"), operation, slot(step, "s"), &event));
}
static int by_data(const void *a, const void *b) {
  const struct epoll_event *one = a, *other = b;
  return (one->data.u64 > other->data.u64) - (one->data.u64 < other->data.u64);
}
static void epoll_wait_step(struct step *step) {
  struct epoll_event events[MOST];
  int most = (int)number(step, "max", MOST), set = slot(step, "e");
  long ms = number(step, "ms", 0);
  const char *how = word(step, "how");
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  sigset_t none;
  sigemptyset(&none);
  if (ms > 0) shared->naps[actor]++;
  if (most > MOST) most = MOST;
  long result = strcmp(how, "pwait") == 0    ? TOLD(step, epoll_pwait(set, events, most, (int)ms, &none))
                : strcmp(how, "pwait2") == 0 ? TOLD(step, epoll_pwait2(set, events, most, ms < 0 ? NULL : &time, NULL))
                                             : TOLD(step, epoll_wait(set, events, most, (int)ms));
  if (ms > 0) shared->naps[actor]--;
  if (result > 0) qsort(events, (size_t)result, sizeof *events, by_data);
  for (long i = 0; i < result; i++) tell(step, " %lu:", (unsigned long)events[i].data.u64), show(step, events[i].events);
}

const struct entry readiness_steps[] = {
    {"poll", poll_step}, {"epoll_create", epoll_create_step}, {"epoll_ctl", epoll_ctl_step}, {"epoll_wait", epoll_wait_step}, {NULL, NULL}};
