//! Saves the kernel settings that a kubelet changes for the whole machine when it starts, and restores them.
//!
//! A kubelet may own these settings on a node, but not on a developer's machine.

use std::fs;

/// The settings that the kubelet changes when it starts.
const CHANGED: &[&str] = &[
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// The saved settings. Dropping this restores them.
pub(crate) struct SavedSysctls(Vec<(String, String)>);

impl SavedSysctls {
    pub(crate) fn remember() -> Self {
        let paths = CHANGED.iter().map(|name| format!("/proc/sys/{name}"));
        Self(
            paths
                .filter_map(|path| Some((path.clone(), fs::read_to_string(path).ok()?)))
                .collect(),
        )
    }
}

impl Drop for SavedSysctls {
    fn drop(&mut self) {
        for (path, found) in &self.0 {
            if fs::read_to_string(path).is_ok_and(|now| now != *found) {
                let _ = fs::write(path, found);
            }
        }
    }
}
