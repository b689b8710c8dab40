/* Steps of many calls: exchanges that bring a connection to the SAN, streams that slow down and end, and the rest of
 * what is under way. */
#include "differ.h"
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sendfile.h>

enum { MOST_SECONDS = 20 };

/* Waits as the step says: not at all, or for at most MOST_SECONDS; false: nothing happened. */
static bool wait_by(const char *how, int fd, bool output) {
  if (strcmp(how, "select") == 0 && fd >= 0 && fd < FD_SETSIZE) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timeval time = {MOST_SECONDS, 0};
    return select(fd + 1, output ? NULL : &set, output ? &set : NULL, NULL, &time) != 0;
  }
  if (strcmp(how, "poll") == 0) {
    struct pollfd one = {fd, output ? POLLOUT : POLLIN, 0};
    return poll(&one, 1, MOST_SECONDS * 1000) != 0;
  }
  if (strcmp(how, "epoll") == 0) {
    static _Thread_local int set = -1, of = -1;
    static _Thread_local bool of_output;
    struct epoll_event event = {.events = output ? EPOLLOUT : EPOLLIN};
    if (set < 0) set = epoll_create1(EPOLL_CLOEXEC);
    if (of != fd || of_output != output || epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) < 0) {
      if (of >= 0) epoll_ctl(set, EPOLL_CTL_DEL, of, &event);
      epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
      of = fd, of_output = output;
    }
    return epoll_wait(set, &event, 1, MOST_SECONDS * 1000) != 0;
  }
  return true;
}

static bool wait_for(const struct step *step, int fd, bool output) { return wait_by(word(step, "wait"), fd, output); }
/* A descriptor that does not block is waited for when it has to be. */
static bool may_go_on(long result, int error, int fd, bool output) {
  return result < 0 && error == EAGAIN && wait_by("poll", fd, output);
}

static bool all_sent(struct step *step, int fd, int stream, const uint8_t *bytes, size_t count) {
  for (size_t at = 0; at < count;) {
    if (!wait_for(step, fd, true)) return tell(step, " send-never"), false;
    sending(stream, (long)(count - at));
    long result = CALL(send(fd, bytes + at, count - at, MSG_NOSIGNAL));
    int error = errno;
    sent(stream, (long)(count - at), result);
    if (may_go_on(result, error, fd, true)) continue;
    if (result < 0) return told(step, result, error), false;
    at += (size_t)result;
  }
  return true;
}
static bool all_received(struct step *step, int fd, int stream, uint8_t *bytes, size_t count) {
  for (size_t at = 0; at < count;) {
    if (!wait_for(step, fd, false)) return tell(step, " receive-never"), false;
    long result = CALL(recv(fd, bytes, count - at, 0));
    int error = errno;
    if (may_go_on(result, error, fd, false)) continue;
    received(step, stream, bytes, result, error, count - at, false);
    if (result <= 0) return told(step, result, error), false;
    at += (size_t)result;
  }
  return true;
}
/* `times` exchanges of `n` bytes; `first=1` begins. */
static void exchange_step(struct step *step) {
  int fd = slot(step, "s"), out = (int)number(step, "out", 0), in = (int)number(step, "in", 0);
  long times = number(step, "times", 50), i;
  size_t count = (size_t)number(step, "n", 1);
  uint8_t *bytes = buffer();
  bool first = number(step, "first", 0);
  for (i = 0; i < times; i++) {
    if (!first && !all_received(step, fd, in, bytes, count)) break;
    fill(bytes, out, shared->stream[out].sent, count);
    if (!all_sent(step, fd, out, bytes, count)) break;
    if (first && !all_received(step, fd, in, bytes, count)) break;
  }
  tell(step, " %ld times", i);
}

/* Ends the connection as the step says, in the same breath as its last bytes. */
static void end(struct step *step, int fd) {
  const char *how = word(step, "end");
  struct linger none = {1, 0}, some = {1, 5};
  if (strcmp(how, "close") == 0) TOLD(step, close(fd));
  else if (strcmp(how, "shut") == 0) TOLD(step, shutdown(fd, SHUT_WR));
  else if (strcmp(how, "shutclose") == 0) TOLD(step, shutdown(fd, SHUT_RDWR)), TOLD(step, close(fd));
  else if (strcmp(how, "lingerclose") == 0) setsockopt(fd, SOL_SOCKET, SO_LINGER, &some, sizeof some), TOLD(step, close(fd));
  else if (strcmp(how, "reset") == 0) setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none), TOLD(step, close(fd));
  else if (strcmp(how, "dup2") == 0) TOLD(step, dup2(MEMORY_FD, fd));
  else if (strcmp(how, "exit") == 0) exit(0);
  else if (strcmp(how, "_exit") == 0) _exit(0);
  else if (strcmp(how, "kill") == 0) kill(getpid(), SIGKILL);
  else if (strcmp(how, "exec") == 0) fcntl(fd, F_SETFD, FD_CLOEXEC), execl("/bin/true", "true", (char *)NULL);
  if (strstr(how, "close") || strcmp(how, "reset") == 0) slots[number(step, "s", 0) % SLOTS] = -1;
}

