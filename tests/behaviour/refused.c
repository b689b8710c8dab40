/* What comes after an end shut both directions down, in either order, TCP answers with a reset and gives to nobody. What had
 * come before is there to be read, and then the error. */
#include "bt.h"

/* One call, or two. */
enum order { AT_ONCE, READING_FIRST, WRITING_FIRST };
static void shut_both(int fd, enum order order) {
  if (order == AT_ONCE) SYS(shutdown(fd, SHUT_RDWR));
  if (order == READING_FIRST) SYS(shutdown(fd, SHUT_RD)), SYS(shutdown(fd, SHUT_WR));
  if (order == WRITING_FIRST) SYS(shutdown(fd, SHUT_WR)), SYS(shutdown(fd, SHUT_RD));
}
static struct pair refusing(enum order order, uint64_t unread) {
  struct pair p = open_pair(order == AT_ONCE ? V6 : V4);
  if (unread) send_pattern(p.server, 0, unread);
  int there = 0;
  while ((uint64_t)there < unread) SYS(ioctl(p.client, FIONREAD, &there));
  shut_both(p.client, order);
  expect_eof(p.server);
  put(p.server, "refused");
  wait_revents(p.client, POLLRDHUP, POLLRDHUP | POLLHUP | POLLERR);
  /* Between hosts a reset takes its time. */
  while (send(p.server, "x", 1, MSG_NOSIGNAL) == 1) {}
  EQ(errno, EPIPE);
  return p;
}
static void is_over(struct pair *p) {
  char byte;
  EQ(recv(p->client, &byte, 1, 0), 0);
  ERR(send(p->client, "x", 1, MSG_NOSIGNAL), EPIPE);
  EQ(ready_now(p->client, POLLIN | POLLOUT | POLLRDHUP), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
  union address address;
  socklen_t length = sizeof address;
  ERR(getpeername(p->client, &address.any, &length), ENOTCONN);
  close_pair(p);
}

static void told_by_recv(enum order order) {
  char bytes[100];
  struct pair p = refusing(order, 0);
  ERR(recv(p.client, bytes, sizeof bytes, 0), ECONNRESET);
  is_over(&p);
  p = refusing(order, 50);
  EQ(get_option(p.client, SOL_SOCKET, SO_ERROR), ECONNRESET);
  recv_pattern(p.client, 0, 50);
  is_over(&p);
  p = refusing(order, 50);
  int unread;
  SYS(ioctl(p.client, FIONREAD, &unread));
  EQ(unread, 50);
  EQ(recv(p.client, bytes, sizeof bytes, MSG_PEEK), 50);
  check_pattern(bytes, 0, 50);
  recv_pattern(p.client, 0, 20);
  EQ(recv(p.client, bytes, sizeof bytes, MSG_WAITALL), 30);
  check_pattern(bytes, 20, 30);
  ERR(recv(p.client, bytes, sizeof bytes, 0), ECONNRESET);
  is_over(&p);
}
SAN_CASE(a_receive_tells_the_reset_after_one_call) { told_by_recv(AT_ONCE); }
SAN_CASE(a_receive_tells_the_reset_after_two) { told_by_recv(READING_FIRST); }
SAN_CASE(a_receive_tells_the_reset_after_two_the_other_way) { told_by_recv(WRITING_FIRST); }

SAN_CASE(a_send_tells_the_reset) {
  for (enum order order = AT_ONCE; order <= WRITING_FIRST; order++) {
    struct pair p = refusing(order, 0);
    ERR(send(p.client, "x", 1, MSG_NOSIGNAL), ECONNRESET);
    is_over(&p);
    p = refusing(order, 70000);
    ERR(send(p.client, "x", 1, MSG_NOSIGNAL), ECONNRESET);
    recv_pattern(p.client, 0, 70000);
    is_over(&p);
  }
}
/* Until something comes, both directions are over in order. */
SAN_CASE(nothing_that_comes_is_no_reset) {
  for (enum order order = AT_ONCE; order <= WRITING_FIRST; order++) {
    struct pair p = open_pair(V4);
    put(p.server, "before");
    wait_for(p.client, POLLIN);
    shut_both(p.client, order);
    EQ(get_option(p.client, SOL_SOCKET, SO_ERROR), 0);
    get(p.client, "before");
    SYS(shutdown(p.server, SHUT_WR));
    expect_eof(p.client), expect_eof(p.server);
    close_pair(&p);
  }
}
