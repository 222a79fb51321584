//! The driver: where its own functions are, and what the hooks ask it themselves.

mod capture_mode;
mod libraries;
mod queries;
mod required_functions;

pub(crate) use libraries::{forget_message, function, is_in, is_within, real, row_at};
pub(crate) use queries::{
    PoolReading, attribute, child_of, conditional_of, context_of, current_context, current_device,
    devices, event_behind, forget_event, freed_by, is_capturing, is_pending, is_started, kernel_of,
    kernels_in, limit, loads_lazily, local_bytes, node_type, pool_reserved, primary_handle,
    primary_is_active, trim, uuid_of,
};
pub(crate) use required_functions::{
    allocation_node, array_destroy, array_requirements, device_get_pool, graph_nodes, mem_free,
    mem_release, mipmapped_destroy, mipmapped_requirements, nvml_uuid,
};
