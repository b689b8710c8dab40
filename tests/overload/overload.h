/* Programs of scripts/overload: a server, clients of many connections, and many threads on one socket. What is sent is known by its place, each
 * program checks what it receives, and says on standard output how far it is. */
#ifndef OVERLOAD_H
#define OVERLOAD_H
#include <stddef.h>
#include <stdint.h>

/* Ends the program with status 1 and these words. */
_Noreturn void fail(const char *form, ...) __attribute__((format(printf, 1, 2)));
/* The same with what errno says. */
_Noreturn void fail_errno(const char *form, ...) __attribute__((format(printf, 1, 2)));
/* Says how far it is, at once. */
void say(const char *form, ...) __attribute__((format(printf, 1, 2)));
/* Returns when standard input has another line, and ends the program where there is none. */
void wait_for_line(void);
/* Whether it has one, or has ended. */
int is_line_there(void);
/* As many descriptors as may be had, and fails if these are fewer. */
void allow_descriptors(size_t wanted);
/* A listening socket on a port of 127.0.0.1, which it says. */
int listen_here(int backlog);
/* A socket that connects to the port from 127.0.0.`source`. */
int connect_from(int port, int source, int flags);
/* The byte of a stream at a place. */
static inline unsigned char byte_at(uint64_t stream, uint64_t place) {
    return (unsigned char)((stream * 131 + place * 7 + (place >> 8)) % 251);
}

int serve(int listener);
int clients(int port, int source, int count, int rounds);
int processes(const char *program, int port, int count, int rounds);
int threads(int count);
int peer(int port, int count);
int crowd(int port, int count);
#endif
