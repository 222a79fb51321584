//! `explain`: one pod, from the objects about it: its share, or why it waits.
//!
//! Everything here was written by scheduler, agent and kubelet; nothing is decided again. The scheduler itself knows
//! more; [`crate::scheduler`] queries it.

use std::fmt::Write;

use apportion::output;
use apportion_abi::EscapedText;
use apportion_crds::{GpuNode, PodGroup, Queue};
use apportion_exit::CommandFailure;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Serialize;

use crate::api::ClusterConnection;
use crate::gpus::{age, guaranteed, memory, trouble};
use crate::options::ExplainOptions;
use crate::pod::{GROUP, asks, condition, has_share, node_of, phase, queue_of, stuck};
use crate::queues::{self, amount};

/// How many of the latest events are shown.
const EVENTS: usize = 5;

/// The explanation of a pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct KubectlExplanation {
    pod: String,
    phase: String,
    scheduler: String,
    /// What it requests of GPUs, as in its manifest.
    asks: Vec<String>,
    queue: Option<String>,
    group: Option<String>,
    node: Option<String>,
    shares: Vec<ExplainedShare>,
    /// Sentences, the most important ones first.
    because: Vec<String>,
    queue_line: Option<String>,
    events: Vec<ExplainedEvent>,
}

/// Why a pod that runs makes no progress.
const SUSPENDED: &str = "suspended: others were promised what it used above its guarantee; its CUDA calls wait, its GPU \
     memory is in the host's memory, and the node's agent wakes it when there is room";

/// The same, if its scheduler gave its share to others.
const RECLAIMED: &str = "suspended by its scheduler: another workload has its share of the GPU; its CUDA calls wait, its GPU \
     memory is in the host's memory, and it goes on in its queue's turn; kubectl apportion explain --scheduler says what it \
     waits for";

/// Why a pod that runs uses no GPU memory.
const IDLE: &str = "idle: it has made no CUDA call for its apportion.dev/suspend-when-idle; its GPU memory is in the \
     host's memory, and its next CUDA call wakes it";

/// The reason of the agent's event about a pod that is to sleep when it is idle, and cannot.
const STAYS_AWAKE: &str = "GpuMemoryStaysAwake";

/// The pod's share of a GPU.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExplainedShare {
    gpu: i64,
    uuid: String,
    container: String,
    limit_bytes: i64,
    /// What is always there; the limit, except where the share may burst.
    guaranteed_bytes: i64,
    /// Whether its processes sleep with their GPU memory in the host's memory.
    suspended: bool,
    /// Whether they sleep because they did not use the GPU.
    idle: bool,
}

#[derive(Debug, Serialize)]
struct ExplainedEvent {
    ago: String,
    kind: String,
    reason: String,
    message: String,
    count: i32,
}

/// Prints the explanation of a pod.
pub(crate) async fn show(
    cluster: &ClusterConnection,
    asked: &ExplainOptions,
) -> Result<(), CommandFailure> {
    let pod = find(cluster, asked).await?;
    let known = RelatedObjects::of(cluster, &pod).await?;
    let explanation = known.explain(&pod);
    if asked.format.json {
        output::json(&explanation)
    } else {
        output::all(&text(&explanation))
    }
}

