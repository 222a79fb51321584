/* Memory in stream order, from the card's pool and from pools of the program's own. */
#include "driver.h"
#include "takes.h"

/* CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */
#define RELEASE_THRESHOLD 4

int take_async(size_t bytes) {
    uint64_t address = 0;
    return CALL(cuMemAllocAsync, (uint64_t *, size_t, void *))(&address, bytes, NULL);
}

int take_async_ptsz(size_t bytes) {
    uint64_t address = 0;
    return CALL(cuMemAllocAsync_ptsz, (uint64_t *, size_t, void *))(&address, bytes, NULL);
}

static int own_pool(void **pool) {
    static void *made;
    struct pool_properties properties = pool_on_the_card();
    int code = made ? SUCCESS : CALL(cuMemPoolCreate, (void **, const struct pool_properties *))(&made, &properties);
    *pool = made;
    return code;
}

/* A pool of the program's own becomes the card's, from which cuMemAllocAsync takes. */
int take_from_own_pool(size_t bytes) {
    void *pool = NULL;
    int code = own_pool(&pool);
    if (!code) code = CALL(cuDeviceSetMemPool, (int, void *))(0, pool);
    return code ? code : take_async(bytes);
}

int take_from_pool(size_t bytes) {
    void *pool = NULL;
    uint64_t address = 0;
    int code = own_pool(&pool);
    return code ? code : CALL(cuMemAllocFromPoolAsync, (uint64_t *, size_t, void *, void *))(&address, bytes, pool, NULL);
}

int take_from_pool_ptsz(size_t bytes) {
    void *pool = NULL;
    uint64_t address = 0;
    int code = own_pool(&pool);
    return code ? code : CALL(cuMemAllocFromPoolAsync_ptsz, (uint64_t *, size_t, void *, void *))(&address, bytes, pool, NULL);
}

/* A pool that keeps what is freed gets 1600 MiB and all of it back; then plain memory is taken. */
int take_after_pool(size_t bytes) {
    static int is_filled;
    if (!is_filled) {
        void *pool = NULL;
        uint64_t addresses[50], keep = UINT64_MAX;
        int count = 0, code = own_pool(&pool);
        if (!code) code = CALL(cuMemPoolSetAttribute, (void *, int, void *))(pool, RELEASE_THRESHOLD, &keep);
        if (code) return code;
        while (count < 50 && !CALL(cuMemAllocFromPoolAsync, (uint64_t *, size_t, void *, void *))(&addresses[count], 32 * MIB, pool, NULL)) count++;
        while (count > 0) CALL(cuMemFreeAsync, (uint64_t, void *))(addresses[--count], NULL);
        CALL(cuCtxSynchronize, (void))();
        is_filled = 1;
    }
    return take_plain(bytes);
}
