//! What a context costs on each model, learned once for each driver and kept.
//!
//! The number decides what a process is charged before its first context exists. The true cost comes
//! from NVML afterwards, as overhead; a good guess only keeps that correction small.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use apportion_abi::Bytes;
use serde::{Deserialize, Serialize};

use crate::durable;

/// What is assumed where nothing could be measured. Contexts were seen from 250 to 600 MiB.
pub(crate) const ASSUMED: Bytes = Bytes::from_mib(512);

/// The reserves that were learned.
#[derive(Debug)]
pub(crate) struct Reserves {
    path: PathBuf,
    driver: String,
    learned: BTreeMap<String, u64>,
    /// What could not be measured is tried again by the next agent.
    unmeasurable: BTreeSet<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Bytes by "model, driver version".
    context_bytes: BTreeMap<String, u64>,
}

impl Reserves {
    /// Reads what is there; a file that cannot be understood is only a reason to measure again.
    pub(crate) fn load(path: &Path, driver: &str) -> Self {
        let text = fs::read(path).unwrap_or_default();
        let file: File = serde_json::from_slice(&text).unwrap_or_default();
        Self {
            path: path.to_owned(),
            driver: driver.to_owned(),
            learned: file.context_bytes,
            unmeasurable: BTreeSet::new(),
        }
    }

    /// What a context costs on this model, if it is known.
    pub(crate) fn of(&self, model: &str) -> Option<Bytes> {
        let key = self.key(model);
        let assumed = || self.unmeasurable.contains(&key).then_some(ASSUMED);
        self.learned.get(&key).copied().map(Bytes).or_else(assumed)
    }

    /// Keeps what was measured, or that nothing could be.
    pub(crate) fn learn(&mut self, model: &str, cost: Option<Bytes>) -> std::io::Result<()> {
        let key = self.key(model);
        let Some(cost) = cost else {
            self.unmeasurable.insert(key);
            return Ok(());
        };
        self.learned.insert(key, cost.0);
        let file = File {
            context_bytes: self.learned.clone(),
        };
        let text = serde_json::to_vec_pretty(&file).map_err(std::io::Error::other)?;
        durable::replace(&self.path, &text)
    }

    fn key(&self, model: &str) -> String {
        format!("{model}, driver {}", self.driver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_is_kept_for_its_driver_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reserves.json");
        Reserves::load(&path, "580")
            .learn("A100", Some(Bytes(7)))
            .unwrap();
        assert_eq!(Reserves::load(&path, "580").of("A100"), Some(Bytes(7)));
        assert_eq!(Reserves::load(&path, "615").of("A100"), None);
        assert_eq!(Reserves::load(&path, "580").of("H100"), None);
    }

    #[test]
    fn what_could_not_be_measured_is_assumed_until_the_next_agent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reserves.json");
        let mut reserves = Reserves::load(&path, "580");
        reserves.learn("A100", None).unwrap();
        assert_eq!(reserves.of("A100"), Some(ASSUMED));
        assert_eq!(Reserves::load(&path, "580").of("A100"), None);
    }
}
