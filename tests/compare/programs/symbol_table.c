/* A symbol out of the tables of a loaded object, without asking the loader for it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

#include "doors.h"

/* How many symbols the table of a GNU hash has. */
static uint32_t symbol_count(const uint32_t *hash) {
    uint32_t buckets = hash[0], first = hash[1], bloom = hash[2], last = 0;
    const uint32_t *bucket = hash + 4 + bloom * (sizeof(uintptr_t) / 4), *chain = bucket + buckets;
    for (uint32_t i = 0; i < buckets; i++)
        if (bucket[i] > last) last = bucket[i];
    if (last < first) return first;
    while (!(chain[last - first] & 1)) last++;
    return last + 1;
}

void *symbol_by_hand(void *handle, const char *name) {
    struct link_map *map = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *gnu = NULL, *old = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map)) return NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        const void *at = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB) symbols = at;
        if (entry->d_tag == DT_STRTAB) strings = at;
        if (entry->d_tag == DT_GNU_HASH) gnu = at;
        if (entry->d_tag == DT_HASH) old = at;
    }
    uint32_t count = old ? old[1] : gnu ? symbol_count(gnu) : 0;
    for (uint32_t i = 1; symbols && strings && i < count; i++)
        if (symbols[i].st_shndx != SHN_UNDEF && !strcmp(strings + symbols[i].st_name, name))
            return (char *)map->l_addr + symbols[i].st_value;
    return NULL;
}
