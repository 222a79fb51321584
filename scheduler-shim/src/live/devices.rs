//! Devices that must get ready before their pod is bound (KEP-5007), with kube-scheduler's rules.
//!
//! The claims are reserved first. Then the pod waits until their status says that all binding conditions hold. If a
//! condition says that a device failed, or the time is over, the pod gives its claims back and is decided again. A
//! claim that had its devices before, for example from an earlier scheduler, loses them before it is decided again,
//! unless a pod uses it that does not wait.

use std::collections::BTreeSet;
use std::time::Duration;

use apportion_claims::binding::{self, BindingClock, DeviceReadiness, PendingDevice};
use apportion_claims::objects::{AllocationResult, ResourceClaimStatus};
use apportion_policy::cluster::{Task, TaskStatus};

use super::claims::{ClaimReservation, ReservedClaim};
use super::event::{PodEventReason, PodRef, SchedulerEffect};
use super::model::ClusterModel;
use super::pending_binds::{DeviceWait, PendingBind};

/// How long until the API server is asked again to take devices back.
const AGAIN: Duration = Duration::from_secs(30);

/// Devices to take back from a claim that a waiting pod names.
#[derive(Debug)]
pub(crate) struct Deallocation {
    pod: PodRef,
    claim: ClaimReservation,
    /// The version of the claim whose devices do not get ready.
    version: String,
}

/// How far the devices of a pod are.
enum PodDevices {
    Ready,
    /// The API server does not show the reservation yet.
    Unknown,
    Pending(PendingDevice),
    Failed(String),
}

/// What a pod has to wait for after its claims are reserved, if for anything.
pub(super) fn wait_of(claims: &[ClaimReservation], now: Duration) -> Option<DeviceWait> {
    let mut read = claims.iter().filter_map(allocation_of);
    read.any(|allocation| binding::has_conditions(&allocation))
        .then_some(DeviceWait {
            since: now,
            is_reserved: false,
            reserved: Vec::new(),
            told: None,
        })
}

fn allocation_of(claim: &ClaimReservation) -> Option<AllocationResult> {
    serde_json::from_str(&claim.allocation).ok()
}

impl ClusterModel {
    pub(crate) fn binding_clock(&self, now: Duration) -> BindingClock {
        BindingClock {
            now,
            timeout: self.binding_timeout,
        }
    }

    /// Goes on with the pods whose devices are ready or have failed, and tells the others what they wait for.
    pub(crate) fn check_devices(&mut self, now: Duration) -> Vec<SchedulerEffect> {
        let clock = self.binding_clock(now);
        let attaching = self.pending_binds.attaching();
        let found: Vec<(PodRef, PodDevices)> = attaching
            .map(|(start, devices)| (start.pod.clone(), self.devices_of(start, devices, clock)))
            .collect();
        let mut effects = Vec::new();
        for (pod, devices) in found {
            match devices {
                PodDevices::Ready => effects.extend(self.pending_binds.attached(&pod.uid)),
                PodDevices::Unknown => {}
                PodDevices::Pending(pending) => {
                    effects.extend(self.tell_of_devices(pod, &pending));
                }
                PodDevices::Failed(why) => effects.extend(self.devices_failed(now, pod, why)),
            }
        }
        effects
    }

    fn devices_of(
        &self,
        start: &PendingBind,
        wait: &DeviceWait,
        clock: BindingClock,
    ) -> PodDevices {
        let mut unknown = false;
        for (claim, reserved) in start.claims.iter().zip(&wait.reserved) {
            let name = format!("{}/{}", start.pod.namespace, reserved.object);
            let Some(status) = self.shown(&name, reserved) else {
                unknown = true;
                continue;
            };
            if !is_reserved(status, &start.pod, claim) {
                let why = format!("its claim {} has lost its devices", reserved.object);
                return PodDevices::Failed(why);
            }
            if let Some(why) = clock.failure(status) {
                return PodDevices::Failed(why);
            }
            if let DeviceReadiness::Pending(pending) = binding::readiness(status) {
                // The claim may not say since when.
                return if clock.is_over(wait.since) {
                    PodDevices::Failed(clock.late(&pending))
                } else {
                    PodDevices::Pending(pending)
                };
            }
        }
        if unknown {
            PodDevices::Unknown
        } else {
            PodDevices::Ready
        }
    }

    /// The status of a claim, if it is the one that was written or a later one.
    fn shown(&self, name: &str, reserved: &ReservedClaim) -> Option<&ResourceClaimStatus> {
        let claims = &self.inventory.claims;
        let is_it = claims.uid(name) == Some(&reserved.uid);
        let (status, version) = claims.status(name).filter(|_| is_it)?;
        let version: u64 = version.parse().unwrap_or(0);
        (version >= reserved.version).then_some(status)
    }

