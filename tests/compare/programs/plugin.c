/* A library that a program opens: it looks the driver's functions up by itself. */
#define _GNU_SOURCE
#include <dlfcn.h>

void *find_for_plugin(const char *name) {
    static void *driver;
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver ? dlsym(driver, name) : 0;
}
