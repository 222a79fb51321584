/* A library that a host opens as it likes, and that finds the driver by itself. Its constructor opens the
   driver before the host hears that the library is there, as static initialisers do. */
#include <dlfcn.h>
#include <stdlib.h>

static void *driver;

__attribute__((constructor)) static void open_driver(void) {
	const char *name = getenv("VICTIM_DRIVER");
	driver = dlopen(name ? name : "libcuda.so.1", RTLD_NOW);
}

void *plugin_find(const char *name) {
	return driver ? dlsym(driver, name) : 0;
}
