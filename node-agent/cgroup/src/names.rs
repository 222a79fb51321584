//! The two names that a path can have, parsed once.

use std::fmt;

/// The number of hexadecimal digits of a container id, and of a static pod's hash.
const CONTAINER_DIGITS: usize = 64;
const HASH_DIGITS: usize = 32;
/// The digit groups of a UUID.
const UUID_GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

/// A pod's UID: a UUID with dashes, or the hash that the kubelet gives a static pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(String);

/// A container's id, without the runtime's prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(String);

impl PodUid {
    /// Parses a UID as in a cgroup name. systemd slices have underscores instead of dashes.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let dashed = text.replace('_', "-");
        let is_hash = dashed.len() == HASH_DIGITS && is_hex(&dashed);
        (is_hash || is_uuid(&dashed)).then_some(Self(dashed))
    }

    /// The UID as the API server writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ContainerId {
    pub(crate) fn read(text: &str) -> Option<Self> {
        (text.len() == CONTAINER_DIGITS && is_hex(text)).then(|| Self(text.to_owned()))
    }

    /// The id as the runtime writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_uuid(text: &str) -> bool {
    let mut groups = text.split('-');
    let has_groups = UUID_GROUPS.iter().all(|digits| {
        groups
            .next()
            .is_some_and(|group| group.len() == *digits && is_hex(group))
    });
    has_groups && groups.next().is_none()
}

fn is_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
