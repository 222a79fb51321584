/* Takes memory in one way until it is refused or has so much, and says how much it was given.
 *
 *   ways WAY TARGET-MIB BLOCK-MIB [PROCESSES [THREADS]]
 *
 * What the card holds is not for a program to say that may be lied to: whoever runs it asks the driver. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doors.h"
#include "driver.h"
#include "takes.h"

struct way {
    const char *name;
    door door;
    take take;
};

static const struct way WAYS[] = {
    {"cuMemAlloc", by_dlsym, take_plain},
    {"cuMemAlloc-v1", by_dlsym, take_plain_v1},
    {"managed", by_dlsym, take_managed},
    {"pitch", by_dlsym, take_pitch},
    {"free-twice", by_dlsym, take_freed_twice},
    {"free-both-ways", by_dlsym, take_freed_both_ways},
    {"array", by_dlsym, take_array},
    {"array-3d", by_dlsym, take_array_3d},
    {"mipmaps", by_dlsym, take_mipmaps},
    {"async", by_dlsym, take_async},
    {"async-ptsz", by_dlsym, take_async_ptsz},
    {"own-pool", by_dlsym, take_from_own_pool},
    {"from-pool", by_dlsym, take_from_pool},
    {"from-pool-ptsz", by_dlsym, take_from_pool_ptsz},
    {"after-pool", by_dlsym, take_after_pool},
    {"physical", by_dlsym, take_physical},
    {"mapped", by_dlsym, take_mapped},
    {"retained", by_dlsym, take_retained},
    {"descriptor", by_dlsym, take_descriptor},
    {"imported", by_dlsym, take_imported},
    {"graph-node", by_dlsym, take_graph_node},
    {"graph-node-looked-up", by_dlsym, take_graph_node_looked_up},
    {"generic-node", by_dlsym, take_generic_node},
    {"generic-node-v2", by_dlsym, take_generic_node_v2},
    {"captured", by_dlsym, take_captured},
    {"module", by_dlsym, take_module},
    {"bundle", by_dlsym, take_bundle},
    {"library", by_dlsym, take_library},
    {"context", by_dlsym, take_context},
    {"heap", by_dlsym, take_heap},
    {"kernel-stack", by_dlsym, take_kernel_stack},
    {"name-without-version", by_name_without_version, take_plain},
    {"path", by_path, take_plain},
    {"default-scope", by_default_scope, take_plain},
    {"next-object", by_next_object, take_plain},
    {"own-copy", by_own_copy, take_plain},
    {"second-copy", by_second_copy, take_plain},
    {"namespace", by_namespace, take_plain},
    {"symbol-table", by_symbol_table, take_plain},
    {"symbol-version", by_version, take_plain},
    {"deepbind", by_deepbound_library, take_plain},
    {"deepbind-linked", by_linked_deepbound_library, take_plain},
    {"get-proc-address", by_get_proc_address, take_plain},
    {"get-proc-address-v2", by_get_proc_address_v2, take_plain},
    {"get-proc-address-itself", by_get_proc_address_itself, take_plain},
    {"get-proc-address-ptsz", by_per_thread_lookup, take_async},
    {"linked", by_link, take_plain},
    {"without-preload", by_dlsym, take_plain},
};

static const struct way *way = WAYS;

/* Functions are looked up once, as programs do: a second look-up may have another answer. */
void *needed(const char *name) {
    static __thread struct {
        const char *name;
        void *function;
    } known[32];
    size_t i = 0;
    while (i < 31 && known[i].name && strcmp(known[i].name, name)) i++;
    if (!known[i].name) {
        known[i].function = way->door(name);
        known[i].name = name;
    }
    if (!known[i].function) give_up(name, NO_FUNCTION);
    return known[i].function;
}

void give_up(const char *what, int code) {
    fprintf(stderr, "ways: %s (%d)\n", what, code);
    exit(3);
}

static void *context;

int start_driver(void) {
    int code = CALL(cuInit, (unsigned))(0);
    if (!code) code = CALL(cuDevicePrimaryCtxRetain, (void **, int))(&context, 0);
    return code ? code : CALL(cuCtxSetCurrent, (void *))(context);
}

struct taken {
    size_t target, block, bytes;
    int code;
};

