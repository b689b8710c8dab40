/* The process that outlives its peers: it has one end of each connection, by a thread for each or one for all. */
#include "crash.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/tcp.h>
#include <pthread.h>

void warm_up(int fd, int side) {
    char byte = 'w';
    for (int i = 0; i < 100; i++) {
        if (side == VICTIM && send(fd, &byte, 1, MSG_NOSIGNAL) != 1) return;
        if (recv(fd, &byte, 1, 0) != 1) return;
        if (side == SURVIVOR && send(fd, &byte, 1, MSG_NOSIGNAL) != 1) return;
    }
}

static int listen_(_Atomic int *port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(l, (void *)&a, n) || listen(l, 8) || getsockname(l, (void *)&a, &n)) perror("listen"), exit(2);
    *port = ntohs(a.sin_port);
    return l;
}
static int without_delay(int fd) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}
int make_connection(struct common *c, int listens, int *listener) {
    if (listens) {
        if (*listener < 0) return *listener = listen_(&c->port), -1;
        int fd = accept4(*listener, 0, 0, SOCK_CLOEXEC);
        close(*listener);
        return without_delay(fd);
    }
    while (c->port == 0) rest(50);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)c->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (void *)&a, sizeof a)) perror("connect"), exit(2);
    return without_delay(fd);
}

static char buffers[MOST_CONNECTIONS][BUFFER];
static struct end ends[MOST_CONNECTIONS];

static void *drive_one(void *end) {
    struct end *e = end;
    drive(e, 1, e->link->style[SURVIVOR]);
    return end;
}
static void run(void) {
    int listeners[MOST_CONNECTIONS];
    for (int i = 0; i < plan.count; i++) {
        listeners[i] = -1;
        if (plan.links[i].survivor_listens) make_connection(&shared->links[i], 1, &listeners[i]);
    }
    for (int i = 0; i < plan.count; i++) {
        const struct link *l = &plan.links[i];
        struct end *e = &ends[i];
        *e = (struct end){.side = SURVIVOR, .index = i, .common = &shared->links[i], .link = l, .buffer = buffers[i]};
        e->fd = make_connection(e->common, l->survivor_listens, &listeners[i]);
        if (l->small_buffer) setsockopt(e->fd, SOL_SOCKET, SO_SNDBUF, &(int){4096}, sizeof(int));
        if (l->family != ALONE) warm_up(e->fd, SURVIVOR);
        enum style style = plan.threads ? l->style[SURVIVOR] : plan.loop;
        if (style == EPOLL || style == EDGE) fcntl(e->fd, F_SETFL, O_RDWR | O_NONBLOCK);
        begin(e);
    }
    if (!plan.threads) return drive(ends, plan.count, plan.loop);
    pthread_t threads[MOST_CONNECTIONS];
    for (int i = 0; i < plan.count; i++) pthread_create(&threads[i], 0, drive_one, &ends[i]);
    for (int i = 0; i < plan.count; i++) pthread_join(threads[i], 0);
}

static struct footprint footprint(void) {
    struct footprint f = {0};
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder)) f.descriptors++;
    closedir(folder);
    FILE *maps = fopen("/proc/self/maps", "r");
    for (int c; (c = fgetc(maps)) != EOF;) f.mappings += c == '\n';
    fclose(maps);
    FILE *statm = fopen("/proc/self/statm", "r");
    long pages[2] = {0};
    if (fscanf(statm, "%ld %ld", &pages[0], &pages[1]) == 2) f.kib = pages[1] * 4;
    fclose(statm);
    return f;
}
void run_survivor(int orders, int answers) {
    signal(SIGPIPE, SIG_IGN);
    while (read(orders, &seed_, sizeof seed_) == sizeof seed_) {
        plan = plan_of(seed_);
        run();
        struct footprint f = footprint();
        if (write(answers, &f, sizeof f) != sizeof f) break;
    }
    _exit(0);
}