pub(crate) async fn find(
    cluster: &ClusterConnection,
    asked: &ExplainOptions,
) -> Result<Pod, CommandFailure> {
    let (namespace, name) = match asked.pod.split_once('/') {
        Some((namespace, name)) => (namespace, name),
        None => (
            asked
                .namespace
                .as_deref()
                .unwrap_or(cluster.client.default_namespace()),
            asked.pod.as_str(),
        ),
    };
    if name.is_empty() || namespace.is_empty() || name.contains('/') {
        let what = format!("{} is no pod's name", asked.pod);
        return Err(CommandFailure::usage(what).hint("use NAME or NAMESPACE/NAME"));
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let found = cluster.one(pods, "pod", name).await?;
    found.ok_or_else(|| {
        CommandFailure::new(format!(
            "there is no pod {name} in the namespace {namespace}"
        ))
        .hint("name its namespace with -n NAMESPACE")
    })
}

/// The objects about a pod.
#[derive(Default)]
struct RelatedObjects {
    queue: Option<Option<Queue>>,
    group: Option<PodGroup>,
    node: Option<GpuNode>,
    events: Vec<Event>,
}

impl RelatedObjects {
    async fn of(cluster: &ClusterConnection, pod: &Pod) -> Result<Self, CommandFailure> {
        let client = || cluster.client.clone();
        let namespace = pod.namespace().unwrap_or_default();
        let group = match pod.annotations().get(GROUP) {
            Some(name) => {
                let groups = Api::namespaced(client(), &namespace);
                cluster.one::<PodGroup>(groups, "podgroup", name).await?
            }
            None => None,
        };
        let queue = match queue_of(pod, group.as_ref()) {
            Some(name) => {
                let queues = Api::all(client());
                Some(cluster.one::<Queue>(queues, "queue", &name).await?)
            }
            None => None,
        };
        let node = match &node_of(pod) {
            Some(name) => cluster.one(Api::all(client()), "gpunode", name).await?,
            None => None,
        };
        let name = pod.name_any();
        let wanted = format!("involvedObject.kind=Pod,involvedObject.name={name}");
        let events = Api::namespaced(client(), &namespace);
        let wanted = ListParams::default().fields(&wanted);
        let mut events: Vec<Event> = cluster.listed(events, "events", wanted).await?;
        let uid = pod.uid();
        events.retain(|event| event.involved_object.uid == uid);
        events.sort_by_key(|event| when(event).map(|time| time.0));
        Ok(Self {
            queue,
            group,
            node,
            events,
        })
    }

    fn explain(&self, pod: &Pod) -> KubectlExplanation {
        let spec = pod.spec.clone().unwrap_or_default();
        let queue = queue_of(pod, self.group.as_ref());
        let latest = self.events.len().saturating_sub(EVENTS);
        let in_use = self.queue.as_ref().and_then(Option::as_ref);
        KubectlExplanation {
            pod: format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()),
            phase: phase(pod),
            scheduler: spec.scheduler_name.unwrap_or_default(),
            asks: asks(pod),
            group: pod.annotations().get(GROUP).cloned(),
            node: node_of(pod),
            shares: self.shares(pod),
            because: self.reasons(pod),
            queue_line: in_use.map(queue_line),
            queue,
            events: self.events[latest..].iter().map(entry_of).collect(),
        }
    }

    /// The pod's shares of its node's GPUs.
    fn shares(&self, pod: &Pod) -> Vec<ExplainedShare> {
        let status = self.node.as_ref().and_then(|node| node.status.clone());
        let (namespace, name) = (pod.namespace(), Some(pod.name_any()));
        let cards = status.unwrap_or_default().cards;
        let shares = cards.into_iter().flat_map(|card| {
            let holders = card
                .holders
                .into_iter()
                .filter(|holder| holder.namespace == namespace && holder.pod == name);
            let (gpu, uuid) = (card.index, card.uuid);
            holders.map(move |holder| ExplainedShare {
                gpu,
                uuid: uuid.clone(),
                container: holder.container,
                limit_bytes: holder.limit_bytes,
                guaranteed_bytes: guaranteed(holder.guaranteed_bytes, holder.limit_bytes),
                suspended: holder.suspended,
                idle: holder.idle,
            })
        });
        shares.collect()
    }

    /// Why the pod is not running as it should.
    fn reasons(&self, pod: &Pod) -> Vec<String> {
        let mut reasons = Vec::new();
        let scheduler = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.scheduler_name.as_deref());
        let is_waiting = node_of(pod).is_none();
        if !asks(pod).is_empty() && scheduler == Some("default-scheduler") && has_share(pod) {
            reasons.push(
                "default-scheduler ignores the annotations; set schedulerName to apportion-scheduler"
                    .to_owned(),
            );
        }
        if is_waiting {
            match condition(pod, "PodScheduled") {
                Some(message) => reasons.push(format!("waits: {message}")),
                None if self.events.is_empty() => reasons.push(format!(
                    "waits: no scheduler has looked at it; does one serve the name {}?",
                    scheduler.unwrap_or_default()
                )),
                None => {}
            }
            let group = self.group.as_ref().and_then(|group| group.status.as_ref());
            let group = group
                .into_iter()
                .flat_map(|status| &status.scheduling_conditions);
            let entry_of = group.map(|condition| format!("its group waits: {}", condition.message));
            reasons.extend(entry_of.filter(|line| !line.ends_with(": ")));
        }
        if let (Some(None), Some(name)) = (&self.queue, queue_of(pod, self.group.as_ref())) {
            reasons.push(format!("the queue {name} does not exist"));
        }
        let in_use = self.queue.as_ref().and_then(Option::as_ref);
        let trouble_of_queue = in_use.map(|queue| queues::view(queue, 0, 0));
        if let Some(why) = trouble_of_queue.and_then(|view| view.trouble) {
            reasons.push(format!("its queue cannot be used: {why}"));
        }
        let shares = self.shares(pod);
        let is_for_others = |share: &ExplainedShare| share.suspended && !share.idle;
        let is_reclaimed = |share: &ExplainedShare| share.suspended && share.guaranteed_bytes == 0;
        if shares.iter().any(is_reclaimed) {
            reasons.push(RECLAIMED.to_owned());
        } else if shares.iter().any(is_for_others) {
            reasons.push(SUSPENDED.to_owned());
        }
        if shares.iter().any(|share| share.idle) {
            reasons.push(IDLE.to_owned());
        } else {
            reasons.extend(self.stays_awake());
        }
        reasons.extend(self.node.as_ref().and_then(trouble));
        reasons.extend(stuck(pod));
        reasons
    }
}

