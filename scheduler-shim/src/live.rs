//! `run`: the scheduler of a running cluster.
//!
//! The [`model`] decides, purely; what is here only carries: watches and agents' answers in, effects out.
//! Only the holder of the lease does anything. Losing the lease ends the process: who starts again knows
//! all that matters, because it is in the API server and in the agents' books.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apportion_groups::Object;
use kube::Client;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{debug, info};

use crate::failure::Failure;
use crate::options::{self, Run};

mod agents;
mod api;
mod ask;
mod authority;
mod back_off;
mod beats;
mod decide;
mod event;
pub(crate) mod grouper;
mod lead;
mod metrics;
mod model;
mod news;
mod nodes;
mod past;
mod reach;
mod reconcile;
mod seats;
mod serve;
mod settings;
mod slim;
mod starts;
mod statuses;
mod view;
mod volumes;
mod watch;
#[cfg(test)]
mod world;

use event::{Effect, Event};
use metrics::Metrics;
use model::Model;
use nodes::Nodes;
use past::{Keeper, Store};
use reach::Reach;
use serve::Question;
use view::now;

/// How long events are gathered before a round: those of one burst come together.
const GATHERED: Duration = Duration::from_millis(5);
/// After a round so many times as long as it took is left to others, who need the processors too, unless that
/// would be longer than this; never less than as long as it took.
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_millis(150);
/// A round without an event: minimum run times and grace periods end by time alone.
const ROUND: Duration = Duration::from_secs(5);
/// How often it is looked at why pods wait.
const NEWS: Duration = Duration::from_secs(1);
/// How many times as long as that took it is left alone.
const NEWS_REST: u32 = 20;
/// How long all kinds of objects may take to be listed before the first round.
const FIRST_KINDS: Duration = Duration::from_secs(10);
/// How long agents may take to say something before the first round.
const FIRST_WORDS: Duration = Duration::from_secs(3);

/// Runs until the lease is lost or somebody ends it.
pub(crate) fn run(asked: &Run) -> Result<(), Failure> {
    start_log(asked)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| Failure::new(format!("failed to start: {error}")))?;
    runtime.block_on(serve_until_stopped(asked))
}

/// Asks the running scheduler about a pod.
pub(crate) fn explain(asked: &options::Explain) -> Result<(), Failure> {
    print!("{}", ask::explain(asked)?);
    Ok(())
}

