/* Connections are made, duplicated, shut down and closed, and their descriptors' flags change. */
#include "differ.h"
#include <sys/un.h>

static bool is_v6(const struct step *step) { return number(step, "family", 4) == 6; }
static socklen_t local(struct sockaddr_storage *address, bool v6, int port) {
  memset(address, 0, sizeof *address);
  if (v6) {
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;
    *six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    return sizeof *six;
  }
  struct sockaddr_in *four = (struct sockaddr_in *)address;
  *four = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  return sizeof *four;
}
static int port_of(const struct sockaddr_storage *address) {
  return ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port : ((const struct sockaddr_in *)address)->sin_port);
}
static int kind(const struct step *step) {
  return SOCK_STREAM | (has(step, "flags", "cloexec") ? SOCK_CLOEXEC : 0) | (has(step, "flags", "nonblock") ? SOCK_NONBLOCK : 0);
}

/* `port=` is the number by which connects name the listener. */
static void listen_step(struct step *step) {
  struct sockaddr_storage address;
  socklen_t length = local(&address, is_v6(step), 0);
  int fd = (int)TOLD(step, socket(address.ss_family, kind(step), 0));
  if (fd < 0) return;
  TOLD(step, bind(fd, (struct sockaddr *)&address, length));
  TOLD(step, listen(fd, (int)number(step, "backlog", 16)));
  if (getsockname(fd, (struct sockaddr *)&address, &length) == 0) shared->port[number(step, "port", 0) % PORTS] = port_of(&address);
  keep(step, "s", fd);
}
/* Nagle's algorithm would hold bytes back until the peer's kernel acknowledges others, at a time of its own. */
static void without_nagle(int fd) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}
static void connect_step(struct step *step) {
  struct sockaddr_storage address;
  long port = number(step, "port", 0) % PORTS;
  socklen_t length = local(&address, is_v6(step), port < 0 ? 0 : (int)shared->port[port]);
  int fd = slot(step, "s");
  if (!number(step, "again", 0)) {
    fd = (int)TOLD(step, socket(address.ss_family, kind(step), 0));
    if (fd < 0) return;
    keep(step, "s", fd);
    without_nagle(fd);
  }
  long size = number(step, "sndbuf", 0);
  int value = (int)size;
  if (size) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof value);
  TOLD(step, connect(fd, (struct sockaddr *)&address, length));
}
static void accept_step(struct step *step) {
  struct sockaddr_storage address;
  socklen_t length = sizeof address;
  int flags = kind(step) & ~SOCK_STREAM, fd = slot(step, "l");
  const char *how = word(step, "how");
  long result = strcmp(how, "accept4") == 0 ? TOLD(step, accept4(fd, (struct sockaddr *)&address, &length, flags)) : TOLD(step, accept(fd, NULL, NULL));
  keep(step, "s", (int)result);
  if (result >= 0) without_nagle((int)result);
}

static void forget(const struct step *step) {
  long index = number(step, "s", -1);
  if (index >= 0 && index < SLOTS) slots[index] = -1;
}
static void close_step(struct step *step) {
  int fd = slot(step, "s");
  const char *how = word(step, "how");
  forget(step);
  if (strcmp(how, "range") == 0) TOLD(step, fd < 0 ? close(fd) : close_range((unsigned)fd, (unsigned)fd, 0));
  else if (strcmp(how, "syscall") == 0) TOLD(step, syscall(SYS_close, fd));
  else TOLD(step, close(fd));
}
/* `to=` is the new slot; dup2 and dup3 go onto the descriptor that it has, which they close. */
static void dup_step(struct step *step) {
  int fd = slot(step, "s"), to = slot(step, "to");
  const char *how = word(step, "how");
  long result = strcmp(how, "dup2") == 0      ? TOLD(step, dup2(fd, to))
                : strcmp(how, "dup3") == 0    ? TOLD(step, dup3(fd, to, O_CLOEXEC))
                : strcmp(how, "fcntl") == 0   ? TOLD(step, fcntl(fd, F_DUPFD, 3))
                : strcmp(how, "cloexec") == 0 ? TOLD(step, fcntl(fd, F_DUPFD_CLOEXEC, 30))
                                              : TOLD(step, dup(fd));
  keep(step, "to", (int)result);
}
static void shutdown_step(struct step *step) {
  const char *how = word(step, "how");
  int what = strcmp(how, "rd") == 0 ? SHUT_RD : strcmp(how, "rdwr") == 0 ? SHUT_RDWR : strcmp(how, "wrong") == 0 ? 7 : SHUT_WR;
  /* A receiver that shut down is told the end of the stream before it. */
  long in = number(step, "in", -1);
  if (in >= 0 && what != SHUT_WR) shared->stream[in % STREAMS].failed = 1;
  TOLD(step, shutdown(slot(step, "s"), what));
}
static void flags_step(struct step *step) {
  int fd = slot(step, "s");
  const char *how = word(step, "how");
  int on = (int)number(step, "on", 1);
  if (strcmp(how, "getfl") == 0) TOLD(step, fcntl(fd, F_GETFL));
  else if (strcmp(how, "getfd") == 0) TOLD(step, fcntl(fd, F_GETFD));
  else if (strcmp(how, "cloexec") == 0) TOLD(step, fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0));
  else if (strcmp(how, "fionbio") == 0) TOLD(step, ioctl(fd, FIONBIO, &on));
  else if (strcmp(how, "fioclex") == 0) TOLD(step, ioctl(fd, on ? FIOCLEX : FIONCLEX));
  else if (strcmp(how, "async") == 0) TOLD(step, fcntl(fd, F_SETOWN, getpid())), TOLD(step, fcntl(fd, F_SETFL, on ? O_ASYNC | O_RDWR : O_RDWR));
  else TOLD(step, fcntl(fd, F_SETFL, on ? O_RDWR | O_NONBLOCK : O_RDWR));
}

/* A descriptor goes to another process over one of the ways that all processes have. */
static void pass_step(struct step *step) {
  int fd = slot(step, "s");
  long way = number(step, "way", 0) % WAYS;
  _Alignas(8) char control[CMSG_SPACE(sizeof fd)] = {0};
  struct iovec iov = {"f", 1};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
  TOLD(step, sendmsg(WAY_FD + 2 * (int)way, &message, 0));
}
static void take_step(struct step *step) {
  int fd = -1;
  long way = number(step, "way", 0) % WAYS;
  _Alignas(8) char control[CMSG_SPACE(sizeof fd)] = {0};
  char byte;
  struct iovec iov = {&byte, 1};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  TOLD(step, recvmsg(WAY_FD + 2 * (int)way + 1, &message, MSG_DONTWAIT));
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  if (c && c->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(c), sizeof fd);
  tell(step, " %d", fd);
  keep(step, "s", fd);
}

const struct entry descriptor_steps[] = {{"listen", listen_step}, {"connect", connect_step},   {"accept", accept_step},
                                         {"close", close_step},   {"dup", dup_step},           {"shutdown", shutdown_step},
                                         {"flags", flags_step},   {"pass", pass_step},         {"take", take_step},
                                         {NULL, NULL}};
