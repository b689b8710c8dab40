/* Processes that want the same direction of a connection at the same time: each gets its turn. */
#include "bt.h"
#include <sched.h>
#include <sys/resource.h>

enum { WRITERS = 4, RECORDS = 400, SIZE = 700 };

/* Nobody gets far ahead, or one might be done before the next begins. In thousandths; at the end all of them. */
enum { PROGRESS = 44, ALL = 1000, AHEAD = 20, DONE = ALL + AHEAD };
static void keep_together(int self, int parties, long progress) {
  _Atomic long *all = &bt_shared->value[PROGRESS];
  all[self] = progress;
  for (int other = 0; other < parties; other++)
    while (progress < DONE && progress > all[other] + AHEAD) usleep(50);
}

/* A record says whose it is in each byte. */
static void send_records(int fd, int writer, int count) {
  char record[SIZE];
  memset(record, 'A' + writer, sizeof record);
  for (int i = 0; i < count; i++)
    for (size_t done = 0; done < sizeof record;)
      done += (size_t)SYS(send(fd, record + done, sizeof record - done, MSG_NOSIGNAL));
}
/* Counts the bytes of each writer until the end. */
static void *count_bytes(void *arg) {
  int fd = *(int *)arg;
  char bytes[65536];
  ssize_t n;
  while ((n = SYS(recv(fd, bytes, sizeof bytes, 0))) > 0)
    for (ssize_t i = 0; i < n; i++) {
      CHECK(bytes[i] >= 'A' && bytes[i] < 'A' + WRITERS);
      bt_shared->value[bytes[i] - 'A']++;
    }
  return NULL;
}

SWAP_CASE(all_write) {
  struct pair p = open_pair(V4);
  pthread_t reader = start_thread(count_bytes, &p.server);
  pid_t writers[WRITERS];
  for (int i = 0; i < WRITERS; i++)
    if ((writers[i] = start_child()) == 0) {
      for (int sent = 0; sent < RECORDS; sent++) {
        keep_together(i, WRITERS, sent * ALL / RECORDS);
        send_records(p.client, i, 1);
      }
      keep_together(i, WRITERS, DONE);
      _exit(0);
    }
  for (int i = 0; i < WRITERS; i++) end_child(writers[i]);
  SYS(shutdown(p.client, SHUT_WR));
  end_thread(reader);
  for (int i = 0; i < WRITERS; i++) EQ(bt_shared->value[i], RECORDS * SIZE);
}

/* Where TCP need not wait for room, it takes a blocking write in one piece: among several writers too. So no more is under
 * way than it has room for. */
