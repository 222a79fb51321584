//! The statuses of queues and pod groups, in KAI's fields.
//!
//! Pure: the cluster and the reasons of waiting pods give what every status should be. A status that differs is
//! written. A condition keeps its time while its status stays. Amounts are what is so, never what is about to be
//! decided, so that they add up with the pods that `kubectl get` shows. KAI's only condition for an unusable queue is
//! `Orphan`; `Usable` gives the reason in every case. `InvalidSpec` says what is ignored of a usable queue.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_abi::names::{
    ANNOTATION_GROUP, LABEL_NODE_POOL, RESOURCE_QUEUE_LIMITS, RESOURCE_WHOLE,
};
use apportion_groups::ObjectView;
use apportion_kubernetes::Quantity;
use apportion_policy::amounts::{ResourceAmounts, ResourceKind, UNLIMITED};
use apportion_policy::cluster::TaskStatus;
use apportion_policy::share::QueueShare;
use apportion_policy::tree::QueueTree;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::event::StatusUpdate;
use apportion_explain::decided_cluster::DecidedCluster;
use apportion_explain::formatting;
use apportion_explain::waiting::{WaitReason, WaitingPod};
use apportion_model::snapshot::ClusterSnapshot;

/// The node pool of a group without a label.
const NODE_POOL: &str = "default";

/// The resources that pods have and request.
#[derive(Clone, Copy, Default)]
pub(crate) struct ResourceTally {
    allocated: ResourceAmounts,
    non_preemptible: ResourceAmounts,
    requested: ResourceAmounts,
}

/// The tallies of queues and of groups.
pub(crate) type ResourceTallies<'a> = (QueueTree, BTreeMap<&'a str, ResourceTally>);

impl ResourceTally {
    fn of(share: &QueueShare) -> Self {
        Self {
            allocated: share.each(|share| share.allocated),
            non_preemptible: share.each(|share| share.non_preemptible),
            requested: share.each(|share| share.request),
        }
    }

    fn fields(self) -> Value {
        json!({"allocated": amounts(self.allocated), "requested": amounts(self.requested),
            "allocatedNonPreemptible": amounts(self.non_preemptible)})
    }
}

/// All statuses that are out of date.
pub(crate) fn due(
    snapshot: &ClusterSnapshot<'_>,
    (queues, groups): &ResourceTallies<'_>,
    waiting: &[WaitingPod],
    now: Duration,
) -> Vec<StatusUpdate> {
    let now = timestamp(now);
    let of_queues = snapshot.inventory.all("Queue");
    let of_queues = of_queues.map(|object| queue(snapshot, queues, object, &now));
    let why = whys(snapshot, waiting);
    let of_groups = snapshot.inventory.all("PodGroup").map(|object| {
        let name = format!("{}/{}", object.namespace(), object.name());
        let tally = groups.get(name.as_str()).copied().unwrap_or_default();
        // Parsed apart from the cache: there are as many as pods, and each is dropped at once.
        let apart = object.read_apart();
        group(ObjectView::new(&apart), tally, why.get(&name), &now)
    });
    of_queues.chain(of_groups).flatten().collect()
}

/// A time as Kubernetes writes it.
pub(super) fn timestamp(now: Duration) -> String {
    let now = Timestamp::from_second(i64::try_from(now.as_secs()).unwrap_or(0));
    now.unwrap_or_default().to_string()
}

/// What queues and groups have and request now, without the next decisions.
pub(crate) fn tallies<'a>(decided: &DecidedCluster<'a>) -> ResourceTallies<'a> {
    let cluster = decided.cluster;
    let mut queues = QueueTree::of(&cluster.queues);
    let mut groups: BTreeMap<&str, ResourceTally> = BTreeMap::new();
    let (_, largest) = decided.card_sizes();
    for job in &cluster.jobs {
        let tally = groups.entry(&job.name).or_default();
        let queue = queues.find(&job.queue);
        for task in &job.tasks {
            let node = task.node.as_ref().and_then(|node| decided.node(node));
            let has = task.status.is_active_allocated() && node.is_some();
            let mut amounts = task.amounts(largest);
            let charged = decided.charged(task).filter(|_| has);
            if let Some(charged) = charged {
                amounts[ResourceKind::Gpu] = charged.cards;
            }
            let wants = has || task.status == TaskStatus::Pending;
            if has {
                tally.allocated = tally.allocated.plus(amounts);
                if !job.is_preemptible {
                    tally.non_preemptible = tally.non_preemptible.plus(amounts);
                }
            }
            if wants {
                tally.requested = tally.requested.plus(amounts);
            }
            if let Some(queue) = queue {
                if has {
                    queues.charge(queue, amounts, job.is_preemptible);
                    queues.charge_burst(queue, charged.unwrap_or_default().burst);
                }
                if wants {
                    queues.request(queue, amounts);
                }
            }
        }
    }
    (queues, groups)
}

