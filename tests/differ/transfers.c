/* Single calls that send and receive, by each of libc's doors. */
#include "differ.h"
#include <sys/sendfile.h>

static int flags(const struct step *step) {
  static const struct { const char *name; int flag; } all[] = {
      {"dontwait", MSG_DONTWAIT}, {"nosignal", MSG_NOSIGNAL}, {"more", MSG_MORE}, {"oob", MSG_OOB},
      {"peek", MSG_PEEK},         {"waitall", MSG_WAITALL},   {"trunc", MSG_TRUNC}, {"errqueue", MSG_ERRQUEUE},
      {"cmsg_cloexec", MSG_CMSG_CLOEXEC}};
  int flag = 0;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (has(step, "flags", all[i].name)) flag |= all[i].flag;
  return flag;
}

/* As many pieces as the step says (`pieces=`), of unequal sizes; some may be empty. */
static int pieces(const struct step *step, struct iovec *vector, uint8_t *bytes, size_t count) {
  int all = (int)number(step, "pieces", 3), used = 0;
  for (size_t at = 0; used < all - 1; used++) {
    size_t part = used == 1 ? 0 : (count - at) / 2;
    vector[used] = (struct iovec){bytes + at, part};
    at += part;
    if (used == all - 2) vector[all - 1] = (struct iovec){bytes + at, count - at};
  }
  if (all == 1) vector[0] = (struct iovec){bytes, count};
  return all;
}

static long send_file(int fd, const uint8_t *bytes, size_t count) {
  int file = memfd_create("file", MFD_CLOEXEC);
  off_t at = 0;
  if (write(file, bytes, count) < 0) return -1;
  long result = CALL(sendfile(fd, file, &at, count));
  int error = errno;
  close(file);
  errno = error;
  return result;
}
static long splice_in(int fd, const uint8_t *bytes, size_t count) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) < 0 || write(ends[1], bytes, count) < 0) return -1;
  long result = CALL(splice(ends[0], NULL, fd, NULL, count, SPLICE_F_MOVE));
  int error = errno;
  close(ends[0]), close(ends[1]);
  errno = error;
  return result;
}
static long splice_out(int fd, uint8_t *bytes, size_t count, int flag) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) < 0) return -1;
  long result = CALL(splice(fd, NULL, ends[1], NULL, count, flag & MSG_DONTWAIT ? SPLICE_F_NONBLOCK : 0));
  int error = errno;
  for (long at = 0; at < result;) {
    long part = read(ends[0], bytes + at, (size_t)(result - at));
    if (part <= 0) break;
    at += part;
  }
  close(ends[0]), close(ends[1]);
  errno = error;
  return result;
}
static long send_many(const struct step *step, int fd, uint8_t *bytes, size_t count, int flag) {
  struct iovec vector[16];
  int used = pieces(step, vector, bytes, count);
  struct mmsghdr messages[16] = {0};
  for (int i = 0; i < used; i++) messages[i].msg_hdr.msg_iov = &vector[i], messages[i].msg_hdr.msg_iovlen = 1;
  long result = CALL(sendmmsg(fd, messages, (unsigned)used, flag)), all = 0;
  if (result < 0) return result;
  for (long i = 0; i < result; i++) all += messages[i].msg_len;
  return all;
}
/* One message; more could be cut where TCP leaves it open. */
static long receive_many(const struct step *step, int fd, uint8_t *bytes, size_t count, int flag) {
  struct iovec vector[16];
  int used = pieces(step, vector, bytes, count);
  struct mmsghdr message = {.msg_hdr = {.msg_iov = vector, .msg_iovlen = (size_t)used}};
  struct timespec time = {5, 0};
  long result = CALL(recvmmsg(fd, &message, 1, flag, has(step, "flags", "timeout") ? &time : NULL));
  return result == 1 ? (long)message.msg_len : result;
}

#define HOW(name) (strcmp(how, name) == 0)
static void send_step(struct step *step) {
  int fd = slot(step, "s"), stream = (int)number(step, "out", 0), flag = flags(step);
  size_t count = (size_t)number(step, "n", 1);
  const char *how = word(step, "how");
  uint8_t *bytes = buffer();
  if (count > LARGEST) count = LARGEST;
  fill(bytes, stream, shared->stream[stream].sent, count);
  if (flag & MSG_OOB) shared->stream[stream].unchecked = 1;
  struct iovec vector[16];
  int used = pieces(step, vector, bytes, count);
  struct msghdr message = {.msg_iov = vector, .msg_iovlen = (size_t)used};
  sending(stream, (long)count);
  long result;
  errno = UNCHANGED;
  if (HOW("write")) result = write(fd, bytes, count);
  else if (HOW("sendto")) result = sendto(fd, bytes, count, flag, NULL, 0);
  else if (HOW("writev")) result = writev(fd, vector, used);
  else if (HOW("pwritev2")) result = pwritev2(fd, vector, used, -1, flag & MSG_DONTWAIT ? RWF_NOWAIT : 0);
  else if (HOW("sendmsg")) result = sendmsg(fd, &message, flag);
  else if (HOW("sendmmsg")) result = send_many(step, fd, bytes, count, flag);
  else if (HOW("syscall")) result = syscall(SYS_sendto, fd, bytes, count, flag, NULL, 0);
  else if (HOW("sendfile")) result = send_file(fd, bytes, count);
  else if (HOW("splice")) result = splice_in(fd, bytes, count);
  else result = send(fd, bytes, count, flag);
  int error = errno;
  sent(stream, (long)count, result);
  told(step, result, error);
}

