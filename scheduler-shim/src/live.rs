//! `run`: the scheduler of a running cluster.
//!
//! The [`model`] decides and does no I/O. This module carries: watches and the agents' answers go in, effects come
//! out. Only the leader acts, and only while it certainly holds the lease. If another scheduler takes the lease, this
//! process exits. A restart loses nothing: all state is in the API server and in the agents' ledgers. A standby
//! follows the cluster, so that it can decide as soon as it leads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apportion_exit::CommandFailure;
use apportion_groups::ObjectView;
use kube::Client;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{debug, info};

use crate::options::{self, SchedulerRunOptions};

mod agent_client;
mod agent_workers;
mod agents;
mod api;
mod back_off;
mod burst_refusals;
mod card_assignment;
mod certificate_authority;
mod claims;
mod decide;
mod devices;
mod event;
#[cfg(test)]
mod fake_cluster;
pub(crate) mod grouper;
mod heartbeats;
mod leader_election;
mod metrics;
mod model;
mod nominations;
mod pending_binds;
mod pod_events;
mod programs;
mod pruned_object;
mod query_client;
mod query_server;
mod reconcile;
mod resizes;
mod settings;
mod standby;
mod statuses;
mod suspensions;
mod usage_recorder;
mod view;
mod volumes;
mod watch;

use agent_client::AgentConnector;
use agent_workers::AgentWorkers;
use event::{AgentRequest, SchedulerEffect, SchedulerEvent};
use metrics::SchedulerMetrics;
use model::ClusterModel;
use query_server::SchedulerQuery;
use standby::StandbyScheduler;
use view::now;

/// How long events are batched before a round. The events of one burst arrive together.
const GATHERED: Duration = Duration::from_millis(5);
/// Pause after a round, as a multiple of the time it took, up to `LONGEST_PAUSE`. Others need the processors too. The
/// pause is never shorter than the round was.
const PAUSE_FACTOR: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_millis(150);
/// The longest time between rounds. Minimum run times and grace periods end by time alone, without an event.
const ROUND: Duration = Duration::from_secs(5);
/// How soon after a round the reasons of waiting pods are reported.
const REPORT_AFTER: Duration = Duration::from_secs(1);
/// Pause after that report, as a multiple of the time it took.
const REPORT_PAUSE_FACTOR: u32 = 20;
/// How long the first round waits for the lists of the optional kinds.
const FIRST_KINDS: Duration = Duration::from_secs(10);
/// How long the first round waits for the agents' first status.
const FIRST_WORDS: Duration = Duration::from_secs(1);
/// How long evictions wait for it. While half of the cards are unknown, queues seem to be above their fair share.
const ALL_WORDS: Duration = Duration::from_secs(10);
/// How often a paused scheduler checks whether it holds the lease again.
const PAUSED: Duration = Duration::from_millis(100);

/// Runs until the lease is lost or a signal asks the process to stop.
pub(crate) fn run(asked: &SchedulerRunOptions) -> Result<(), CommandFailure> {
    asked.log.around(|| start(asked))
}

fn start(asked: &SchedulerRunOptions) -> Result<(), CommandFailure> {
    apportion_heap::share_one_heap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| CommandFailure::new(format!("failed to start: {error}")))?;
    runtime.block_on(serve_until_stopped(asked))
}

/// Asks the running scheduler about a pod.
pub(crate) fn explain(asked: &options::SchedulerExplainOptions) -> Result<(), CommandFailure> {
    print!("{}", query_client::explain(asked)?);
    Ok(())
}

async fn serve_until_stopped(asked: &SchedulerRunOptions) -> Result<(), CommandFailure> {
    let client = api::client(asked.kubeconfig.as_deref()).await?;
    let (questions, asked_of_us) = mpsc::channel(16);
    let bounds = query_server::bounds();
    let address = query_server::open(asked.address, bounds.clone(), questions).await?;
    info!(%address, "Scheduler listening");
    let stop = stopped()?;
    tokio::pin!(stop);
    // The lease has its own connection, so that no other request delays it.
    let lease =
        leader_election::LeaderElector::new(api::client(asked.kubeconfig.as_deref()).await?, asked);
    let mut standby = StandbyScheduler::start(client.clone(), asked);
    let held = tokio::select! {
        held = lease.acquire() => held,
        () = standby.follow() => return Err(CommandFailure::new("nobody watches the cluster")),
        () = &mut stop => return Ok(()),
    };
    let term = held.term();
    info!(identity = lease.identity(), term, "Scheduler became leader");
    let leading = api::LeadershipGuard::new(held.until());
    let connector = AgentConnector::new(
        certificate_authority::start(client.clone(), ca_settings(&client, asked)),
        term,
    );
    let metrics = SchedulerMetrics::new(bounds);
    let work = standby.lead(asked, asked_of_us, metrics, connector, leading);
    let work = tokio::spawn(work.go());
    tokio::select! {
        lost = lease.keep(held) => Err(lost),
        ended = work => Err(CommandFailure::new(format!("the scheduling loop ended: {ended:?}"))),
        () = &mut stop => {
            lease.release().await;
            info!("Scheduler stopped, pods keep running");
            Ok(())
        }
    }
}

