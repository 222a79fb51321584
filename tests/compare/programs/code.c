/* Memory that comes with code and contexts: variables, contexts themselves, the kernels' heap and stack. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "takes.h"

/* CU_LIMIT_MALLOC_HEAP_SIZE */
#define HEAP 2

/* PTX with one variable and one kernel. */
static const char *text_of(size_t bytes) {
    static char text[512];
    snprintf(text, sizeof text,
             ".version 8.0\n.target sm_90\n.address_size 64\n"
             ".visible .global .align 4 .b8 data[%zu];\n"
             ".visible .entry local_8192b()\n{\nret;\n}\n",
             bytes);
    return text;
}

/* A cubin whose only section is one of variables without content. */
static size_t cubin_of(size_t bytes, unsigned char *to) {
    static const char names[16] = "\0.nv.global";
    unsigned char head[64] = {0x7f, 'E', 'L', 'F'}, section[64] = {0}, variables[64] = {0};
    uint64_t size = bytes;
    head[18] = 190;
    head[40] = 64 + 16;
    head[58] = 64;
    head[60] = 2;
    section[24] = 64;
    variables[0] = 1;
    variables[8] = 3;
    memcpy(variables + 32, &size, sizeof size);
    memcpy(to, head, 64);
    memcpy(to + 64, names, 16);
    memcpy(to + 80, section, 64);
    memcpy(to + 144, variables, 64);
    return 208;
}

int take_module(size_t bytes) {
    void *module = NULL;
    return CALL(cuModuleLoadData, (void **, const void *))(&module, text_of(bytes));
}

/* The same in a bundle, as compilers make it. */
int take_bundle(size_t bytes) {
    static unsigned char bundle[16 + 64 + 208];
    void *module = NULL;
    uint64_t length = cubin_of(bytes, bundle + 80), rest = 64 + length;
    uint32_t arch = 90;
    static const unsigned char head[8] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0}, part[8] = {2, 0, 1, 1, 64, 0, 0, 0};
    memcpy(bundle, head, 8);
    memcpy(bundle + 8, &rest, 8);
    memset(bundle + 16, 0, 64);
    memcpy(bundle + 16, part, 8);
    memcpy(bundle + 24, &length, 8);
    memcpy(bundle + 44, &arch, 4);
    return CALL(cuModuleLoadFatBinary, (void **, const void *))(&module, bundle);
}

int take_library(size_t bytes) {
    void *library = NULL, *module = NULL;
    int code = CALL(cuLibraryLoadData, (void **, const void *, void *, void *, unsigned, void *, void *, unsigned))(
        &library, text_of(bytes), NULL, NULL, 0, NULL, NULL, 0);
    return code ? code : CALL(cuLibraryGetModule, (void **, void *))(&module, library);
}

int take_context(size_t bytes) {
    void *context = NULL;
    (void)bytes;
    return CALL(cuCtxCreate_v2, (void **, unsigned, int))(&context, 0, 0);
}

/* The kernels' heap, 3000 MiB at once. */
int take_heap(size_t bytes) { return CALL(cuCtxSetLimit, (int, size_t))(HEAP, bytes); }

/* A kernel whose threads have 8 KiB each: the card holds it for all threads that it can run at once. */
int take_kernel_stack(size_t bytes) {
    void *module = NULL, *kernel = NULL;
    (void)bytes;
    int code = CALL(cuModuleLoadData, (void **, const void *))(&module, text_of(16));
    if (!code) code = CALL(cuModuleGetFunction, (void **, void *, const char *))(&kernel, module, "local_8192b");
    return code ? code
                : CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))(
                      kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}
