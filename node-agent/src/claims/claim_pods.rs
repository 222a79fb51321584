//! The pods of claims: what they must not ask for, and what becomes of them if a claim is refused for long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use apportion_abi::names::DRA_DRIVER;
use apportion_exit::error_chain;
use apportion_ledger::ClaimOwner;
use apportion_proto::v1::{self, holder::Kind};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::watch;
use tonic::Status;
use tracing::{info, warn};

use crate::options::RefusedClaimPolicy;
use crate::telemetry::publish;
use crate::telemetry::view::AgentView;

/// How long the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// For how long a claim must have been refused before its pod is evicted.
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// A claim that was not refused again for so long is forgotten. The kubelet tries again after two minutes at most.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// Reads and evicts the pods of claims.
#[derive(Clone)]
pub(super) struct ClaimPods {
    client: Client,
    recorder: Recorder,
    node: String,
    views: watch::Receiver<Arc<AgentView>>,
    policy: RefusedClaimPolicy,
    refusals: Arc<Mutex<RefusalTimes>>,
}

/// Since when claims have been refused because others have the memory, by UID.
#[derive(Default)]
struct RefusalTimes(BTreeMap<String, RefusalTime>);

struct RefusalTime {
    first: Instant,
    last: Instant,
}

impl RefusalTimes {
    /// Notes a refusal. Returns whether the claim has been refused for long.
    fn refused(&mut self, uid: &str, now: Instant) -> bool {
        self.0
            .retain(|_, time| now.duration_since(time.last) < FORGOTTEN_AFTER);
        let new = RefusalTime {
            first: now,
            last: now,
        };
        let time = self.0.entry(uid.to_owned()).or_insert(new);
        time.last = now;
        now.duration_since(time.first) >= REFUSED_FOR
    }