/* `total` bytes in sends of `n`, by `how`; from the `slow`th send on `slow_times` sends have a pause of `slow_us` before
 * them, and before the one `pause_at` there is one of `pause_ms`. */
static void write_stream_step(struct step *step) {
  int fd = slot(step, "s"), out = (int)number(step, "out", 0);
  long total = number(step, "total", 100000), left = total, sends = 0;
  long slow = number(step, "slow", -1), times = number(step, "slow_times", 0), microseconds = number(step, "slow_us", 60);
  long pause_at = number(step, "pause_at", -1), pause_ms = number(step, "pause_ms", 0);
  size_t count = (size_t)number(step, "n", 8192);
  uint8_t *bytes = buffer();
  if (count > LARGEST) count = LARGEST;
  shared->stream[out].coming = shared->stream[out].sent + total;
  for (; left > 0; sends++) {
    size_t part = (size_t)left < count ? (size_t)left : count;
    if (slow >= 0 && sends >= slow && sends < slow + times) nap(microseconds);
    if (sends == pause_at) nap(pause_ms * 1000);
    fill(bytes, out, shared->stream[out].sent, part);
    if (!all_sent(step, fd, out, bytes, part)) break;
    left -= (long)part;
  }
  shared->stream[out].coming = 0;
  /* How much goes before an error TCP leaves open. */
  tell(step, left > 0 ? " wrote part" : " wrote %ld", total);
  end(step, fd);
}

/* Reads `total` bytes, or to the end, `n` at a time. */
static void read_stream_step(struct step *step) {
  int fd = slot(step, "s"), in = (int)number(step, "in", 0);
  long total = number(step, "total", 1L << 40), got = 0, result = 1, reads = 0;
  long pause_at = number(step, "pause_at", -1), pause_ms = number(step, "pause_ms", 0);
  size_t count = (size_t)number(step, "n", 8192);
  uint8_t *bytes = buffer();
  if (count > LARGEST) count = LARGEST;
  while (got < total) {
    size_t part = total - got < (long)count ? (size_t)(total - got) : count;
    if (reads++ == pause_at) nap(pause_ms * 1000);
    if (!wait_for(step, fd, false)) {
      tell(step, " never");
      break;
    }
    result = CALL(recv(fd, bytes, part, 0));
    int error = errno;
    if (may_go_on(result, error, fd, false)) continue;
    received(step, in, bytes, result, error, part, false);
    if (result <= 0) {
      told(step, result, error);
      break;
    }
    got += result;
  }
  const struct stream *stream = &shared->stream[in];
  if (result == 0 && stream->varies) tell(step, stream->got == stream->sent ? " read all" : " read part");
  else tell(step, result < 0 ? " read part" : " read %ld", got);
  end(step, fd);
}

/* Sends without waiting until nothing more is taken. How much that is TCP leaves open. */
static void fill_step(struct step *step) {
  int fd = slot(step, "s"), out = (int)number(step, "out", 0), quiet = 0;
  uint8_t *bytes = buffer();
  size_t count = (size_t)number(step, "n", 16384);
  long result = 0;
  int error = 0;
  shared->stream[out].varies = 1;
  for (int64_t all = 0; quiet < 3 && all < 64 << 20;) {
    fill(bytes, out, shared->stream[out].sent, count);
    sending(out, (long)count);
    result = CALL(send(fd, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL));
    error = errno;
    sent(out, (long)count, result);
    if (result < 0 && error != EAGAIN) break;
    if (result < 0) quiet++, nap(2000);
    else all += result;
  }
  if (result < 0) told(step, result, error);
}

/* Receives without waiting for more than what was sent. */
static void drain_step(struct step *step) {
  int fd = slot(step, "s"), in = (int)number(step, "in", 0);
  uint8_t *bytes = buffer();
  struct stream *s = &shared->stream[in];
  size_t count = (size_t)number(step, "n", 65536);
  for (int tries = 0;;) {
    long result = CALL(recv(fd, bytes, count, MSG_DONTWAIT));
    int error = errno;
    received(step, in, bytes, result, error, count, false);
    if (result > 0) {
      tries = 0;
      continue;
    }
    int most = s->got < s->sent && !s->unchecked ? 75 : s->got < s->tried || s->got < s->coming ? 3 : 0;
    if (result < 0 && error == EAGAIN && tries++ < most) {
      struct pollfd one = {fd, POLLIN, 0};
      shared->naps[actor]++;
      poll(&one, 1, 20);
      shared->naps[actor]--;
      continue;
    }
    if (!s->unchecked && !s->failed && s->got < s->sent && result < 0 && error == EAGAIN) tell(step, " MISSING");
    told(step, result, error);
    break;
  }
}

const struct entry stream_steps[] = {{"exchange", exchange_step}, {"wstream", write_stream_step}, {"rstream", read_stream_step},
                                     {"fill", fill_step},         {"drain", drain_step},          {NULL, NULL}};
