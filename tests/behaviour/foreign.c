/* Connections in use that a program gets by exec which does not load the preloaded library although LD_PRELOAD stays
 * set: a static one, one that runs with other rights (setuid), one of Go. They use the socket by instruction. */
#include "handed_on.h"
#include <spawn.h>

extern char **environ;

static const char source[] =
    "static long call(long number, long a, long b, long c) {\n"
    "  long result;\n"
    "  __asm__ volatile(\"syscall\" : \"=a\"(result) : \"a\"(number), \"D\"(a), \"S\"(b), \"d\"(c)\n"
    "                   : \"rcx\", \"r11\", \"memory\");\n"
    "  return result;\n"
    "}\n"
    "#ifdef GO\n" /* What Go's linker writes. */
    "__asm__(\".section .note.go.buildid,\\\"a\\\",@note\\n.align 4\\n.long 4, 4, 4\\n\"\n"
    "        \".ascii \\\"Go\\\\0\\\\0abcd\\\"\\n.previous\");\n"
    "#endif\n"
    "int main(int count, char **arguments) {\n"
    "  static char bytes[65536];\n"
    "  long fd = 0, n, done;\n"
    "  for (char *digit = arguments[count - 1]; *digit; digit++) fd = fd * 10 + *digit - '0';\n"
    "  while ((n = call(0, fd, (long)bytes, sizeof bytes)) > 0)\n"
    "    for (done = 0; done < n;) {\n"
    "      long sent = call(1, fd, (long)bytes + done, n - done);\n"
    "      if (sent < 0) return 1;\n"
    "      done += sent;\n"
    "    }\n"
    "  return n < 0 ? 2 : 0;\n"
    "}\n";

enum kind { STATIC, SETUID, GO };
static bool spawned;

static void run(char *const argv[]) {
  pid_t pid = start_child();
  if (pid == 0) {
    unsetenv("LD_PRELOAD");
    execvp(argv[0], argv);
    _exit(99);
  }
  end_child(pid);
}
/* The program, in the current folder. */
static void build(enum kind kind) {
  FILE *file = fopen("echo.c", "w");
  CHECK(file && fputs(source, file) >= 0 && fclose(file) == 0);
  char *const compilers[] = {getenv("CC"), "cc"};
  char *compiler = compilers[0] ? compilers[0] : compilers[1];
  char *const argv[] = {compiler, "-O1", "-o", "echo", "echo.c",
                        kind == STATIC ? "-static" : kind == GO ? "-DGO" : NULL, NULL};
  run(argv);
  if (kind == SETUID) {
    enum { NOBODY = 65534 };
    if (geteuid() != 0) bt_skip("a program of another user needs root");
    SYS(chown("echo", NOBODY, NOBODY));
    SYS(chmod("echo", 04755));
  }
}
static void server(int fd) {
  begin_server(fd);
  SYS(fcntl(fd, F_SETFD, 0));
  char number[16];
  snprintf(number, sizeof number, "%d", fd);
  char *const argv[] = {"echo", number, NULL};
  pid_t pid;
  if (spawned) {
    EQ(posix_spawn(&pid, "./echo", NULL, NULL, argv, environ), 0);
  } else if ((pid = start_child()) == 0) {
    execv("./echo", argv);
    _exit(99);
  }
  SYS(close(fd));
  end_child(pid);
}
static void hand_on(enum kind kind, bool spawn, bool connector) {
  build(kind);
  spawned = spawn, anywhere = true;
  if (connector) run_processes(V6, server, client);
  else run_processes(V4, client, server);
}
#define FOREIGN(name, kind)                                                   \
  SAN_CASE(name##_by_exec) { hand_on(kind, false, false); }                   \
  SAN_CASE(name##_by_exec_at_the_connector) { hand_on(kind, false, true); }   \
  SAN_CASE(name##_by_spawn) { hand_on(kind, true, false); }
FOREIGN(a_static_program, STATIC)
FOREIGN(a_setuid_program, SETUID)
FOREIGN(a_go_program, GO)