    fn tell_of_devices(&mut self, pod: PodRef, pending: &PendingDevice) -> Option<SchedulerEffect> {
        let start = self.pending_binds.get(&pod.uid)?;
        let message = format!("waits on node {}: {pending}", start.node);
        let told = start.devices.as_ref()?.told.as_ref();
        if told == Some(&message) {
            return None;
        }
        self.pending_binds.told(&pod.uid, message.clone());
        Some(SchedulerEffect::PublishEvent {
            pod,
            reason: PodEventReason::AwaitsDevices,
            message,
        })
    }

    fn devices_failed(&mut self, now: Duration, pod: PodRef, why: String) -> Vec<SchedulerEffect> {
        self.back_off.failed(&pod.uid, now);
        let mut effects = self.pending_binds.not_attached(&pod.uid).effects;
        effects.push(SchedulerEffect::PublishEvent {
            pod,
            reason: PodEventReason::NotBound,
            message: why,
        });
        effects
    }

    /// What a pod on its way to a node waits for, if it waits for devices.
    pub(crate) fn explain_devices(&self, uid: &str) -> Option<String> {
        let told = self
            .pending_binds
            .get(uid)?
            .devices
            .as_ref()?
            .told
            .clone()?;
        let mut attaching = self.pending_binds.attaching();
        let is_waiting = attaching.any(|(start, _)| start.pod.uid == uid);
        is_waiting.then_some(told)
    }

    /// The claims of waiting pods whose devices do not get ready, and that no other pod uses than such that wait. The
    /// devices go when the last of these has given its reservation back.
    pub(crate) fn failed_claims(&self, now: Duration, tasks: &[&Task]) -> Vec<Deallocation> {
        let clock = self.binding_clock(now);
        let assumed = self.assumed_claims.allocations();
        let waiting: Vec<(&Task, PodRef)> = tasks
            .iter()
            .filter(|task| task.status == TaskStatus::Pending && !task.claims.is_empty())
            .filter_map(|task| Some((*task, self.pod(&task.name)?)))
            .collect();
        let uids: BTreeSet<&str> = waiting.iter().map(|(_, pod)| &*pod.uid).collect();
        let failed = waiting.iter().flat_map(|(task, pod)| {
            let own = task.claims.iter();
            let own = own.filter(|name| !assumed.contains_key(name.as_str()));
            let uids = &uids;
            own.filter_map(move |name| self.failed_claim(pod, uids, name, clock))
        });
        failed.collect()
    }

    fn failed_claim(
        &self,
        pod: &PodRef,
        waiting: &BTreeSet<&str>,
        name: &str,
        clock: BindingClock,
    ) -> Option<Deallocation> {
        let claims = &self.inventory.claims;
        let (status, version) = claims.status(name)?;
        clock.failure(status)?;
        let users = &status.reserved_for;
        let is_user = users.is_empty() || users.iter().any(|user| user.uid == pod.uid);
        if !is_user || !users.iter().all(|user| waiting.contains(&*user.uid)) {
            return None;
        }
        let (_, claim) = name.split_once('/')?;
        Some(Deallocation {
            claim: ClaimReservation {
                claim: claim.to_owned(),
                uid: claims.uid(name)?.to_owned(),
                allocation: serde_json::to_string(status.allocation.as_ref()?).ok()?,
                // The devices go with the last user.
                is_new: true,
                makes: None,
            },
            version: version.to_owned(),
            pod: pod.clone(),
        })
    }

    /// Takes devices back, each time once, and from one claim of a pod after the other.
    pub(crate) fn deallocate(
        &mut self,
        now: Duration,
        failed: Vec<Deallocation>,
    ) -> Vec<SchedulerEffect> {
        self.deallocated_claims.retain(|_, at| now < *at + AGAIN);
        let new = failed.into_iter().filter_map(|one| {
            let key = (one.claim.uid.clone(), one.version);
            if self.deallocating.contains(&one.pod.uid)
                || self.deallocated_claims.contains_key(&key)
            {
                return None;
            }
            self.deallocated_claims.insert(key, now);
            self.deallocating.insert(one.pod.uid.clone());
            let (pod, claims) = (one.pod, vec![one.claim]);
            Some(SchedulerEffect::ReleaseClaims { pod, claims })
        });
        new.collect()
    }
}

/// Whether a claim has the devices that were decided, for this pod.
fn is_reserved(status: &ResourceClaimStatus, pod: &PodRef, claim: &ClaimReservation) -> bool {
    let decided = allocation_of(claim);
    let has = status.allocation.as_ref();
    let is_same = decided.is_some_and(|decided| {
        has.is_some_and(|has| has.devices.results == decided.devices.results)
    });
    is_same && status.reserved_for.iter().any(|user| user.uid == pod.uid)
}
