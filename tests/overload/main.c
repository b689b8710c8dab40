/* overload serve BACKLOG COUNT | clients PORT SOURCE COUNT ROUNDS | processes PORT COUNT ROUNDS | threads COUNT | peer PORT COUNT | queue BACKLOG |
 * crowd PORT COUNT. See scripts/overload. */
#include "overload.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Beside the connections of a process: what libraries and the program itself have open. */
enum { OTHERS = 100 };

int main(int count, char **words) {
    int number[4] = {0};
    for (int i = 0; i < 4 && i + 2 < count; i++) number[i] = atoi(words[i + 2]);
    const char *what = count > 1 ? words[1] : "";
    signal(SIGPIPE, SIG_IGN);
    if (!strcmp(what, "serve")) return allow_descriptors(number[1] + OTHERS), serve(listen_here(number[0]));
    if (!strcmp(what, "clients")) return allow_descriptors(number[2] + OTHERS), clients(number[0], number[1], number[2], number[3]);
    if (!strcmp(what, "processes")) return allow_descriptors(number[1] + OTHERS), processes(words[0], number[0], number[1], number[2]);
    if (!strcmp(what, "threads")) return threads(number[0]);
    if (!strcmp(what, "peer")) return peer(number[0], number[1]);
    if (!strcmp(what, "queue")) {
        int listener = listen_here(number[0]);
        wait_for_line();
        return serve(listener);
    }
    if (!strcmp(what, "crowd")) return allow_descriptors(number[1] + OTHERS), crowd(number[0], number[1]);
    fail("what is '%s'? See main.c", what);
}
