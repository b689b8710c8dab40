// How many instructions the calls of a server take that sleeps between two requests: the kernel stops its process at each
// instruction (ptrace).
//
//   instructions CONNECTIONS [FILE]
//
// The median of some rounds is printed for epoll_wait, recv and send. FILE gets the address of each instruction of those
// rounds, and a line for each call, so that somebody can find out where they lie.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 512, SIZE = 64, WARM_UP = 150, ROUNDS = 9 };
enum call { WAIT, RECEIVE, SEND, CALLS };
static const char *const names[CALLS] = {"epoll_wait", "recv", "send"};

static void check(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

// The tracer knows these two by their addresses, which are the same in its child.
__attribute__((noinline)) static void begins(void) {
    __asm__ volatile("");
}

__attribute__((noinline)) static void ends(void) {
    __asm__ volatile("" ::: "memory");
}

#define COUNTED(call)                                                                              \
    ({                                                                                             \
        begins();                                                                                  \
        long result = call;                                                                        \
        ends();                                                                                    \
        result;                                                                                    \
    })

static void serve(int listener, int connections) {
    int set = epoll_create1(0), on = 1;
    for (int i = 0; i < connections; i++) {
        int fd = accept(listener, NULL, NULL);
        check(fd >= 0, "accept");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    }
    char bytes[SIZE];
    for (int left = (WARM_UP + ROUNDS + 1) * connections; left > 0; left--) {
        if (left == (ROUNDS + 1) * connections) {
            raise(SIGSTOP);
        }
        struct epoll_event event;
        check(COUNTED(epoll_wait(set, &event, 1, -1)) == 1, "epoll_wait");
        check(COUNTED(recv(event.data.fd, bytes, SIZE, 0)) == SIZE, "recv");
        check(COUNTED(send(event.data.fd, bytes, SIZE, 0)) == SIZE, "send");
    }
}

// One request at a time, going round the connections, each after a pause in which the server falls asleep.
static void ask(struct sockaddr_in address, int connections) {
    int fds[MOST], on = 1;
    for (int i = 0; i < connections; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        check(connect(fds[i], (void *)&address, sizeof address) == 0, "connect");
    }
    char bytes[SIZE] = {0};
    for (int i = 0; i < (WARM_UP + ROUNDS + 1) * connections; i++) {
        int fd = fds[i % connections];
        // The kernel stops the server at each instruction in the second case.
        long pause = i < WARM_UP * connections ? 1000000 : 40000000;
        nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
        check(send(fd, bytes, SIZE, 0) == SIZE, "send");
        check(recv(fd, bytes, SIZE, MSG_WAITALL) == SIZE, "recv");
    }
}

static unsigned long address_of(pid_t server) {
    struct user_regs_struct registers;
    check(ptrace(PTRACE_GETREGS, server, NULL, &registers) == 0, "PTRACE_GETREGS");
    return registers.rip;
}

// True if the server came to another instruction.
static int step(pid_t server) {
    int status;
    check(ptrace(PTRACE_SINGLESTEP, server, NULL, NULL) == 0, "PTRACE_SINGLESTEP");
    check(waitpid(server, &status, __WALL) == server, "waitpid");
    return WIFSTOPPED(status);
}

static int by_size(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

static void count(pid_t server, int connections, FILE *file) {
    int status, counts[CALLS][ROUNDS * 8] = {0}, rounds = ROUNDS * (connections < 8 ? connections : 8);
    check(waitpid(server, &status, __WALL) == server && WIFSTOPPED(status), "the server stops");
    for (int i = 0; i < rounds * CALLS; i++) {
        enum call call = i % CALLS;
        while (address_of(server) != (unsigned long)begins) {
            check(step(server), "the server goes on");
        }
        if (file) {
            fprintf(file, "%s\n", names[call]);
        }
        int instructions = 0;
        for (unsigned long at; (at = address_of(server)) != (unsigned long)ends; instructions++) {
            if (file) {
                fprintf(file, "%lx\n", at);
            }
            check(step(server), "the server goes on");
        }
        counts[call][i / CALLS] = instructions;
    }
    for (int call = 0; call < CALLS; call++) {
        qsort(counts[call], rounds, sizeof(int), by_size);
        printf("%s %d\n", names[call], counts[call][rounds / 2]);
    }
}

int main(int argc, char **argv) {
    int connections = argc > 1 ? atoi(argv[1]) : 0;
    if (connections < 1 || connections > MOST) {
        fprintf(stderr, "usage: instructions CONNECTIONS [FILE], with 1 to %d connections\n", MOST);
        return 2;
    }
    FILE *file = argc > 2 ? fopen(argv[2], "w") : NULL;
    check(argc < 3 || file, "the file");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (void *)&address, length) == 0 && listen(listener, MOST) == 0, "listen");
    check(getsockname(listener, (void *)&address, &length) == 0, "getsockname");
    pid_t server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        check(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0, "PTRACE_TRACEME");
        serve(listener, connections);
        _exit(0);
    }
    pid_t client = fork();
    if (client == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ask(address, connections);
        _exit(0);
    }
    check(server > 0 && client > 0, "fork");
    count(server, connections, file);
    if (file) {
        char maps[64];
        snprintf(maps, sizeof maps, "/proc/%d/maps", server);
        FILE *from = fopen(maps, "r");
        for (int c; from && (c = fgetc(from)) != EOF;) {
            fputc(c, file);
        }
        fclose(file);
    }
    kill(client, SIGKILL);
    kill(server, SIGKILL);
    while (wait(NULL) > 0) {
    }
    return 0;
}
