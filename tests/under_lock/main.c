// Counts the system calls that threads make while they own a lock of a library, whoever in the process makes them: the
// library, libc, or a handler of the program.
//
//   under_lock LIBRARY OFFSET PROGRAM [ARGUMENT...]
//
// At OFFSET from the library's beginning in memory lies the lock's word. It holds the id of the thread that owns the lock,
// with a flag in its highest bit. The program and all that it forks are stopped at each system call (ptrace). At the end
// there is a line "NUMBER COUNT" for each system call that an owner made. The exit status is the program's.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLS = 1024, TASKS = 4096, FLAG_SHIFT = 31 };
static const long OPTIONS = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE |
                            PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;

// One traced thread. An address space keeps its place until its process executes another program.
struct task {
    pid_t tid;
    uint64_t lock; // the word's address; 0: not looked for, or not there
    int enters;    // the next stop is the beginning of a system call
};
static struct task tasks[TASKS];
static unsigned long counted[CALLS];

static struct task *task_of(pid_t tid) {
    struct task *unused = NULL;
    for (int i = 0; i < TASKS; i++) {
        if (tasks[i].tid == tid) return &tasks[i];
        if (!unused && tasks[i].tid == 0) unused = &tasks[i];
    }
    if (!unused) {
        fprintf(stderr, "more than %d threads\n", TASKS);
        exit(2);
    }
    *unused = (struct task){.tid = tid, .enters = 1};
    return unused;
}

// Where the library lies in the task's memory; 0: it does not.
static uint64_t base_of(pid_t tid, const char *library) {
    char path[64], line[4096];
    snprintf(path, sizeof path, "/proc/%d/maps", tid);
    FILE *maps = fopen(path, "r");
    uint64_t base = 0;
    while (maps && !base && fgets(line, sizeof line, maps))
        if (strstr(line, library)) base = strtoull(line, NULL, 16);
    if (maps) fclose(maps);
    return base;
}

static int owns(const struct task *task) {
    uint32_t word = 0;
    struct iovec here = {&word, sizeof word}, there = {(void *)task->lock, sizeof word};
    return process_vm_readv(task->tid, &here, 1, &there, 1, 0) == sizeof word &&
           (word & ~(1u << FLAG_SHIFT)) == (uint32_t)task->tid;
}

static void at_call(struct task *task, const char *library, uint64_t offset) {
    task->enters = !task->enters;
    if (task->enters) return;
    if (!task->lock) {
        uint64_t base = base_of(task->tid, library);
        task->lock = base ? base + offset : 0;
    }
    struct user_regs_struct registers;
    if (task->lock && owns(task) && ptrace(PTRACE_GETREGS, task->tid, NULL, &registers) == 0 &&
        registers.orig_rax < CALLS)
        counted[registers.orig_rax]++;
}

// What a stopped task goes on with: a signal of its own, or none.
static int look_at(struct task *task, int status, const char *library, uint64_t offset) {
    int signal = WSTOPSIG(status), event = status >> 16;
    if (signal == (SIGTRAP | 0x80)) return at_call(task, library, offset), 0;
    if (event == PTRACE_EVENT_EXEC) return task->lock = 0, 0;
    // A thread or process that was just made begins with a stop of the tracer's.
    if (event != 0 || signal == SIGSTOP) return 0;
    return signal;
}

int main(int count, char **arguments) {
    if (count < 4) return fprintf(stderr, "under_lock LIBRARY OFFSET PROGRAM [ARGUMENT...]\n"), 2;
    const char *library = arguments[1];
    uint64_t offset = strtoull(arguments[2], NULL, 16);
    pid_t first = fork();
    if (first == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        setenv("LD_PRELOAD", library, 1);
        execv(arguments[3], arguments + 3);
        _exit(127);
    }
    int status, result = 2;
    if (first < 0 || waitpid(first, &status, 0) != first || ptrace(PTRACE_SETOPTIONS, first, NULL, OPTIONS) < 0)
        return perror("ptrace"), 2;
    ptrace(PTRACE_SYSCALL, first, NULL, NULL);
    for (pid_t tid; (tid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR;) {
        if (tid < 0) continue;
        struct task *task = task_of(tid);
        if (!WIFSTOPPED(status)) {
            if (tid == first) result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            task->tid = 0;
            continue;
        }
        ptrace(PTRACE_SYSCALL, tid, NULL, (long)look_at(task, status, library, offset));
    }
    for (int call = 0; call < CALLS; call++)
        if (counted[call]) printf("%d %lu\n", call, counted[call]);
    return result;
}
