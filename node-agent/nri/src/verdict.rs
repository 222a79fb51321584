//! Decides whether a container may be created, from its specification and the grants. Pure.
//!
//! A container that names a grant must be the one that got the grant. A container that names none must not reach a
//! GPU. This is the second check. The first is that a container with a grant cannot be created without the file that
//! only the agent writes. This one may be absent at any time.
//!
//! # Refuse or report
//!
//! A node may also run other software's GPU containers, of which the agent knows nothing. So refusing is an option:
//! by default such a container is reported and allowed.

use std::collections::BTreeMap;
use std::path::Path;

use apportion_abi::names::{ENV_DRIVER_LIMIT, ENV_DRIVER_REQUEST, ENV_GRANT, ENV_VISIBLE};
use apportion_abi::paths;

use crate::container::NriContainer;

/// The values of `NVIDIA_VISIBLE_DEVICES` that mean no card.
const NO_DEVICES: [&str; 3] = ["", "void", "none"];
/// The prefix of NVIDIA's device files.
const NODE_PREFIX: &str = "/dev/nvidia";
/// The prefix of the annotations by which a pod requests cards from NVIDIA's own plugin.
const CDI_ANNOTATION: &str = "nvidia.cdi.k8s.io/";
/// The part of such an annotation that names one container of the pod.
const FOR_CONTAINER: &str = "container.";
/// Where our containers have their account and library, and the file that preloads the library.
const OUR_PLACES: [&str; 2] = [paths::CONTAINER_ACCOUNT, "/etc/ld.so.preload"];
/// The variables of NVIDIA's hook that sets the driver's limits. A pod's own would set them for its share.
const OF_GRANTS: [&str; 2] = [ENV_DRIVER_REQUEST, ENV_DRIVER_LIMIT];
/// NVIDIA's vendor in the name of a CDI device: `nvidia.com/gpu=0`, `management.nvidia.com/gpu=all`.
const CDI_VENDOR: &str = "nvidia.com/";

/// What happens to a container that breaks the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerdictMode {
    /// It is allowed and reported.
    #[default]
    Audit,
    /// The runtime is told not to create the container.
    Enforce,
}

/// The rules, which do not change while the agent runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerdictRules {
    /// What happens to a container that breaks the rules.
    pub mode: VerdictMode,
    /// The namespaces of infrastructure that may use GPUs without a grant.
    pub exempt: Vec<String>,
    /// The folder of all accounts on the host.
    pub accounts: String,
    /// The host paths of our other mounts in containers with a grant.
    pub own: Vec<String>,
}

/// Whom a grant is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantHolder {
    /// The pod's UID.
    pub pod: String,
    /// The namespace of the ResourceClaim that the grant is for; any pod there may have it.
    pub claimed_in: Option<String>,
    /// The container's name; `None` if the grant is for all containers of the pod.
    pub container: Option<String>,
    /// The name of its account in the folder of all accounts.
    pub account: String,
    /// Variables that the container must have with these values.
    pub env: Vec<(String, String)>,
    /// Whether it must be limited before it starts.
    pub is_limited: bool,
}

impl GrantHolder {
    /// Whether the grant is for this container.
    pub(crate) fn is_for(&self, container: &NriContainer) -> bool {
        let name = self.container.as_ref();
        let is_of_pod = match &self.claimed_in {
            Some(namespace) => *namespace == container.namespace,
            None => self.pod == container.pod,
        };
        is_of_pod && name.is_none_or(|name| *name == container.name)
    }
}

/// All grants of the node, by id.
pub type Grants = BTreeMap<String, GrantHolder>;

/// The decision about a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerVerdict {
    /// It is created, with these variables set.
    Admit(Vec<(String, String)>),
    /// It is created and reported.
    Audit(VerdictReason),
    /// The runtime is told not to create the container.
    Refuse(VerdictReason),
}

