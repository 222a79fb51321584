//! The NRI plugin: the container runtime asks it before it creates a container.
//!
//! A runtime waits two seconds and then drops the plugin for good. So the plugin has its own thread, decides by the
//! latest grants that the loop has published, and reports to the loop afterwards. The loop keeps the containers that
//! it reports, to map container ids to names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::{io, thread};

use apportion_abi::names::{ENV_DRIVER_LIMIT, ENV_DRIVER_REQUEST, ENV_GRANT};
use apportion_abi::workload::ContainerRef;
use apportion_ledger::{Allocation, AllocationId, AllocationOwner, AllocationPhase, Ledger};
use apportion_nri::{
    ContainerVerdict, GrantHolder, Grants, NriClientConfig, NriContainer, NriEvent, NriReceivers,
    StartingContainer, VerdictMode, VerdictRules, judge,
};
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

/// The plugin's name, and its position among the NRI plugins.
const NAME: &str = "apportion";
const INDEX: &str = "10";
/// How many events may wait for the loop.
const QUEUED_EVENTS: usize = 1024;

/// The loop's side of the plugin.
#[derive(Debug)]
pub(crate) struct NriPlugin {
    rules: VerdictRules,
    grants: watch::Sender<Arc<Grants>>,
    events: mpsc::Receiver<NriEvent>,
    starting: mpsc::Receiver<StartingContainer>,
    /// By the runtime's container id.
    containers: BTreeMap<String, NriContainer>,
    pub(crate) counts: NriStats,
}

/// What the runtime says.
#[derive(Debug)]
pub(crate) enum NriReport {
    Event(NriEvent),
    /// A container that waits for its limit.
    Starting(StartingContainer),
}

/// What the driver is to keep of an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainerLimit {
    /// Whether its containers are limited by the driver.
    pub(crate) is_limited: bool,
    /// The limit, if it is one number for all cards.
    pub(crate) mib: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct NriStats {
    pub(crate) is_connected: bool,
    /// By verdict and reason. An admitted container has no reason.
    pub(crate) verdicts: BTreeMap<(&'static str, &'static str), u64>,
}

