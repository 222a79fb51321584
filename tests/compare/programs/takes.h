/* The ways to take memory: each call takes about so many bytes more and returns the driver's answer. */
#ifndef APPORTION_COMPARE_TAKES_H
#define APPORTION_COMPARE_TAKES_H

#include <stddef.h>

typedef int (*take)(size_t bytes);

int take_plain(size_t bytes);
int take_plain_v1(size_t bytes);
int take_managed(size_t bytes);
int take_pitch(size_t bytes);
int take_freed_twice(size_t bytes);
int take_freed_both_ways(size_t bytes);
int take_array(size_t bytes);
int take_array_3d(size_t bytes);
int take_mipmaps(size_t bytes);

int take_async(size_t bytes);
int take_async_ptsz(size_t bytes);
int take_from_own_pool(size_t bytes);
int take_from_pool(size_t bytes);
int take_from_pool_ptsz(size_t bytes);
int take_after_pool(size_t bytes);

int take_physical(size_t bytes);
int take_mapped(size_t bytes);
int take_retained(size_t bytes);
int take_descriptor(size_t bytes);
int take_imported(size_t bytes);
/* Makes one handle, sends it over the socket and ends: the other side of take_imported. */
int make_for_import(int socket, size_t bytes);

int take_graph_node(size_t bytes);
int take_graph_node_looked_up(size_t bytes);
int take_generic_node(size_t bytes);
int take_generic_node_v2(size_t bytes);
int take_captured(size_t bytes);

int take_module(size_t bytes);
int take_bundle(size_t bytes);
int take_library(size_t bytes);
int take_context(size_t bytes);
int take_heap(size_t bytes);
int take_kernel_stack(size_t bytes);

#endif
