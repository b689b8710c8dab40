/* Doors to a socket that are libc's own: formatted output, streams, and asynchronous I/O. */
#include "differ.h"
#include <aio.h>

/* Text goes where the bytes of the stream should: from then on only the comparison tells whether it is right. */
static void print_step(struct step *step) {
  int fd = slot(step, "s"), stream = (int)number(step, "out", 0), count = (int)number(step, "n", 1);
  const char *how = word(step, "how");
  int copy = -1;
  long result;
  shared->stream[stream].unchecked = 1;
  sending(stream, count);
  if (strncmp(how, "fdopen", 6) == 0) {
    copy = dup(fd);
    FILE *file = fdopen(copy, "r+");
    result = file ? fprintf(file, "%0*d", count, 7) : -1;
    if ((file ? fclose(file) : close(copy)) != 0) result = -1;
    tell(step, result == count ? " %ld" : " failed", result);
  } else {
    result = TOLD(step, dprintf(fd, "%0*d", count, 7));
  }
  sent(stream, count, result);
}

static void aio_step(struct step *step) {
  bool writes = strcmp(word(step, "how"), "write") == 0;
  int stream = (int)number(step, writes ? "out" : "in", 0);
  size_t count = (size_t)number(step, "n", 1);
  uint8_t *bytes = buffer();
  struct aiocb block = {.aio_fildes = slot(step, "s"), .aio_buf = bytes, .aio_nbytes = count};
  const struct aiocb *list[] = {&block};
  struct timespec time = {5, 0};
  if (writes) {
    fill(bytes, stream, shared->stream[stream].sent, count);
    sending(stream, (long)count);
  }
  if (TOLD(step, writes ? aio_write(&block) : aio_read(&block)) < 0) return;
  while (aio_suspend(list, 1, &time) < 0 && errno == EINTR) {}
  int error = aio_error(&block);
  if (error == EINPROGRESS) {
    tell(step, " under way");
    return;
  }
  long result = aio_return(&block);
  told(step, result, error ? error : UNCHANGED);
  if (writes) sent(stream, (long)count, result);
  else received(step, stream, bytes, result, error, count, false);
}

const struct entry indirect_steps[] = {{"print", print_step}, {"aio", aio_step}, {NULL, NULL}};
