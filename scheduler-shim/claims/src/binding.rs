//! Whether the devices of a claim are ready, so that a pod may be bound (KEP-5007).
//!
//! A driver may attach a device to a node only once a claim has it. Then the device has binding conditions, and the
//! driver says in the status of the claim which of them hold. The rules are those of kube-scheduler: the devices are
//! looked at in their order, and the first that is not ready decides.

use std::fmt;
use std::time::Duration;

use crate::objects::{AllocatedDevice, AllocationResult, DeviceCondition, ResourceClaimStatus};

const HOLDS: &str = "True";

/// How far the devices of a claim are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceReadiness {
    /// A pod may be bound.
    Ready,
    /// A device is not ready yet.
    Pending(PendingDevice),
    /// A device will not be ready.
    Failed(FailedDevice),
}

/// A device that is not ready yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingDevice {
    /// The driver, the pool and the device.
    pub device: String,
    /// The conditions that do not hold yet.
    pub conditions: Vec<String>,
}

/// A device that will not be ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedDevice {
    /// The driver, the pool and the device.
    pub device: String,
    /// The condition that says so.
    pub condition: String,
    /// Why, in the words of its driver.
    pub reason: String,
    /// The same with more words.
    pub message: String,
}

/// What the devices of a claim are, as its status says it. A claim without devices has nothing to wait for.
#[must_use]
pub fn readiness(status: &ResourceClaimStatus) -> DeviceReadiness {
    let allocation = status.allocation.iter();
    let devices = allocation.flat_map(|one| &one.devices.results);
    for device in devices.filter(|device| !device.binding_conditions.is_empty()) {
        let conditions = conditions_of(device, status);
        let holds = |name: &str| {
            let found = conditions.iter().find(|one| one.kind == name);
            found.filter(|one| one.status == HOLDS)
        };
        let failures = device.binding_failure_conditions.iter();
        if let Some(failed) = failures.filter_map(|name| holds(name)).next() {
            return DeviceReadiness::Failed(FailedDevice {
                device: name_of(device),
                condition: failed.kind.clone(),
                reason: failed.reason.clone(),
                message: failed.message.clone(),
            });
        }
        let missing = device.binding_conditions.iter();
        let missing: Vec<String> = missing
            .filter(|name| holds(name).is_none())
            .cloned()
            .collect();
        if !missing.is_empty() {
            return DeviceReadiness::Pending(PendingDevice {
                device: name_of(device),
                conditions: missing,
            });
        }
    }
    DeviceReadiness::Ready
}

/// Whether a pod has to wait before it is bound: a device has binding conditions.
#[must_use]
pub fn has_conditions(allocation: &AllocationResult) -> bool {
    let mut devices = allocation.devices.results.iter();
    devices.any(|device| !device.binding_conditions.is_empty())
}

/// What time it is, and how long devices may take to get ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindingClock {
    /// Since 1970.
    pub now: Duration,
    /// From when the devices were given.
    pub timeout: Duration,
}

/// How long devices may take by default, as in kube-scheduler.
pub const BINDING_TIMEOUT: Duration = Duration::from_secs(600);

impl BindingClock {
    /// Some time, with the default timeout.
    #[must_use]
    pub fn at(now: Duration) -> Self {
        Self {
            now,
            timeout: BINDING_TIMEOUT,
        }
    }

    /// Why no pod can be bound with the devices that a claim has: one has failed, or was not ready in time.
    #[must_use]
    pub fn failure(&self, status: &ResourceClaimStatus) -> Option<String> {
        match readiness(status) {
            DeviceReadiness::Ready => None,
            DeviceReadiness::Failed(failed) => Some(failed.to_string()),
            DeviceReadiness::Pending(pending) => {
                let given = status.allocation.as_ref().and_then(given_at)?;
                self.is_over(given).then(|| self.late(&pending))
            }
        }
    }

    /// Whether devices that were given at some time should be ready by now.
    #[must_use]
    pub fn is_over(&self, given: Duration) -> bool {
        given + self.timeout < self.now
    }

    /// What is said of a device that was not ready in time.
    #[must_use]
    pub fn late(&self, pending: &PendingDevice) -> String {
        format!("{pending} after {} s", self.timeout.as_secs())
    }
}

/// When the devices were written into the claim, since 1970. `None` if that cannot be read.
fn given_at(allocation: &AllocationResult) -> Option<Duration> {
    let given = allocation.allocation_timestamp.as_deref()?;
    let given: jiff::Timestamp = given.parse().ok()?;
    Some(apportion_kubernetes::since_epoch(given))
}

fn conditions_of<'a>(
    device: &AllocatedDevice,
    status: &'a ResourceClaimStatus,
) -> &'a [DeviceCondition] {
    let mut all = status.devices.iter();
    let found = all.find(|one| {
        one.device == device.device && one.driver == device.driver && one.pool == device.pool
    });
    found.map_or(&[], |one| &one.conditions)
}