enum { SMALL_RECORD = 700, LARGE_RECORD = 300000, IN_FLIGHT = 700000, UNDER_WAY = 60, MAGIC = 0x7ec0d };
struct record {
  uint32_t magic, writer, size, number;
};
static void send_whole_records(int fd, int writer, uint32_t size, uint32_t count) {
  _Alignas(struct record) static char bytes[LARGE_RECORD];
  memset(bytes, 'A' + writer, size);
  _Atomic long *under_way = &bt_shared->value[UNDER_WAY];
  for (uint32_t i = 0; i < count; i++) {
    keep_together(writer, WRITERS, i * ALL / count);
    while (atomic_fetch_add(under_way, size) + size > IN_FLIGHT) atomic_fetch_sub(under_way, size), sched_yield();
    *(struct record *)bytes = (struct record){MAGIC, (uint32_t)writer, size, i};
    EQ(SYS(send(fd, bytes, size, MSG_NOSIGNAL)), size);
  }
  keep_together(writer, WRITERS, DONE);
}
/* The next record's writer; -1 at the end. */
static int recv_whole_record(int fd, uint32_t *next) {
  static char bytes[LARGE_RECORD];
  struct record head;
  ssize_t n = SYS(recv(fd, &head, sizeof head, MSG_WAITALL));
  if (n == 0) return -1;
  EQ(n, sizeof head);
  EQ(head.magic, MAGIC);
  CHECK(head.writer < WRITERS && head.size <= LARGE_RECORD);
  EQ(head.number, next[head.writer]++);
  size_t rest = head.size - sizeof head;
  EQ(SYS(recv(fd, bytes, rest, MSG_WAITALL)), rest);
  for (size_t i = 0; i < rest; i++)
    if (bytes[i] != 'A' + (int)head.writer) FAIL("byte %zu of a record of %u is of another: %#x", i, head.size, bytes[i]);
  atomic_fetch_sub(&bt_shared->value[UNDER_WAY], head.size);
  return (int)head.writer;
}
static void whole_records(const uint32_t size[WRITERS], const uint32_t count[WRITERS]) {
  struct pair p = open_pair(V4);
  pid_t writers[WRITERS];
  for (int i = 0; i < WRITERS; i++)
    if ((writers[i] = start_child()) == 0) {
      SYS(close(p.server));
      send_whole_records(p.client, i, size[i], count[i]);
      _exit(0);
    }
  SYS(close(p.client));
  uint32_t next[WRITERS] = {0};
  while (recv_whole_record(p.server, next) >= 0) continue;
  for (int i = 0; i < WRITERS; i++) {
    EQ(next[i], count[i]);
    end_child(writers[i]);
  }
  SYS(close(p.server));
}
SWAP_CASE(small_records_stay_whole) {
  whole_records((uint32_t[]){SMALL_RECORD, SMALL_RECORD, SMALL_RECORD, SMALL_RECORD}, (uint32_t[]){600, 600, 600, 600});
}
SAN_CASE(large_records_stay_whole) {
  whole_records((uint32_t[]){LARGE_RECORD, LARGE_RECORD, LARGE_RECORD, LARGE_RECORD}, (uint32_t[]){12, 12, 12, 12});
}
SWAP_CASE(records_of_all_sizes_stay_whole) {
  whole_records((uint32_t[]){SMALL_RECORD, LARGE_RECORD, SMALL_RECORD, LARGE_RECORD}, (uint32_t[]){600, 12, 600, 12});
}

/* One that never stops writing lets the others in (D2). */
SAN_CASE(one_writes_all_the_time) {
  struct pair p = open_pair(V4);
  pthread_t reader = start_thread(count_bytes, &p.server);
  pid_t child = start_child();
  if (child == 0) {
    send_records(p.client, 1, 300);
    bt_shared->value[40] = 1;
    _exit(0);
  }
  long sent = 0;
  for (; bt_shared->value[40] == 0; sent++) send_records(p.client, 0, 1);
  end_child(child);
  SYS(shutdown(p.client, SHUT_WR));
  end_thread(reader);
  EQ(bt_shared->value[0], sent * SIZE);
  EQ(bt_shared->value[1], 300 * SIZE);
}

/* Several read; what each gets is in order, and together it is all. */
SWAP_CASE(all_read) {
  enum { TOTAL = 4 << 20, READERS = 3, SHIFT = 15 };
  struct pair p = open_pair(V4);
  pid_t readers[READERS];
  for (int i = 0; i < READERS; i++)
    if ((readers[i] = start_child()) == 0) {
      SYS(close(p.client));
      static uint8_t got[1000];
      uint8_t last = 0;
      ssize_t n;
      while ((n = SYS(recv(p.server, got, sizeof got, 0))) > 0) {
        for (ssize_t k = 0; k < n; last = got[k++]) CHECK(got[k] >= last);
        keep_together(i, READERS, (bt_shared->value[i] += n) * ALL / TOTAL);
      }
      keep_together(i, READERS, DONE);
      _exit(0);
    }
  SYS(close(p.server));
  for (int at = 0; at < TOTAL; at += 256) {
    uint8_t record[256];
    memset(record, at >> SHIFT, sizeof record);
    EQ(SYS(send(p.client, record, sizeof record, MSG_NOSIGNAL)), sizeof record);
  }
  SYS(close(p.client));
  long sum = 0;
  for (int i = 0; i < READERS; i++) {
    end_child(readers[i]);
    sum += bt_shared->value[i];
  }
  EQ(sum, TOTAL);
}

