/* Records that are waited for whole, by a look or a count, before they are read: also where a part of one lies on TCP and
 * the other on the SAN, because the connection moved in between. */
#include "detaching.h"

enum { ROUNDS = 8 };

/* Until it is seen whole, in all ways; then it is read. */
static void see_record(int fd) {
  char record[16];
  int unread;
  UNTIL(recv(fd, record, sizeof record, MSG_PEEK) == 10);
  CHECK(memcmp(record, "0123456789", 10) == 0);
  UNTIL((SYS(ioctl(fd, FIONREAD, &unread)), unread == 10));
  EQ(recv(fd, record, 7, MSG_PEEK), 7);
  EQ(recv(fd, record, 10, MSG_PEEK | MSG_WAITALL), 10);
  CHECK(memcmp(record, "0123456789", 10) == 0);
  EQ(recv(fd, record, sizeof record, 0), 10);
  CHECK(memcmp(record, "0123456789", 10) == 0);
}
/* Once, into a pipe. */
static void splice_record(int fd) {
  int pipes[2];
  char record[32];
  SYS(pipe(pipes));
  for (ssize_t n = 0, all = 0; all < 10; all += n) CHECK((n = SYS(splice(fd, NULL, pipes[1], NULL, 10 - all, 0))) > 0);
  EQ(read(pipes[0], record, sizeof record), 10);
  CHECK(memcmp(record, "0123456789", 10) == 0);
  SYS(close(pipes[0])), SYS(close(pipes[1]));
}
static void wait_for_all(int fd) {
  set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 10);
  CHECK(wait_for(fd, POLLIN) & POLLIN);
  set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
}

/* ---- to the SAN -------------------------------------------------------------------------------- */

static void two_parts(int from, int to, bool by_poll) {
  for (int i = 0; i < ROUNDS; i++) {
    char part[16];
    int unread;
    put(from, "01234");
    /* Either may be the call in which this end comes to the SAN. */
    UNTIL((SYS(ioctl(to, FIONREAD, &unread)), unread == 5));
    EQ(recv(to, part, sizeof part, MSG_PEEK), 5);
    put(from, "56789");
    if (by_poll) wait_for_all(to);
    if (i % 2) splice_record(to);
    else see_record(to);
    put(to, "ok"), get(from, "ok");
  }
}
static void after_each_number_of_exchanges(bool by_poll) {
  for EACH_EXCHANGES(n)
    for (int who = 0; who < 2; who++) {
      union address target;
      int listener = listen_on(V4, &target), client = dial(&target);
      int server = SYS(accept(listener, NULL, NULL));
      for (int i = 0; i < n; i++) exercise(client, server);
      two_parts(who ? server : client, who ? client : server, by_poll);
      exercise(server, client);
      SYS(close(listener)), SYS(close(client)), SYS(close(server));
    }
}
SAN_CASE(looked_at_and_counted_while_it_moves) { after_each_number_of_exchanges(false); }
SAN_CASE(waited_for_by_poll_while_it_moves) { after_each_number_of_exchanges(true); }

/* ---- and back ---------------------------------------------------------------------------------- */

/* The peer goes back between two parts. */
static void goes_back(int fd) {
  put(fd, "01234");
  ask_for(getpid(), false);
  answered();
  sleep_ms(2);
  put(fd, "56789");
  get(fd, "ok");
  put(fd, "yes");
  expect_eof(fd);
}
static void after_the_peer_went_back(bool by_poll) {
  pid_t asker = start_asker();
  for (int i = 0; i < ROUNDS; i++) {
    struct pair p = open_pair(V4);
    pid_t peer = start_child();
    if (peer == 0) {
      SYS(close(p.client));
      goes_back(p.server);
      _exit(0);
    }
    SYS(close(p.server));
    if (by_poll) wait_for_all(p.client);
    if (i % 2) splice_record(p.client);
    else see_record(p.client);
    put(p.client, "ok");
    get(p.client, "yes");
    SYS(close(p.client));
    end_child(peer);
  }
  end_asker(asker);
}
MIXED_CASE(looked_at_and_counted_while_it_goes_back) { after_the_peer_went_back(false); }
MIXED_CASE(waited_for_by_poll_while_it_goes_back) { after_the_peer_went_back(true); }

/* ---- a receive's time-out ----------------------------------------------------------------------- */

enum { UPLOAD = 96 << 20, STEP = 256 << 10, SENT = 0, TIMED_OUT = 1 };

static void *upload(void *fd) {
  send_pattern(*(int *)fd, 0, UPLOAD);
  bt_shared->value[SENT] = 1;
  return NULL;
}
/* It goes on while another thread sends, whom the peer tells of room again and again. */
MIXED_CASE(time_out_of_a_receive_beside_a_send) {
  struct pair p = open_pair(V4);
  pid_t peer = start_child();
  if (peer == 0) {
    SYS(close(p.client));
    for (uint64_t at = 0; at < UPLOAD; at += STEP) {
      recv_pattern(p.server, at, STEP);
      if (!bt_shared->value[TIMED_OUT]) sleep_ms(20);
    }
    _exit(0);
  }
  SYS(close(p.server));
  pthread_t sender = start_thread(upload, &p.client);
  char byte;
  set_timeout(p.client, SO_RCVTIMEO, 300);
  ERR(recv(p.client, &byte, 1, 0), EAGAIN);
  EQ(bt_shared->value[SENT], 0);
  bt_shared->value[TIMED_OUT] = 1;
  end_thread(sender);
  end_child(peer);
  SYS(close(p.client));
}
