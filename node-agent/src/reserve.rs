//! What a context costs on each model, learned once for each driver and kept.
//!
//! The numbers decide what a process is charged before its first context exists, and before each further
//! one. What it costs beyond that comes from NVML afterwards, as overhead; but what was charged too much
//! stays charged, and so a further context, which costs less, has a number of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use apportion_abi::Bytes;
use serde::{Deserialize, Serialize};

use crate::atomic_write;

/// What is assumed where nothing could be measured. Contexts were seen from 250 to 600 MiB.
pub(crate) const ASSUMED: Bytes = Bytes::from_mib(512);

/// The reserves that were learned.
#[derive(Debug)]
pub(crate) struct ContextReserves {
    path: PathBuf,
    driver: String,
    learned: BTreeMap<String, ContextCost>,
    /// What could not be measured is tried again by the next agent.
    unmeasurable: BTreeSet<String>,
}

/// What contexts of one process on one card cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextCost {
    pub(crate) first: Bytes,
    /// Each further one, if it could be measured.
    pub(crate) further: Option<Bytes>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ReservesFile {
    /// By "model, driver version".
    contexts: BTreeMap<String, ReserveRecord>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ReserveRecord {
    first_bytes: u64,
    further_bytes: Option<u64>,
}

impl ContextReserves {
    /// Reads what is there; a file that cannot be understood is only a reason to measure again.
    pub(crate) fn load(path: &Path, driver: &str) -> Self {
        let text = fs::read(path).unwrap_or_default();
        let file: ReservesFile = serde_json::from_slice(&text).unwrap_or_default();
        Self {
            path: path.to_owned(),
            driver: driver.to_owned(),
            learned: file
                .contexts
                .into_iter()
                .map(ReserveRecord::known)
                .collect(),
            unmeasurable: BTreeSet::new(),
        }
    }

    /// What contexts cost on this model, if it is known.
    pub(crate) fn of(&self, model: &str) -> Option<ContextCost> {
        let key = self.key(model);
        let assumed = ContextCost {
            first: ASSUMED,
            further: None,
        };
        let assumed = || self.unmeasurable.contains(&key).then_some(assumed);
        self.learned.get(&key).copied().or_else(assumed)
    }

    /// Keeps what was measured, or that nothing could be.
    pub(crate) fn learn(&mut self, model: &str, cost: Option<ContextCost>) -> std::io::Result<()> {
        let key = self.key(model);
        let Some(cost) = cost else {
            self.unmeasurable.insert(key);
            return Ok(());
        };
        self.learned.insert(key, cost);
        let kept = |(key, cost): (&String, &ContextCost)| (key.clone(), ReserveRecord::of(*cost));
        let file = ReservesFile {
            contexts: self.learned.iter().map(kept).collect(),
        };
        let text = serde_json::to_vec_pretty(&file).map_err(std::io::Error::other)?;
        atomic_write::replace(&self.path, &text)
    }

    fn key(&self, model: &str) -> String {
        format!("{model}, driver {}", self.driver)
    }
}

impl ReserveRecord {
    fn of(cost: ContextCost) -> Self {
        Self {
            first_bytes: cost.first.0,
            further_bytes: cost.further.map(|bytes| bytes.0),
        }
    }

    fn known((key, measured): (String, Self)) -> (String, ContextCost) {
        let cost = ContextCost {
            first: Bytes(measured.first_bytes),
            further: measured.further_bytes.map(Bytes),
        };
        (key, cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: ContextCost = ContextCost {
        first: Bytes(7),
        further: Some(Bytes(2)),
    };

    #[test]
    fn what_was_learned_is_kept_for_its_driver_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reserves.json");
        ContextReserves::load(&path, "580")
            .learn("A100", Some(COST))
            .unwrap();
        assert_eq!(ContextReserves::load(&path, "580").of("A100"), Some(COST));
        assert_eq!(ContextReserves::load(&path, "615").of("A100"), None);
        assert_eq!(ContextReserves::load(&path, "580").of("H100"), None);
    }

    #[test]
    fn what_could_not_be_measured_is_assumed_until_the_next_agent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reserves.json");
        let mut reserves = ContextReserves::load(&path, "580");
        reserves.learn("A100", None).unwrap();
        assert_eq!(reserves.of("A100").map(|cost| cost.first), Some(ASSUMED));
        assert_eq!(ContextReserves::load(&path, "580").of("A100"), None);
    }
}