/// The CA settings, with defaults for options that were not given.
fn ca_settings(client: &Client, asked: &SchedulerRunOptions) -> certificate_authority::CaSettings {
    let namespace = asked.authority_namespace.clone();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let agents = asked.agent_user.clone();
    let agents =
        agents.unwrap_or_else(|| format!("system:serviceaccount:{namespace}:apportion-agent"));
    certificate_authority::CaSettings {
        namespace,
        agents,
        life: Duration::from_secs(asked.certificate_life),
    }
}

fn stopped() -> Result<impl Future<Output = ()>, CommandFailure> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| {
        signal(kind)
            .map_err(|error| CommandFailure::new(format!("failed to listen for signals: {error}")))
    };
    let (mut interrupt, mut terminate) = (
        listen(SignalKind::interrupt())?,
        listen(SignalKind::terminate())?,
    );
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// How long to pause after a round that took this long.
fn pause(took: Duration) -> Duration {
    (took * PAUSE_FACTOR)
        .min(LONGEST_PAUSE)
        .max(took)
        .max(GATHERED)
}

/// The scheduling loop and its state.
struct Work {
    model: ClusterModel,
    events: UnboundedReceiver<SchedulerEvent>,
    questions: mpsc::Receiver<SchedulerQuery>,
    api: Arc<api::ApiWriter>,
    nodes: AgentWorkers,
    /// Kinds whose first list has arrived.
    listed: BTreeSet<String>,
    /// The optional kinds that this cluster has, once discovery has run.
    others: oneshot::Receiver<BTreeSet<String>>,
    metrics: SchedulerMetrics,
    /// When each pending bind was decided, by pod UID.
    decided: BTreeMap<String, Instant>,
    leading: api::LeadershipGuard,
    /// No evictions before this time while an agent has not reported yet.
    eviction_hold_until: Instant,
    /// Whether there were effects since free memory was last given back.
    was_busy: bool,
}

impl Work {
    async fn go(mut self) {
        let always = watch::ALWAYS.iter();
        let always = always.map(|kind| kind.kind.to_owned()).collect();
        while !self.listed.is_superset(&always) {
            match self.events.recv().await {
                Some(event) => self.take(event),
                None => return,
            }
        }
        self.wait_for_optional_kinds().await;
        self.wait_for_agents().await;
        info!("Cluster state loaded");
        let (mut next_round, mut next_report) = (Instant::now(), Instant::now());
        // No round before `earliest_round` and no report before `earliest_report`, whatever events come.
        let (mut earliest_round, mut earliest_report) = (next_round, next_report);
        loop {
            tokio::select! {
                event = self.events.recv() => {
                    let Some(event) = event else { return };
                    self.take(event);
                    while let Ok(event) = self.events.try_recv() {
                        self.take(event);
                    }
                    next_round = next_round.min((Instant::now() + GATHERED).max(earliest_round));
                }
                question = self.questions.recv() => {
                    if let Some(question) = question {
                        query_server::answer(&self.model, &self.metrics, question);
                    }
                }
                () = sleep_until(next_round) => {
                    if !self.leading.is_so() {
                        next_round = Instant::now() + PAUSED;
                        continue;
                    }
                    let took = self.decide();
                    earliest_round = Instant::now() + pause(took);
                    let wait = self.waits().unwrap_or(ROUND).min(ROUND);
                    next_round = (Instant::now() + wait).max(earliest_round);
                    next_report = next_report.min((Instant::now() + REPORT_AFTER).max(earliest_report));
                }
                () = sleep_until(next_report) => {
                    let took = self.report();
                    earliest_report = Instant::now() + took * REPORT_PAUSE_FACTOR;
                    next_report = Instant::now() + ROUND * 6;
                }
            }
        }
    }

