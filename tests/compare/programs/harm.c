/* Calls every function of the driver with nonsense, each in a process of its own, and prints what came of it.
 *
 *   harm FILE-OF-NAMES HOW
 *
 * HOW is `early` (nothing but NULL, before there is a context), `null` (the same with a context), `zeros` (a valid
 * buffer, then zeros) or `buffers` (twelve buffers). A hook must do what the driver does: one line for each
 * function, to be compared with the lines of a run without a hook. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Functions of the driver have at most twelve arguments. */
typedef int (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                        uint64_t);

/* How long one call may take. */
#define SECONDS 10

static uint64_t buffers[12][512];

static void call(const char *name, const char *how, int answer) {
    uint64_t arguments[12] = {0};
    alarm(SECONDS);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    if (!driver) _exit(3);
    if (strcmp(how, "early")) {
        int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
        int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
        int (*set)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
        if (init(0) || retain(&context, 0) || set(context)) _exit(3);
    }
    if (!strcmp(how, "zeros")) arguments[0] = (uint64_t)buffers[0];
    if (!strcmp(how, "buffers"))
        for (int i = 0; i < 12; i++) arguments[i] = (uint64_t)buffers[i];
    function called = (function)dlsym(driver, name);
    if (!called) _exit(4);
    const uint64_t *a = arguments;
    int code = called(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
    if (write(answer, &code, sizeof code) != sizeof code) _exit(3);
    /* What a library does when a process ends is not the question. */
    _exit(0);
}

int main(int count, char **words) {
    char name[256];
    FILE *names = count == 3 ? fopen(words[1], "r") : NULL;
    if (!names) {
        fprintf(stderr, "usage: harm FILE-OF-NAMES early|null|zeros|buffers\n");
        return 64;
    }
    while (fgets(name, sizeof name, names)) {
        int answer[2], code = 0, status = 0;
        name[strcspn(name, "\n")] = 0;
        if (pipe(answer)) return 3;
        pid_t child = fork();
        if (child < 0) return 3;
        if (child == 0) {
            close(answer[0]);
            call(name, words[2], answer[1]);
        }
        close(answer[1]);
        int has_answered = read(answer[0], &code, sizeof code) == sizeof code;
        close(answer[0]);
        waitpid(child, &status, 0);
        if (has_answered) printf("%s returned %d\n", name, code);
        else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) printf("%s hung\n", name);
        else if (WIFSIGNALED(status)) printf("%s died of signal %d\n", name, WTERMSIG(status));
        else printf("%s ended with %d\n", name, WEXITSTATUS(status));
        fflush(stdout);
    }
    return 0;
}
