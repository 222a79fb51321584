//! A share, by annotation or by claim, and the pods that have it.

use std::path::Path;

use apportion_cluster::managed::{ManagedNode, by_claim, template};
use serde_json::{Value, json};

use super::program::{self, PodProgram};
use crate::dice::SuiteRng;

/// The label of everything that a storm creates.
pub(super) const SELECTOR: &str = "app=storm";
/// The sizes of shares, in MiB.
pub(super) const SIZES: [u64; 4] = [1000, 1500, 3000, 6000];
/// The queue of shares by annotation.
const QUEUE: &str = "test";
/// At most so much of a share is taken by the context of one program, in MiB.
const CONTEXT: u64 = 400;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u64 = 2;

/// How a share is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShareDoor {
    Annotation,
    /// A ResourceClaimTemplate, on a given GPU or on any.
    Template(Option<usize>),
    /// A ResourceClaim of two pods.
    SharedClaim,
}

/// A pod of a share.
pub(super) struct StormPod {
    pub(super) name: String,
    pub(super) is_running: bool,
    program: PodProgram,
}

pub(super) struct StormShare {
    pub(super) door: ShareDoor,
    pub(super) mib: u64,
    pub(super) pods: Vec<StormPod>,
}

impl StormShare {
    pub(super) fn new(folder: &Path, name: &str, door: ShareDoor, mib: u64) -> Self {
        let count = if door == ShareDoor::SharedClaim { 2 } else { 1 };
        let pods = (0..count).map(|number| {
            let name = format!("{name}-{number}");
            StormPod {
                program: PodProgram::new(folder, &name),
                is_running: false,
                name,
            }
        });
        Self {
            door,
            mib,
            pods: pods.collect(),
        }
    }

    /// The ResourceClaim of its own, if it has one. Those by template are made by Kubernetes.
    pub(super) fn claim(&self, name: &str) -> Option<Value> {
        let memory = format!("{}Mi", self.mib);
        (self.door == ShareDoor::SharedClaim).then(|| {
            json!({
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "labels": {"app": "storm"}},
                "spec": template(name, Some(&memory), None)["spec"]["spec"],
            })
        })
    }

    /// Its pods as objects.
    pub(super) fn manifests(&self, name: &str) -> Vec<Value> {
        let pods = self.pods.iter();
        pods.map(|pod| self.manifest(name, &pod.name)).collect()
    }

    fn manifest(&self, share: &str, pod: &str) -> Value {
        let mut container = ManagedNode::container("main", &program::command(pod));
        container["volumeMounts"] = json!([{"name": "storm", "mountPath": program::IN_CONTAINER}]);
        let mut manifest = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod, "labels": {"app": "storm"}},
            "spec": {
                "hostNetwork": true,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "enableServiceLinks": false,
                "automountServiceAccountToken": false,
                "containers": [container],
                "volumes": [{"name": "storm", "hostPath": {"path": program::ON_NODE}}],
            },
        });
        match self.door {
            ShareDoor::Annotation => {
                manifest["metadata"]["annotations"] = json!({"gpu-memory": self.mib.to_string()});
                by_annotation(&mut manifest);
            }
            ShareDoor::Template(card) => by_claim(&mut manifest, &template_name(self.mib, card)),
            ShareDoor::SharedClaim => {
                by_claim(&mut manifest, "");
                manifest["spec"]["resourceClaims"] =
                    json!([{"name": "gpu", "resourceClaimName": share}]);
            }
        }
        manifest
    }

    pub(super) fn is_running(&self) -> bool {
        self.pods.iter().all(|pod| pod.is_running)
    }

    /// Lets one of its programs do something with its memory, and checks that the share is what the program has: never
    /// a byte more, and always all of it.
    pub(super) fn step(&mut self, rng: &mut SuiteRng) {
        let held: u64 = self.pods.iter().map(|pod| pod.program.held()).sum();
        let contexts = CONTEXT * self.pods.len() as u64;
        let mut running: Vec<&mut StormPod> =
            self.pods.iter_mut().filter(|pod| pod.is_running).collect();
        let Some(chosen) = rng.roll(usize::MAX).checked_rem(running.len()) else {
            return;
        };
        let pod = &mut running[chosen];
        match rng.roll(8) {
            0 => assert_eq!(
                pod.program.total(),
                self.mib,
                "{} sees another size",
                pod.name
            ),
            1..=3 => pod.program.free(rng.roll(usize::MAX)),
            _ => {
                let most = usize::try_from(self.mib / 4).expect("it is small");
                let mib = 2 * (1 + rng.roll(most) as u64);
                let code = pod.program.allocate(mib);
                let sum = held + mib;
                let what = format!(
                    "{} allocates {mib} MiB beside {held} of {}, {:?}",
                    pod.name, self.mib, self.door
                );
                if sum > self.mib {
                    assert_eq!(code, OUT_OF_MEMORY, "{what}");
                } else if sum + contexts <= self.mib {
                    assert_eq!(code, 0, "{what}");
                }
            }
        }
    }
}

/// Lets Apportion's scheduler place a pod.
pub(super) fn by_annotation(pod: &mut Value) {
    let labels = &mut pod["metadata"]["labels"];
    labels["kai.scheduler/queue"] = json!(QUEUE);
    // The scheduler would consolidate preemptible pods, and nobody makes a bare pod again.
    labels["kai.scheduler/preemptibility"] = json!("non-preemptible");
    pod["spec"]["schedulerName"] = json!("apportion-scheduler");
}

/// The name of a ResourceClaimTemplate.
fn template_name(mib: u64, card: Option<usize>) -> String {
    let card = card.map_or("any".to_owned(), |card| card.to_string());
    format!("storm-{mib}-{card}")
}

/// The ResourceClaimTemplates of all sizes.
pub(super) fn templates(cards: &[String]) -> Vec<Value> {
    let choices = (0..cards.len()).map(Some).chain([None]);
    let choices: Vec<Option<usize>> = choices.collect();
    let all = SIZES
        .into_iter()
        .flat_map(|mib| choices.iter().map(move |card| (mib, *card)));
    all.map(|(mib, card)| {
        let uuid = card.map(|card| cards[card].as_str());
        let memory = format!("{mib}Mi");
        let mut template = template(&template_name(mib, card), Some(&memory), uuid);
        template["metadata"]["labels"] = json!({"app": "storm"});
        template
    })
    .collect()
}