fn queue(
    snapshot: &ClusterSnapshot<'_>,
    queues: &QueueTree,
    object: ObjectView<'_>,
    now: &str,
) -> Option<StatusUpdate> {
    let name = object.name();
    let parent = |object: ObjectView<'_>| {
        object.json()["spec"]["parentQueue"]
            .as_str()
            .unwrap_or("")
            .to_owned()
    };
    let share = queues.find(name).map(|queue| queues.get(queue));
    let mut children: Vec<String> = (snapshot.inventory.all("Queue"))
        .filter(|child| parent(*child) == name)
        .map(|child| child.name().to_owned())
        .collect();
    children.sort_unstable();
    let above = parent(object);
    let is_orphan = !above.is_empty() && snapshot.inventory.find("Queue", "", &above).is_none();
    let orphan = if is_orphan {
        (
            true,
            "ParentNotFound",
            format!("its parent {above} does not exist"),
        )
    } else {
        (false, "ParentFound", String::new())
    };
    let usable = match snapshot.unusable.get(name) {
        Some(why) => (
            false,
            "Invalid",
            format!("pods cannot run in this queue: {why}"),
        ),
        None => (true, "Valid", String::new()),
    };
    let ignored = match snapshot.ignored.get(name) {
        Some(fields) => (true, fields.reason, fields.message.clone()),
        None => (false, "Valid", String::new()),
    };
    let over = match share.and_then(over_quota) {
        Some(message) => (true, "OverQuota", message),
        None => (false, "WithinQuota", String::new()),
    };
    let mut status = share
        .map_or_else(ResourceTally::default, ResourceTally::of)
        .fields();
    if let Some(share) = share.filter(|share| share.burst_limit.is_some()) {
        status["allocated"][RESOURCE_QUEUE_LIMITS] = gpus(share.limits()).into();
    }
    status["childQueues"] = children.into();
    let conditions = [
        ("Usable", &usable),
        ("Orphan", &orphan),
        ("OverQuota", &over),
        ("InvalidSpec", &ignored),
    ];
    let conditions = conditions.map(|(kind, (is_true, reason, message))| {
        condition(object, kind, *is_true, reason, message, now)
    });
    status["conditions"] = conditions.to_vec().into();
    let warning = [("Usable", usable.2), ("InvalidSpec", ignored.2)];
    let mut warning = warning.into_iter().filter(|(kind, message)| {
        let known = written_condition(object, "conditions", kind)["message"].as_str();
        !message.is_empty() && known != Some(message)
    });
    report(object, status, warning.next().map(|(_, message)| message))
}

/// What a queue has beyond its quota.
fn over_quota(share: &QueueShare) -> Option<String> {
    let over = ResourceKind::ALL.into_iter().filter(|resource| {
        let share = share.of(*resource);
        share.deserved != UNLIMITED && share.allocated > share.deserved
    });
    let over = over.map(|resource| {
        let amount = |number| formatting::amount(resource, number);
        let share = share.of(resource);
        format!(
            "{} of a quota of {}",
            amount(share.allocated),
            amount(share.deserved)
        )
    });
    let over: Vec<String> = over.collect();
    (!over.is_empty()).then(|| format!("allocated {}", over.join(", ")))
}

/// A condition, with its transition time.
pub(super) fn condition(
    object: ObjectView<'_>,
    kind: &str,
    is_true: bool,
    reason: &str,
    message: &str,
    now: &str,
) -> Value {
    let status = if is_true { "True" } else { "False" };
    let known = written_condition(object, "conditions", kind);
    let since = if known["status"] == status {
        known["lastTransitionTime"].as_str().unwrap_or(now)
    } else {
        now
    };
    let mut condition = json!({"type": kind, "status": status, "reason": reason,
        "lastTransitionTime": since});
    if !message.is_empty() {
        condition["message"] = message.into();
    }
    condition
}

/// A condition that the object has now.
pub(super) fn written_condition<'a>(object: ObjectView<'a>, field: &str, kind: &str) -> &'a Value {
    let all = object.json()["status"][field].as_array();
    let mut all = all.into_iter().flatten();
    all.find(|condition| condition["type"] == kind)
        .unwrap_or(&Value::Null)
}

/// Why the pods of groups wait, by group: the first reason that KAI reports on groups.
fn whys<'a>(
    snapshot: &ClusterSnapshot<'_>,
    waiting: &'a [WaitingPod],
) -> BTreeMap<String, (&'static str, &'a str)> {
    let mut whys = BTreeMap::new();
    for one in waiting {
        let Some(reason) = word(one.reason) else {
            continue;
        };
        let Some(group) = one.job.clone().or_else(|| group_of(snapshot, &one.pod)) else {
            continue;
        };
        whys.entry(group).or_insert((reason, one.message.as_str()));
    }
    whys
}

