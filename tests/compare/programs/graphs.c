/* Memory that graphs allocate when they are launched. */
#include <string.h>

#include "doors.h"
#include "driver.h"
#include "takes.h"

/* CU_GRAPH_NODE_TYPE_MEM_ALLOC */
#define ALLOCATION 10

static struct allocation_node node_of(size_t bytes) {
    return (struct allocation_node){.pool = pool_on_the_card(), .bytes = bytes};
}

static int launch(void *graph) {
    void *exec = NULL;
    int code = CALL(cuGraphInstantiateWithFlags, (void **, void *, uint64_t))(&exec, graph, 0);
    return code ? code : CALL(cuGraphLaunch, (void *, void *))(exec, NULL);
}

static int with_node(int (*add)(void **, void *, const void *, size_t, struct allocation_node *), size_t bytes) {
    void *graph = NULL, *node = NULL;
    struct allocation_node parameters = node_of(bytes);
    int code = CALL(cuGraphCreate, (void **, unsigned))(&graph, 0);
    if (!code) code = add(&node, graph, NULL, 0, &parameters);
    return code ? code : launch(graph);
}

int take_graph_node(size_t bytes) {
    return with_node(CALL(cuGraphAddMemAllocNode, (void **, void *, const void *, size_t, struct allocation_node *)), bytes);
}

int take_graph_node_looked_up(size_t bytes) {
    void *found = by_get_proc_address_v2("cuGraphAddMemAllocNode");
    if (!found) return NO_FUNCTION;
    return with_node((int (*)(void **, void *, const void *, size_t, struct allocation_node *))found, bytes);
}

static struct node_parameters generic(size_t bytes) {
    struct node_parameters parameters = {.kind = ALLOCATION};
    parameters.of.allocation = node_of(bytes);
    return parameters;
}

int take_generic_node(size_t bytes) {
    void *graph = NULL, *node = NULL;
    struct node_parameters parameters = generic(bytes);
    int code = CALL(cuGraphCreate, (void **, unsigned))(&graph, 0);
    if (!code) code = CALL(cuGraphAddNode, (void **, void *, const void *, size_t, struct node_parameters *))(&node, graph, NULL, 0, &parameters);
    return code ? code : launch(graph);
}

int take_generic_node_v2(size_t bytes) {
    void *graph = NULL, *node = NULL;
    struct node_parameters parameters = generic(bytes);
    int code = CALL(cuGraphCreate, (void **, unsigned))(&graph, 0);
    if (!code)
        code = CALL(cuGraphAddNode_v2, (void **, void *, const void *, const void *, size_t, struct node_parameters *))(&node, graph, NULL, NULL, 0, &parameters);
    return code ? code : launch(graph);
}

int take_captured(size_t bytes) {
    static void *stream;
    void *graph = NULL;
    uint64_t address = 0;
    int code = stream ? SUCCESS : CALL(cuStreamCreate, (void **, unsigned))(&stream, 1);
    if (!code) code = CALL(cuStreamBeginCapture_v2, (void *, int))(stream, 0);
    if (code) return code;
    int asked = CALL(cuMemAllocAsync, (uint64_t *, size_t, void *))(&address, bytes, stream);
    code = CALL(cuStreamEndCapture, (void *, void **))(stream, &graph);
    if (asked || code) return asked ? asked : code;
    return launch(graph);
}