fn name_of(device: &AllocatedDevice) -> String {
    format!("{}/{}/{}", device.driver, device.pool, device.device)
}

impl fmt::Display for PendingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, conditions } = self;
        write!(f, "device {device} is not ready: {}", conditions.join(", "))
    }
}

impl fmt::Display for FailedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            device,
            condition,
            reason,
            message,
        } = self;
        write!(f, "device {device} failed: {condition}")?;
        match (reason.is_empty(), message.is_empty()) {
            (true, true) => Ok(()),
            (false, true) => write!(f, " ({reason})"),
            (true, false) => write!(f, " ({message})"),
            (false, false) => write!(f, " ({reason}: {message})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(results: Value, devices: Value) -> ResourceClaimStatus {
        let status = json!({"allocation": {"devices": {"results": results},
            "allocationTimestamp": "1970-01-01T00:01:00Z"}, "devices": devices});
        serde_json::from_value(status).unwrap()
    }

    fn result(device: &str, conditions: &[&str], failures: &[&str]) -> Value {
        json!({"request": "r", "driver": "d", "pool": "p", "device": device,
            "bindingConditions": conditions, "bindingFailureConditions": failures})
    }

    fn says(device: &str, conditions: &[(&str, &str)]) -> Value {
        let conditions = conditions.iter().map(|(kind, status)| {
            json!({"type": kind, "status": status, "reason": "Because", "message": "it is so"})
        });
        json!({"driver": "d", "pool": "p", "device": device, "conditions": conditions.collect::<Vec<_>>()})
    }

    fn pending(status: &ResourceClaimStatus) -> String {
        match readiness(status) {
            DeviceReadiness::Pending(pending) => pending.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_condition_of_every_device_must_hold() {
        let two = || json!([result("a", &["x", "y"], &[]), result("b", &["x"], &[])]);
        let none = status(two(), json!([]));
        assert_eq!(pending(&none), "device d/p/a is not ready: x, y");
        let others = [("x", "True"), ("y", "Unknown"), ("z", "True")];
        let some = status(
            two(),
            json!([says("a", &others), says("b", &[("x", "True")])]),
        );
        assert_eq!(pending(&some), "device d/p/a is not ready: y");
        let first = status(two(), json!([says("a", &[("x", "True"), ("y", "True")])]));
        assert_eq!(pending(&first), "device d/p/b is not ready: x");
        let both = [("x", "True"), ("y", "True")];
        let all = status(
            two(),
            json!([says("b", &[("x", "True")]), says("a", &both)]),
        );
        assert_eq!(readiness(&all), DeviceReadiness::Ready);
    }

    #[test]
    fn a_failure_counts_before_what_is_missing_or_holds() {
        let given = json!([result("a", &["x"], &["bad", "worse"])]);
        let fails = |conditions: &[(&str, &str)]| {
            readiness(&status(given.clone(), json!([says("a", conditions)])))
        };
        let bad = fails(&[("x", "True"), ("worse", "True"), ("bad", "False")]);
        let DeviceReadiness::Failed(failed) = bad else {
            panic!("{bad:?}");
        };
        let said = failed.to_string();
        assert_eq!(said, "device d/p/a failed: worse (Because: it is so)");
        assert_eq!(
            fails(&[("x", "True"), ("bad", "Unknown")]),
            DeviceReadiness::Ready
        );
    }

    #[test]
    fn devices_without_conditions_need_no_status() {
        let failing = json!([says("a", &[("bad", "True")])]);
        let none = status(json!([result("a", &[], &["bad"])]), failing);
        assert_eq!(readiness(&none), DeviceReadiness::Ready);
        assert!(!has_conditions(none.allocation.as_ref().unwrap()));
        assert_eq!(
            readiness(&ResourceClaimStatus::default()),
            DeviceReadiness::Ready
        );
    }

    #[test]
    fn the_time_runs_from_when_the_devices_were_given() {
        let clock = |now: u64| BindingClock {
            now: Duration::from_secs(now),
            timeout: Duration::from_secs(600),
        };
        let mut given = status(json!([result("a", &["x"], &[])]), json!([]));
        assert_eq!(clock(660).failure(&given), None);
        let late = "device d/p/a is not ready: x after 600 s".to_owned();
        assert_eq!(clock(661).failure(&given), Some(late));
        let ready = json!([says("a", &[("x", "True")])]);
        let ready = status(json!([result("a", &["x"], &[])]), ready);
        assert_eq!(clock(9000).failure(&ready), None, "it is ready");
        given.allocation.as_mut().unwrap().allocation_timestamp = None;
        assert_eq!(clock(9000).failure(&given), None, "nobody knows since when");
    }
}
