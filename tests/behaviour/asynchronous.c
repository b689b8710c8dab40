/* Asynchronous I/O on sockets: POSIX's, which libc's threads carry out, the kernel's, and io_uring's. No hook sees
 * any of it, so under the shim the connection goes back to TCP, with what is under way in both directions. */
#include "bt.h"
#include <aio.h>
#include <dlfcn.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>

enum { BEFORE = 100000, READ = 1000, TOTAL = 1500000, PIECE = 20000 };

/* ---- POSIX ---------------------------------------------------------------------------------- */

static ssize_t result_of(struct aiocb *request) {
  const struct aiocb *all[] = {request};
  int error;
  while ((error = aio_error(request)) == EINPROGRESS)
    if (aio_suspend(all, 1, NULL) < 0) EQ(errno, EINTR);
  errno = error;
  return aio_return(request);
}
static struct aiocb request_for(int fd, const void *bytes, size_t n) {
  return (struct aiocb){.aio_fildes = fd, .aio_buf = (void *)bytes, .aio_nbytes = n,
                        .aio_sigevent.sigev_notify = SIGEV_NONE};
}
static void *write_rest(void *arg) {
  int fd = *(int *)arg;
  for (uint64_t at = BEFORE; at < TOTAL;) {
    size_t n = TOTAL - at < PIECE ? TOTAL - at : PIECE;
    struct aiocb request = request_for(fd, pattern(at), n);
    EQ(SYS(aio_write(&request)), 0);
    at += (uint64_t)SYS(result_of(&request));
  }
  SYS(shutdown(fd, SHUT_WR));
  return NULL;
}
static void asynchronous_end(int fd) {
  static uint8_t bytes[PIECE];
  send_pattern(fd, 0, BEFORE);
  recv_pattern(fd, 0, READ);
  /* libc does what is asked of one descriptor in turn. */
  int other = SYS(dup(fd));
  pthread_t writer = start_thread(write_rest, &other);
  uint64_t at = READ;
  for (;;) {
    struct aiocb request = request_for(fd, bytes, PIECE);
    EQ(SYS(aio_read(&request)), 0);
    ssize_t n = SYS(result_of(&request));
    if (n == 0) break;
    check_pattern(bytes, at, (size_t)n);
    at += (uint64_t)n;
  }
  EQ(at, TOTAL);
  end_thread(writer);
  SYS(close(other)), SYS(close(fd));
}
static void *send_all(void *fd) {
  send_pattern(*(int *)fd, 0, TOTAL);
  SYS(shutdown(*(int *)fd, SHUT_WR));
  return NULL;
}
static void plain_end(int fd) {
  pthread_t sender = start_thread(send_all, &fd);
  recv_pattern(fd, 0, TOTAL);
  expect_eof(fd);
  end_thread(sender);
  SYS(close(fd));
}
CARRIED_ENDS(reads_and_writes, asynchronous_end, plain_end, BT_MIXED)

MIXED_CASE(a_list) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  put(p.server, "unread"), put(p.client, "first");
  char bytes[8] = "";
  struct aiocb write_one = request_for(p.client, "second", 6), read_one = request_for(p.client, bytes, 6);
  struct aiocb nothing = request_for(-1, NULL, 0);
  write_one.aio_lio_opcode = LIO_WRITE, read_one.aio_lio_opcode = LIO_READ, nothing.aio_lio_opcode = LIO_NOP;
  struct aiocb *list[] = {&nothing, NULL, &write_one, &read_one};
  EQ(SYS(lio_listio(LIO_WAIT, list, 4, NULL)), 0);
  EQ(result_of(&write_one), 6);
  EQ(result_of(&read_one), 6);
  CHECK(memcmp(bytes, "unread", 6) == 0);
  get(p.server, "firstsecond");
  exercise(p.client, p.server);
  close_pair(&p);
}

/* Nothing is asked of what is no socket, and nonsense is libc's to refuse. */
CASE(other_files) {
  FILE *file = tmpfile();
  struct aiocb request = request_for(fileno(file), "bytes", 5);
  EQ(SYS(aio_write(&request)), 0);
  EQ(result_of(&request), 5);
  request = request_for(-1, "bytes", 5);
  if (aio_write(&request) == 0) EQ(result_of(&request), -1);
  EQ(errno, EBADF);
  EQ(fclose(file), 0);
}

