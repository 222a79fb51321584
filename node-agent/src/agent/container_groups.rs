//! Which control groups the driver is to limit: those of the containers that have a share, from their start to the end
//! of their last process.

use std::collections::HashSet;

use apportion_ledger::AllocationId;
use apportion_nri::StartingContainer;
use tracing::warn;

use super::driver_limits::is_of_pod;
use super::state::AgentState;

impl AgentState {
    /// Tells the driver what has changed since the last tick.
    pub(super) fn keep_driver_limits(&mut self) {
        if !self.limits.is_started() {
            return;
        }
        if self.limits.is_active() {
            let all = self.ledger.allocations().into_iter();
            let of_pods: HashSet<&AllocationId> = all.filter(is_of_pod).map(|of| &of.id).collect();
            let members = self.members.all().filter(|(_, id)| of_pods.contains(id));
            let members = members.map(|(process, id)| (*process, id.clone()));
            self.limits.enter_groups(members.collect());
        }
        for folder in self.limits.folders() {
            self.limits
                .keep_group(&folder, &self.ledger, &self.costs, &self.cards);
        }
    }

    /// Limits a container whose control group was made and whose programs do not run yet.
    pub(super) fn limit_at_start(&mut self, starting: StartingContainer) {
        let StartingContainer { container, done } = starting;
        let id = self.grants.granted_to(&container, &self.ledger);
        let folder = id.and_then(|id| self.limits.enter_starting(&container.id, &id));
        let Some(folder) = folder else {
            warn!(
                pod = container.pod_name,
                container = container.name,
                id = container.id,
                "Control group of a container not found, limited by the driver later"
            );
            return;
        };
        self.limits
            .keep_group(&folder, &self.ledger, &self.costs, &self.cards);
        self.limits.answer_later(&folder, done);
    }
}
