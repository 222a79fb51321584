/* The ways to find a function of the driver. */
#ifndef APPORTION_COMPARE_DOORS_H
#define APPORTION_COMPARE_DOORS_H

typedef void *(*door)(const char *name);

void *by_dlsym(const char *name);
void *by_name_without_version(const char *name);
void *by_path(const char *name);
void *by_default_scope(const char *name);
void *by_next_object(const char *name);
void *by_own_copy(const char *name);
void *by_second_copy(const char *name);
void *by_namespace(const char *name);
void *by_symbol_table(const char *name);
void *by_version(const char *name);
void *by_deepbound_library(const char *name);
void *by_linked_deepbound_library(const char *name);
void *by_get_proc_address(const char *name);
void *by_get_proc_address_v2(const char *name);
void *by_get_proc_address_itself(const char *name);
void *by_per_thread_lookup(const char *name);
void *by_link(const char *name);

/* A symbol of a loaded object, read from its own tables. */
void *symbol_by_hand(void *handle, const char *name);

#endif
