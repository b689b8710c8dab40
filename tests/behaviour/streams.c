/* Streams that flow, rest and flow again: what is kept for their sake grows and shrinks. */

#include "bt.h"

enum { FLOW = 24 << 20, TIMES = 3 };

static void flowing(int fd) {
  for (int i = 0; i < TIMES; i++) {
    send_pattern(fd, (uint64_t)i * FLOW, FLOW);
    get(fd, "all");
    sleep_ms(1100);
    put(fd, "again");
    get(fd, "ready");
  }
  SYS(close(fd));
}
static void taking(int fd) {
  for (int i = 0; i < TIMES; i++) {
    recv_pattern(fd, (uint64_t)i * FLOW, FLOW);
    put(fd, "all");
    get(fd, "again");
    put(fd, "ready");
  }
  expect_eof(fd);
}
ENDS(flow_rest_flow, flowing, taking)

/* Both ways at once, so that each end sends while it sleeps in a receive. */
static void *flow_out(void *arg) {
  for (int i = 0; i < 2; i++) {
    send_pattern(*(int *)arg, (uint64_t)i * FLOW, FLOW);
    sleep_ms(1100);
  }
  return NULL;
}
static void both_ways(int fd) {
  pthread_t sender = start_thread(flow_out, &fd);
  recv_pattern(fd, 0, (uint64_t)2 * FLOW);
  end_thread(sender);
  put(fd, "done");
  get(fd, "done");
  SYS(close(fd));
}
ENDS(flow_rest_flow_both_ways, both_ways, both_ways)
