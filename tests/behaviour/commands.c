/* system and popen: what they are natively, and that connections the command inherits go on over the SAN. */
#include "handed_on.h"

/* ---- a connection that the command has -------------------------------------------------------- */

PART(echo) {
  int fd = atoi(bt_arguments[0]);
  echo_all(fd);
}
static bool by_popen;
static void server(int fd) {
  begin_server(fd);
  char path[PATH_MAX], command[PATH_MAX + 100];
  ssize_t n = SYS(readlink("/proc/self/exe", path, sizeof path - 1));
  path[n] = 0;
  snprintf(command, sizeof command, "true; '%s' @echo %d; exit $?", path, fd);
  if (by_popen) {
    FILE *stream = popen(command, "w");
    CHECK(stream != NULL);
    EQ(pclose(stream), 0);
  } else {
    EQ(system(command), 0);
  }
  SYS(close(fd));
}
MIXED_CASE(a_connection_by_system) { run_processes(V4, client, server); }
MIXED_CASE(a_connection_by_popen) { by_popen = true, run_processes(V4, client, server); }
MIXED_CASE(commands_do_not_disturb) {
  struct pair p = open_pair(V4);
  send_pattern(p.client, 0, 300000);
  EQ(system("true"), 0);
  FILE *stream = popen("echo text", "r");
  char text[16];
  CHECK(fgets(text, sizeof text, stream) != NULL);
  EQ(pclose(stream), 0);
  recv_pattern(p.server, 0, 300000);
  exercise(p.client, p.server);
  close_pair(&p);
}

/* ---- system ----------------------------------------------------------------------------------- */

CASE(system_gives_the_status) {
  CHECK(system(NULL) != 0);
  EQ(system("exit 0"), 0);
  EQ(system("exit 7"), 7 << 8);
  EQ(system("kill -9 $$"), SIGKILL);
  EQ(system("/nowhere/none 2>/dev/null"), 127 << 8);
  EQ(system("test \"$VARIABLE\" = value"), 1 << 8);
  SYS(setenv("VARIABLE", "value", 1));
  EQ(system("test \"$VARIABLE\" = value"), 0);
}

/* ---- popen ------------------------------------------------------------------------------------ */

CASE(popen_reads) {
  FILE *stream = popen("printf 'a\\nb'; exit 3", "r");
  CHECK(stream != NULL);
  char text[16] = {0};
  EQ(fread(text, 1, sizeof text, stream), 3);
  CHECK(strcmp(text, "a\nb") == 0);
  EQ(fcntl(fileno(stream), F_GETFD), 0);
  EQ(pclose(stream), 3 << 8);
}
