/* Calls of the driver that are linked: what a library or a program has that was built with -lcuda. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern int cuInit(unsigned flags);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuMemAlloc_v2(uint64_t *address, size_t bytes);

static int init(unsigned flags) { return cuInit(flags); }
static int retain(void **context, int device) { return cuDevicePrimaryCtxRetain(context, device); }
static int set_current(void *context) { return cuCtxSetCurrent(context); }
static int allocate(uint64_t *address, size_t bytes) { return cuMemAlloc_v2(address, bytes); }

void *linked_function(const char *name) {
    if (!strcmp(name, "cuInit")) return (void *)init;
    if (!strcmp(name, "cuDevicePrimaryCtxRetain")) return (void *)retain;
    if (!strcmp(name, "cuCtxSetCurrent")) return (void *)set_current;
    if (!strcmp(name, "cuMemAlloc_v2")) return (void *)allocate;
    return NULL;
}