fn start_log(asked: &Run) -> Result<(), Failure> {
    let filter = asked.log.parse::<tracing_subscriber::EnvFilter>();
    let filter = filter.map_err(|error| Failure::usage(format!("--log: {error}")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

async fn serve_until_stopped(asked: &Run) -> Result<(), Failure> {
    let client = api::client(asked.kubeconfig.as_deref()).await?;
    let (questions, asked_of_us) = mpsc::channel(16);
    let bounds = serve::bounds();
    let address = serve::open(asked.address, bounds.clone(), questions).await?;
    info!(%address, "Scheduler listening");
    let stop = stopped()?;
    tokio::pin!(stop);
    let lease = lead::Lease::new(client.clone(), asked);
    let term = tokio::select! {
        held = lease.acquire() => held?,
        () = &mut stop => return Ok(()),
    };
    info!(identity = lease.identity(), term, "Scheduler became leader");
    let reach = Reach::new(
        authority::start(client.clone(), terms(&client, asked)),
        term,
    );
    let metrics = Metrics::new(bounds);
    let work = tokio::spawn(Work::start(client, asked, asked_of_us, metrics, reach)?.go());
    tokio::select! {
        lost = lease.keep() => Err(lost),
        ended = work => Err(Failure::new(format!("the scheduling loop ended: {ended:?}"))),
        () = &mut stop => {
            lease.release().await;
            info!("Scheduler stopped, pods keep running");
            Ok(())
        }
    }
}

/// How certificates are made, with what was left to us filled in.
fn terms(client: &Client, asked: &Run) -> authority::Terms {
    let namespace = asked.authority_namespace.clone();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let agents = asked.agent_user.clone();
    let agents =
        agents.unwrap_or_else(|| format!("system:serviceaccount:{namespace}:apportion-agent"));
    authority::Terms {
        namespace,
        agents,
        life: Duration::from_secs(asked.certificate_life),
    }
}

fn stopped() -> Result<impl Future<Output = ()>, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| {
        signal(kind).map_err(|error| Failure::new(format!("failed to listen for signals: {error}")))
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

/// How long nothing is decided after a round that took so long.
fn rest(took: Duration) -> Duration {
    (took * REST).min(LONGEST_REST).max(took).max(GATHERED)
}

/// The loop and what it holds.
struct Work {
    model: Model,
    events: UnboundedReceiver<Event>,
    questions: mpsc::Receiver<Question>,
    api: api::Writer,
    nodes: Nodes,
    /// Kinds of which all objects were listed.
    listed: BTreeSet<String>,
    /// Which kinds the API server has, once it was asked.
    others: oneshot::Receiver<BTreeSet<String>>,
    metrics: Metrics,
    /// When pods on their way were decided on.
    decided: BTreeMap<String, Instant>,
}

impl Work {
    fn start(
        client: Client,
        asked: &Run,
        questions: mpsc::Receiver<Question>,
        metrics: Metrics,
        reach: Reach,
    ) -> Result<Self, Failure> {
        let (sender, events) = mpsc::unbounded_channel();
        let others = watch::start(client.clone(), sender.clone());
        let terms = asked.over_time.terms();
        let store = Store::new(client.clone(), asked);
        if terms.is_some() {
            tokio::spawn(store.clone().recall(sender.clone()));
        }
        Ok(Self {
            model: Model {
                choices: asked.choices.clone(),
                past: terms.map(Keeper::new),
                grouper: grouper::Grouper::new(asked.pod_groups),
                ..Model::new(asked.schedulers.clone())
            },
            events,
            questions,
            api: api::Writer::new(client, &asked.schedulers, store, sender.clone()),
            nodes: Nodes::new(sender, reach),
            listed: BTreeSet::new(),
            others,
            metrics,
            decided: BTreeMap::new(),
        })
    }

    async fn go(mut self) {
        let always = watch::ALWAYS.iter();
        let always = always.map(|kind| kind.kind.to_owned()).collect();
        while !self.listed.is_superset(&always) {
            match self.events.recv().await {
                Some(event) => self.take(event),
                None => return,
            }
        }
        self.hear_others().await;
        self.hear_agents().await;
        info!("Cluster state loaded");
        let (mut round, mut news) = (Instant::now(), Instant::now());
        // Before these nothing of theirs is done, whatever happens.
        let (mut rested, mut heard) = (round, news);
        loop {
            tokio::select! {
                event = self.events.recv() => {
                    let Some(event) = event else { return };
                    self.take(event);
                    while let Ok(event) = self.events.try_recv() {
                        self.take(event);
                    }
                    round = round.min((Instant::now() + GATHERED).max(rested));
                }
                question = self.questions.recv() => {
                    if let Some(question) = question {
                        serve::answer(&self.model, &self.metrics, question);
                    }
                }
                () = sleep_until(round) => {
                    let took = self.decide();
                    rested = Instant::now() + rest(took);
                    let wait = self.waits().unwrap_or(ROUND).min(ROUND);
                    round = (Instant::now() + wait).max(rested);
                    news = news.min((Instant::now() + NEWS).max(heard));
                }
                () = sleep_until(news) => {
                    let took = self.tell();
                    heard = Instant::now() + took * NEWS_REST;
                    news = Instant::now() + ROUND * 6;
                }
            }
        }
    }

    /// Waits until the kinds that this cluster has were listed, too: before its group is known a pod would
    /// start alone, before its node's agent is known without asking it, and before it is known what queues used as if
    /// they were new. A kind that can't be listed
    /// keeps nobody waiting for long.
    async fn hear_others(&mut self) {
        let deadline = Instant::now() + FIRST_KINDS;
        let Ok(Ok(others)) = timeout_at(deadline, &mut self.others).await else {
            return;
        };
        let is_open = |past: &Keeper| !past.is_read();
        while !self.listed.is_superset(&others) || self.model.past.as_ref().is_some_and(is_open) {
            match timeout_at(deadline, self.events.recv()).await {
                Ok(Some(event)) => self.take(event),
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Gives the agents of the nodes time for their first word.
    async fn hear_agents(&mut self) {
        let deadline = Instant::now() + FIRST_WORDS;
        while self
            .nodes
            .names()
            .any(|node| self.model.agents.of(node).is_none())
        {
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                () = sleep_until(deadline) => return,
            }
        }
    }

    fn take(&mut self, event: Event) {
        if let Event::Listed(kind, _) = &event {
            self.listed.insert(kind.clone());
        }
        self.nodes.take(&event);
        self.count(&event);
        let effects = self.model.apply(now(), event);
        self.perform(effects);
    }

    fn count(&mut self, event: &Event) {
        match event {
            Event::Bound(pod) => {
                if let Some(at) = self.decided.remove(&pod.uid) {
                    self.metrics.bound(at.elapsed());
                }
            }
            Event::Refused(pod, _) => {
                self.decided.remove(&pod.uid);
                self.metrics.refused();
            }
            Event::NotBound(pod, _) => {
                self.decided.remove(&pod.uid);
            }
            Event::Evicted(_) => self.metrics.evicted(),
            Event::Gone(json) => {
                self.decided.remove(Object::new(json).uid());
            }
            Event::Applied(_)
            | Event::Listed(..)
            | Event::AgentSaid(..)
            | Event::AgentLost(_)
            | Event::AgentGone(_)
            | Event::Accepted(..)
            | Event::NotEvicted(..)
            | Event::Grouped(..)
            | Event::UsedBefore(_) => {}
        }
    }

    fn decide(&mut self) -> Duration {
        let began = Instant::now();
        let effects = self.model.decide(now());
        let took = began.elapsed();
        self.metrics.round(took);
        if !effects.is_empty() {
            debug!(?took, effects = effects.len(), "Decided");
        }
        self.perform(effects);
        took
    }

    fn tell(&mut self) -> Duration {
        let (began, metrics) = (Instant::now(), &self.metrics);
        let effects = self.model.tell_who_waits(now(), |books, waiting| {
            metrics.cluster(books, waiting);
        });
        let took = began.elapsed();
        debug!(?took, effects = effects.len(), "Told");
        self.perform(effects);
        took
    }

    /// How long until somebody's wait is over.
    fn waits(&self) -> Option<Duration> {
        let now = now();
        let next = self.model.back_off.next(now).into_iter();
        let next = next.chain(self.model.spared.next(now)).min();
        next.map(|at| at.saturating_sub(now))
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            debug!(?effect, "Effect");
            if let Effect::Allocate { pod, .. } | Effect::Bind { pod, .. } = &effect {
                self.decided
                    .entry(pod.uid.clone())
                    .or_insert_with(Instant::now);
            }
            match effect {
                Effect::Allocate { .. } | Effect::Commit { .. } | Effect::Release { .. } => {
                    self.nodes.perform(effect);
                }
                Effect::Bind { .. }
                | Effect::Evict(_)
                | Effect::Tell { .. }
                | Effect::Report(_)
                | Effect::Silent { .. }
                | Effect::Group(_)
                | Effect::Remember(_) => {
                    self.api.perform(effect);
                }
            }
        }
    }
}