/* Writers that are killed wherever they are hold nobody up for good (D12). */
SAN_CASE(writers_are_killed) {
  enum { ROUNDS = 4 };
  struct pair p = open_pair(V4);
  pthread_t reader = start_thread(count_bytes, &p.server);
  for (int round = 0; round < ROUNDS; round++) {
    pid_t writers[2];
    for (int i = 0; i < 2; i++)
      if ((writers[i] = start_child()) == 0) {
        send_records(p.client, 1 + i, INT_MAX);
        _exit(0);
      }
    for (int i = 0; i < 2; i++) {
      long before = bt_shared->value[1 + i];
      UNTIL(bt_shared->value[1 + i] > before);
      send_records(p.client, 0, 10);
      sleep_ms(round % 3);
      SYS(kill(writers[i], SIGKILL));
      int status;
      EQ(SYS(waitpid(writers[i], &status, 0)), writers[i]);
    }
    send_records(p.client, 0, 10);
  }
  SYS(shutdown(p.client, SHUT_WR));
  end_thread(reader);
  EQ(bt_shared->value[0], ROUNDS * 30 * SIZE);
}

/* Several write at both ends. */
SAN_CASE(both_ends_write) {
  enum { EACH = 150 };
  struct pair p = open_pair(V4);
  pthread_t readers[] = {start_thread(count_bytes, &p.server), start_thread(count_bytes, &p.client)};
  pid_t writers[WRITERS];
  for (int i = 0; i < WRITERS; i++)
    if ((writers[i] = start_child()) == 0) {
      send_records(i % 2 ? p.client : p.server, i, EACH);
      _exit(0);
    }
  for (int i = 0; i < WRITERS; i++) end_child(writers[i]);
  SYS(shutdown(p.client, SHUT_WR));
  SYS(shutdown(p.server, SHUT_WR));
  for (int i = 0; i < 2; i++) end_thread(readers[i]);
  for (int i = 0; i < WRITERS; i++) EQ(bt_shared->value[i], EACH * SIZE);
}

/* Writers that are stopped wherever they are, and go on, lose and double nothing. */
SAN_CASE(writers_are_stopped) {
  enum { EACH = 200 };
  struct pair p = open_pair(V4);
  pthread_t reader = start_thread(count_bytes, &p.server);
  pid_t writers[2];
  for (int i = 0; i < 2; i++)
    if ((writers[i] = start_child()) == 0) {
      send_records(p.client, i, EACH);
      _exit(0);
    }
  for (int round = 0; round < 20; round++) {
    SYS(kill(writers[round % 2], SIGSTOP));
    sleep_ms(round % 7);
    SYS(kill(writers[round % 2], SIGCONT));
    sleep_ms(round % 3);
  }
  for (int i = 0; i < 2; i++) end_child(writers[i]);
  SYS(shutdown(p.client, SHUT_WR));
  end_thread(reader);
  for (int i = 0; i < 2; i++) EQ(bt_shared->value[i], EACH * SIZE);
}

/* The peer is killed while control goes back and forth: every process learns of it (D12). */
SAN_CASE(the_peer_is_killed) {
  enum { BOTH = 2 };
  struct pair p = open_pair(V4);
  pid_t peer = start_child();
  if (peer == 0) {
    SYS(close(p.client));
    count_bytes(&p.server);
    _exit(0);
  }
  SYS(close(p.server));
  pid_t writers[BOTH];
  for (int i = 0; i < BOTH; i++)
    if ((writers[i] = start_child()) == 0) {
      char record[SIZE];
      memset(record, 'A' + i, sizeof record);
      while (send(p.client, record, sizeof record, MSG_NOSIGNAL) > 0) {
      }
      CHECK(errno == EPIPE || errno == ECONNRESET);
      _exit(0);
    }
  for (int i = 0; i < BOTH; i++) UNTIL(bt_shared->value[i] > 20 * SIZE);
  SYS(kill(peer, SIGKILL));
  int status;
  EQ(SYS(waitpid(peer, &status, 0)), peer);
  for (int i = 0; i < BOTH; i++) end_child(writers[i]);
}

/* ---- changes of state by another process than the one that transfers --------------------------- */

