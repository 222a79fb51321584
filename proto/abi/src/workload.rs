//! The container and pod that an allocation is for. An allocation for a pod is named `namespace/pod/container`, or
//! `namespace/pod` if the container is not known yet. Labels, events and the node's published state split that name
//! again.
//!
//! A name of another form belongs to a program outside a pod. An allocation belongs to its pod by UID, not by this
//! name. The agent takes the namespace from here, because the policy on offenders can differ by namespace.

use core::fmt;

/// A container of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerRef<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's name.
    pub pod: &'a str,
    /// The container's name; empty if it is not known yet.
    pub container: &'a str,
}

impl<'a> ContainerRef<'a> {
    /// Splits a name; `None` if it is not that of a pod.
    #[must_use]
    pub fn of(name: &'a str) -> Option<Self> {
        let mut parts = name.split('/');
        let namespace = parts.next().filter(|part| is_name(part))?;
        let pod = parts.next().filter(|part| is_name(part))?;
        let container = match parts.next() {
            Some(part) => Some(part).filter(|part| is_name(part))?,
            None => "",
        };
        parts.next().is_none().then_some(Self {
            namespace,
            pod,
            container,
        })
    }
}

/// Whether Kubernetes accepts this name. Nothing else gets into a label.
fn is_name(part: &str) -> bool {
    (1..=253).contains(&part.len())
        && part
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
}

impl fmt::Display for ContainerRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.pod)?;
        match self.container {
            "" => Ok(()),
            container => write!(f, "/{container}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_name_is_taken_apart_and_put_together() {
        for name in ["team-a/train-0/main", "team-a/train-0"] {
            assert_eq!(ContainerRef::of(name).unwrap().to_string(), name);
        }
        assert_eq!(ContainerRef::of("a/b/c").unwrap().container, "c");
    }

    #[test]
    fn a_name_that_no_pod_can_have_is_none() {
        for name in [
            "train", "", "/", "a/", "a//c", "a/b/c/d", "A/b/c", "a/b c", "a/b/ü",
        ] {
            assert_eq!(ContainerRef::of(name), None, "{name}");
        }
    }
}