static void hash(struct step *step, const uint8_t *bytes, long count) {
  uint32_t value = 2166136261u;
  for (long i = 0; i < count; i++) value = (value ^ bytes[i]) * 16777619u;
  tell(step, " #%08x", value);
}

static void receive_step(struct step *step) {
  int fd = slot(step, "s"), stream = (int)number(step, "in", 0), flag = flags(step);
  size_t count = (size_t)number(step, "n", 1);
  const char *how = word(step, "how");
  uint8_t *bytes = buffer();
  if (count > LARGEST) count = LARGEST;
  struct iovec vector[16];
  int used = pieces(step, vector, bytes, count);
  struct msghdr message = {.msg_iov = vector, .msg_iovlen = (size_t)used};
  struct sockaddr_storage from;
  socklen_t length = sizeof from;
  long result;
  bool copied = !(flag & MSG_TRUNC);
  errno = UNCHANGED;
  if (HOW("read")) result = read(fd, bytes, count), flag = 0, copied = true;
  else if (HOW("recvfrom")) result = recvfrom(fd, bytes, count, flag, (struct sockaddr *)&from, &length);
  else if (HOW("readv")) result = readv(fd, vector, used), flag = 0, copied = true;
  else if (HOW("preadv2")) result = preadv2(fd, vector, used, -1, flag & MSG_DONTWAIT ? RWF_NOWAIT : 0), flag = 0, copied = true;
  else if (HOW("recvmsg")) result = recvmsg(fd, &message, flag);
  else if (HOW("recvmmsg")) result = receive_many(step, fd, bytes, count, flag);
  else if (HOW("syscall")) result = syscall(SYS_recvfrom, fd, bytes, count, flag, NULL, NULL);
  else if (HOW("splice")) result = splice_out(fd, bytes, count, flag), flag = 0, copied = true;
  else result = recv(fd, bytes, count, flag);
  int error = errno;
  told(step, result, error);
  if (result >= 0 && HOW("recvfrom")) tell(step, " from %u", (unsigned)length);
  if (result >= 0 && HOW("recvmsg")) tell(step, " flags %x", (unsigned)message.msg_flags);
  if (flag & MSG_OOB) {
    if (result > 0 && !shared->stream[stream].varies) hash(step, bytes, result);
    return;
  }
  received(step, stream, copied ? bytes : NULL, result, error, count, flag & MSG_PEEK);
  struct stream *s = &shared->stream[stream];
  if (result > 0 && copied && s->unchecked && !s->varies) hash(step, bytes, result);
}

/* Arguments that the kernel refuses, or that fault. */
static void bad_step(struct step *step) {
  int fd = slot(step, "s");
  const char *how = word(step, "how");
  void *nowhere = (void *)0x10;
  struct iovec vector = {nowhere, 10}, long_one = {buffer(), (size_t)-1};
  struct msghdr message = {.msg_iov = nowhere, .msg_iovlen = 1}, many = {.msg_iov = &vector, .msg_iovlen = 1025};
  if (HOW("send")) TOLD(step, send(fd, nowhere, 10, MSG_NOSIGNAL | MSG_DONTWAIT));
  else if (HOW("recv")) TOLD(step, recv(fd, nowhere, 10, MSG_DONTWAIT));
  else if (HOW("writev")) TOLD(step, writev(fd, &long_one, 1));
  else if (HOW("readv")) TOLD(step, readv(fd, &vector, (int)number(step, "count", -1)));
  else if (HOW("sendmsg")) TOLD(step, sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
  else if (HOW("recvmsg")) TOLD(step, recvmsg(fd, &many, MSG_DONTWAIT));
  else if (HOW("syscall")) TOLD(step, syscall(SYS_recvmsg, fd, nowhere, MSG_DONTWAIT));
  else if (HOW("zero")) TOLD(step, send(fd, buffer(), 0, MSG_NOSIGNAL));
  else if (HOW("zeroread")) TOLD(step, recv(fd, buffer(), 0, MSG_DONTWAIT));
  else if (HOW("lseek")) TOLD(step, lseek(fd, 0, SEEK_CUR));
  else if (HOW("pread")) TOLD(step, pread(fd, buffer(), 1, 0));
  else if (HOW("fsync")) TOLD(step, fsync(fd));
  else if (HOW("ftruncate")) TOLD(step, ftruncate(fd, 0));
  else if (HOW("listen")) TOLD(step, listen(fd, 5));
  else if (HOW("accept")) TOLD(step, accept(fd, NULL, NULL));
}

const struct entry transfer_steps[] = {{"send", send_step}, {"recv", receive_step}, {"bad", bad_step}, {NULL, NULL}};
