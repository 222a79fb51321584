//! Kernel settings that a kubelet changes for the whole machine when it starts, put back as they were.
//!
//! On a node they are the kubelet's business; on somebody's desk they are not.

use std::fs;

/// What the kubelet sets at its start.
const CHANGED: &[&str] = &[
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// The settings as they were found; dropping it puts them back.
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
