/* What the programs of the comparison know of the driver: its functions by their names and types.
 *
 * The programs are compiled without NVIDIA's headers, so the few structures that they fill are written
 * here as cuda.h lays them out. The first card is the only one that is used. */
#ifndef APPORTION_COMPARE_DRIVER_H
#define APPORTION_COMPARE_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#define SUCCESS 0
#define OUT_OF_MEMORY 2
/* Of this program and not of the driver: the way does not lead to a function. */
#define NO_FUNCTION (-100)

#define MIB ((size_t)1 << 20)

/* The function of that name, by the way that the program was told to take; the program ends where there is none. */
void *needed(const char *name);

/* CALL(cuMemFree_v2, (uint64_t))(address) */
#define CALL(name, types) ((int (*) types)needed(#name))

/* CUmemLocation */
struct location {
    int kind;
    int id;
};

/* CUmemAllocationProp */
struct allocation_properties {
    int kind;
    int handle_kinds;
    struct location location;
    void *windows;
    unsigned char flags[8];
};

/* CUmemAccessDesc */
struct access_rights {
    struct location location;
    int flags;
};

/* CUmemPoolProps */
struct pool_properties {
    int kind;
    int handle_kinds;
    struct location location;
    void *windows;
    size_t max_bytes;
    unsigned char reserved[56];
};

/* CUDA_MEM_ALLOC_NODE_PARAMS */
struct allocation_node {
    struct pool_properties pool;
    struct access_rights *access;
    size_t access_count;
    size_t bytes;
    uint64_t address;
};

/* CUgraphNodeParams */
struct node_parameters {
    int kind;
    int reserved[3];
    union {
        struct allocation_node allocation;
        uint64_t words[29];
    } of;
    uint64_t reserved_end;
};

/* CUDA_ARRAY_DESCRIPTOR and CUDA_ARRAY3D_DESCRIPTOR */
struct array_shape {
    size_t width;
    size_t height;
    unsigned format;
    unsigned channels;
};
struct array_shape_3d {
    size_t width;
    size_t height;
    size_t depth;
    unsigned format;
    unsigned channels;
    unsigned flags;
};

_Static_assert(sizeof(struct pool_properties) == 88, "as in cuda.h");
_Static_assert(sizeof(struct allocation_node) == 120, "as in cuda.h");
_Static_assert(sizeof(struct node_parameters) == 256, "as in cuda.h");

/* The card's memory, in an allocation's and in a pool's words. */
static inline struct allocation_properties on_the_card(int handle_kinds) {
    return (struct allocation_properties){.kind = 1, .handle_kinds = handle_kinds, .location = {1, 0}};
}
static inline struct pool_properties pool_on_the_card(void) {
    return (struct pool_properties){.kind = 1, .location = {1, 0}};
}

/* Ends the program with a sentence about what its surroundings lack. */
void give_up(const char *what, int code) __attribute__((noreturn));

/* Starts the driver and makes the card's primary context current. */
int start_driver(void);

#endif
