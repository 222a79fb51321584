//! Why claims cannot be allocated on a node.

use std::fmt;

/// Why claims cannot be allocated on a node.
#[expect(missing_docs, reason = "the message of each refusal names its fields")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationRefusal {
    /// The claim can nowhere be allocated as it is.
    Invalid {
        claim: String,
        /// The request, if one is at fault.
        request: Option<String>,
        reason: String,
    },
    /// A request wants all devices while a pool changes.
    PoolChanges {
        claim: String,
        request: String,
        /// The pool, with its driver.
        pool: String,
    },
    /// Too few devices are free for a request.
    TooFewDevices(Box<DeviceShortage>),
    /// Each request could be served alone, but not all together.
    NoCombination {
        claims: Vec<String>,
        /// Whether a claim has constraints.
        has_constraints: bool,
    },
    /// The search was given up.
    TooHard {
        claims: Vec<String>,
        /// After how many steps.
        steps: usize,
    },
}

/// What a request finds on a node.
#[expect(missing_docs, reason = "the message of each refusal names its fields")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceShortage {
    pub claim: String,
    pub request: String,
    /// The class of the devices.
    pub class: String,
    /// How many devices are wanted; nothing for all.
    pub wanted: Option<usize>,
    /// What became of the devices of the node.
    pub devices: DeviceTally,
}

/// What became of the devices that a request could have on a node. Each is counted once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceTally {
    /// Those that could be given.
    pub free: usize,
    /// Those of incomplete or invalid pools, as the number of pools.
    pub faulty_pools: usize,
    /// Those that the class or the request does not select.
    pub unselected: usize,
    /// Those that other claims have.
    pub used: usize,
    /// Those with a taint that the request does not tolerate.
    pub tainted: usize,
    /// Those with too little capacity left.
    pub too_full: usize,
    /// Those that need more of a shared counter than is left.
    pub without_counters: usize,
    /// Those that need something that this scheduler does not do.
    pub unsupported: usize,
}

impl fmt::Display for AllocationRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid {
                claim,
                request: Some(request),
                reason,
            } => write!(f, "claim {claim}, request {request}: {reason}"),
            Self::Invalid {
                claim,
                request: None,
                reason,
            } => write!(f, "claim {claim}: {reason}"),
            Self::PoolChanges {
                claim,
                request,
                pool,
            } => write!(
                f,
                "claim {claim}, request {request}: it asks for all devices while pool {pool} changes"
            ),
            Self::TooFewDevices(shortage) => shortage.fmt(f),
            Self::NoCombination {
                claims,
                has_constraints,
            } => {
                let constraints = if *has_constraints {
                    " under its constraints"
                } else {
                    ""
                };
                write!(
                    f,
                    "{}: no free devices serve all requests together{constraints}",
                    named(claims)
                )
            }
            Self::TooHard { claims, steps } => write!(
                f,
                "{}: no allocation was found within {steps} steps",
                named(claims)
            ),
        }
    }
}

fn named(claims: &[String]) -> String {
    let word = if claims.len() == 1 { "claim" } else { "claims" };
    format!("{word} {}", claims.join(", "))
}

impl fmt::Display for DeviceShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            claim,
            request,
            class,
            wanted,
            devices,
        } = self;
        let wanted = match wanted {
            Some(1) => "1 device".to_owned(),
            Some(count) => format!("{count} devices"),
            None => "all devices".to_owned(),
        };
        write!(
            f,
            "claim {claim}, request {request}: wants {wanted} of class {class}, {} free",
            devices.free
        )?;
        let parts = [
            (devices.used, "in use"),
            (devices.too_full, "with too little capacity left"),
            (devices.without_counters, "without counters left"),
            (devices.tainted, "tainted"),
            (devices.unselected, "not selected"),
            (devices.unsupported, "with features that are not supported"),
            (devices.faulty_pools, "pools incomplete or invalid"),
        ];
        let parts: Vec<String> = (parts.iter())
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if parts.is_empty() {
            return f.write_str(" (the node has no such devices)");
        }
        write!(f, " ({})", parts.join(", "))
    }
}
