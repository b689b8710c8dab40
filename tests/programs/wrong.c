/* Libraries that `scripts/differ` must find wrong, built with LOSES or LIES, and `scripts/soak`, with ALTERS or KEEPS; none is wrong without. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#if defined(LOSES)
/* Says of some sends that all was taken when the last byte was not. */
ssize_t send(int fd, const void *bytes, size_t count, int flags) {
  static __thread unsigned sends;
  ssize_t (*next)(int, const void *, size_t, int) = (ssize_t(*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
  if (count != 8192 || ++sends % 5) return next(fd, bytes, count, flags);
  ssize_t result = next(fd, bytes, count - 1, flags);
  return result == (ssize_t)count - 1 ? result + 1 : result;
}
#elif defined(LIES)
/* Takes the end of a stream for an error where a receive must not wait. */
ssize_t recv(int fd, void *bytes, size_t count, int flags) {
  ssize_t (*next)(int, void *, size_t, int) = (ssize_t(*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv");
  ssize_t result = next(fd, bytes, count, flags);
  if (result != 0 || count == 0 || !(flags & MSG_DONTWAIT)) return result;
  errno = ECONNRESET;
  return -1;
}
#elif defined(ALTERS)
/* Another last byte, of some receives that are not small. */
ssize_t recv(int fd, void *bytes, size_t count, int flags) {
  static __thread unsigned receives;
  ssize_t (*next)(int, void *, size_t, int) = (ssize_t(*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv");
  ssize_t result = next(fd, bytes, count, flags);
  if (result > 100 && ++receives % 20 == 0) ((char *)bytes)[result - 3] ^= 1;
  return result;
}
#elif defined(KEEPS)
/* A descriptor more for one of twenty connections that are accepted: of each it would be more than a server has room for. */
int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags) {
  int (*next)(int, struct sockaddr *, socklen_t *, int) = (int (*)(int, struct sockaddr *, socklen_t *, int))dlsym(RTLD_NEXT, "accept4");
  static unsigned accepted;
  int result = next(fd, address, size, flags);
  if (result >= 0 && ++accepted % 20 == 0) open("/dev/null", O_RDONLY | O_CLOEXEC);
  return result;
}
#endif