static void *fill(void *argument) {
    struct taken *taken = argument;
    CALL(cuCtxSetCurrent, (void *))(context);
    while (taken->bytes < taken->target && !(taken->code = way->take(taken->block))) taken->bytes += taken->block;
    return NULL;
}

/* Fills in so many threads at once. */
static struct taken fill_in_threads(size_t target, size_t block, int threads) {
    pthread_t ids[64];
    struct taken parts[64], all = {target, block, 0, 0};
    for (int i = 0; i < threads; i++) {
        parts[i] = (struct taken){target / threads, block, 0, 0};
        if (pthread_create(&ids[i], NULL, fill, &parts[i])) give_up("pthread_create", 0);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        all.bytes += parts[i].bytes;
        if (parts[i].code) all.code = parts[i].code;
    }
    return all;
}

/* One of several processes: it says when it is ready, begins when the last is, and holds until all are done. */
static int part(size_t target, size_t block, int threads, int ready, int go, int done, int end) {
    char word = 0;
    int code = start_driver();
    struct taken taken = {target, block, 0, code};
    if (write(ready, &word, 1) != 1 || read(go, &word, 1) < 0) return 3;
    if (!code) taken = threads > 1 ? fill_in_threads(target, block, threads) : (fill(&taken), taken);
    if (write(done, &taken, sizeof taken) != sizeof taken || read(end, &word, 1) < 0) return 3;
    return 0;
}

/* One message of a child; none where a child has ended without one, which the living would keep the pipe open for. */
static int heard(int from, void *message, size_t size) {
    struct pollfd said = {from, POLLIN, 0};
    while (poll(&said, 1, 50) == 0)
        if (waitpid(-1, NULL, WNOHANG) > 0) return 0;
    return read(from, message, size) == (ssize_t)size;
}

static struct taken fill_in_processes(size_t target, size_t block, int processes, int threads) {
    int ready[2], go[2], done[2], end[2];
    struct taken all = {target, block, 0, 0}, one;
    char word;
    if (pipe(ready) || pipe(go) || pipe(done) || pipe(end)) give_up("pipe", 0);
    for (int i = 0; i < processes; i++) {
        pid_t child = fork();
        if (child < 0) give_up("fork", 0);
        if (child) continue;
        close(go[1]);
        close(end[1]);
        _exit(part(target, block, threads, ready[1], go[0], done[1], end[0]));
    }
    close(ready[1]);
    close(done[1]);
    int living = 0;
    for (int i = 0; i < processes; i++) living += heard(ready[0], &word, 1);
    close(go[1]);
    for (int i = 0; i < living; i++) {
        if (!heard(done[0], &one, sizeof one)) continue;
        all.bytes += one.bytes;
        if (one.code) all.code = one.code;
    }
    close(end[1]);
    while (wait(NULL) > 0) {}
    return all;
}

int main(int count, char **words) {
    if (count == 4 && !strcmp(words[1], "--make-for-import")) return make_for_import(atoi(words[2]), strtoull(words[3], NULL, 10));
    if (count < 4) {
        fprintf(stderr, "usage: ways WAY TARGET-MIB BLOCK-MIB [PROCESSES [THREADS]]\n");
        return 64;
    }
    const struct way *end = WAYS + sizeof WAYS / sizeof *WAYS;
    while (way < end && strcmp(way->name, words[1])) way++;
    if (way == end) {
        fprintf(stderr, "ways: there is no way `%s`\n", words[1]);
        return 64;
    }
    if (!strcmp(way->name, "without-preload") && getenv("LD_PRELOAD")) {
        unsetenv("LD_PRELOAD");
        execv("/proc/self/exe", words);
        give_up("execv", 0);
    }
    size_t target = strtoull(words[2], NULL, 10) * MIB, block = strtoull(words[3], NULL, 10) * MIB;
    int processes = count > 4 ? atoi(words[4]) : 1, threads = count > 5 ? atoi(words[5]) : 1;
    struct taken taken = {target, block, 0, 0};
    if (threads > 64) threads = 64;
    if (processes > 1) {
        taken = fill_in_processes(target, block, processes, threads);
    } else {
        taken.code = start_driver();
        if (!taken.code && threads > 1) taken = fill_in_threads(target, block, threads);
        else if (!taken.code) fill(&taken);
    }
    printf("%zu %d\n", taken.bytes / MIB, taken.code);
    return 0;
}
