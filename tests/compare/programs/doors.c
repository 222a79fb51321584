/* The ways to find a function of the driver: each is what some program, plugin host or profiler does. */
#define _GNU_SOURCE
#include "doors.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

/* Opens `file` once. */
static void *opened(const char *file, int flags) {
    void *handle = dlopen(file, flags);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    return handle;
}

static void *driver(void) {
    static void *handle;
    if (!handle) handle = opened("libcuda.so.1", RTLD_NOW);
    return handle;
}

void *by_dlsym(const char *name) { return dlsym(driver(), name); }

void *by_name_without_version(const char *name) {
    static void *handle;
    if (!handle) handle = opened("libcuda.so", RTLD_NOW);
    return dlsym(handle, name);
}

/* Where the loader found the driver. */
static const char *path(void) {
    static char found[4096];
    struct link_map *map = NULL;
    if (!found[0] && dlinfo(driver(), RTLD_DI_LINKMAP, &map) == 0)
        snprintf(found, sizeof found, "%s", map->l_name);
    return found;
}

void *by_path(const char *name) {
    static void *handle;
    if (!handle) handle = opened(path(), RTLD_NOW);
    return dlsym(handle, name);
}

void *by_default_scope(const char *name) {
    static void *handle;
    if (!handle) handle = opened("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return dlsym(RTLD_DEFAULT, name);
}

void *by_next_object(const char *name) {
    static void *handle;
    if (!handle) handle = opened("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return dlsym(RTLD_NEXT, name);
}

/* Copies the driver's file into the working folder; a process of its own finds it, so that this one has not opened it. */
static void copy_driver(const char *to) {
    static char block[1 << 16];
    pid_t child = fork();
    if (child > 0) {
        waitpid(child, NULL, 0);
        return;
    }
    int from = open(path(), O_RDONLY), copy = open(to, O_CREAT | O_WRONLY | O_TRUNC, 0700);
    ssize_t count;
    while ((count = read(from, block, sizeof block)) > 0)
        if (write(copy, block, (size_t)count) != count) _exit(1);
    _exit(0);
}

/* As an image does that brings a driver of its own. */
void *by_own_copy(const char *name) {
    static void *handle;
    if (!handle) {
        char copy[64];
        snprintf(copy, sizeof copy, "./own-driver-%d.so", (int)getpid());
        copy_driver(copy);
        handle = opened(copy, RTLD_NOW);
        unlink(copy);
    }
    return dlsym(handle, name);
}

/* The same beside the driver, which is open already. */
void *by_second_copy(const char *name) {
    driver();
    return by_own_copy(name);
}

void *by_namespace(const char *name) {
    static void *handle;
    if (!handle) handle = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    if (!handle) give_up("dlmopen", 0);
    return dlsym(handle, name);
}

void *by_version(const char *name) {
    /* Functions of the driver have no version; the C library's are tried for a loader that does not mind. */
    void *found = dlvsym(driver(), name, "");
    return found ? found : dlvsym(driver(), name, "GLIBC_2.2.5");
}

void *by_symbol_table(const char *name) { return symbol_by_hand(driver(), name); }

/* A plugin of the folder that the programs are in. */
static void *plugin(const char *file, int flags) {
    char program[4096], whole[4200];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = 0;
    char *end = strrchr(program, '/');
    if (end) *end = 0;
    snprintf(whole, sizeof whole, "%s/%s", program, file);
    return opened(whole, flags);
}

void *by_deepbound_library(const char *name) {
    static void *(*find)(const char *);
    if (!find) find = (void *(*)(const char *))dlsym(plugin("plugin.so", RTLD_NOW | RTLD_DEEPBIND), "find_for_plugin");
    return find ? find(name) : NULL;
}

void *by_linked_deepbound_library(const char *name) {
    static void *(*find)(const char *);
    if (!find) find = (void *(*)(const char *))dlsym(plugin("plugin-linked.so", RTLD_NOW | RTLD_DEEPBIND), "linked_function");
    return find ? find(name) : NULL;
}

typedef int (*lookup)(const char *, void **, int, uint64_t);
typedef int (*lookup_v2)(const char *, void **, int, uint64_t, int *);

/* The name as cuGetProcAddress wants it, without the version that the exported name ends in. */
static const char *base(const char *name) {
    static __thread char text[128];
    snprintf(text, sizeof text, "%s", name);
    size_t length = strlen(text);
    if (length > 3 && !strcmp(text + length - 3, "_v2")) text[length - 3] = 0;
    return text;
}

void *by_get_proc_address(const char *name) {
    void *found = NULL;
    lookup find = (lookup)by_dlsym("cuGetProcAddress");
    return find && find(base(name), &found, 12000, 0) == SUCCESS ? found : NULL;
}

void *by_get_proc_address_v2(const char *name) {
    void *found = NULL;
    int status = 0;
    lookup_v2 find = (lookup_v2)by_dlsym("cuGetProcAddress_v2");
    return find && find(base(name), &found, 12000, 0, &status) == SUCCESS ? found : NULL;
}

void *by_get_proc_address_itself(const char *name) {
    void *itself = by_get_proc_address_v2("cuGetProcAddress"), *found = NULL;
    int status = 0;
    if (!itself) return NULL;
    return ((lookup_v2)itself)(base(name), &found, 12000, 0, &status) == SUCCESS ? found : NULL;
}

/* As a program does that is compiled with a default stream for each thread. */
void *by_per_thread_lookup(const char *name) {
    void *found = NULL;
    int status = 0;
    lookup_v2 find = (lookup_v2)by_dlsym("cuGetProcAddress_v2");
    return find && find(base(name), &found, 12000, 2, &status) == SUCCESS ? found : NULL;
}

#ifdef LINKED
void *linked_function(const char *name);
void *by_link(const char *name) { return linked_function(name); }
#else
void *by_link(const char *name) {
    (void)name;
    return NULL;
}
#endif
