//! Refuses a request that finds too few devices before anything is searched, and says what became of them.

use super::AllocationSearch;
use crate::counters::CounterState;
use crate::objects::AllocationMode;
use crate::refusal::{AllocationRefusal, DeviceShortage, DeviceTally};
use crate::request_plan::{RequestPlan, is_tainted};

impl AllocationSearch<'_> {
    /// Refuses the first request of which every alternative finds too few devices for itself alone.
    pub(super) fn refuse_shortages(&self) -> Result<(), AllocationRefusal> {
        for claim in &self.claims {
            for alternatives in &claim.requests {
                let shortages = alternatives.iter().map(|plan| self.shortage(plan));
                let shortages: Option<Vec<_>> = shortages.collect();
                let Some(first) = shortages.and_then(|all| all.into_iter().next()) else {
                    continue;
                };
                return Err(AllocationRefusal::TooFewDevices(Box::new(DeviceShortage {
                    claim: claim.claim.metadata.name.clone(),
                    ..first
                })));
            }
        }
        Ok(())
    }

    /// What a request lacks for itself alone, if it lacks anything.
    fn shortage(&self, plan: &RequestPlan<'_>) -> Option<DeviceShortage> {
        let wants_all = plan.terms.allocation_mode == AllocationMode::All;
        let devices = self.tally(plan);
        let is_short = devices.free < plan.wanted || (wants_all && plan.wanted == 0);
        is_short.then(|| DeviceShortage {
            claim: String::new(),
            request: plan.name.to_string(),
            class: plan.class.metadata.name.clone(),
            wanted: (!wants_all).then_some(plan.wanted),
            devices,
        })
    }

    fn tally(&self, plan: &RequestPlan<'_>) -> DeviceTally {
        let mut tally = DeviceTally::default();
        let faulty = self
            .devices
            .pools
            .iter()
            .filter(|pool| pool.fault.is_some());
        tally.faulty_pools = faulty.count();
        for index in self.devices.indices() {
            let device = self.devices.device(index);
            let used = self.used(index);
            let slice = &self.devices.slice(index).slice;
            let is_owned = !plan.terms.admin_access && used.is_some_and(|used| used.owners > 0);
            let is_unsupported = !slice.spec.skip_node_operations.is_empty();
            // An error is for the search to report, if it comes that far.
            let is_selected = self.devices.selects(plan, index).unwrap_or(true);
            let count = if is_unsupported {
                &mut tally.unsupported
            } else if !is_selected {
                &mut tally.unselected
            } else if is_owned {
                &mut tally.used
            } else if is_tainted(device, &plan.terms.tolerations) {
                &mut tally.tainted
            } else if !self.devices.fits(plan, index, used).unwrap_or(true) {
                &mut tally.too_full
            } else if used.is_none_or(|used| used.shares == 0)
                && !device.consumes_counters.is_empty()
                && !CounterState::new(&self.devices.pools[index.pool], self.usage).add(device)
            {
                &mut tally.without_counters
            } else {
                &mut tally.free
            };
            *count += 1;
        }
        tally
    }
}
