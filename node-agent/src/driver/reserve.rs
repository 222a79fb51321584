//! What a context costs on each GPU model, measured once for each driver version and saved.
//!
//! The costs are charged before a process's first context exists, and before each further one. What a context costs
//! beyond its charge is found by NVML later, as overhead. But a charge that is too high stays. So a further context,
//! which costs less, has its own number.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use apportion_abi::Bytes;
use serde::{Deserialize, Serialize};

use crate::atomic_write;

/// Assumed if nothing could be measured. Contexts of 250 to 600 MiB were seen.
pub(crate) const ASSUMED: Bytes = Bytes::from_mib(512);

#[derive(Debug)]
pub(crate) struct ContextReserves {
    path: PathBuf,
    driver: String,
    learned: BTreeMap<String, ContextCost>,
    /// Models that could not be measured. The next agent tries again.
    unmeasurable: BTreeSet<String>,
}

/// The cost of contexts of one process on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextCost {
    pub(crate) first: Bytes,
    /// The cost of each further one, if it could be measured.
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
    /// Loads the saved costs. An unreadable file only means to measure again.
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

    /// What contexts cost on this model, if known.
    pub(crate) fn of(&self, model: &str) -> Option<ContextCost> {
        let key = self.key(model);
        let assumed = ContextCost {
            first: ASSUMED,
            further: None,
        };
        self.learned
            .get(&key)
            .copied()
            .or_else(|| self.unmeasurable.contains(&key).then_some(assumed))
    }

    /// Saves a measurement, or remembers that it failed.
    pub(crate) fn learn(&mut self, model: &str, cost: Option<ContextCost>) -> std::io::Result<()> {
        let key = self.key(model);
        let Some(cost) = cost else {
            self.unmeasurable.insert(key);
            return Ok(());
        };
        self.learned.insert(key, cost);
        let file = ReservesFile {
            contexts: self
                .learned
                .iter()
                .map(|(key, cost)| (key.clone(), ReserveRecord::of(*cost)))
                .collect(),
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
