/* Kills programs in the middle of what they do and looks whether the next one starts and what it finds.
 *
 *   kill start KILLS SEED      programs die while they start; prints the longest start of a next one in ms
 *   kill churn KILLS SEED      eight programs that allocate and free die at random; prints the same
 *
 * then how many MiB are free under the limit for a program that comes afterwards, or `hung`: a start that takes longer
 * than twenty seconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 20000
#define CHURNING 8

static void *driver;
#define CALL(name, types) ((int (*) types)dlsym(driver, #name))

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void pause_ms(double ms) {
    struct timespec time = {(time_t)(ms / 1e3), (long)((ms - (double)(long)(ms / 1e3) * 1e3) * 1e6)};
    nanosleep(&time, NULL);
}

static unsigned next_random(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* The child: starts the driver and allocates once, then does what it was told. */
static int work(const char *what, unsigned seed) {
    void *context = NULL;
    uint64_t held[64] = {0};
    size_t free_bytes = 0, total = 0;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || CALL(cuInit, (unsigned))(0) || CALL(cuDevicePrimaryCtxRetain, (void **, int))(&context, 0)) return 5;
    if (CALL(cuCtxSetCurrent, (void *))(context)) return 5;
    if (CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&free_bytes, &total)) return 5;
    if (CALL(cuMemAlloc_v2, (uint64_t *, size_t))(&held[0], 1 << 20)) return 6;
    if (strcmp(what, "churn")) return write(1, &free_bytes, sizeof free_bytes) != sizeof free_bytes;
    int (*allocate)(uint64_t *, size_t) = CALL(cuMemAlloc_v2, (uint64_t *, size_t));
    int (*give_back)(uint64_t) = CALL(cuMemFree_v2, (uint64_t));
    for (;;) {
        unsigned slot = next_random(&seed) % 64;
        if (held[slot]) {
            give_back(held[slot]);
            held[slot] = 0;
        } else if (allocate(&held[slot], (size_t)(1 + next_random(&seed) % 32) << 20)) {
            held[slot] = 0;
        }
    }
}

static pid_t start(const char *what, unsigned seed, int output) {
    char number[16];
    snprintf(number, sizeof number, "%u", seed);
    pid_t child = fork();
    if (child) return child;
    /* What those say that are killed is not asked for. */
    dup2(output >= 0 ? output : open("/dev/null", O_WRONLY), 1);
    execl("/proc/self/exe", "kill", "--work", what, number, (char *)NULL);
    _exit(127);
}

/* Whether the child ended in time; otherwise it is killed. */
static int ends(pid_t child, int *status) {
    struct pollfd ended = {(int)syscall(SYS_pidfd_open, child, 0), POLLIN, 0};
    int in_time = poll(&ended, 1, PATIENCE_MS) == 1;
    if (!in_time) kill(child, SIGKILL);
    waitpid(child, status, 0);
    close(ended.fd);
    return in_time;
}

/* Starts one program to its end: how long it took, or that it hung; what it found free. */
static int next(double *longest, size_t *free_bytes) {
    int output[2], status = 0;
    if (pipe(output)) return 0;
    double begun = now_ms();
    pid_t child = start("ask", 0, output[1]);
    close(output[1]);
    int in_time = ends(child, &status);
    if (now_ms() - begun > *longest) *longest = now_ms() - begun;
    int has_told = read(output[0], free_bytes, sizeof *free_bytes) == sizeof *free_bytes;
    close(output[0]);
    if (in_time && has_told) return 1;
    if (!in_time) printf("hung\n");
    else printf("failed %d\n", status);
    return 0;
}

static void reap(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

int main(int count, char **words) {
    if (count == 4 && !strcmp(words[1], "--work")) return work(words[2], (unsigned)strtoul(words[3], NULL, 10));
    if (count != 4) {
        fprintf(stderr, "usage: kill start|churn KILLS SEED\n");
        return 64;
    }
    int kills = atoi(words[2]);
    unsigned seed = (unsigned)strtoul(words[3], NULL, 10);
    size_t free_bytes = 0;
    double usual = 0, longest = 0;
    if (!next(&usual, &free_bytes)) return 0;
    if (!strcmp(words[1], "start")) {
        for (int i = 0; i < kills; i++) {
            pid_t child = start("ask", 0, -1);
            pause_ms(usual * (next_random(&seed) % 1000) / 1000);
            reap(child);
            if (!next(&longest, &free_bytes)) return 0;
        }
    } else {
        pid_t children[CHURNING];
        for (int i = 0; i < CHURNING; i++) children[i] = start("churn", seed + (unsigned)i, -1);
        pause_ms(usual + 200);
        for (int i = 0; i < kills; i++) {
            pid_t *child = &children[next_random(&seed) % CHURNING];
            pause_ms(next_random(&seed) % 20);
            reap(*child);
            *child = start("churn", next_random(&seed), -1);
        }
        for (int i = 0; i < CHURNING; i++) reap(children[i]);
    }
    /* The driver takes a moment to see that the last one is gone. */
    pause_ms(300);
    if (!next(&longest, &free_bytes)) return 0;
    printf("%.0f %zu\n", longest, free_bytes >> 20);
    return 0;
}
