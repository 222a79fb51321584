/* Memory by address, arrays, and what is freed in ways that a book might count twice. */
#include "driver.h"
#include "takes.h"

int take_plain(size_t bytes) {
    uint64_t address = 0;
    return CALL(cuMemAlloc_v2, (uint64_t *, size_t))(&address, bytes);
}

/* Of CUDA 3.1, with 32 bits for addresses and sizes. */
int take_plain_v1(size_t bytes) {
    uint64_t address = 0;
    return CALL(cuMemAlloc, (void *, unsigned))(&address, (unsigned)bytes);
}

int take_managed(size_t bytes) {
    uint64_t address = 0;
    return CALL(cuMemAllocManaged, (uint64_t *, size_t, unsigned))(&address, bytes, 1);
}

/* Rows of 513 bytes, for which the driver takes twice as much. */
int take_pitch(size_t bytes) {
    uint64_t address = 0;
    size_t pitch = 0;
    return CALL(cuMemAllocPitch_v2, (uint64_t *, size_t *, size_t, size_t, unsigned))(&address, &pitch, 513, bytes / 1024, 4);
}

/* Two are allocated and one is freed twice: one stays. */
int take_freed_twice(size_t bytes) {
    uint64_t freed = 0, kept = 0;
    int code = CALL(cuMemAlloc_v2, (uint64_t *, size_t))(&freed, bytes);
    if (code) return code;
    code = CALL(cuMemAlloc_v2, (uint64_t *, size_t))(&kept, bytes);
    CALL(cuMemFree_v2, (uint64_t))(freed);
    CALL(cuMemFree_v2, (uint64_t))(freed);
    return code;
}

/* The same in stream order, freed once in stream order and once not. */
int take_freed_both_ways(size_t bytes) {
    uint64_t freed = 0, kept = 0;
    int code = CALL(cuMemAllocAsync, (uint64_t *, size_t, void *))(&freed, bytes, NULL);
    if (code) return code;
    code = CALL(cuMemAllocAsync, (uint64_t *, size_t, void *))(&kept, bytes, NULL);
    CALL(cuMemFreeAsync, (uint64_t, void *))(freed, NULL);
    CALL(cuMemFree_v2, (uint64_t))(freed);
    CALL(cuCtxSynchronize, (void))();
    return code;
}

/* CU_AD_FORMAT_FLOAT, four channels: 16 bytes an element. */
#define FLOATS 0x20, 4
#define ELEMENT 16

int take_array(size_t bytes) {
    void *array = NULL;
    struct array_shape shape = {1024, bytes / ELEMENT / 1024, FLOATS};
    return CALL(cuArrayCreate_v2, (void **, const struct array_shape *))(&array, &shape);
}

int take_array_3d(size_t bytes) {
    void *array = NULL;
    struct array_shape_3d shape = {128, 128, bytes / ELEMENT / (128 * 128), FLOATS, 0};
    return CALL(cuArray3DCreate_v2, (void **, const struct array_shape_3d *))(&array, &shape);
}

int take_mipmaps(size_t bytes) {
    void *array = NULL;
    struct array_shape_3d shape = {1024, bytes / ELEMENT / 1024, 0, FLOATS, 0};
    return CALL(cuMipmappedArrayCreate, (void **, const struct array_shape_3d *, unsigned))(&array, &shape, 8);
}
