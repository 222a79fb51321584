//! Whether a container may be created, from what it asks for and what was granted. Pure.
//!
//! A container that names a grant must be the one that the grant was given to; one that names none must
//! not reach a GPU. This is the second lock: the first is that a container of ours cannot be created
//! without the file that only the agent writes, and this one may be gone at any time.
//!
//! # Refusing and only telling
//!
//! A node that other software shares with us has containers with GPUs which we know nothing of, so that
//! to refuse is a choice: by default such a container is told of and let through.

use std::collections::BTreeMap;
use std::path::Path;

use apportion_abi::names::{ENV_GRANT, ENV_VISIBLE};
use apportion_abi::place;

use crate::container::NriContainer;

/// Which cards NVIDIA's runtime shows, and the values that mean none.
const NO_DEVICES: [&str; 3] = ["", "void", "none"];
/// What NVIDIA's nodes begin with.
const NODE_PREFIX: &str = "/dev/nvidia";
/// The annotations by which a pod asks NVIDIA's own plugin for cards.
const CDI_ANNOTATION: &str = "nvidia.cdi.k8s.io/";
/// Such an annotation that is for one container of the pod.
const FOR_CONTAINER: &str = "container.";
/// Where a container of ours has its account and the library, and what loads the library.
const OUR_PLACES: [&str; 2] = [place::CONTAINER_ACCOUNT, "/etc/ld.so.preload"];
/// NVIDIA's vendor in the name of a CDI device: `nvidia.com/gpu=0`, `management.nvidia.com/gpu=all`.
const CDI_VENDOR: &str = "nvidia.com/";

/// What is done with a container that must not be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerdictMode {
    /// It is let through, and told of.
    #[default]
    Audit,
    /// It is not created.
    Enforce,
}

/// What does not change while the agent runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerdictRules {
    /// What is done with a container that must not be.
    pub mode: VerdictMode,
    /// The namespaces of the node's own infrastructure, which may use GPUs without a grant.
    pub exempt: Vec<String>,
    /// The folder of all accounts on the host.
    pub accounts: String,
    /// From where on the host a container with a grant gets the rest of what we mount.
    pub own: Vec<String>,
}

/// To whom a grant was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantHolder {
    /// The pod's UID.
    pub pod: String,
    /// The container's name; `None` where the grant is every container's of the pod.
    pub container: Option<String>,
    /// The name of its account in the folder of all accounts.
    pub account: String,
    /// The variables that the container must see with these values.
    pub env: Vec<(String, String)>,
}

/// All grants of the node, by id.
pub type Grants = BTreeMap<String, GrantHolder>;

/// What is done with a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerVerdict {
    /// It is created, with these variables set.
    Admit(Vec<(String, String)>),
    /// It is created, and told of.
    Audit(VerdictReason),
    /// It is not created.
    Refuse(VerdictReason),
}

/// What is wrong with a container.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerdictReason {
    /// The grant that it names is none.
    #[error("container {container} names grant {grant}, which does not exist on this node")]
    UnknownGrant {
        /// The container.
        container: String,
        /// What it names.
        grant: String,
    },
    /// The grant that it names is another's.
    #[error("container {container} names grant {grant}, which belongs to another container")]
    OtherGrant {
        /// The container.
        container: String,
        /// What it names.
        grant: String,
    },
    /// It mounts the account of another.
    #[error(
        "container {container} mounts {source_path}, which belongs to the account of another allocation"
    )]
    OtherAccount {
        /// The container.
        container: String,
        /// What it mounts.
        source_path: String,
    },
    /// It mounts something where the library and the account are.
    #[error("container {container} mounts {source_path} over {place}, which enforces GPU limits")]
    Hidden {
        /// The container.
        container: String,
        /// What it mounts.
        source_path: String,
        /// Over what.
        place: String,
    },
    /// It reaches a GPU without a grant.
    #[error(
        "container {container} would reach a GPU through {way} without a share; request one with gpu-memory or gpu-fraction, or remove {way}"
    )]
    NoGrant {
        /// The container.
        container: String,
        /// Through what.
        way: String,
    },
}

impl VerdictReason {
    /// A word for a metric.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::UnknownGrant { .. } => "unknown_grant",
            Self::OtherGrant { .. } => "other_grant",
            Self::OtherAccount { .. } => "other_account",
            Self::Hidden { .. } => "hidden",
            Self::NoGrant { .. } => "no_grant",
        }
    }
}

/// Judges a container that is to be created.
#[must_use]
pub fn judge(asked: &NriContainer, grants: &Grants, rules: &VerdictRules) -> ContainerVerdict {
    match find(asked, grants, rules) {
        Ok(env) => ContainerVerdict::Admit(env),
        Err(reason) => match rules.mode {
            VerdictMode::Audit => ContainerVerdict::Audit(reason),
            VerdictMode::Enforce => ContainerVerdict::Refuse(reason),
        },
    }
}