    fn ended(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

impl ClaimPods {
    pub(super) fn new(
        client: Client,
        node: String,
        views: watch::Receiver<Arc<AgentView>>,
        policy: RefusedClaimPolicy,
    ) -> Self {
        Self {
            recorder: publish::recorder(client.clone(), node.clone()),
            client,
            node,
            views,
            policy,
            refusals: Arc::default(),
        }
    }

    /// Refuses a claim whose pod names another claim of this driver in the same container: a container has one account.
    /// `asked` are the claims of the same call.
    pub(super) async fn check(
        &self,
        claim: &ClaimOwner,
        asked: &[ClaimOwner],
    ) -> Result<(), Status> {
        let view = self.views.borrow().clone();
        let asked = asked
            .iter()
            .flat_map(|one| one.pods.keys().map(|pod| (pod.as_str(), &*one.name)));
        let held = view.list.allocations.iter().filter_map(claim_holder);
        let held = held.flat_map(|one| {
            let pods = one.pods.iter();
            pods.map(|pod| (pod.uid.as_str(), &*one.name))
        });
        let others: Vec<(&str, &str)> = asked
            .chain(held)
            .filter(|(_, name)| *name != claim.name)
            .collect();
        for (uid, name) in &claim.pods {
            let of_pod = others.iter().filter(|(pod, _)| pod == uid);
            let names: BTreeSet<&str> = of_pod.map(|(_, name)| without_namespace(name)).collect();
            if names.is_empty() {
                continue;
            }
            let found = self.read(name).await.map_err(Status::unavailable)?;
            let found = found.filter(|pod| pod.uid().as_ref() == Some(uid));
            let both = found.and_then(|pod| shared_container(&pod, &claim.name, &names));
            if let Some((container, other)) = both {
                return Err(Status::failed_precondition(format!(
                    "container {container} of pod {name} names ResourceClaims {} and {other}, and a container can have \
                     one claim of {DRA_DRIVER}: write one claim with two requests",
                    without_namespace(&claim.name)
                )));
            }
        }
        Ok(())
    }

    /// A claim was prepared, or its pods have ended.
    pub(super) fn ended(&self, uid: &str) {
        if let Ok(mut refusals) = self.refusals.lock() {
            refusals.ended(uid);
        }
    }

    /// A claim was refused because others have the memory. The kubelet will ask again, and no scheduler moves a bound
    /// pod. So if this lasts, a pod that its controller replaces is evicted, and the new one is placed by what is free
    /// then.
    pub(super) async fn refused(&self, claim: &ClaimOwner, reason: &str) {
        let is_long = match self.refusals.lock() {
            Ok(mut refusals) => refusals.refused(&claim.uid, Instant::now()),
            Err(_) => false,
        };
        if !is_long || self.policy == RefusedClaimPolicy::Wait {
            return;
        }
        for (uid, name) in &claim.pods {
            let found = self.read(name).await.unwrap_or_else(|problem| {
                warn!(
                    pod = name,
                    problem, "Failed to read the pod of a refused ResourceClaim"
                );
                None
            });
            let found = found.filter(|pod| {
                pod.uid().as_ref() == Some(uid) && waits_on(pod, &self.node) && is_replaced(pod)
            });
            if let Some(pod) = found {
                self.evict(&pod, reason).await;
            }
        }
    }

    async fn evict(&self, pod: &Pod, reason: &str) {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let uid = pod.uid().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        match tokio::time::timeout(PATIENCE, publish::evict(&pods, &name, uid)).await {
            Ok(Ok(())) => {
                info!(
                    namespace,
                    pod = name,
                    reason,
                    "Evicted a pod whose ResourceClaim is refused"
                );
                let event = Event {
                    type_: EventType::Warning,
                    reason: "GpuClaimRefused".to_owned(),
                    note: Some(format!(
                        "Evicted from node {}, so that the pod in its place is scheduled anew: {reason}",
                        self.node
                    )),
                    action: "Evict".to_owned(),
                    secondary: None,
                };
                let _ = self.recorder.publish(&event, &pod.object_ref(&())).await;
            }
            Ok(Err(error)) => {
                let problem = error_chain(&error);
                warn!(namespace, pod = name, problem, "Failed to evict pod");
            }
            Err(_) => warn!(namespace, pod = name, "Pod eviction timed out"),
        }
    }

    async fn read(&self, pod: &str) -> Result<Option<Pod>, String> {
        let Some((namespace, name)) = pod.split_once('/') else {
            return Ok(None);
        };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        match tokio::time::timeout(PATIENCE, pods.get_opt(name)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(format!("failed to read pod {pod}: {}", error_chain(&error))),
            Err(_) => Err(format!(
                "failed to read pod {pod}: the API server does not answer"
            )),
        }
    }
}

/// The claim that holds an allocation, if one does.
pub(super) fn claim_holder(allocation: &v1::Allocation) -> Option<&v1::ClaimHolder> {
    match allocation.holder.as_ref()?.kind.as_ref()? {
        Kind::Claim(claim) => Some(claim),
        Kind::PodUid(_) | Kind::Pid(_) => None,
    }
}

fn without_namespace(claim: &str) -> &str {
    claim.split_once('/').map_or(claim, |(_, name)| name)
}

/// Whether the pod is bound to the node and has not started.
fn waits_on(pod: &Pod, node: &str) -> bool {
    let spec = pod.spec.as_ref();
    let bound = spec.and_then(|spec| spec.node_name.as_deref());
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    bound == Some(node) && phase == Some("Pending") && pod.metadata.deletion_timestamp.is_none()
}

/// Whether a controller makes another pod if this one is deleted.
fn is_replaced(pod: &Pod) -> bool {
    let mut owners = pod.owner_references().iter();
    owners.any(|owner| owner.controller == Some(true))
}

/// A container of the pod that names a claim and one of the others, and that other claim.
fn shared_container(pod: &Pod, claim: &str, others: &BTreeSet<&str>) -> Option<(String, String)> {
    let spec = pod.spec.as_ref()?;
    let status = pod.status.as_ref();
    let made = status
        .and_then(|status| status.resource_claim_statuses.as_deref())
        .unwrap_or_default();
    let extended = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    let claim = without_namespace(claim);
    let containers = spec.init_containers.iter().flatten();
    containers.chain(&spec.containers).find_map(|container| {
        let resources = container.resources.as_ref();
        let entries = resources
            .and_then(|resources| resources.claims.as_deref())
            .unwrap_or_default()
            .iter();
        let by_request = extended.filter(|extended| {
            let mut mappings = extended.request_mappings.iter();
            mappings.any(|mapping| mapping.container_name == container.name)
        });
        let by_request = by_request.map(|extended| extended.resource_claim_name.as_str());
        let named: BTreeSet<&str> = entries
            .filter_map(|entry| {
                let mut listed = spec.resource_claims.iter().flatten();
                let listed = listed.find(|one| one.name == entry.name)?;
                listed.resource_claim_name.as_deref().or_else(|| {
                    let status = made.iter().find(|one| one.name == entry.name)?;
                    status.resource_claim_name.as_deref()
                })
            })
            .chain(by_request)
            .collect();
        let other = named.intersection(others).next()?;
        named
            .contains(claim)
            .then(|| (container.name.clone(), (*other).to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: &Value, status: &Value) -> Pod {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "train", "namespace": "team", "uid": "p-1"},
            "spec": spec, "status": status});
        serde_json::from_value(pod).unwrap()
    }

    fn found(pod: &Pod, claim: &str, other: &str) -> Option<(String, String)> {
        shared_container(pod, claim, &BTreeSet::from([other]))
    }

    #[test]
    fn a_container_with_two_claims_is_found_however_they_are_named() {
        let claims = json!([{"name": "one", "resourceClaimName": "first"},
            {"name": "two", "resourceClaimTemplateName": "any"}]);
        let container = |name: &str, claims: &[&str]| {
            let claims: Vec<Value> = claims.iter().map(|name| json!({"name": name})).collect();
            json!({"name": name, "resources": {"claims": claims}})
        };
        let status =
            json!({"resourceClaimStatuses": [{"name": "two", "resourceClaimName": "train-two-x"}]});
        let both = pod(
            &json!({"resourceClaims": claims, "containers": [container("main", &["one", "two"])]}),
            &status,
        );
        let main = |other: &str| Some(("main".to_owned(), other.to_owned()));
        assert_eq!(
            found(&both, "team/first", "train-two-x"),
            main("train-two-x")
        );
        assert_eq!(found(&both, "team/train-two-x", "first"), main("first"));
        assert_eq!(found(&both, "team/first", "else"), None);
        let apart = pod(
            &json!({"resourceClaims": claims,
                "initContainers": [container("setup", &["two"])],
                "containers": [container("main", &["one"]), container("side", &["two"])]}),
            &status,
        );
        assert_eq!(found(&apart, "team/first", "train-two-x"), None);
        let first = pod(
            &json!({"resourceClaims": claims,
                "initContainers": [container("setup", &["two", "one"])], "containers": [{"name": "main"}]}),
            &status,
        );
        let setup = Some(("setup".to_owned(), "train-two-x".to_owned()));
        assert_eq!(found(&first, "team/first", "train-two-x"), setup);
        let extended = pod(
            &json!({"resourceClaims": claims, "containers": [container("main", &["one"])]}),
            &json!({"extendedResourceClaimStatus": {"resourceClaimName": "train-extended", "requestMappings": [
                {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r"}]}}),
        );
        let other = main("train-extended");
        assert_eq!(found(&extended, "team/first", "train-extended"), other);
    }

    #[test]
    fn only_a_pod_that_waits_here_and_is_replaced_may_be_evicted() {
        let waiting = |node: &str, phase: &str| {
            let spec = json!({"nodeName": node, "containers": []});
            pod(&spec, &json!({"phase": phase}))
        };
        assert!(waits_on(&waiting("n1", "Pending"), "n1"));
        assert!(!waits_on(&waiting("n2", "Pending"), "n1"));
        assert!(!waits_on(&waiting("n1", "Running"), "n1"), "it has started");
        let mut of_job = waiting("n1", "Pending");
        assert!(!is_replaced(&of_job), "it would be lost");
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": true});
        of_job.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
        assert!(is_replaced(&of_job));
    }

    #[test]
    fn a_claim_counts_as_refused_for_long_only_without_a_success_between() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut times = RefusalTimes::default();
        assert!(!times.refused("c", start) && !times.refused("c", after(29)));
        assert!(times.refused("c", after(30)) && !times.refused("d", after(30)));
        times.ended("c");
        assert!(!times.refused("c", after(31)));
        assert!(!times.refused("d", after(700)), "that was another time");
    }
}
