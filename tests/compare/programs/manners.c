/* What a program finds changed by a library that it did not ask for: one line `NAME VALUE` each.
 *
 * It runs under a limit of 2000 MiB. Whoever compares takes the lines of a run without a library as right. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* CUmemPoolProps */
struct pool_properties {
    int kind, handle_kinds, location_kind, location;
    void *windows;
    size_t max_bytes;
    unsigned char reserved[56];
};

static void *driver;
#define CALL(name, types) ((int (*) types)dlsym(driver, #name))

static int entries(const char *folder) {
    int count = 0;
    DIR *open_folder = opendir(folder);
    for (struct dirent *entry; open_folder && (entry = readdir(open_folder));) count += entry->d_name[0] != '.';
    if (open_folder) closedir(open_folder);
    return count;
}

/* Descriptors that a program that is started would have, too. */
static int inherited(void) {
    int count = 0;
    for (int i = 3; i < 1024; i++) {
        int flags = fcntl(i, F_GETFD);
        count += flags >= 0 && !(flags & FD_CLOEXEC);
    }
    return count;
}

static void signal_handlers(void) {
    printf("signal-handlers");
    for (int number = 1; number < 32; number++) {
        struct sigaction action;
        if (!sigaction(number, NULL, &action) && action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) printf(" %d", number);
    }
    printf("\n");
}

int main(void) {
    void *context = NULL, *pool = NULL;
    uint64_t address = 0;
    umask(022);
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver || CALL(cuInit, (unsigned))(0) || CALL(cuDevicePrimaryCtxRetain, (void **, int))(&context, 0)) return 3;
    if (CALL(cuCtxSetCurrent, (void *))(context)) return 3;

    errno = 0;
    int code = CALL(cuMemAlloc_v2, (uint64_t *, size_t))(&address, MIB);
    printf("errno-after-success %d\n", code ? -1 : errno);
    CALL(cuMemFree_v2, (uint64_t))(address);

    mode_t mask = umask(022);
    umask(mask);
    printf("umask %03o\n", (unsigned)mask);
    signal_handlers();
    printf("threads %d\n", entries("/proc/self/task"));
    printf("descriptors-inherited %d\n", inherited());

    printf("free-of-unknown %d\n", CALL(cuMemFree_v2, (uint64_t))(0xdead0000));
    struct pool_properties properties = {.kind = 1, .location_kind = 1};
    CALL(cuMemPoolCreate, (void **, const void *))(&pool, &properties);
    code = CALL(cuMemAllocFromPoolAsync, (uint64_t *, size_t, void *, void *))(&address, MIB, pool, NULL);
    printf("free-of-pool-memory %d\n", code ? code : CALL(cuMemFreeAsync, (uint64_t, void *))(address, NULL));

    int refused = CALL(cuMemAllocAsync, (uint64_t *, size_t, void *))(&address, 20000 * MIB, NULL);
    printf("out-of-memory-async %d\n", refused);

    code = CALL(cuMemAlloc_v2, (uint64_t *, size_t))(&address, 1200 * MIB);
    if (!code) code = CALL(cuDevicePrimaryCtxReset_v2, (int))(0);
    if (!code) code = CALL(cuDevicePrimaryCtxRetain, (void **, int))(&context, 0);
    if (!code) code = CALL(cuCtxSetCurrent, (void *))(context);
    printf("memory-after-reset %d\n", code ? code : CALL(cuMemAlloc_v2, (uint64_t *, size_t))(&address, 1200 * MIB));

    void *first = dlsym(RTLD_NEXT, "cuMemAlloc_v2"), *second = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    printf("next-object-twice %s\n", first && first == second ? "same" : "different");
    fflush(stdout);
    _exit(0);
}