/* ---- the kernel's ----------------------------------------------------------------------------- */

static aio_context_t begin_kernels(void) {
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, 4, &context) < 0) bt_skip("no asynchronous I/O in the kernel");
  return context;
}
/* libaio's, if set, which gives negative errors. */
static int (*io_submit)(aio_context_t, long, struct iocb **);
/* Submits one request and waits for its result. */
static long submit(aio_context_t context, int fd, int operation, const void *bytes, size_t n) {
  struct iocb request = {.aio_fildes = (uint32_t)fd, .aio_lio_opcode = (uint16_t)operation,
                         .aio_buf = (uint64_t)(uintptr_t)bytes, .aio_nbytes = n};
  struct iocb *list[] = {&request};
  struct io_event event;
  EQ(io_submit ? io_submit(context, 1, list) : SYS(syscall(SYS_io_submit, context, 1L, list)), 1);
  long got;
  while ((got = syscall(SYS_io_getevents, context, 1L, 1L, &event, NULL)) < 0) EQ(errno, EINTR);
  EQ(got, 1);
  return (long)event.res;
}
static void use_kernels(void) {
  aio_context_t context = begin_kernels();
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  put(p.server, "unread"), put(p.client, "first");
  char bytes[8] = "";
  EQ(submit(context, p.client, IOCB_CMD_PWRITE, "second", 6), 6);
  get(p.server, "firstsecond");
  EQ(submit(context, p.client, IOCB_CMD_PREAD, bytes, 8), 6);
  CHECK(memcmp(bytes, "unread", 6) == 0);
  exercise(p.client, p.server);
  SYS(syscall(SYS_io_destroy, context));
  close_pair(&p);
}
MIXED_CASE(the_kernels) {
  use_kernels();
  aio_context_t context = begin_kernels();
  ERR(syscall(SYS_io_submit, context, 1L, bad_pointer()), EFAULT);
  SYS(syscall(SYS_io_destroy, context));
}
MIXED_CASE(the_kernels_by_libaio) {
  /* For itself alone, as what a program loads later does. */
  void *library = dlopen("libaio.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) library = dlopen("libaio.so.1t64", RTLD_NOW | RTLD_LOCAL);
  if (!library) bt_skip("no libaio");
  void *found = dlsym(RTLD_DEFAULT, "io_submit");
  *(void **)&io_submit = found ? found : dlsym(library, "io_submit");
  CHECK(io_submit);
  use_kernels();
  struct iocb *none[] = {bad_pointer()};
  EQ(io_submit(begin_kernels(), 1, none), -EFAULT);
}

/* ---- io_uring by liburing ---------------------------------------------------------------------- */

static void *liburing;
/* As a program finds it that links it; the library itself was loaded for this program alone. */
static void *of_liburing(const char *name) {
  void *found = dlsym(RTLD_DEFAULT, name);
  return found ? found : dlsym(liburing, name);
}
static void load_liburing(void) {
  liburing = dlopen("liburing.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!liburing) bt_skip("no liburing");
}
static int submit_ring(void *ring) {
  int (*function)(void *);
  *(void **)&function = dlsym(liburing, "io_uring_submit");
  return function(ring);
}
static void enter_request(void *ring, struct io_uring_sqe request) {
  struct io_uring_sqe *(*get)(void *);
  *(void **)&get = dlsym(liburing, "io_uring_get_sqe");
  *get(ring) = request;
}
/* The result of one request on a ring. */
static int on_ring(void *ring, struct io_uring_sqe request) {
  int (*await)(void *, struct io_uring_cqe **, unsigned, unsigned, void *);
  *(void **)&await = dlsym(liburing, "__io_uring_get_cqe");
  enter_request(ring, request);
  EQ(submit_ring(ring), 1);
  struct io_uring_cqe *done;
  EQ(await(ring, &done, 0, 1, NULL), 0);
  return done->res;
}
/* One operation: nobody tells a ring that its result was read. */
static void *new_ring(void) {
  int (*begin)(unsigned, void *, unsigned), (*own)(unsigned, void *, unsigned);
  *(void **)&begin = of_liburing("io_uring_queue_init");
  *(void **)&own = dlsym(liburing, "io_uring_queue_init");
  void *ring = calloc(1, 4096);
  int made = begin(4, ring, 0);
  if (made < 0) {
    EQ(own(4, ring, 0), made);
    bt_skip("no io_uring in the kernel");
  }
  return ring;
}
static void end_ring(void *ring) {
  void (*end)(void *);
  *(void **)&end = dlsym(liburing, "io_uring_queue_exit");
  end(ring);
  free(ring);
}
/* The result of one operation on a ring of its own. */
static int by_ring(int operation, int fd, const void *bytes, size_t n) {
  void *ring = new_ring();
  int result = on_ring(ring, (struct io_uring_sqe){.opcode = (uint8_t)operation, .fd = fd,
                                                   .addr = (uint64_t)(uintptr_t)bytes, .len = (uint32_t)n});
  end_ring(ring);
  return result;
}
static void use_ring(struct pair *p) {
  char bytes[8] = "";
  put(p->server, "unread"), put(p->client, "first");
  EQ(by_ring(IORING_OP_RECV, p->server, bytes, 8), 5);
  CHECK(memcmp(bytes, "first", 5) == 0);
  EQ(by_ring(IORING_OP_SEND, p->client, "second", 6), 6);
  get(p->server, "second");
  EQ(by_ring(IORING_OP_RECV, p->client, bytes, 8), 6);
  CHECK(memcmp(bytes, "unread", 6) == 0);
  exercise(p->client, p->server);
}
MIXED_CASE(a_ring_of_liburing) {
  load_liburing();
  struct pair before = open_pair(V4);
  exercise(before.client, before.server);
  use_ring(&before);
  struct pair after = open_pair(V6);
  use_ring(&after);
  close_pair(&before), close_pair(&after);
}
/* A database's: its files go by a ring, and its connections stay where they are. */
SAN_CASE(a_ring_of_files) {
  load_liburing();
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  char name[] = "/tmp/bt-ring-XXXXXX", back[8] = "";
  int file = SYS(mkstemp(name));
  SYS(unlink(name));
  EQ(by_ring(IORING_OP_WRITE, file, "written", 7), 7);
  exercise(p.client, p.server);
  SYS(lseek(file, 0, SEEK_SET));
  struct iovec iov = {back, 7};
  EQ(by_ring(IORING_OP_READV, file, &iov, 1), 7);
  CHECK(memcmp(back, "written", 7) == 0);
  EQ(by_ring(IORING_OP_FSYNC, file, NULL, 0), 0);
  exercise(p.client, p.server);
  struct pair later = open_pair(V4);
  exercise(later.client, later.server);
}
/* A socket is registered, and read by its number. */
MIXED_CASE(a_ring_of_registered_files) {
  load_liburing();
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  int (*enter)(void *, const int *, unsigned);
  *(void **)&enter = of_liburing("io_uring_register_files");
  void *ring = new_ring();
  EQ(enter(ring, (int[]){p.server}, 1), 0);
  put(p.client, "first");
  char bytes[5];
  EQ(on_ring(ring, (struct io_uring_sqe){.opcode = IORING_OP_READ, .flags = IOSQE_FIXED_FILE,
                                         .addr = (uintptr_t)bytes, .len = 5}), 5);
  CHECK(memcmp(bytes, "first", 5) == 0);
  end_ring(ring);
  exercise(p.client, p.server);
}
/* A connection that cannot go back to TCP would be used past the library. */
MIXED_CASE(no_submission_beside_a_closed_peer) {
  load_liburing();
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  /* More than a close sends over TCP. */
  send_pattern(p.server, 0, 100000);
  SYS(close(p.server));
  wait_for(p.client, POLLRDHUP);
  void *ring = new_ring();
  enter_request(ring, (struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = p.client, .poll32_events = POLLIN});
  EQ(submit_ring(ring), getenv("LD_PRELOAD") ? -EAGAIN : 1);
  recv_pattern(p.client, 0, 100000);
  expect_eof(p.client);
  SYS(close(p.client));
  if (getenv("LD_PRELOAD")) EQ(submit_ring(ring), 1);
  end_ring(ring);
}
