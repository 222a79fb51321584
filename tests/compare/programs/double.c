/* A driver that answers allocations, frees, launches and the question for memory at once, and leaves everything else to
 * the simulated one: what a call costs more with a library is then the library.
 *
 * NAMES is a file with a line `FORWARD(name)` for every other function that the simulated driver exports;
 * APPORTION_COMPARE_DRIVER names its file when a program runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "doors.h"

typedef uint64_t word;
/* Functions of the driver have at most twelve arguments, and none is a floating point number by value. */
typedef int (*function)(word, word, word, word, word, word, word, word, word, word, word, word);

#define FORWARD(name)                                                                                                   \
    static function real_##name;                                                                                        \
    int name(word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, word l) {          \
        return real_##name ? real_##name(a, b, c, d, e, f, g, h, i, j, k, l) : 999;                                     \
    }
#include NAMES
#undef FORWARD

#define MEMORY ((size_t)256 << 30)

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    static _Atomic uint64_t next = 0x700000000000;
    if (!address || !bytes) return 1;
    *address = atomic_fetch_add(&next, (bytes + 511) & ~(size_t)511);
    return 0;
}

int cuMemFree_v2(uint64_t address) { return address ? 0 : 1; }

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    if (!free_bytes || !total) return 1;
    *free_bytes = *total = MEMORY;
    return 0;
}

int cuLaunchKernel(void *kernel, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
                   void **arguments, void **extra) {
    (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)arguments, (void)extra;
    return kernel ? 0 : 400;
}

/* By hand, as a library in front of this one may have a dlsym of its own. */
__attribute__((constructor)) static void find_all(void) {
    const char *file = getenv("APPORTION_COMPARE_DRIVER");
    void *handle = file ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!handle) return;
#define FORWARD(name) real_##name = (function)symbol_by_hand(handle, #name);
#include NAMES
}
