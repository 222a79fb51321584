//! What containers get: the grants that are delivered to them, what the NRI plugin knows of them, and the other owner
//! of the node's GPUs, if there is one.

use std::time::Duration;

use apportion_abi::Share;
use apportion_abi::names::ENV_GRANT;
use apportion_cgroup::CgroupOwner;
use apportion_exit::error_chain;
use apportion_ledger::{
    Allocation, AllocationId, AllocationOwner, AllocationPhase, Ledger, SlotEffect, SlotEvent,
    SlotId, SlotState, WholeCardTable,
};
use apportion_nri::{NriContainer, NriEvent};
use apportion_runtime_class::Grant;
use apportion_runtime_class::cdi::CdiSpecLabel;
use tonic::Status;
use tracing::{debug, info};

use super::accounts::AccountTable;
use super::cards::CardInventory;
use super::context_cost::ContextCosts;
use super::driver_limits::DriverLimits;
use crate::account::AccountFiles;
use crate::delivery::library::LibraryFault;
use crate::delivery::{self, GrantDelivery};
use crate::kubelet::allocate_strategy::AllocateStrategy;
use crate::kubelet::snapshot::KubeletSnapshot;
use crate::runtime::cri::RuntimeCapabilities;
use crate::runtime::nri_plugin::{ContainerLimit, NriPlugin, NriReport, NriStats};
use crate::telemetry::view::AgentStats;

mod claims;
mod whole_cards;

pub(super) use whole_cards::ContainerDevices;

/// The grants of containers.
#[derive(Default)]
pub(super) struct ContainerGrants {
    /// How containers get their grants, if there is a kubelet.
    delivery: Option<GrantDelivery>,
    /// The NRI plugin, if the options name a runtime's NRI socket.
    nri: Option<NriPlugin>,
    /// Another device plugin that allocates GPUs on this node.
    rival: Option<String>,
}

/// What grants are made of.
#[derive(Clone, Copy)]
pub(super) struct GrantSource<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) accounts: &'a AccountTable,
    pub(super) cards: &'a CardInventory,
    pub(super) costs: &'a ContextCosts,
    pub(super) limits: &'a DriverLimits,
}

impl GrantSource<'_> {
    fn grant(&self, allocation: &Allocation, library: String) -> Grant {
        let limit = allocation.grants.first().map(|grant| grant.limit);
        let folder = self.accounts.folder_of(&allocation.id);
        Grant {
            id: allocation.id.0.clone(),
            account: folder.display().to_string(),
            library,
            share: Share::Memory(limit.unwrap_or_default()),
            cards: allocation
                .grants
                .iter()
                .map(|grant| self.cards.granted(grant.card, grant.limit))
                .collect(),
            is_elastic: allocation.is_elastic(),
            driver_limit: self.driver_limit(allocation),
        }
    }

    /// The driver's limit for containers with this allocation, in MiB, if it is the same on all of its cards. NVIDIA's
    /// hook knows one number for all of a container's cards.
    pub(super) fn driver_limit(&self, allocation: &Allocation) -> Option<u64> {
        let limits = self.limits.of(allocation, self.costs, self.cards);
        let (_, first) = limits.first()?;
        let is_same = limits.len() == allocation.grants.len()
            && limits.iter().all(|(_, limit)| limit == first);
        is_same.then(|| first.as_mib())
    }
}

impl ContainerGrants {
    /// Takes over the grants of the previous agent and delivers from here on.
    pub(super) fn deliver(&mut self, mut delivery: GrantDelivery, ledger: &Ledger) {
        for label in delivery.found() {
            match found_slot(&label, ledger) {
                Some(event) => {
                    delivery.reported.insert(label.pod);
                    let _ = delivery.slots.apply(event);
                }
                None if whole_cards::finds(&mut delivery, &label, ledger) => {
                    delivery.reported.insert(label.pod);
                }
                None if claims::finds(&mut delivery, &label, ledger) => {}
                None => {
                    info!(slot = label.slot, pod = label.pod, "Stale grant removed");
                    delivery.remove(&label.slot);
                }
            }
        }
        delivery.offer();
        if let Some(whole) = &mut delivery.whole {
            whole.table = WholeCardTable::resume(ledger);
        }
        self.delivery = Some(delivery);
    }

    /// Whether grants are delivered to containers.
    pub(super) fn is_served(&self) -> bool {
        self.delivery.is_some()
    }

    pub(super) fn rival(&self) -> Option<&str> {
        self.rival.as_deref()
    }