impl RelatedObjects {
    /// Why the pod is not suspended when it is idle, as its agent last said.
    fn stays_awake(&self) -> Option<String> {
        let mut latest = self.events.iter().rev();
        let event = latest.find(|event| event.reason.as_deref() == Some(STAYS_AWAKE))?;
        event.message.clone()
    }
}

fn queue_line(queue: &Queue) -> String {
    let view = queues::view(queue, 0, 0);
    let limits = view.burst_limit.zip(view.allocated_limits);
    let limits = limits.map(|(most, sum)| {
        let (most, sum) = (amount(most), amount(sum));
        format!("; limits of pods {sum}, burst limit {most}")
    });
    format!(
        "queue {}: {} GPUs allocated, {} requested; quota {}, limit {}{}",
        view.queue,
        amount(view.allocated),
        amount(view.requested),
        amount(view.quota),
        amount(view.limit),
        limits.unwrap_or_default()
    )
}

/// When an event was last seen. The two APIs for events fill different fields.
fn when(event: &Event) -> Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.clone());
    let precise = series
        .or_else(|| event.event_time.clone())
        .map(|time| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time.0));
    event
        .last_timestamp
        .clone()
        .or(precise)
        .or_else(|| event.metadata.creation_timestamp.clone())
}

fn entry_of(event: &Event) -> ExplainedEvent {
    let series = event.series.as_ref().and_then(|series| series.count);
    ExplainedEvent {
        ago: when(event).as_ref().map_or_else(|| "?".to_owned(), age),
        kind: event.type_.clone().unwrap_or_default(),
        reason: event.reason.clone().unwrap_or_default(),
        message: event.message.clone().unwrap_or_default(),
        count: series.or(event.count).unwrap_or(1),
    }
}