    /// Waits for the lists of the optional kinds that this cluster has. Without its group a pod would start alone.
    /// Without its node's agent it would start without a reservation. Without the usage history all queues would look
    /// new. A kind that can't be listed delays the start only until a deadline.
    async fn wait_for_optional_kinds(&mut self) {
        let deadline = Instant::now() + FIRST_KINDS;
        let Ok(Ok(others)) = timeout_at(deadline, &mut self.others).await else {
            return;
        };
        while !self.listed.is_superset(&others)
            || self
                .model
                .usage
                .as_ref()
                .is_some_and(|usage| !usage.is_read())
        {
            match timeout_at(deadline, self.events.recv()).await {
                Ok(Some(event)) => self.take(event),
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Gives the agents time for their first status. An agent without one counts as away until it reports.
    async fn wait_for_agents(&mut self) {
        let deadline = Instant::now() + FIRST_WORDS;
        self.eviction_hold_until = Instant::now() + ALL_WORDS;
        while self.unheard().next().is_some() {
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                () = sleep_until(deadline) => break,
            }
        }
        let unheard: Vec<String> = self.unheard().cloned().collect();
        for node in unheard {
            self.take(SchedulerEvent::AgentLost(node));
        }
    }

    fn unheard(&self) -> impl Iterator<Item = &String> {
        let all = self.nodes.names();
        all.filter(|node| self.model.agents.of(node).is_none())
    }

    fn take(&mut self, event: SchedulerEvent) {
        if let SchedulerEvent::Listed(kind, _) = &event {
            self.listed.insert(kind.clone());
        }
        self.nodes.take(&event);
        self.count(&event);
        let effects = self.model.apply(now(), event);
        self.perform(effects);
    }

    fn count(&mut self, event: &SchedulerEvent) {
        match event {
            SchedulerEvent::Bound(pod) => {
                if let Some(at) = self.decided.remove(&pod.uid) {
                    self.metrics.bound(at.elapsed());
                }
            }
            SchedulerEvent::Refused(pod, _) => {
                self.decided.remove(&pod.uid);
                self.metrics.refused();
            }
            SchedulerEvent::NotBound(pod, _)
            | SchedulerEvent::CalledIn(pod, _)
            | SchedulerEvent::ClaimsReleased(pod) => {
                self.decided.remove(&pod.uid);
            }
            SchedulerEvent::Evicted(_) => self.metrics.evicted(),
            SchedulerEvent::Gone(json) => {
                self.decided.remove(ObjectView::new(json).uid());
            }
            SchedulerEvent::Applied(_)
            | SchedulerEvent::Listed(..)
            | SchedulerEvent::AgentReported(..)
            | SchedulerEvent::AgentLost(_)
            | SchedulerEvent::AgentGone(_)
            | SchedulerEvent::Accepted(..)
            | SchedulerEvent::ClaimsReserved(..)
            | SchedulerEvent::NotEvicted(..)
            | SchedulerEvent::Resized(_)
            | SchedulerEvent::NotResized(..)
            | SchedulerEvent::Suspended(_)
            | SchedulerEvent::NotSuspended(..)
            | SchedulerEvent::Resumed(_)
            | SchedulerEvent::NotResumed(..)
            | SchedulerEvent::AllocatedWritten(..)
            | SchedulerEvent::Grouped(..)
            | SchedulerEvent::UsageHistoryRead(_)
            | SchedulerEvent::Unreadable(_) => {}
        }
    }

    fn decide(&mut self) -> Duration {
        let began = Instant::now();
        self.model.spares_all =
            began < self.eviction_hold_until && self.model.agents.awaits_first_report();
        let effects = self.model.decide(now());
        let took = began.elapsed();
        self.metrics.round(took);
        if !effects.is_empty() {
            debug!(?took, effects = effects.len(), "Decided");
        }
        self.was_busy |= !effects.is_empty();
        self.perform(effects);
        took
    }

    fn report(&mut self) -> Duration {
        let (began, metrics) = (Instant::now(), &self.metrics);
        let effects = self.model.report_waiting_pods(now(), |decided, waiting| {
            metrics.cluster(decided, waiting);
        });
        let took = began.elapsed();
        debug!(?took, effects = effects.len(), "Told");
        self.perform(effects);
        // Also while pods start: a long burst would leave more and more free pages between used ones.
        if self.was_busy {
            self.was_busy = self.model.pending_binds.all().next().is_some();
            apportion_heap::release_free_pages();
        }
        took
    }

    /// How long until the next back-off ends.
    fn waits(&self) -> Option<Duration> {
        let now = now();
        let next = self.model.back_off.next(now).into_iter();
        let next = next.chain(self.model.eviction_backoff.next(now));
        let next = next.chain(self.model.suspensions.next(now)).min();
        next.map(|at| at.saturating_sub(now))
    }

    fn perform(&mut self, effects: Vec<SchedulerEffect>) {
        for effect in effects {
            debug!(?effect, "Effect");
            if let SchedulerEffect::Bind { pod, .. }
            | SchedulerEffect::AskAgent {
                request: AgentRequest::Allocate { pod, .. },
                ..
            } = &effect
            {
                self.decided
                    .entry(pod.uid.clone())
                    .or_insert_with(Instant::now);
            }
            match effect {
                SchedulerEffect::AskAgent { node, request } => self.nodes.send(&node, request),
                effect => self.api.perform(effect),
            }
        }
    }
}