    pub(super) fn set_rival(&mut self, rival: Option<String>) {
        self.rival = rival;
    }

    pub(super) fn set_nri(&mut self, plugin: NriPlugin) {
        self.nri = Some(plugin);
    }

    /// The next report of the NRI plugin. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> NriReport {
        NriPlugin::next(self.nri.as_mut()).await
    }

    pub(super) fn handle_event(&mut self, event: NriEvent) {
        if let Some(nri) = &mut self.nri {
            nri.handle_event(event);
        }
    }

    /// The container's name, if the runtime reports it.
    pub(super) fn container(&self, place: &CgroupOwner) -> Option<&str> {
        let id = place.container.as_ref()?;
        let nri = self.nri.as_ref()?;
        nri.container(place.pod.as_str(), id.as_str())
    }

    /// Updates what the NRI plugin knows of grants.
    pub(super) fn show_nri(&self, source: GrantSource<'_>) {
        if let Some(nri) = &self.nri {
            let delivery = self.delivery.iter();
            let named = delivery.flat_map(GrantDelivery::named);
            nri.show(source.ledger, named, |allocation| ContainerLimit {
                is_limited: !source
                    .limits
                    .of(allocation, source.costs, source.cards)
                    .is_empty(),
                mib: source.driver_limit(allocation),
            });
        }
    }

    /// Updates what the NRI plugin knows of grants, and the whole cards that the kubelet is offered.
    pub(super) fn show(&self, source: GrantSource<'_>) {
        self.show_nri(source);
        self.offer_wholes(source.ledger, source.cards);
        self.offer_claims(source.ledger, source.cards);
    }

    /// The allocation of a container that the runtime starts: the one that it names, or the only one of its pod.
    pub(super) fn granted_to(
        &self,
        container: &NriContainer,
        ledger: &Ledger,
    ) -> Option<AllocationId> {
        let known = self.nri.as_ref()?.known(&container.id).unwrap_or(container);
        let is_its = |allocation: &Allocation| match &allocation.state {
            AllocationPhase::Allocated(AllocationOwner::Pod(pod)) => *pod == container.pod,
            AllocationPhase::Allocated(AllocationOwner::Claim(claim)) => {
                claim.pods.contains_key(&container.pod)
            }
            _ => false,
        };
        let named = known.env(ENV_GRANT).and_then(|grant| {
            let id = AllocationId(grant.to_owned());
            let mut slots = self.delivery.iter().flat_map(GrantDelivery::named);
            let slot = slots.find(|(name, _)| name == grant).map(|(_, id)| id);
            ledger.allocation(slot.unwrap_or(&id))
        });
        if let Some(named) = named.filter(|named| is_its(named)) {
            return Some(named.id.clone());
        }
        let mut all = ledger.allocations().into_iter().filter(|of| is_its(of));
        let first = all.next()?;
        all.next().is_none().then(|| first.id.clone())
    }

    /// The counts with those of slots and of the plugin.
    pub(super) fn stats(&self, counts: AgentStats) -> AgentStats {
        let delivery = self.delivery.as_ref();
        let nri: Option<NriStats> = self.nri.as_ref().map(|nri| nri.counts.clone());
        AgentStats {
            slots: delivery
                .map(|delivery| delivery.slots.tally())
                .unwrap_or_default(),
            nri,
            ..counts
        }
    }

    /// Chooses the delivery strategy for the container runtime.
    pub(super) fn settle(
        &mut self,
        facts: &RuntimeCapabilities,
    ) -> Result<AllocateStrategy, Status> {
        let Some(delivery) = &mut self.delivery else {
            return Err(Status::internal("this agent runs without --kubelet-dir"));
        };
        let settled = delivery.settle(facts);
        settled.map_err(|error| Status::failed_precondition(error_chain(&error)))
    }

    /// Removes the grant of a slot.
    pub(super) fn remove(&self, slot: SlotId) {
        if let Some(delivery) = &self.delivery {
            delivery.remove(&slot.to_string());
        }
    }

    /// Refuses a container that would start without an enforced limit.
    pub(super) fn check(
        &self,
        id: &AllocationId,
        name: &str,
        accounts: &AccountTable,
    ) -> Result<(), Status> {
        if !accounts.get(id).is_some_and(AccountFiles::is_sound) {
            let folder = accounts.folder_of(id);
            return Err(Status::failed_precondition(format!(
                "the account of {name} at {} is missing or damaged",
                folder.display()
            )));
        }
        let delivery = self.delivery.as_ref();
        match delivery.and_then(|delivery| delivery.libraries.fault()) {
            Some((path, fault)) => Err(Status::failed_precondition(format!(
                "{} is {}, so the limit of {name} cannot be enforced",
                path.display(),
                match fault {
                    LibraryFault::Missing => "missing",
                    LibraryFault::Damaged => "damaged",
                }
            ))),
            None => Ok(()),
        }
    }

    /// Applies a slot event and performs its effects.
    pub(super) fn apply(
        &mut self,
        event: SlotEvent,
        source: GrantSource<'_>,
    ) -> Result<(), Status> {
        let Some(delivery) = &mut self.delivery else {
            return Ok(());
        };
        for effect in delivery.slots.apply(event) {
            match effect {
                SlotEffect::Write { slot, allocation } => {
                    write_grant(delivery, slot, &allocation, source)?;
                }
                SlotEffect::Remove(slot) => {
                    debug!(%slot, "Grant removed");
                    delivery.remove(&slot.to_string());
                }
                SlotEffect::List => delivery.offer(),
                SlotEffect::Refuse(refusal) => {
                    return Err(Status::failed_precondition(refusal.to_string()));
                }
            }
        }
        Ok(())
    }

    /// Notes that a pod is known to the kubelet.
    pub(super) fn record_pod(&mut self, pod: &str) {
        if let Some(delivery) = &mut self.delivery {
            delivery.reported.insert(pod.to_owned());
        }
    }

    /// Notes the pods that the kubelet reports. Returns whether there is a kubelet.
    pub(super) fn record_poll(&mut self, kubelet: &KubeletSnapshot) -> bool {
        let Some(delivery) = &mut self.delivery else {
            return false;
        };
        let reported = &mut delivery.reported;
        reported.extend(kubelet.held.values().map(|holder| holder.pod.clone()));
        reported.extend(kubelet.whole.claimants().cloned());
        reported.extend(kubelet.others.keys().cloned());
        delivery.ending.clone_from(&kubelet.ending);
        true
    }

    /// Whether a pod of this age has left the node.
    pub(super) fn is_gone(
        &self,
        kubelet: &KubeletSnapshot,
        pod: &str,
        age: Duration,
        has_processes: impl FnOnce() -> bool,
    ) -> bool {
        let delivery = self.delivery.as_ref();
        let was_reported = delivery.is_some_and(|delivery| delivery.reported.contains(pod));
        delivery::is_gone(kubelet, pod, was_reported, age, has_processes)
    }

    pub(super) fn forget_pod(&mut self, pod: &str) {
        if let Some(delivery) = &mut self.delivery {
            delivery.reported.remove(pod);
        }
    }

    /// Whether the kubelet reported that the pod is being deleted.
    pub(super) fn is_ending(&self, pod: &str) -> bool {
        let delivery = self.delivery.as_ref();
        delivery.is_some_and(|of| of.ending.contains(pod) && of.reported.contains(pod))
    }
}

