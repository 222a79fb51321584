//! What must always hold: no device is used beyond what it has, and whoever is bound has its devices.

use std::collections::BTreeMap;

use super::{ATTACHED, ClaimCluster, UNITS, users};
use crate::live::event::PodRef;

impl ClaimCluster {
    /// A pod that is bound has devices that are ready.
    pub(super) fn check_devices(&self, pod: &PodRef) {
        let claim = self.pods.get(&pod.name).and_then(|pod| self.claim_of(pod));
        let Some(claim) = claim.and_then(|claim| self.claims.get(&claim)) else {
            return;
        };
        let status = &claim["status"];
        let needs = &status["allocation"]["devices"]["results"][0]["bindingConditions"];
        let is_ready = status["devices"][0]["conditions"][0]["type"] == ATTACHED;
        assert!(
            needs.is_null() || is_ready,
            "{} is bound to {claim}",
            pod.name
        );
    }

    /// What claims have of each device, and by how many it is used alone.
    pub(super) fn used(&self) -> BTreeMap<String, i64> {
        let mut used = BTreeMap::new();
        for claim in self.claims.values() {
            let results = claim["status"]["allocation"]["devices"]["results"].as_array();
            for result in results.into_iter().flatten() {
                let amount = result["consumedCapacity"]["memory"].as_str();
                let amount = amount.map_or(UNITS, |text| text.parse().expect("a number"));
                let device = format!("{}/{}", result["pool"], result["device"]);
                *used.entry(device).or_default() += amount;
            }
        }
        used
    }

    pub(super) fn check(&self) {
        for (device, amount) in self.used() {
            assert!(amount <= UNITS, "{device} is given {amount} of {UNITS}");
        }
        for pod in self.pods.values() {
            let Some(node) = pod["spec"]["nodeName"].as_str() else {
                continue;
            };
            let claim = self.claim_of(pod).expect("a bound pod has its claim");
            let claim = &self.claims[&claim];
            let results = &claim["status"]["allocation"]["devices"]["results"];
            assert_eq!(
                results[0]["pool"], node,
                "{pod} is not where its devices are"
            );
            let is_user = users(claim)
                .iter()
                .any(|user| user["uid"] == pod["metadata"]["uid"]);
            assert!(is_user, "{pod} is bound and does not use {claim}");
        }
    }
}