/// Why a container is refused or reported.
#[expect(missing_docs, reason = "the message of each reason names its fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerdictReason {
    /// The grant that it names does not exist.
    #[error("container {container} names grant {grant}, which does not exist on this node")]
    UnknownGrant {
        container: String,
        /// The grant that it names.
        grant: String,
    },
    /// The grant that it names is for another container.
    #[error("container {container} names grant {grant}, which belongs to another container")]
    OtherGrant {
        container: String,
        /// The grant that it names.
        grant: String,
    },
    /// It mounts another allocation's account.
    #[error(
        "container {container} mounts {source_path}, which belongs to the account of another allocation"
    )]
    OtherAccount {
        container: String,
        /// The path that it mounts.
        source_path: String,
    },
    /// It mounts something over the library or the account.
    #[error("container {container} mounts {source_path} over {place}, which enforces GPU limits")]
    Hidden {
        container: String,
        /// The path that it mounts.
        source_path: String,
        /// The path that it hides.
        place: String,
    },
    /// It reaches a GPU without a grant.
    #[error(
        "container {container} would reach a GPU through {way} without a share; request one with gpu-memory or gpu-fraction, or remove {way}"
    )]
    NoGrant {
        container: String,
        /// How it would reach the GPU.
        way: String,
    },
}

impl VerdictReason {
    /// The label value for metrics.
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

/// Decides about a container that is to be created.
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

/// The variables to set in the container, or why it is refused.
fn find(
    asked: &NriContainer,
    grants: &Grants,
    rules: &VerdictRules,
) -> Result<Vec<(String, String)>, VerdictReason> {
    let container = || asked.name.clone();
    let grant = asked.env(ENV_GRANT).filter(|grant| !grant.is_empty());
    let granted = grant.and_then(|grant| grants.get(grant));
    check_mounts(asked, granted, rules)?;
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
    if !granted.is_for(asked) {
        return Err(VerdictReason::OtherGrant {
            container: container(),
            grant: grant.to_owned(),
        });
    }
    let mut env = amiss(asked, &granted.env);
    env.extend(unwanted(asked, &granted.env));
    Ok(env)
}

/// The variables that only a grant may set, and this one did not. A leading dash removes them.
fn unwanted(
    asked: &NriContainer,
    expected: &[(String, String)],
) -> impl Iterator<Item = (String, String)> {
    let names = OF_GRANTS.iter().copied().filter(|name| {
        let is_expected = expected.iter().any(|(known, _)| known == *name);
        !is_expected && asked.env(name).is_some()
    });
    let names: Vec<_> = names
        .map(|name| (format!("-{name}"), String::new()))
        .collect();
    names.into_iter()
}

/// The variables that do not occur exactly once with the expected value. Of two values a program may read the first,
/// which is the pod's own.
fn amiss(asked: &NriContainer, expected: &[(String, String)]) -> Vec<(String, String)> {
    expected
        .iter()
        .filter(|(name, value): &&(String, String)| {
            let mut values = asked.env.iter().filter(|(known, _)| known == name);
            values.next().map(|(_, found)| found) != Some(value) || values.next().is_some()
        })
        .cloned()
        .collect()
}

/// Only the container's own account may be mounted from the accounts folder, and only our files at our paths.
fn check_mounts(
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
        let mut ours = rules.own.iter().filter(|_| granted.is_some());
        if places.any(|ours| Path::new(&place).starts_with(ours))
            && !is_own(source)
            && !ours.any(|place| source.starts_with(place))
        {
            return Err(VerdictReason::Hidden {
                container,
                source_path,
                place,
            });
        }
    }
    Ok(())
}

/// How the container would reach a GPU, if it would.
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

/// Whether the annotation requests cards for this container or for all.
fn asks_nvidia(key: &str, container: &str) -> bool {
    let asked = key.strip_prefix(CDI_ANNOTATION);
    asked.is_some_and(|to| {
        to.strip_prefix(FOR_CONTAINER)
            .is_none_or(|name| name == container)
    })
}
