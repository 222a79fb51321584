//! The cluster: nodes with their stand-in agents, and pods that come and go.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apportion_tests::control_plane::ControlPlane;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::agents::StandInAgent;
use crate::bind_times::{self, BindTimes};
use crate::kubelet;
use crate::objects::{self, BenchPodRequest, NAMESPACE};
use crate::publish::NodePublisher;

/// The maximum number of concurrent requests.
const AT_ONCE: usize = 32;
/// The timeout of every step.
const PATIENCE: Duration = Duration::from_secs(600);
/// The files of the CRDs that a cluster with Apportion has.
const KINDS: [&str; 3] = [
    "deploy/chart/apportion/crds/queues.scheduling.run.ai.yaml",
    "deploy/chart/apportion/crds/podgroups.scheduling.run.ai.yaml",
    "deploy/chart/apportion/crds/gpunodes.apportion.dev.yaml",
];

pub(crate) struct BenchCluster {
    pods: Api<Pod>,
    bound: watch::Receiver<BindTimes>,
    ended: watch::Receiver<usize>,
    agents: Vec<StandInAgent>,
}

impl BenchCluster {
    /// Creates a cluster with this many nodes.
    pub(crate) async fn make(plane: &ControlPlane, nodes: usize, cards: usize) -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for kind in KINDS {
            let text = std::fs::read_to_string(root.join(kind)).with_context(|| kind.to_owned())?;
            plane.apply(&[serde_norway::from_str(&text)?]);
        }
        let _ = plane.kubectl(&[
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            "crd",
            "--all",
        ]);
        let half = nodes * cards / 2;
        plane.apply(&[
            objects::queue("default-queue", half),
            objects::queue(objects::LENDER, half),
        ]);
        let read = Kubeconfig::read_from(plane.kubeconfig())?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        let (mut agents, mut made) = (Vec::new(), JoinSet::new());
        let free = Arc::new(Semaphore::new(AT_ONCE));
        for number in 0..nodes {
            let (agent, socket) = StandInAgent::serve(plane.dir(), number, cards)?;
            let name = format!("node-{number:04}");
            let address = format!("unix:{}", socket.display());
            let node: Node = serde_json::from_value(objects::node(&name, &address))?;
            let (client, free, ledger) = (client.clone(), free.clone(), agent.ledger());
            // Spreads the heartbeats over time.
            let part = number as f64 / nodes as f64;
            made.spawn(async move {
                let _permit = free.acquire().await;
                let nodes: Api<Node> = Api::all(client.clone());
                nodes.create(&PostParams::default(), &node).await?;
                let publisher = NodePublisher::new(client, name);
                let now = ledger.borrow().clone();
                publisher.begin(&now).await?;
                tokio::spawn(publisher.keep(ledger, part));
                Ok::<(), kube::Error>(())
            });
            agents.push(agent);
        }
        while let Some(one) = made.join_next().await {
            one??;
        }
        Ok(Self {
            pods: Api::namespaced(client.clone(), NAMESPACE),
            bound: bind_times::follow(client.clone()),
            ended: kubelet::follow(client),
            agents,
        })
    }

    /// Creates a pod and waits until it is bound. Returns how long that took.
    pub(crate) async fn time_of_one(&self, name: &str, ask: BenchPodRequest) -> Result<Duration> {
        let began = create(&self.pods, name, ask).await?;
        let mut bound = self.bound.clone();
        let bound_time = bound.wait_for(|bound| bound.contains_key(name));
        let bound_time = timeout(PATIENCE, bound_time)
            .await
            .with_context(|| format!("{name} is not bound"))??;
        Ok(bound_time[name] - began)
    }

    /// How many pods have been evicted so far.
    pub(crate) fn evicted(&self) -> usize {
        *self.ended.borrow()
    }

    /// Creates pods that cause evictions, and waits until they are bound.
    pub(crate) async fn reclaim(&self, count: usize) -> Result<Duration> {
        let began = Instant::now();
        for number in 0..count {
            create(
                &self.pods,
                &format!("reclaim-{number}"),
                BenchPodRequest::Reclaim,
            )
            .await?;
        }
        let mut bound = self.bound.clone();
        let all = bound.wait_for(|bound| {
            bound
                .keys()
                .filter(|name| name.starts_with("reclaim-"))
                .count()
                == count
        });
        timeout(PATIENCE, all)
            .await
            .context("the reclaim is not done")??;
        Ok(began.elapsed())
    }

    /// Creates all pods as fast as the API server takes them, and waits until they are bound. Returns the time of each
    /// pod, and the time from the first creation to the last binding.
    pub(crate) async fn times_of(
        &self,
        pods: Vec<(String, BenchPodRequest)>,
    ) -> Result<(Vec<Duration>, Duration)> {
        let free = Arc::new(Semaphore::new(AT_ONCE));
        let (first, count, mut made) = (Instant::now(), pods.len(), JoinSet::new());
        for (name, ask) in pods {
            let (api, free) = (self.pods.clone(), free.clone());
            made.spawn(async move {
                let _permit = free.acquire().await;
                let began = create(&api, &name, ask).await?;
                Ok::<_, anyhow::Error>((name, began))
            });
        }
        let mut began = Vec::new();
        while let Some(one) = made.join_next().await {
            began.push(one??);
        }
        println!("  created in {:.1} s", first.elapsed().as_secs_f64());
        let mut bound = self.bound.clone();
        let all = bound.wait_for(|bound| bound.len() >= count);
        let Ok(all) = timeout(PATIENCE, all).await else {
            bail!("{} of {count} are bound", self.bound.borrow().len());
        };
        let all = all?;
        let last = all.values().max().copied().unwrap_or(first);
        let times = began
            .iter()
            .filter_map(|(name, began)| Some(*all.get(name)? - *began));
        Ok((times.collect(), last - first))
    }

    pub(crate) async fn end_one(&self, name: &str) -> Result<()> {
        let at_once = DeleteParams::default().grace_period(0);
        self.pods.delete(name, &at_once).await?;
        Ok(())
    }

    /// Deletes a pod and waits until no agent has an allocation.
    pub(crate) async fn end(&self, name: &str) -> Result<()> {
        let at_once = DeleteParams::default().grace_period(0);
        self.pods.delete(name, &at_once).await?;
        for agent in &self.agents {
            let mut ledger = agent.ledger();
            let idle = ledger.wait_for(|ledger| ledger.allocations.is_empty());
            timeout(PATIENCE, idle)
                .await
                .context("nothing is given back")??;
        }
        Ok(())
    }
}

async fn create(pods: &Api<Pod>, name: &str, ask: BenchPodRequest) -> Result<Instant> {
    let pod: Pod = serde_json::from_value(objects::pod(name, ask))?;
    let began = Instant::now();
    pods.create(&PostParams::default(), &pod).await?;
    Ok(began)
}