fn text(explanation: &KubectlExplanation) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        let _ = writeln!(text, "{}", EscapedText(&line));
    };
    line(format!("pod {}", explanation.pod));
    let mut facts = vec![explanation.phase.clone()];
    let mut fact = |name: &str, value: Option<&String>| {
        facts.extend(value.map(|value| format!("{name} {value}")));
    };
    fact("node", explanation.node.as_ref());
    fact("scheduler", Some(&explanation.scheduler));
    fact("queue", explanation.queue.as_ref());
    fact("group", explanation.group.as_ref());
    line(format!("  {}", facts.join(", ")));
    match explanation.asks.as_slice() {
        [] => line("  asks for no GPU".to_owned()),
        asks => line(format!("  asks for {}", asks.join(", "))),
    }
    for share in &explanation.shares {
        let container = match share.container.as_str() {
            "" => String::new(),
            name => format!(" for container {name}"),
        };
        let limit = memory(share.limit_bytes);
        let has = if share.guaranteed_bytes < share.limit_bytes {
            let guaranteed = memory(share.guaranteed_bytes);
            format!("is guaranteed {guaranteed} and may use up to {limit}")
        } else {
            format!("has {limit}")
        };
        line(format!(
            "  {has} of GPU {} ({}){container}",
            share.gpu, share.uuid
        ));
    }
    for reason in &explanation.because {
        line(format!("  {reason}"));
    }
    if let Some(queue) = &explanation.queue_line {
        line(queue.clone());
    }
    for event in &explanation.events {
        let times = match event.count {
            ..=1 => String::new(),
            count => format!(" (x{count})"),
        };
        let ExplainedEvent {
            ago,
            kind,
            reason,
            message,
            ..
        } = event;
        line(format!("{ago} ago: {kind} {reason}{times}: {message}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use apportion_crds::{GpuCard, GpuHolder, GpuNodeStatus};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_sleeps_for_others_is_told_so() {
        let pod = json!({"metadata": {"name": "serve", "namespace": "team"},
            "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let explained = |[suspended, idle, reclaimed]: [bool; 3], events| {
            let holder = GpuHolder {
                namespace: Some("team".to_owned()),
                pod: Some("serve".to_owned()),
                limit_bytes: 12 << 30,
                guaranteed_bytes: Some(if reclaimed { 0 } else { 4 << 30 }),
                suspended,
                idle,
                ..GpuHolder::default()
            };
            let card = GpuCard {
                holders: vec![holder],
                ..GpuCard::default()
            };
            let mut node = GpuNode::new("n", Default::default());
            node.status = Some(GpuNodeStatus {
                cards: vec![card],
                ..GpuNodeStatus::default()
            });
            let known = RelatedObjects {
                node: Some(node),
                events,
                ..RelatedObjects::default()
            };
            text(&known.explain(&pod))
        };
        let [running, asleep, idle, reclaimed] = [
            [false, false, false],
            [true, false, false],
            [true, true, false],
            [true, false, true],
        ]
        .map(|states| explained(states, Vec::new()));
        let share = "is guaranteed 4096 MiB and may use up to 12.0 GiB";
        assert!(
            running.contains(share) && !running.contains("suspended"),
            "{running}"
        );
        assert!(
            asleep.contains(share) && asleep.contains("  suspended: others were promised"),
            "{asleep}"
        );
        assert!(
            idle.contains("  idle: it has made no CUDA call") && !idle.contains("others"),
            "{idle}"
        );
        assert!(
            reclaimed.contains("  suspended by its scheduler") && !reclaimed.contains("others"),
            "{reclaimed}"
        );
        let event = Event {
            reason: Some(STAYS_AWAKE.to_owned()),
            message: Some("Share is not suspended when idle: driver 550".to_owned()),
            ..Event::default()
        };
        let awake = explained([false; 3], vec![event]);
        assert!(
            awake.contains("\n  Share is not suspended when idle: driver 550"),
            "{awake}"
        );
    }
}
