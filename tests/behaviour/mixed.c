/* Peers in programs of their own: with the preloaded library, without it, and programs that get an
 * open connection by exec or over a Unix socket. Without a preloaded library all are alike. */
#include "bt.h"

#include <sys/un.h>

static const char *number(int value) {
  static char text[8][16];
  static int next;
  char *t = text[next++ % 8];
  snprintf(t, 16, "%d", value);
  return t;
}

/* ---- the other program ---------------------------------------------------------------------- */

/* Echoes what comes on a socket until its end, then ends its own direction. */
static void echo_until_end(int fd) {
  static char buffer[65536];
  ssize_t n;
  while ((n = SYS(recv(fd, buffer, sizeof buffer, 0))) > 0)
    for (ssize_t done = 0; done < n;) done += SYS(send(fd, buffer + done, n - done, MSG_NOSIGNAL));
  SYS(close(fd));
}
/* Requests, a transfer, and a half-close; the other side echoes. */
static void talk(int fd) {
  int requests = is_between_hosts() ? 100 : 20;
  for (int i = 0; i < requests; i++) put(fd, "ping"), get(fd, "ping");
  for (int i = 0; i < 10; i++) send_pattern(fd, i, 50000), recv_pattern(fd, i, 50000);
  put(fd, "last");
  SYS(shutdown(fd, SHUT_WR));
  get(fd, "last");
  expect_eof(fd);
  SYS(close(fd));
}

PART(client) {
  union address target = address_v4("127.0.0.1", atoi(bt_arguments[0]));
  for (int i = 0; i < atoi(bt_arguments[1]); i++) talk(dial(&target));
}
PART(listening_client) {
  /* Says first, before anything is accepted, and closes at once. */
  union address target = address_v4("127.0.0.1", atoi(bt_arguments[0]));
  for (int i = 0; i < atoi(bt_arguments[1]); i++) {
    int fd = dial(&target);
    send_pattern(fd, 0, 30000);
    SYS(close(fd));
  }
}
PART(server) { /* tells its port through the inherited pipe */
  union address target;
  int listener = listen_on(V4, &target), port = address_port(&target);
  EQ(write(atoi(bt_arguments[0]), &port, sizeof port), sizeof port);
  for (int i = 0; i < atoi(bt_arguments[1]); i++) echo_until_end(SYS(accept(listener, NULL, NULL)));
}
PART(holder) { echo_until_end(atoi(bt_arguments[0])); }

/* ---- a peer without the library ------------------------------------------------------------- */

static void serve_clients(bool preload, enum family family) {
  union address target;
  int listener = listen_on(family, &target);
  pid_t pid = start_program("@client", preload, number(address_port(&target)), "5");
  for (int i = 0; i < 5; i++) echo_until_end(SYS(accept(listener, NULL, NULL)));
  end_child(pid);
}
CASE(plain_client) { serve_clients(false, V4); }
CASE(plain_client_of_a_dual_stack_listener) { serve_clients(false, DUAL); }
SAN_CASE(separate_client_program) { serve_clients(true, V4); }

