//! The container runtime: what it reports about itself, what it asks before it creates a container, and the cgroups
//! that it makes.

pub(crate) mod cgroup_tree;
pub(crate) mod cgroups;
pub(crate) mod cri;
pub(crate) mod nri_plugin;
