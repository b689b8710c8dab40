/* A library that stands before libc's send, and finds libc's own in one of the ways in which such libraries do, or makes the
 * call itself. With HOOKS_DLSYM it stands before dlsym too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int calls;
int interposer_calls(void) { return calls; }

#ifdef BY_NUMBER
ssize_t sendto(int fd, const void *bytes, size_t n, int flags, const struct sockaddr *to, socklen_t length) {
  calls++;
  return syscall(SYS_sendto, fd, bytes, n, flags, to, length);
}
ssize_t send(int fd, const void *bytes, size_t n, int flags) {
  return sendto(fd, bytes, n, flags, NULL, 0);
}
#else
ssize_t send(int fd, const void *bytes, size_t n, int flags) {
  static ssize_t (*own)(int, const void *, size_t, int);
#ifdef BY_LIBC
  if (!own) *(void **)&own = dlsym(dlopen("libc.so.6", RTLD_LAZY), "send");
#else
  if (!own) *(void **)&own = dlsym(RTLD_NEXT, "send");
#endif
  calls++;
  return own(fd, bytes, n, flags);
}
#endif

#ifdef HOOKS_DLSYM
void *dlsym(void *library, const char *name) {
  static void *(*own)(void *, const char *);
  if (!own) *(void **)&own = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  void *found = own(library, name);
  /* So that this is no jump, and what comes next is what comes after this library. */
  __asm__ volatile("" ::: "memory");
  return found;
}
#endif
