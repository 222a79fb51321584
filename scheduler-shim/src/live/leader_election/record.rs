//! The content of a Lease.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// The record that takes or renews the lease. Without a time for which it is valid it has no duration, because
/// Kubernetes refuses a duration of zero.
pub(super) fn of(identity: &str, valid: Duration, before: Option<&LeaseSpec>) -> LeaseSpec {
    let now = || MicroTime(Timestamp::now());
    let holder = before.and_then(|spec| spec.holder_identity.as_deref());
    let is_ours = holder == Some(identity);
    let before = before.cloned().unwrap_or_default();
    let transitions = before.lease_transitions.unwrap_or(0);
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: i32::try_from(valid.as_secs())
            .ok()
            .filter(|seconds| *seconds > 0),
        acquire_time: if is_ours {
            before.acquire_time
        } else {
            Some(now())
        },
        renew_time: Some(now()),
        lease_transitions: Some(transitions + i32::from(!is_ours)),
        ..LeaseSpec::default()
    }
}

/// The term. It grows with each change of the holder, and also when the lease was deleted and its count starts again.
pub(super) fn term(lease: &Lease) -> u64 {
    let made = lease.metadata.creation_timestamp.as_ref();
    let made = made.map_or(0, |made| made.0.as_second());
    let changes = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
    let changes = u64::try_from(changes.unwrap_or(0)).unwrap_or(0);
    (u64::try_from(made).unwrap_or(0) << 24) + changes
}

pub(super) fn holder(lease: &Lease) -> Option<String> {
    let holder = lease.spec.as_ref()?.holder_identity.clone();
    holder.filter(|holder| !holder.is_empty())
}

/// How long the record is valid after a renewal.
pub(super) fn valid(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref();
    let seconds = seconds.and_then(|spec| spec.lease_duration_seconds);
    Duration::from_secs(seconds.and_then(|all| u64::try_from(all).ok()).unwrap_or(0))
}
