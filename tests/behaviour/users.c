/* Processes of several users share memory where the configuration names them, by their names, their numbers or their
 * groups: also with a server that gives up root, and across user namespaces. All of it needs root. */
#include "bt.h"

#include <pwd.h>
#include <sched.h>

enum { NOBODY = 65534, CLIENT = 112345, RECORD = 20000, RECORDS = 20 };

static void become(uid_t uid) { SYS(setresgid(uid, uid, uid)), SYS(setresuid(uid, uid, uid)); }

/* Each program reads its configuration anew. */
static void run_with(const char *rules, const char *part) {
  if (geteuid() != 0) bt_skip("another user's process needs root");
  FILE *file = fopen("users.toml", "w");
  CHECK(file);
  fprintf(file, "%s\n", rules);
  fclose(file);
  setenv("SANSHIM_CONFIG", "users.toml", 1);
  end_child(start_program(part, true, NULL, NULL));
}

static void records_out(int fd) {
  for (int i = 0; i < RECORDS; i++) send_pattern(fd, 0, RECORD), get(fd, "next");
}
static void records_in(int fd) {
  for (int i = 0; i < RECORDS; i++) recv_pattern(fd, 0, RECORD), put(fd, "next");
}
static void serve(int listener) {
  int fd = accept_warm(listener);
  records_in(fd);
  expect_eof(fd);
  SYS(close(fd));
}
/* A process of that user. */
static pid_t start_client(uid_t uid, const union address *target) {
  pid_t pid = start_child();
  if (pid != 0) return pid;
  become(uid);
  int fd = dial_warm(target);
  records_out(fd);
  on_san(fd);
  SYS(close(fd));
  _exit(0);
}

/* ---- a server that gives up root --------------------------------------------------------------- */

static void client_of_one_that_changes(bool listens_first) {
  union address target;
  int listener = listen_on(V4, &target);
  /* Another process listens before it gives up root, or after; clients are neither's. */
  if (!listens_first) SYS(close(listener));
  pid_t server = start_child();
  if (server == 0) {
    become(NOBODY);
    if (!listens_first) listener = listen_at(&target);
    step_done(0);
    serve(listener);
    _exit(0);
  }
  step_wait(0);
  if (listens_first) SYS(close(listener));
  end_child(start_client(CLIENT, &target));
  end_child(server);
}
PART(changes_after_listening) { client_of_one_that_changes(true); }
PART(changes_before_listening) { client_of_one_that_changes(false); }
/* As mosquitto: it shows itself as root's, so only the client is named. */
SAN_CASE(a_server_that_listens_and_then_gives_up_root) { run_with("allow_users = [112345]", "@changes_after_listening"); }
/* As memcached -u: each names the other. */
SAN_CASE(a_server_that_gives_up_root_and_then_listens) {
  run_with("allow_users = [112345, \"nobody\"]", "@changes_before_listening");
}

/* ---- groups ------------------------------------------------------------------------------------ */

PART(two_users) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t pid = start_client(NOBODY, &target);
  serve(listener);
  end_child(pid);
}
SAN_CASE(a_member_of_an_allowed_group) {
  struct passwd *nobody = getpwuid(NOBODY);
  if (!nobody) bt_skip("nobody has no account here");
  char rules[64];
  snprintf(rules, sizeof rules, "allow_groups = [%u]", nobody->pw_gid);
  run_with(rules, "@two_users");
}
SAN_CASE(a_user_that_a_variable_names) {
  setenv("SANSHIM_ALLOW_USERS", "root,nobody", 1);
  run_with("allow_users = []", "@two_users");
}

/* ---- user namespaces --------------------------------------------------------------------------- */

/* A process in a user namespace of its own, in which its parent gives these users numbers. */
static pid_t start_in_namespace(const char *numbers, void run(const union address *target), const union address *target) {
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(unshare(CLONE_NEWUSER));
    step_done(0);
    step_wait(1);
    EQ(geteuid(), 0);
    run(target);
    _exit(0);
  }
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
  step_wait(0);
  FILE *map = fopen(path, "w");
  CHECK(map);
  fputs(numbers, map);
  EQ(fclose(map), 0);
  step_done(1);
  return pid;
}

/* Everybody who has no number there looks like nobody, and is a stranger. */
static void talk_to_a_stranger(const union address *target) {
  int fd = dial_warm(target);
  records_out(fd);
  CHECK(bytes_over_tcp(fd) >= RECORDS * RECORD);
  SYS(close(fd));
}
PART(stranger_that_looks_like_nobody) {
  union address target;
  SYS(close(listen_on(V4, &target)));
  pid_t pid = start_child();
  if (pid == 0) {
    /* Whose folder has the very name that is looked for. */
    become(NOBODY);
    int listener = listen_at(&target);
    step_done(2);
    serve(listener);
    _exit(0);
  }
  step_wait(2);
  end_child(start_in_namespace("0 0 1\n", talk_to_a_stranger, &target));
  end_child(pid);
}
static void need_namespaces(void) {
  pid_t pid = start_child();
  int status;
  if (pid == 0) _exit(unshare(CLONE_NEWUSER) != 0);
  SYS(waitpid(pid, &status, 0));
  if (status != 0) bt_skip("this machine makes no user namespaces");
}
CASE(nobody_is_not_who_has_no_number) {
  need_namespaces();
  run_with("allow_users = [\"nobody\"]", "@stranger_that_looks_like_nobody");
}

static int shared_listener;
static void serve_there(const union address *target) {
  (void)target;
  serve(shared_listener);
}
PART(namespace_that_knows_one_of_two) {
  union address target;
  shared_listener = listen_on(V4, &target);
  pid_t pid = start_in_namespace("0 0 1\n112345 112345 1\n", serve_there, &target);
  end_child(start_client(CLIENT, &target));
  end_child(pid);
}
/* That another allowed user has no number there keeps nobody else out. */
SAN_CASE(an_allowed_user_beside_one_without_a_number) {
  need_namespaces();
  run_with("allow_users = [223456, 112345]", "@namespace_that_knows_one_of_two");
}
