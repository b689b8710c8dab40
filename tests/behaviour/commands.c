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
SAN_CASE(a_connection_by_system) { run_processes(V4, client, server); }
SAN_CASE(a_connection_by_popen) { by_popen = true, run_processes(V4, client, server); }
SAN_CASE(commands_do_not_disturb) {
  struct pair p = open_pair(V4);
  send_pattern(p.client, 0, 300000);
  EQ(system("true"), 0);
  FILE *stream = popen("echo text", "r");
  char text[16];
  CHECK(fgets(text, sizeof text, stream) != NULL);
  EQ(pclose(stream), 0);
  recv_pattern(p.server, 0, 300000);
  exercise(p.client, p.server);
  on_san(p.client);
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
static volatile sig_atomic_t handled;
static void handle(int number) {
  (void)number;
  handled++;
}
CASE(system_ignores_signals_of_the_terminal) {
  handle_signal(SIGINT, handle, 0);
  EQ(system("kill -INT $PPID; kill -QUIT $PPID"), 0);
  EQ(handled, 0);
  /* The command does not ignore them. */
  EQ(system("kill -INT $$"), SIGINT);
  struct sigaction now;
  SYS(sigaction(SIGQUIT, NULL, &now));
  CHECK(now.sa_handler == SIG_DFL);
  SYS(raise(SIGINT));
  EQ(handled, 1);
  handle_signal(SIGINT, SIG_IGN, 0);
  EQ(system("kill -INT $$; exit 3"), 3 << 8);
}
static void *many(void *unused) {
  (void)unused;
  for (int i = 0; i < 10; i++) EQ(system("exit 5"), 5 << 8);
  return NULL;
}
CASE(system_in_several_threads) {
  handle_signal(SIGINT, handle, 0);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) threads[i] = start_thread(many, NULL);
  for (int i = 0; i < 4; i++) end_thread(threads[i]);
  SYS(raise(SIGINT));
  EQ(handled, 1);
}
CASE(system_while_signals_come) {
  handle_signal(SIGALRM, handle, 0);
  struct itimerval timer = {{0, 3000}, {0, 3000}};
  SYS(setitimer(ITIMER_REAL, &timer, NULL));
  EQ(system("sleep 0.1; exit 4"), 4 << 8);
  CHECK(handled > 0);
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
CASE(popen_writes) {
  FILE *stream = popen("cat > written", "w");
  CHECK(fputs("text", stream) >= 0);
  EQ(pclose(stream), 0);
  FILE *file = fopen("written", "r");
  char text[16];
  CHECK(fgets(text, sizeof text, file) != NULL && strcmp(text, "text") == 0);
  EQ(fclose(file), 0);
}
CASE(popen_knows_its_modes) {
  CHECK(popen("true", "x") == NULL && errno == EINVAL);
  CHECK(popen("true", "rw") == NULL && errno == EINVAL);
  CHECK(popen("true", "") == NULL && errno == EINVAL);
  FILE *stream = popen("true", "re");
  EQ(fcntl(fileno(stream), F_GETFD), FD_CLOEXEC);
  EQ(pclose(stream), 0);
}
/* The later command does not keep the earlier one's pipe open. */
CASE(popen_twice) {
  FILE *first = popen("cat > first", "w"), *second = popen("cat > second", "w");
  CHECK(first != NULL && second != NULL);
  EQ(pclose(first), 0);
  EQ(pclose(second), 0);
}
CASE(popen_where_the_standard_files_are_closed) {
  SYS(close(0));
  FILE *stream = popen("cat > there", "w");
  CHECK(stream != NULL);
  CHECK(fputs("text", stream) >= 0);
  EQ(pclose(stream), 0);
  SYS(close(1));
  stream = popen("cat there", "r");
  char text[16];
  CHECK(fgets(text, sizeof text, stream) != NULL && strcmp(text, "text") == 0);
  EQ(pclose(stream), 0);
}
CASE(fclose_waits_for_the_command) {
  FILE *stream = popen("cat > there; echo done >> there", "w");
  CHECK(stream != NULL);
  int (*volatile end)(FILE *) = fclose;
  EQ(end(stream), 0);
  FILE *file = fopen("there", "r");
  char text[16];
  CHECK(fgets(text, sizeof text, file) != NULL);
  EQ(fclose(file), 0);
  EQ(waitpid(-1, NULL, WNOHANG), -1);
  EQ(errno, ECHILD);
}
