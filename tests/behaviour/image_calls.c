/* Connections that go on in another program image, by each of the calls that replace one. */
#include "handed_on.h"
#include <sys/syscall.h>

extern char **environ;

enum { MANY = 43 };
PART(echo) {
  int fd = atoi(bt_arguments[0]), more = 0;
  while (bt_arguments[more + 1]) more++;
  CHECK(more == 0 || (more == MANY && strcmp(bt_arguments[more], "last") == 0));
  echo_all(fd);
}

enum call { EXECL, EXECL_MANY, EXECLP, EXECLE, EXECV, EXECVP, EXECVPE, FEXECVE, EXECVEAT, RAW_EXECVE, RAW_EXECVEAT };
static enum call call;

static void become(int fd) {
  char path[PATH_MAX] = "", number[16];
  SYS(readlink("/proc/self/exe", path, sizeof path - 1));
  snprintf(number, sizeof number, "%d", fd);
  char *argv[] = {"image_calls", "@echo", number, NULL};
  switch (call) {
  case EXECL_MANY:
    execl(path, argv[0], argv[1], argv[2], "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "",
          "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "last", (char *)NULL);
    break;
  case EXECLP: execlp(path, argv[0], argv[1], argv[2], (char *)NULL); break;
  case EXECL: execl(path, argv[0], argv[1], argv[2], (char *)NULL); break;
  case EXECLE: execle(path, argv[0], argv[1], argv[2], (char *)NULL, environ); break;
  case EXECV: execv(path, argv); break;
  case EXECVP: execvp(path, argv); break;
  case EXECVPE: execvpe(path, argv, environ); break;
  case FEXECVE: fexecve(SYS(open(path, O_RDONLY | O_CLOEXEC)), argv, environ); break;
  case EXECVEAT: execveat(AT_FDCWD, path, argv, environ, 0); break;
  case RAW_EXECVE: syscall(SYS_execve, path, argv, environ); break;
  default: syscall(SYS_execveat, AT_FDCWD, path, argv, environ, 0);
  }
  _exit(99);
}
static void server(int fd) {
  begin_server(fd);
  SYS(fcntl(fd, F_SETFD, 0));
  pid_t pid = start_child();
  if (pid == 0) become(fd);
  SYS(close(fd));
  end_child(pid);
}

#define BY_CALL(name, call_)                                                  \
  MIXED_CASE(name) {                                                            \
    call = call_;                                                             \
    run_processes(V4, client, server);                                        \
  }
BY_CALL(by_execl, EXECL)
BY_CALL(by_execl_with_many, EXECL_MANY)
BY_CALL(by_execlp, EXECLP)
BY_CALL(by_execle, EXECLE)
BY_CALL(by_execv, EXECV)
BY_CALL(by_execvp, EXECVP)
BY_CALL(by_execvpe, EXECVPE)
BY_CALL(by_fexecve, FEXECVE)
BY_CALL(by_execveat, EXECVEAT)
BY_CALL(by_number, RAW_EXECVE)
BY_CALL(by_number_at, RAW_EXECVEAT)
