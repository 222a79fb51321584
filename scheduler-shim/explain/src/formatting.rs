//! Amounts and lines as people read them.

use std::fmt;

use apportion_abi::names::ANNOTATION_QUEUE_BURST_LIMIT;
use apportion_abi::{Bytes, EscapedText};
use apportion_model::pods;
use apportion_policy::amounts::{ResourceKind, UNLIMITED};
use apportion_policy::cluster::{Task, TaskGpuRequest};
use apportion_policy::{AffinityRefusal, ClaimRefusal, QueueBound, QueueShortfall};

/// One line. Files may hold any name: one with a line feed must not look like a decision of its own.
pub fn line(f: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>) -> fmt::Result {
    writeln!(f, "{}", EscapedText(&text.to_string()))
}

/// An amount of a resource that queues divide.
pub fn amount(resource: ResourceKind, amount: f64) -> String {
    if amount == UNLIMITED {
        return "unlimited".to_owned();
    }
    match resource {
        ResourceKind::Cpu => format!("{} CPU", number(amount / 1000.0)),
        ResourceKind::Memory => Bytes(amount.max(0.0) as u64).to_string(),
        ResourceKind::Gpu => format!("{} GPUs", number(amount)),
    }
}

/// The name of a resource.
pub const fn name(resource: ResourceKind) -> &'static str {
    match resource {
        ResourceKind::Cpu => "CPU",
        ResourceKind::Memory => "memory",
        ResourceKind::Gpu => "GPU",
    }
}

/// At most three decimals.
fn number(amount: f64) -> String {
    let text = format!("{amount:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What a pod requests of cards.
pub fn cards(task: &Task) -> String {
    match &task.cards {
        TaskGpuRequest::None if !task.claims.is_empty() => {
            format!("the resource claims {}", task.claims.join(", "))
        }
        TaskGpuRequest::None if !task.extended.is_empty() => "its extended resources".to_owned(),
        TaskGpuRequest::None => "no GPU".to_owned(),
        TaskGpuRequest::Whole(1) => "1 whole GPU".to_owned(),
        TaskGpuRequest::Whole(count) => format!("{count} whole GPUs"),
        TaskGpuRequest::Shared { share, devices } => {
            let limit = task.limit.map(|limit| format!(", up to {limit}"));
            let share = format!("{share}{}", limit.unwrap_or_default());
            match devices {
                1 => share,
                devices => format!("{share} on each of {devices} GPUs"),
            }
        }
        TaskGpuRequest::Partitions(partitions) => partitions
            .iter()
            .map(|(name, count): (&String, &i64)| format!("{count} x {name}"))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// Why a claim can't be met on a node.
pub fn claim(refusal: &ClaimRefusal) -> String {
    match refusal {
        ClaimRefusal::Disallowed => "it uses resource claims, which are switched off".to_owned(),
        ClaimRefusal::Missing(claim) => match pods::template_entry(claim) {
            Some((pod, entry)) => {
                format!("the claim for {entry} of pod {pod} is yet to be created from its template")
            }
            None => format!("its claim {claim} does not exist"),
        },
        ClaimRefusal::Unusable(claim, defect) => format!("its claim {claim} is unusable: {defect}"),
        ClaimRefusal::OutOfReach(claim) => {
            format!("does not reach the devices that claim {claim} has")
        }
        ClaimRefusal::NotAllocated(why) => why.clone(),
        ClaimRefusal::OtherQueue(claim) => {
            format!("its claim {claim} is for another queue (label kai.scheduler/queue)")
        }
        ClaimRefusal::TooManyUsers(claim) => {
            format!("its claim {claim} has reached its maximum number of users")
        }
        ClaimRefusal::Elsewhere(claim, node) => {
            format!("the devices of its claim {claim} are on {node}")
        }
        ClaimRefusal::TooFewDevices(class, asked, free) => {
            format!("claimed {asked} of {class}; {} free", free.max(&0))
        }
    }
}

/// Which bound of a queue has no room for a workload, in KAI's words.
pub fn queue(shortfall: &QueueShortfall) -> String {
    let (resource, queue) = (shortfall.resource, &shortfall.queue.uid);
    let share = shortfall.queue.of(resource);
    let asked = amount(resource, shortfall.more.amounts[resource]);
    match shortfall.bound {
        QueueBound::Limit => {
            let (limit, held) = (
                amount(resource, share.limit),
                amount(resource, share.allocated),
            );
            let name = name(resource);
            format!(
                "{queue} quota has reached the allowable limit of {name}. Limit is {limit}, currently {held} allocated and workload requested {asked}"
            )
        }
        QueueBound::BurstLimit => {
            let limit = amount(resource, shortfall.queue.burst_limit.unwrap_or(UNLIMITED));
            let held = amount(resource, shortfall.queue.limits());
            let asked = amount(resource, shortfall.more.limits);
            format!(
                "{queue} queue has reached its burst limit of {limit}. Currently the limits of its pods add up to {held} and workload requested {asked} more. Lower the limits of pods, or raise {ANNOTATION_QUEUE_BURST_LIMIT} of the queue"
            )
        }
        QueueBound::Quota => {
            let quota = amount(resource, share.deserved);
            let held = amount(resource, share.non_preemptible);
            format!(
                "Non-preemptible workload is over quota. Workload requested {asked}, but {queue} quota is {quota}, while {held} are already allocated for non-preemptible pods. Use a preemptible workload to go over quota"
            )
        }
    }
}

/// Why affinity terms or topology spread keep a pod from a node.
pub fn affinity(refusal: &AffinityRefusal) -> String {
    let outside = |domain: &str, what: &str| format!("has no label {domain}, {what}");
    match refusal {
        AffinityRefusal::AffinityNotSatisfied {
            domain,
            value: Some(value),
        } => format!("has no pod that matches the pod's affinity in {domain}={value}"),
        AffinityRefusal::AffinityNotSatisfied {
            domain,
            value: None,
        } => outside(domain, "the topologyKey of the pod's affinity"),
        AffinityRefusal::AntiAffinityViolated { domain, value } => {
            format!("has pods that match the pod's anti-affinity in {domain}={value}")
        }
        AffinityRefusal::ExistingAntiAffinity { domain, value } => {
            format!("has a pod whose anti-affinity matches the pod in {domain}={value}")
        }
        AffinityRefusal::TopologySkewExceeded {
            domain,
            value: Some(value),
            here,
            least,
            skew,
        } => format!(
            "would have {here} matching pods in {domain}={value}, while another domain has {least} and maxSkew is {skew}"
        ),
        AffinityRefusal::TopologySkewExceeded {
            domain,
            value: None,
            ..
        } => outside(domain, "the topologyKey of the pod's spread constraint"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_as_short_as_they_can_be() {
        assert_eq!(amount(ResourceKind::Gpu, 1.7), "1.7 GPUs");
        assert_eq!(amount(ResourceKind::Gpu, 0.1 + 0.2), "0.3 GPUs");
        assert_eq!(amount(ResourceKind::Cpu, 6000.0), "6 CPU");
        assert_eq!(amount(ResourceKind::Memory, UNLIMITED), "unlimited");
    }
}