/* What was sent before a relative ends the direction arrives, and nothing after it is sent (D2). */
SAN_CASE(a_relative_shuts_down) {
  for (int round = 0; round < 10; round++) {
    struct pair p = open_pair(round % 2 ? V4 : V6);
    memset(bt_shared, 0, sizeof *bt_shared);
    pthread_t reader = start_thread(count_bytes, &p.server);
    pid_t child = start_child();
    if (child == 0) {
      send_records(p.client, 1, 3);
      UNTIL(bt_shared->value[0] > round * SIZE);
      SYS(shutdown(p.client, SHUT_WR));
      send_records(p.server, 2, 1);
      _exit(0);
    }
    char record[SIZE];
    memset(record, 'A', sizeof record);
    long sent = 0;
    for (ssize_t n; (n = send(p.client, record, sizeof record, MSG_NOSIGNAL)) > 0;) sent += n;
    EQ(errno, EPIPE);
    end_thread(reader);
    EQ(bt_shared->value[0], sent);
    EQ(bt_shared->value[1], 3 * SIZE);
    end_child(child);
    EQ(SYS(recv(p.client, record, sizeof record, MSG_WAITALL)), SIZE);
    EQ(record[0], 'C');
    close_pair(&p);
  }
}
/* Urgent data has its place among what relatives send (S8). */
MIXED_CASE(a_relative_sends_urgent_data) {
  struct pair p = open_pair(V4);
  exercise(p.client, p.server);
  for (int round = 0; round < 20; round++) {
    memset(bt_shared, 0, sizeof *bt_shared);
    pid_t child = start_child();
    if (child == 0) {
      UNTIL(bt_shared->value[1]);
      EQ(SYS(send(p.client, "behind!", 7, MSG_OOB | MSG_NOSIGNAL)), 7);
      bt_shared->value[2] = 1;
      UNTIL(bt_shared->value[3]);
      put(p.client, "child");
      _exit(0);
    }
    put(p.client, "parent");
    bt_shared->value[1] = 1;
    UNTIL(bt_shared->value[2]);
    put(p.client, "after");
    wait_for(p.server, POLLPRI);
    get(p.server, "parentbehind");
    EQ(SYS(ioctl(p.server, SIOCATMARK, &(int){0})), 0);
    char byte;
    EQ(SYS(recv(p.server, &byte, 1, MSG_OOB)), 1);
    EQ(byte, '!');
    get(p.server, "after");
    bt_shared->value[3] = 1;
    get(p.server, "child");
    put(p.server, "back"), get(p.client, "back");
    end_child(child);
  }
  close_pair(&p);
}

/* ---- processes without memory ------------------------------------------------------------------ */

/* Control comes to a process that can get neither memory nor descriptors (D12): it needs none. */
SAN_CASE(writers_without_memory) {
  struct pair p = open_pair(V4);
  pthread_t reader = start_thread(count_bytes, &p.server);
  pid_t writers[2];
  for (int i = 0; i < 2; i++)
    if ((writers[i] = start_child()) == 0) {
      struct rlimit none = {1, 1}, few = {0, 0};
      SYS(setrlimit(RLIMIT_AS, &none));
      SYS(setrlimit(RLIMIT_NOFILE, &few));
      ERR(open("/dev/null", O_RDONLY), EMFILE);
      send_records(p.client, i, RECORDS);
      _exit(0);
    }
  send_records(p.client, 2, RECORDS);
  for (int i = 0; i < 2; i++) end_child(writers[i]);
  SYS(shutdown(p.client, SHUT_WR));
  end_thread(reader);
  for (int i = 0; i < 3; i++) EQ(bt_shared->value[i], RECORDS * SIZE);
}
/* Large records: send buffers and messages would grow. */
SAN_CASE(large_writers_without_memory) {
  enum { LARGE = 300000, COUNT = 20 };
  struct pair p = open_pair(V4);
  pthread_t reader = start_thread(count_bytes, &p.server);
  pid_t writers[2];
  static char record[LARGE];
  for (int i = 0; i < 2; i++)
    if ((writers[i] = start_child()) == 0) {
      memset(record, 'A' + i, LARGE);
      SYS(setrlimit(RLIMIT_AS, &(struct rlimit){1, 1}));
      for (int k = 0; k < COUNT; k++) EQ(SYS(send(p.client, record, LARGE, MSG_NOSIGNAL)), LARGE);
      _exit(0);
    }
  for (int i = 0; i < 2; i++) end_child(writers[i]);
  SYS(shutdown(p.client, SHUT_WR));
  end_thread(reader);
  for (int i = 0; i < 2; i++) EQ(bt_shared->value[i], COUNT * LARGE);
}