/// A grant on disk is valid as long as its pod owns the allocation.
fn found_slot(label: &CdiSpecLabel, ledger: &Ledger) -> Option<SlotEvent> {
    let slot = label.slot.parse().ok()?;
    let id = AllocationId(label.allocation.clone());
    let owner = AllocationPhase::Allocated(AllocationOwner::Pod(label.pod.clone()));
    let allocation = ledger.allocation(&id)?;
    (allocation.state == owner).then(|| SlotEvent::Found {
        slot,
        pod: label.pod.clone(),
        allocation: id,
    })
}

fn write_grant(
    delivery: &GrantDelivery,
    slot: SlotId,
    id: &AllocationId,
    source: GrantSource<'_>,
) -> Result<(), Status> {
    let Some(allocation) = source.ledger.allocation(id) else {
        return Err(Status::internal(format!(
            "allocation {id} no longer exists"
        )));
    };
    let Some(SlotState::Prepared { pod, .. }) = delivery.slots.slot(slot) else {
        return Err(Status::internal(format!("slot {slot} is not prepared")));
    };
    let label = CdiSpecLabel {
        slot: slot.to_string(),
        pod: pod.clone(),
        allocation: id.0.clone(),
    };
    let grant = source.grant(allocation, delivery.library());
    delivery.write(&label, &grant).map_err(|problem| {
        Status::internal(format!(
            "failed to write the grant of slot {slot}: {problem}"
        ))
    })
}
