/* Socket options, addresses, and what ioctl says of a socket. */
#include "differ.h"
#include <sys/time.h>

static const struct option { const char *name; int level, number; } options[] = {
    {"rcvbuf", SOL_SOCKET, SO_RCVBUF},        {"sndbuf", SOL_SOCKET, SO_SNDBUF},         {"rcvlowat", SOL_SOCKET, SO_RCVLOWAT},
    {"keepalive", SOL_SOCKET, SO_KEEPALIVE},  {"oobinline", SOL_SOCKET, SO_OOBINLINE},   {"error", SOL_SOCKET, SO_ERROR},
    {"type", SOL_SOCKET, SO_TYPE},            {"domain", SOL_SOCKET, SO_DOMAIN},         {"protocol", SOL_SOCKET, SO_PROTOCOL},
    {"acceptconn", SOL_SOCKET, SO_ACCEPTCONN}, {"reuseaddr", SOL_SOCKET, SO_REUSEADDR},  {"nodelay", IPPROTO_TCP, TCP_NODELAY},
    {"cork", IPPROTO_TCP, TCP_CORK},          {"usertimeout", IPPROTO_TCP, TCP_USER_TIMEOUT}, {"quickack", IPPROTO_TCP, TCP_QUICKACK},
    {"keepidle", IPPROTO_TCP, TCP_KEEPIDLE},  {"priority", SOL_SOCKET, SO_PRIORITY},     {"broadcast", SOL_SOCKET, SO_BROADCAST},
    {"maxseg", IPPROTO_TCP, TCP_MAXSEG},      {"lowat", IPPROTO_TCP, TCP_NOTSENT_LOWAT}, {"nonesuch", SOL_SOCKET, 9999}};

static const struct option *option(const struct step *step) {
  const char *name = word(step, "opt");
  for (size_t i = 0; i < sizeof options / sizeof *options; i++)
    if (strcmp(options[i].name, name) == 0) return &options[i];
  return &options[sizeof options / sizeof *options - 1];
}
static void set_step(struct step *step) {
  const struct option *o = option(step);
  int value = (int)number(step, "to", 1);
  TOLD(step, setsockopt(slot(step, "s"), o->level, o->number, &value, (socklen_t)number(step, "len", sizeof value)));
}
static void get_step(struct step *step) {
  const struct option *o = option(step);
  int value = 0;
  socklen_t length = (socklen_t)number(step, "len", sizeof value);
  if (TOLD(step, getsockopt(slot(step, "s"), o->level, o->number, &value, &length)) == 0) tell(step, " %d", value);
  if (o->number == SO_ERROR && value && number(step, "in", -1) >= 0) shared->stream[number(step, "in", 0) % STREAMS].failed = 1;
}
static void linger_step(struct step *step) {
  struct linger value = {(int)number(step, "on", 1), (int)number(step, "seconds", 0)};
  TOLD(step, setsockopt(slot(step, "s"), SOL_SOCKET, SO_LINGER, &value, sizeof value));
}
/* A receive, or a send into a full connection, that gives up after a time. */
static void timeout_step(struct step *step) {
  bool sends = number(step, "send", 0);
  int fd = slot(step, "s"), name = sends ? SO_SNDTIMEO : SO_RCVTIMEO;
  long in = number(step, "in", 0), count = number(step, "n", 1);
  long ms = number(step, "ms", 30);
  struct timeval time = {ms / 1000, ms % 1000 * 1000}, none = {0, 0};
  TOLD(step, setsockopt(fd, SOL_SOCKET, name, &time, sizeof time));
  shared->naps[actor]++;
  uint8_t *bytes = buffer();
  if (sends) {
    int out = (int)number(step, "out", 0);
    fill(bytes, out, shared->stream[out].sent, (size_t)count);
    sending(out, count);
    long result = CALL(send(fd, bytes, (size_t)count, MSG_NOSIGNAL));
    int error = errno;
    sent(out, count, result);
    told(step, result, error);
  } else {
    long result = CALL(recv(fd, bytes, (size_t)count, has(step, "flags", "waitall") ? MSG_WAITALL : 0));
    int error = errno;
    told(step, result, error);
    received(step, (int)in, bytes, result, error, (size_t)count, false);
  }
  shared->naps[actor]--;
  setsockopt(fd, SOL_SOCKET, name, &none, sizeof none);
}
static void ioctl_step(struct step *step) {
  const char *how = word(step, "how");
  int fd = slot(step, "s"), value = 0;
  if (strcmp(how, "atmark") == 0) TOLD(step, sockatmark(fd));
  else if (strcmp(how, "siocatmark") == 0 && TOLD(step, ioctl(fd, SIOCATMARK, &value)) == 0) tell(step, " %d", value);
  else if (strcmp(how, "outq") == 0) TOLD(step, ioctl(fd, TIOCOUTQ, &value));
  else if (strcmp(how, "fionread") == 0 && TOLD(step, ioctl(fd, FIONREAD, &value)) == 0) tell(step, " %d", value);
  else if (strcmp(how, "bad") == 0) TOLD(step, ioctl(fd, FIONREAD, (void *)0x10));
  else if (strcmp(how, "tty") == 0) TOLD(step, isatty(fd));
}
/* Ports are the kernel's choice: only the family and the length are told. */
static void name_step(struct step *step) {
  struct sockaddr_storage address = {0};
  socklen_t length = (socklen_t)number(step, "len", sizeof address);
  long result = number(step, "peer", 0) ? TOLD(step, getpeername(slot(step, "s"), (struct sockaddr *)&address, &length))
                                        : TOLD(step, getsockname(slot(step, "s"), (struct sockaddr *)&address, &length));
  if (result == 0) tell(step, " %d %u", address.ss_family, (unsigned)length);
}
static void state_step(struct step *step) {
  struct tcp_info info = {0};
  socklen_t length = sizeof info;
  /* When the peer's kernel acknowledges the end is its own to say. */
  enum { FIN_WAIT_1 = 4, FIN_WAIT_2 };
  if (TOLD(step, getsockopt(slot(step, "s"), IPPROTO_TCP, TCP_INFO, &info, &length)) != 0) return;
  tell(step, " %d", info.tcpi_state == FIN_WAIT_1 ? FIN_WAIT_2 : info.tcpi_state);
}

const struct entry option_steps[] = {{"set", set_step},     {"get", get_step},   {"linger", linger_step}, {"timeout", timeout_step},
                                     {"ioctl", ioctl_step}, {"name", name_step}, {"state", state_step},   {NULL, NULL}};
