//! The strict mode: refuses what KAI admits but nobody can want.
//!
//! Off by default, because a manifest that KAI admits must be admitted. Every bound is a setting. No sensible pod
//! reaches its default.

use std::fmt;

use apportion_abi::{GpuFraction, Share};

use crate::names;
use crate::pod::Pod;
use crate::refusal::PodRefusal;
use crate::request::{self, ContainerGpuRequest};

/// The bounds of the strict mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrictBounds {
    /// The smallest fraction, in parts per billion.
    pub fraction: u32,
    /// The least memory, in MiB.
    pub memory: u64,
    /// The maximum number of cards of one pod.
    pub devices: u32,
}

impl Default for StrictBounds {
    fn default() -> Self {
        Self {
            fraction: 1_000_000,
            memory: 64,
            devices: 16,
        }
    }
}

/// What the strict mode refuses, with its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StrictRefusal {
    /// A share together with another vendor's card, or with MIG partitions.
    Beside(String),
    /// A fraction below what is useful, or one of less than a byte.
    Fraction(String, StrictBounds),
    /// Memory below what a context alone takes.
    Memory(String, StrictBounds),
    /// More cards than a node has.
    Devices(u32, StrictBounds),
}

impl fmt::Display for StrictRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beside(resource) => {
                write!(
                    f,
                    "cannot request a share of a GPU and {resource} in one pod"
                )
            }
            Self::Fraction(given, bounds) => write!(
                f,
                "gpu-fraction {given} is below {}, the minimum that is accepted here",
                f64::from(bounds.fraction) / 1e9
            ),
            Self::Memory(given, bounds) => write!(
                f,
                "a share of {given} is below {} MiB, the minimum that is accepted here",
                bounds.memory
            ),
            Self::Devices(given, bounds) => write!(
                f,
                "gpu-fraction-num-devices {given} is above {}, the maximum that is accepted here",
                bounds.devices
            ),
        }
    }
}

/// Checks a pod that KAI admits against the bounds.
///
/// # Errors
/// The first bound that it breaks.
pub fn check(pod: &Pod, bounds: StrictBounds) -> Result<(), PodRefusal> {
    let refused = |why| Err(PodRefusal::Strict(Box::new(why)));
    let asked = match request::read(pod) {
        Err(PodRefusal::Fraction) => {
            let given = pod.annotation(names::FRACTION).unwrap_or_default();
            return refused(StrictRefusal::Fraction(given.to_owned(), bounds));
        }
        read => read?,
    };
    if asked.is_empty() {
        return Ok(());
    }
    if let Some(resource) = beside(pod) {
        return refused(StrictRefusal::Beside(resource));
    }
    for ContainerGpuRequest { request, .. } in asked {
        match request.share {
            Share::Fraction(fraction) if is_below(fraction, bounds) => {
                return refused(StrictRefusal::Fraction(fraction.to_string(), bounds));
            }
            Share::Memory(bytes) if bytes.0 < bounds.memory << 20 => {
                return refused(StrictRefusal::Memory(bytes.to_string(), bounds));
            }
            Share::Fraction(_) | Share::Memory(_) | Share::Whole => {}
        }
        if request.devices > bounds.devices {
            return refused(StrictRefusal::Devices(request.devices, bounds));
        }
    }
    Ok(())
}

fn is_below(fraction: GpuFraction, bounds: StrictBounds) -> bool {
    fraction.parts_per_billion() < bounds.fraction
}

/// A resource that makes no sense beside a share.
fn beside(pod: &Pod) -> Option<String> {
    let limits = pod
        .all_containers()
        .flat_map(|container| container.resources.limits.keys());
    limits
        .into_iter()
        .find(|key| *key == names::WHOLE_AMD || key.starts_with(names::PARTITION))
        .cloned()
}
