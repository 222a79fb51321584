/* What calls cost: nanoseconds of the calling thread's processor time, so that other work on the machine does not count.
 *
 *   costs CALL PROCESSES     `alloc-MIB` (and free), `launch`, `info` or `refused-MIB`; prints the median of batches
 *   costs start TIMES        starts programs one after the other up to their first allocation; prints the median of the
 *                            processor time and of the wall time
 *   costs starts NUMBER      starts so many at once; prints the median and the worst wall time
 *
 * All processes of an account call at the same time, but `info` and `refused`: there one calls and the others are there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BATCH_NS 1e6
#define PERIOD_NS 3e8
#define MOST 512

static void *driver;
#define CALL(name, types) ((int (*) types)dlsym(driver, #name))

static int (*allocate)(uint64_t *, size_t);
static int (*give_back)(uint64_t);
static int (*ask)(size_t *, size_t *);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static void *kernel;

static double clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, ascending);
    return count ? values[count / 2] : 0;
}

static int start_driver(void) {
    void *context = NULL, *module = NULL;
    static const char text[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n";
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || CALL(cuInit, (unsigned))(0) || CALL(cuDevicePrimaryCtxRetain, (void **, int))(&context, 0)) return 3;
    if (CALL(cuCtxSetCurrent, (void *))(context)) return 3;
    allocate = CALL(cuMemAlloc_v2, (uint64_t *, size_t));
    give_back = CALL(cuMemFree_v2, (uint64_t));
    ask = CALL(cuMemGetInfo_v2, (size_t *, size_t *));
    launch = CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **));
    if (CALL(cuModuleLoadData, (void **, const void *))(&module, text)) return 3;
    return CALL(cuModuleGetFunction, (void **, void *, const char *))(&kernel, module, "nothing") ? 3 : 0;
}

static int once(const char *call, size_t bytes) {
    uint64_t address = 0;
    size_t free_bytes = 0, total = 0;
    if (!strcmp(call, "alloc")) return allocate(&address, bytes) ? 4 : give_back(address);
    if (!strcmp(call, "info")) return ask(&free_bytes, &total);
    if (!strcmp(call, "launch")) return launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    allocate(&address, bytes);
    return 0;
}

/* The median of batches, or less than zero if a call failed. */
static double measure(const char *call, size_t bytes) {
    static double samples[MOST];
    int count = 0, batch = 1;
    double begun = clock_ns(CLOCK_MONOTONIC);
    while (count < MOST) {
        double from = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        for (int i = 0; i < batch; i++)
            if (once(call, bytes)) return -1;
        double spent = clock_ns(CLOCK_THREAD_CPUTIME_ID) - from;
        if (spent < BATCH_NS && batch < 1 << 20 && count == 0) {
            batch *= 2;
            continue;
        }
        samples[count++] = spent / batch;
        if (count >= 5 && clock_ns(CLOCK_MONOTONIC) - begun > PERIOD_NS) break;
    }
    return median(samples, count);
}

/* One message of a child; none where a child has ended without one, which the living would keep the pipe open for. */
static int heard(int from, void *message, size_t size) {
    struct pollfd said = {from, POLLIN, 0};
    while (poll(&said, 1, 50) == 0)
        if (waitpid(-1, NULL, WNOHANG) > 0) return 0;
    return read(from, message, size) == (ssize_t)size;
}

static int calls(const char *call, size_t bytes, int processes) {
    int ready[2], go[2], done[2], end[2], all_call = !strcmp(call, "alloc") || !strcmp(call, "launch");
    static double results[256];
    char word = 0;
    if (processes > 256 || pipe(ready) || pipe(go) || pipe(done) || pipe(end)) return 3;
    for (int i = 0; i < processes; i++) {
        pid_t child = fork();
        if (child < 0) return 3;
        if (child) continue;
        close(go[1]);
        close(end[1]);
        double result = -1;
        int failed = start_driver() || once("alloc", 1 << 20);
        if (write(ready[1], &word, 1) != 1 || read(go[0], &word, 1) < 0) _exit(3);
        if (!failed && (all_call || i == 0)) result = measure(call, bytes);
        if ((all_call || i == 0) && write(done[1], &result, sizeof result) != sizeof result) _exit(3);
        _exit(read(end[0], &word, 1) < 0);
    }
    for (int i = 0; i < processes; i++)
        if (!heard(ready[0], &word, 1)) return 5;
    close(go[1]);
    int expected = all_call ? processes : 1, count = 0;
    while (count < expected) {
        if (!heard(done[0], &results[count], sizeof *results) || results[count] < 0) return 5;
        count++;
    }
    close(end[1]);
    while (wait(NULL) > 0) {}
    printf("%.1f\n", median(results, count));
    return 0;
}

static pid_t begin(void) {
    pid_t child = fork();
    if (child) return child;
    execl("/proc/self/exe", "costs", "first", "0", (char *)NULL);
    _exit(127);
}

static int start(int times) {
    static double processor[MOST], wall[MOST];
    for (int i = 0; i < times; i++) {
        struct rusage used;
        int status;
        double from = clock_ns(CLOCK_MONOTONIC);
        pid_t child = begin();
        if (wait4(child, &status, 0, &used) != child || status) return 5;
        wall[i] = clock_ns(CLOCK_MONOTONIC) - from;
        processor[i] = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e9 + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e3;
    }
    printf("%.0f %.0f\n", median(processor, times), median(wall, times));
    return 0;
}

static int starts(int number) {
    static double wall[MOST];
    double from = clock_ns(CLOCK_MONOTONIC);
    int failed = 0, status;
    for (int i = 0; i < number; i++) begin();
    for (int i = 0; i < number; i++) {
        if (wait(&status) < 0 || status) failed = 1;
        wall[i] = clock_ns(CLOCK_MONOTONIC) - from;
    }
    printf("%.0f %.0f\n", median(wall, number), wall[number - 1]);
    return failed ? 5 : 0;
}

int main(int count, char **words) {
    char *call = count == 3 ? words[1] : "";
    int number = count == 3 ? atoi(words[2]) : 0;
    char *size = strchr(call, '-');
    if (size) *size = 0;
    if (!strcmp(call, "first")) return start_driver() || once("alloc", 1 << 20);
    if (number < 1 || number > MOST) {
        fprintf(stderr, "usage: costs alloc-MIB|launch|info|refused-MIB|start|starts NUMBER\n");
        return 64;
    }
    if (!strcmp(call, "start")) return start(number);
    if (!strcmp(call, "starts")) return starts(number);
    return calls(call, size ? (size_t)strtoull(size + 1, NULL, 10) << 20 : 0, number);
}
