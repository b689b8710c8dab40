/* The numbered streams: which byte stands where, and what is wrong with bytes that came. */
#include "differ.h"

static uint64_t eight(int stream, uint64_t index) {
  uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u + (uint64_t)stream * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  return x ^ x >> 27;
}

void fill(uint8_t *bytes, int stream, int64_t at, size_t count) {
  for (size_t i = 0; i < count;) {
    uint64_t position = (uint64_t)at + i, value = eight(stream, position / 8);
    if (position % 8 == 0 && count - i >= 8) {
      memcpy(bytes + i, &value, 8);
      i += 8;
    } else {
      bytes[i++] = (uint8_t)(value >> position % 8 * 8);
    }
  }
}

uint8_t *buffer(void) {
  static _Thread_local uint8_t *own;
  if (!own) own = mmap(NULL, LARGEST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return own;
}

/* Where in the stream these bytes stand, or -1. */
static int64_t place(int stream, const uint8_t *bytes, size_t count) {
  uint8_t expected[16];
  if (count < sizeof expected) return -1;
  for (int64_t at = 0; at < shared->stream[stream].tried; at++) {
    fill(expected, stream, at, sizeof expected);
    if (memcmp(bytes, expected, sizeof expected) == 0) return at;
  }
  return -1;
}

static void wrong(struct step *step, int stream, const uint8_t *bytes, int64_t at, size_t count) {
  int64_t is = place(stream, bytes, count);
  if (is > at) tell(step, " WRONG lost %ld at %ld", (long)(is - at), (long)at);
  else if (is >= 0) tell(step, " WRONG repeated from %ld at %ld", (long)is, (long)at);
  else if (count >= 16) tell(step, " WRONG corrupt at %ld", (long)at);
  else tell(step, " WRONG bytes at %ld", (long)at);
  shared->stream[stream].unchecked = 1;
}

void check(struct step *step, int stream, const uint8_t *bytes, int64_t at, size_t count) {
  uint8_t expected[4096];
  for (size_t done = 0; done < count && !shared->stream[stream].unchecked;) {
    size_t part = count - done < sizeof expected ? count - done : sizeof expected;
    fill(expected, stream, at + (int64_t)done, part);
    if (memcmp(bytes + done, expected, part) != 0) {
      size_t same = 0;
      while (bytes[done + same] == expected[same]) same++;
      wrong(step, stream, bytes + done + same, at + (int64_t)(done + same), count - done - same);
    }
    done += part;
  }
  if (!shared->stream[stream].unchecked && at + (int64_t)count > shared->stream[stream].tried) {
    tell(step, " WRONG more than was sent at %ld", (long)at);
    shared->stream[stream].unchecked = 1;
  }
}

void sending(int stream, long count) { shared->stream[stream].tried = shared->stream[stream].sent + count; }

void sent(int stream, long tried, long result) {
  struct stream *s = &shared->stream[stream];
  if (result > 0) s->sent += result;
  if (result > tried) s->unchecked = 1;
  s->tried = s->sent;
}

void received(struct step *step, int stream, const uint8_t *bytes, long result, int error, size_t asked, bool looked) {
  struct stream *s = &shared->stream[stream];
  if (result > 0) {
    if (bytes) check(step, stream, bytes, s->got, (size_t)result);
    if (!looked) s->got += result;
  } else if (result == 0 && asked > 0) {
    if (!s->failed && !s->unchecked && s->got < s->sent) {
      tell(step, " WRONG end, lost %ld of %ld", (long)(s->sent - s->got), (long)s->sent);
      s->unchecked = 1;
    }
  } else if (result < 0 && error != EAGAIN && error != EINTR) {
    s->failed = 1;
  }
}
