//! An agent's ledger: it accepts and refuses as the real one does.

use std::time::Duration;

use super::{AgentAllocation, AgentAllocationState, CARD, FakeAgent, PodRef};
use apportion_model::cards::CardShare;

impl FakeAgent {
    pub(super) fn allocate(
        &mut self,
        now: Duration,
        pod: &PodRef,
        shares: Vec<CardShare>,
    ) -> Result<String, String> {
        let known = self
            .held
            .iter()
            .find(|(held, _)| held.uid.as_deref() == Some(&pod.uid));
        if let Some((held, _)) = known {
            return if held.shares == shares {
                Ok(held.id.clone())
            } else {
                Err("the key was used for something else".to_owned())
            };
        }
        for share in &shares {
            let all = self.held.iter().flat_map(|(held, _)| &held.shares);
            let taken: u64 = all
                .filter(|other| other.card == share.card)
                .map(|other| other.bytes.0)
                .sum();
            if taken + share.bytes.0 > CARD {
                return Err("the card is full".to_owned());
            }
        }
        let id = format!("{}-{}", pod.name, now.as_secs());
        let held = AgentAllocation {
            id: id.clone(),
            uid: Some(pod.uid.clone()),
            name: pod.full(),
            stage: AgentAllocationState::Reserved,
            shares,
        };
        self.held.push((held, now + Duration::from_secs(60)));
        Ok(id)
    }
}