static void use_server(bool preload) {
  int pipes[2], port;
  SYS(pipe(pipes));
  pid_t pid = start_program("@server", preload, number(pipes[1]), "5");
  EQ(read(pipes[0], &port, sizeof port), sizeof port);
  union address target = address_v4("127.0.0.1", port);
  for (int i = 0; i < 4; i++) talk(dial(&target));
  int fd = SYS(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  if (connect(fd, &target.any, sizeof target.v4) < 0) EQ(errno, EINPROGRESS);
  wait_for(fd, POLLOUT);
  for (int i = 0; i < 20; i++) put(fd, "non-blocking"), get(fd, "non-blocking");
  SYS(close(fd));
  end_child(pid);
}
CASE(plain_server) { use_server(false); }
SAN_CASE(separate_server_program) { use_server(true); }

CASE(plain_client_sends_before_accept) {
  union address target;
  int listener = listen_on(V4, &target);
  end_child(start_program("@listening_client", false, number(address_port(&target)), "5"));
  for (int i = 0; i < 5; i++) {
    int fd = SYS(accept(listener, NULL, NULL));
    recv_pattern(fd, 0, 30000);
    expect_eof(fd);
    SYS(close(fd));
  }
}

/* Clients of both kinds at one listener, in any order, with an event loop. */
MIXED_CASE(clients_of_both_kinds) {
  enum { PROGRAMS = 6, EACH = 3 };
  union address target;
  int listener = listen_on(V4, &target), set = SYS(epoll_create1(0)), left = PROGRAMS * EACH;
  set_nonblocking(listener, true);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, got;
  SYS(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
  pid_t pid[PROGRAMS];
  for (int i = 0; i < PROGRAMS; i++)
    pid[i] = start_program("@client", i % 2, number(address_port(&target)), number(EACH));
  while (left > 0) {
    EQ(epoll_wait(set, &got, 1, HANG_MS), 1);
    if (got.data.fd == listener) {
      event.data.fd = SYS(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
      SYS(epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event));
      continue;
    }
    static char buffer[65536];
    ssize_t n = recv(got.data.fd, buffer, sizeof buffer, 0);
    if (n < 0) EQ(errno, EAGAIN);
    for (ssize_t done = 0; done < n;) {
      ssize_t sent = send(got.data.fd, buffer + done, n - done, MSG_NOSIGNAL);
      if (sent < 0) wait_for(got.data.fd, POLLOUT);
      else done += sent;
    }
    if (n == 0) SYS(close(got.data.fd)), left--;
  }
  for (int i = 0; i < PROGRAMS; i++) end_child(pid[i]);
}

/* A worker group with clients of both kinds. */
MIXED_CASE(prefork_with_clients_of_both_kinds) {
  union address target;
  int listener = listen_on(V4, &target);
  pid_t worker[3], client[4];
  for (int i = 0; i < 3; i++) {
    worker[i] = start_child();
    if (worker[i] == 0)
      for (;;) echo_until_end(SYS(accept(listener, NULL, NULL)));
  }
  for (int i = 0; i < 4; i++)
    client[i] = start_program("@client", i % 2, number(address_port(&target)), "4");
  for (int i = 0; i < 4; i++) end_child(client[i]);
  for (int i = 0; i < 3; i++) SYS(kill(worker[i], SIGKILL)), SYS(waitpid(worker[i], NULL, 0));
}

/* ---- connections handed over ---------------------------------------------------------------- */

static void expect_echo(int fd) {
  put(fd, "hello"), get(fd, "hello");
  SYS(close(fd));
}

static void hand_over_by_exec(bool preload) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  pid_t pid = start_child();
  if (pid == 0) {
    SYS(close(p.client));
    end_child(start_program("@holder", preload, number(p.server), NULL));
    _exit(0);
  }
  SYS(close(p.server));
  expect_echo(p.client);
  end_child(pid);
}
MIXED_CASE(exec_with_a_connection) { hand_over_by_exec(true); }
MIXED_CASE(exec_of_a_plain_program_with_a_connection) { hand_over_by_exec(false); }

MIXED_CASE(connection_passed_over_a_unix_socket) {
  struct pair p = open_pair(V4);
  int channel[2];
  SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
  pid_t pid = start_child();
  char control[CMSG_SPACE(sizeof(int))] = {0};
  char byte = 'c';
  struct iovec iov = {&byte, 1};
  struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
                       .msg_controllen = sizeof control};
  if (pid == 0) {
    close_pair(&p);
    SYS(close(channel[0]));
    EQ(SYS(recvmsg(channel[1], &msg, 0)), 1);
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof fd);
    echo_until_end(fd);
    _exit(0);
  }
  SYS(close(channel[1]));
  exercise(p.client, p.server);
  struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &p.server, sizeof(int));
  EQ(SYS(sendmsg(channel[0], &msg, MSG_NOSIGNAL)), 1);
  SYS(close(channel[0])), SYS(close(p.server));
  expect_echo(p.client);
  end_child(pid);
}