/// The group that a pod names, if the group can't be read.
fn group_of(snapshot: &ClusterSnapshot<'_>, pod: &str) -> Option<String> {
    let (namespace, name) = pod.split_once('/')?;
    let group = snapshot.inventory.find("Pod", namespace, name)?;
    let group = group.annotation(ANNOTATION_GROUP)?;
    Some(format!("{namespace}/{group}"))
}

/// KAI's word for a reason; `None` if KAI reports nothing on the group.
const fn word(reason: WaitReason) -> Option<&'static str> {
    match reason {
        WaitReason::Invalid | WaitReason::NoSlot | WaitReason::Unschedulable => {
            Some("Unschedulable")
        }
        WaitReason::QueueDoesNotExist => Some("QueueDoesNotExist"),
        WaitReason::OverLimit => Some("OverLimit"),
        WaitReason::NonPreemptibleOverQuota => Some("NonPreemptibleOverQuota"),
        WaitReason::Gated | WaitReason::NotReady => None,
    }
}

fn group(
    object: ObjectView<'_>,
    tally: ResourceTally,
    why: Option<&(&'static str, &str)>,
    now: &str,
) -> Option<StatusUpdate> {
    const KIND: &str = "UnschedulableOnNodePool";
    let known = written_condition(object, "schedulingConditions", KIND);
    let has_some = ResourceKind::ALL
        .into_iter()
        .any(|resource| tally.allocated[resource] > 0.0);
    let mut status = json!({"resourcesStatus": tally.fields(), "schedulingConditions": []});
    let mut warning = None;
    // If a part of the group runs, its pods say why the rest waits.
    if let Some((reason, message)) = why.filter(|_| !has_some) {
        let is_new = known.is_null();
        let since = known["lastTransitionTime"].as_str().unwrap_or(now);
        status["schedulingConditions"] = json!([{"type": KIND, "status": "True",
            "reason": "Unschedulable", "message": message,
            "nodePool": object.label(LABEL_NODE_POOL).unwrap_or(NODE_POOL),
            "reasons": [{"reason": reason, "message": message}],
            "transitionID": known["transitionID"].as_str().unwrap_or("1"),
            "lastTransitionTime": since}]);
        warning = is_new.then(|| (*message).to_owned());
    }
    report(object, status, warning)
}

/// The update to write, if anything differs.
pub(super) fn report(
    object: ObjectView<'_>,
    status: Value,
    warning: Option<String>,
) -> Option<StatusUpdate> {
    let known = &object.json()["status"];
    let wanted = status.as_object().into_iter().flatten();
    let mut new = wanted.filter(|(field, value)| {
        let is = &known[field.as_str()];
        is != *value && !(is.is_null() && value.as_array().is_some_and(Vec::is_empty))
    });
    new.next()?;
    drop(new);
    Some(StatusUpdate {
        api_version: object.api_version().to_owned(),
        kind: object.kind().to_owned(),
        namespace: object.namespace().to_owned(),
        name: object.name().to_owned(),
        uid: object.uid().to_owned(),
        status,
        warning,
    })
}

/// Amounts as Kubernetes writes them.
fn amounts(amounts: ResourceAmounts) -> Value {
    let millis = |amount: f64| Quantity::from_millis(rounded_up(amount)).to_string();
    let bytes = Quantity::from_bytes(rounded_up(amounts[ResourceKind::Memory]));
    json!({"cpu": millis(amounts[ResourceKind::Cpu]),
        "memory": bytes.to_string(),
        RESOURCE_WHOLE: gpus(amounts[ResourceKind::Gpu])})
}

/// A number of GPUs as Kubernetes writes it.
fn gpus(gpus: f64) -> String {
    Quantity::from_millis(rounded_up(gpus * 1000.0)).to_string()
}

/// Whole units of an amount of the policy. Rounding errors of decimals (0.1 + 0.2) must not become a unit.
fn rounded_up(amount: f64) -> i64 {
    ((amount * 1e3).round() / 1e3).ceil() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_quantities() {
        let all = ResourceAmounts::new(1500.0, 3.0 * f64::from(1 << 20), 0.1 + 0.2);
        assert_eq!(
            amounts(all),
            json!({"cpu": "1500m", "memory": "3Mi", "nvidia.com/gpu": "300m"})
        );
        let all = ResourceAmounts::new(2000.0, 1000.0, 0.0);
        assert_eq!(
            amounts(all),
            json!({"cpu": "2", "memory": "1k", "nvidia.com/gpu": "0"})
        );
    }
}