impl NriPlugin {
    pub(crate) fn start(socket: PathBuf, rules: VerdictRules) -> io::Result<Self> {
        let (grants, known) = watch::channel(Arc::new(Grants::new()));
        let (sender, events) = mpsc::channel(QUEUED_EVENTS);
        let (start, starting) = mpsc::channel(QUEUED_EVENTS);
        let receivers = NriReceivers {
            events: sender,
            starting: start,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let plugin = NriClientConfig {
            socket,
            name: NAME.to_owned(),
            index: INDEX.to_owned(),
            rules: rules.clone(),
        };
        let named = thread::Builder::new().name("nri".to_owned());
        named.spawn(move || runtime.block_on(apportion_nri::run(plugin, known, receivers)))?;
        Ok(Self {
            rules,
            grants,
            events,
            starting,
            containers: BTreeMap::new(),
            counts: NriStats::default(),
        })
    }

    /// Publishes the grants by allocation id, and also by the kubelet's device ids.
    pub(crate) fn show<'a>(
        &self,
        ledger: &Ledger,
        named: impl Iterator<Item = (String, &'a AllocationId)>,
        limit: impl Fn(&Allocation) -> ContainerLimit,
    ) {
        let all = ledger.allocations().into_iter();
        let grants = all.filter_map(|allocation| granted(allocation, &limit(allocation)));
        let mut grants: Grants = grants.collect();
        for (device, id) in named {
            let granted = grants.get(&id.0).map(|granted| GrantHolder {
                env: named_by(granted, &device),
                ..granted.clone()
            });
            grants.extend(granted.map(|granted| (device, granted)));
        }
        self.grants.send_if_modified(|known| {
            let is_other = **known != grants;
            if is_other {
                *known = Arc::new(grants);
            }
            is_other
        });
    }

    /// What the runtime says next; waits for ever without a plugin. Dropping the future loses nothing.
    pub(crate) async fn next(lock: Option<&mut Self>) -> NriReport {
        let report = match lock {
            Some(lock) => tokio::select! {
                biased;
                event = lock.events.recv() => event.map(NriReport::Event),
                starting = lock.starting.recv() => starting.map(NriReport::Starting),
            },
            None => None,
        };
        match report {
            Some(report) => report,
            None => std::future::pending().await,
        }
    }

    /// The container with this id, as it was created.
    pub(crate) fn known(&self, id: &str) -> Option<&NriContainer> {
        self.containers.get(id)
    }

    pub(crate) fn handle_event(&mut self, event: NriEvent) {
        match event {
            NriEvent::Synchronized(running) => self.find(running),
            NriEvent::Judged(asked, verdict) => {
                log_verdict(&asked, &verdict);
                self.count(&verdict);
                if !matches!(verdict, ContainerVerdict::Refuse(_)) {
                    self.containers.insert(asked.id.clone(), asked);
                }
            }
            NriEvent::Removed(asked) => drop(self.containers.remove(&asked.id)),
            NriEvent::Disconnected => self.counts.is_connected = false,
        }
    }

    /// The name of a pod's container with this id.
    pub(crate) fn container(&self, pod: &str, id: &str) -> Option<&str> {
        let known = self.containers.get(id)?;
        (known.pod == pod).then_some(known.name.as_str())
    }

    /// Replaces the known containers by those that run now. One that should not run was created while the plugin was
    /// not connected, and is only reported.
    fn find(&mut self, running: Vec<NriContainer>) {
        self.counts.is_connected = true;
        let grants = self.grants.borrow().clone();
        let rules = VerdictRules {
            mode: VerdictMode::Audit,
            ..self.rules.clone()
        };
        let before: BTreeSet<String> = self.containers.keys().cloned().collect();
        for asked in running.iter().filter(|asked| !before.contains(&asked.id)) {
            let verdict = judge(asked, &grants, &rules);
            log_verdict(asked, &verdict);
            if !matches!(verdict, ContainerVerdict::Admit(_)) {
                self.count(&verdict);
            }
        }
        info!(
            containers = running.len(),
            "Running containers listed by the container runtime"
        );
        self.containers = running
            .into_iter()
            .map(|asked| (asked.id.clone(), asked))
            .collect();
    }

    fn count(&mut self, verdict: &ContainerVerdict) {
        let message = match verdict {
            ContainerVerdict::Admit(_) => ("admit", ""),
            ContainerVerdict::Audit(reason) => ("audit", reason.word()),
            ContainerVerdict::Refuse(reason) => ("refuse", reason.word()),
        };
        *self.counts.verdicts.entry(message).or_default() += 1;
    }
}

/// A pod's allocation, as the plugin needs it.
fn granted(allocation: &Allocation, limit: &ContainerLimit) -> Option<(String, GrantHolder)> {
    let (pod, claimed_in) = match &allocation.state {
        AllocationPhase::Allocated(AllocationOwner::Pod(pod)) => (pod.clone(), None),
        // A claim is for the pods of its namespace that name it. The kubelet lets no others have its devices.
        AllocationPhase::Allocated(AllocationOwner::Claim(claim)) => {
            (String::new(), Some(claim.namespace().to_owned()))
        }
        _ => return None,
    };
    let container = ContainerRef::of(&allocation.name).map(|workload| workload.container);
    let container = container.filter(|name| !name.is_empty());
    let mut env = vec![(ENV_GRANT.to_owned(), allocation.id.0.clone())];
    if let Some(mib) = limit.mib {
        env.push((ENV_DRIVER_REQUEST.to_owned(), "0".to_owned()));
        env.push((ENV_DRIVER_LIMIT.to_owned(), mib.to_string()));
    }
    let granted = GrantHolder {
        pod,
        container: container
            .filter(|_| claimed_in.is_none())
            .map(str::to_owned),
        claimed_in,
        account: allocation.id.0.clone(),
        env,
        is_limited: limit.is_limited,
    };
    Some((allocation.id.0.clone(), granted))
}

/// The variables of a grant that the container names by one of its devices.
fn named_by(granted: &GrantHolder, device: &str) -> Vec<(String, String)> {
    let mut env = granted.env.clone();
    for (name, value) in &mut env {
        if name == ENV_GRANT {
            device.clone_into(value);
        }
    }
    env
}

fn log_verdict(asked: &NriContainer, verdict: &ContainerVerdict) {
    let (namespace, pod, container) = (&asked.namespace, &asked.pod_name, &asked.name);
    match verdict {
        ContainerVerdict::Admit(_) => {}
        ContainerVerdict::Audit(reason) => {
            warn!(%namespace, %pod, %container, %reason, "Container would be refused, policy is audit");
        }
        ContainerVerdict::Refuse(reason) => {
            warn!(%namespace, %pod, %container, %reason, "Container refused");
        }
    }
}