/// What must be set in the container, or what is wrong with it.
fn find(
    asked: &NriContainer,
    grants: &Grants,
    rules: &VerdictRules,
) -> Result<Vec<(String, String)>, VerdictReason> {
    let container = || asked.name.clone();
    let grant = asked.env(ENV_GRANT).filter(|grant| !grant.is_empty());
    let granted = grant.and_then(|grant| grants.get(grant));
    look_at_mounts(asked, granted, rules)?;
    let Some(grant) = grant else {
        let is_exempt = rules.exempt.contains(&asked.namespace);
        return match way_to_gpu(asked).filter(|_| !is_exempt) {
            None => Ok(Vec::new()),
            Some(way) => Err(VerdictReason::NoGrant {
                container: container(),
                way,
            }),
        };
    };
    let Some(granted) = granted else {
        return Err(VerdictReason::UnknownGrant {
            container: container(),
            grant: grant.to_owned(),
        });
    };
    let is_its = granted.pod == asked.pod
        && granted
            .container
            .as_ref()
            .is_none_or(|name| *name == asked.name);
    if !is_its {
        return Err(VerdictReason::OtherGrant {
            container: container(),
            grant: grant.to_owned(),
        });
    }
    Ok(amiss(asked, &granted.env))
}

/// The variables that do not stand there exactly once with the value that they must have. A program that
/// reads the first of two would see the pod's own value.
fn amiss(asked: &NriContainer, expected: &[(String, String)]) -> Vec<(String, String)> {
    let is_amiss = |(name, value): &&(String, String)| {
        let mut values = asked.env.iter().filter(|(known, _)| known == name);
        values.next().map(|(_, found)| found) != Some(value) || values.next().is_some()
    };
    expected.iter().filter(is_amiss).cloned().collect()
}

/// Nothing is mounted from the accounts but the container's own, and nothing but ours where ours is.
fn look_at_mounts(
    asked: &NriContainer,
    granted: Option<&GrantHolder>,
    rules: &VerdictRules,
) -> Result<(), VerdictReason> {
    if rules.accounts.is_empty() {
        return Ok(());
    }
    let accounts = Path::new(&rules.accounts);
    let own = granted.map(|granted| accounts.join(&granted.account));
    let is_own = |source: &Path| own.as_ref().is_some_and(|own| source.starts_with(own));
    let is_ours = |source: &Path| {
        let mut ours = rules.own.iter().filter(|_| granted.is_some());
        is_own(source) || ours.any(|place| source.starts_with(place))
    };
    for (place, source_path) in &asked.mounts {
        let (container, source) = (asked.name.clone(), Path::new(source_path));
        let (source_path, place) = (source_path.clone(), place.clone());
        if source.starts_with(accounts) && !is_own(source) {
            return Err(VerdictReason::OtherAccount {
                container,
                source_path,
            });
        }
        let mut places = OUR_PLACES.iter();
        if places.any(|ours| Path::new(&place).starts_with(ours)) && !is_ours(source) {
            return Err(VerdictReason::Hidden {
                container,
                source_path,
                place,
            });
        }
    }
    Ok(())
}

/// Through what the container would reach a GPU.
fn way_to_gpu(asked: &NriContainer) -> Option<String> {
    let node = asked
        .devices
        .iter()
        .find(|path| path.starts_with(NODE_PREFIX));
    let mounted = asked
        .mounts
        .iter()
        .find(|(_, from)| from.starts_with(NODE_PREFIX));
    let visible = asked
        .env(ENV_VISIBLE)
        .filter(|value| !NO_DEVICES.contains(value));
    let cdi = asked.cdi.iter().find(|name| name.contains(CDI_VENDOR));
    let annotation = asked
        .annotations
        .keys()
        .find(|key| asks_nvidia(key, &asked.name));
    node.map(|path| format!("device {path}"))
        .or_else(|| mounted.map(|(_, from)| format!("mount of {from}")))
        .or_else(|| visible.map(|value| format!("{ENV_VISIBLE}={value}")))
        .or_else(|| cdi.map(|name| format!("CDI device {name}")))
        .or_else(|| annotation.map(|key| format!("annotation {key}")))
}

/// Whether the annotation asks for cards, for this container or for all.
fn asks_nvidia(key: &str, container: &str) -> bool {
    let asked = key.strip_prefix(CDI_ANNOTATION);
    asked.is_some_and(|to| {
        to.strip_prefix(FOR_CONTAINER)
            .is_none_or(|name| name == container)
    })
}
