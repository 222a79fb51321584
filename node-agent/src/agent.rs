//! The agent's one loop. It turns requests, process exits, samples and time into events of the ledger, and performs
//! the ledger's effects. It owns all mutable state.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use apportion_abi::account::NewCard;
use apportion_abi::{Bytes, CardUuid, place};
use apportion_exit::error_chain;
use apportion_ledger::{
    Allocation, AllocationId, AllocationPhase, AllocationRefusal, EpochMillis, Health, Ledger,
    LedgerEffect, LedgerEvent, OffenderPolicy, SlotEvent,
};
use apportion_nri::{NriEvent, VerdictRules};
use apportion_proto::v1;
use tokio::net::UnixListener;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::MissedTickBehavior;
use tracing::{debug, error, info, warn};

use crate::account::{AccountFiles, ProcessClaims};
use crate::api::request::AgentRequest;
use crate::api::request_tracker::RequestTracker;
use crate::delivery::GrantDelivery;
use crate::driver::faults::FaultMonitor;
use crate::driver::probe::ContextProbe;
use crate::driver::reserve::ContextReserves;
use crate::driver::{CardReading, DriverReadings, NvmlDriver};
use crate::instance::ServedInstance;
use crate::options::AgentOptions;
use crate::processes::members::AllocationMembers;
use crate::processes::namespace::PidNamespaces;
use crate::runtime::cgroups::CgroupLookup;
use crate::runtime::nri_plugin::NriPlugin;
use crate::telemetry::notice;
use crate::telemetry::view::{self, AgentHandle, AgentStats, AgentView};

mod attribute;
mod checkpoint;
mod context_cost;
mod deliver;
mod effects;
mod foreign_cards;
mod health;
mod lingering;
mod respond;
mod restore;
mod sampling;
mod whole;

pub(crate) use restore::ORPHAN;

/// How long the driver may be silent before its cards are no longer allocated.
const SILENCE: Duration = Duration::from_secs(5);
/// How often the agent looks for child processes. A process that uses a card is found at once through its parents;
/// this finds those that do not use one yet.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// How many events a slow watcher may lag behind before it misses some.
const EVENTS: usize = 256;

/// The state of the agent.
pub(crate) struct NodeAgent {
    options: AgentOptions,
    instance: ServedInstance,
    listeners: mpsc::Sender<UnixListener>,
    boot_id: String,
    driver: NvmlDriver,
    faults: FaultMonitor,
    ledger: Ledger,
    /// True while an earlier agent's allocations are restored: the checkpoint is written once, after all of them.
    is_taking_over: bool,
    accounts: BTreeMap<AllocationId, AccountFiles>,
    members: AllocationMembers,
    left: lingering::LingeringProcesses,
    namespaces: PidNamespaces,
    places: CgroupLookup,
    reserves: ContextReserves,
    /// The running context probe.
    probe: Option<context_cost::RunningProbe>,
    /// Probes that were told to end and may still run.
    ended_probes: Vec<ContextProbe>,
    /// Requests that wait for the probe.
    waiting: Vec<AgentRequest>,
    /// The ledger's generation when the pending sample was requested.
    asked_at: u64,
    /// Something changed that the pending sample may not show.
    is_stale: bool,
    followed: Instant,
    readings: BTreeMap<CardUuid, CardReading>,
    slots: BTreeMap<AllocationId, Vec<ProcessClaims>>,
    /// Where the next round of checking membership claims in accounts continues.
    turn: usize,
    sampled: Option<(Instant, u64)>,
    counts: AgentStats,
    /// The NRI plugin, if the options name a runtime's NRI socket.
    second_lock: Option<NriPlugin>,
    metrics_address: String,
    /// Another device plugin that allocates GPUs on this node.
    rival: Option<String>,
    /// How containers get their grants, if there is a kubelet.
    delivery: Option<GrantDelivery>,
    views: watch::Sender<Arc<AgentView>>,
    events: broadcast::Sender<v1::Event>,
}

impl NodeAgent {
    /// Continues where an earlier agent of this instance stopped. If the agent has to listen again, it sends the new
    /// listener to `listeners`.
    pub(crate) fn new(
        options: AgentOptions,
        instance: ServedInstance,
        driver: NvmlDriver,
        listeners: mpsc::Sender<UnixListener>,
    ) -> Self {
        let boot_id = crate::processes::procfs::boot_id();
        let path = instance.path(place::CHECKPOINT);
        let restored = restore::load(&path, &boot_id);
        if restored.is_of_another_boot {
            info!("Machine rebooted, accounts removed");
            restore::forget_claims(&instance.path(place::ACCOUNTS));
        }
        let possible = |policy| match (policy, &options.node) {
            // Without a node there is no API server to evict through.
            (OffenderPolicy::Evict, None) => OffenderPolicy::Kill,
            (policy, _) => policy,
        };
        let policy = possible(options.cards.policy);
        let mut ledger = Ledger::resume(restored.epoch, restored.serial, policy);
        for of in &options.cards.policy_override {
            ledger.override_policy(of.namespace.clone(), possible(of.policy));
        }
        let view = AgentView::empty(None);
        let mut agent = Self {
            reserves: ContextReserves::load(&instance.path(place::RESERVES), &driver.version),
            members: AllocationMembers::new(instance.path(place::ACCOUNTS)),
            left: lingering::LingeringProcesses::default(),
            faults: FaultMonitor::listen(options.cards.nvml_library.clone().into_os_string()),
            options,
            instance,
            listeners,
            boot_id,
            driver,
            ledger,
            is_taking_over: true,
            accounts: BTreeMap::new(),
            namespaces: PidNamespaces::new(),
            places: CgroupLookup::new(),
            probe: None,
            ended_probes: Vec::new(),
            waiting: Vec::new(),
            asked_at: 0,
            is_stale: false,
            followed: Instant::now(),
            readings: BTreeMap::new(),
            slots: BTreeMap::new(),
            turn: 0,
            sampled: None,
            counts: AgentStats::default(),
            second_lock: None,
            metrics_address: String::new(),
            rival: None,
            delivery: None,
            views: watch::channel(Arc::new(view)).0,
            events: broadcast::channel(EVENTS).0,
        };
        agent.find_cards();
        agent.adopt(restored.allocations);
        agent.adopt_orphans();
        agent.is_taking_over = false;
        if agent.ledger.generation() > 0 {
            agent.save();
        }
        agent.show();
        agent
    }

    /// Sets the address under which metrics are served.
    pub(crate) fn set_metrics_address(&mut self, address: String) {
        self.metrics_address = address;
    }

    /// The handle through which other tasks read the agent's state.
    pub(crate) fn shown(&self) -> AgentHandle {
        AgentHandle {
            views: self.views.subscribe(),
            events: self.events.clone(),
        }
    }

    /// Takes the first sample, so that the first request already finds the cards. A driver that does not answer now
    /// may answer later.
    pub(crate) async fn look(&mut self) {
        self.sample();
        if let Ok(readings) = tokio::time::timeout(SILENCE, self.driver.next()).await {
            self.read(readings);
        }
    }

    /// Runs until `stop`, or until the agent was idle for as long as the options say.
    pub(crate) async fn run(
        mut self,
        mut requests: mpsc::Receiver<AgentRequest>,
        contact: Arc<RequestTracker>,
        stop: impl Future<Output = ()>,
    ) {
        tokio::pin!(stop);
        let mut tick = tokio::time::interval(self.options.cards.tick);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.members.look_anew();
            tokio::select! {
                biased;
                () = &mut stop => break,
                ended = self.members.exits.next() => self.ended(ended),
                readings = self.driver.next() => self.read(readings),
                heard = self.faults.next() => self.heard(heard),
                ready = context_cost::ready(&mut self.probe) => self.probe_ready(ready),
                Some(request) = requests.recv() => self.respond(request),
                news = NriPlugin::next(self.second_lock.as_mut()) => self.hear(news),
                _ = tick.tick() => {
                    if !self.instance.keep_lock() {
                        error!("Another agent has the folder, this one leaves it");
                        return;
                    }
                    self.tick();
                    if self.is_idle(&contact) {
                        info!("Agent idle, stopping");
                        break;
                    }
                }
            }
        }
        // From here on a new client finds no socket and starts another agent.
        self.instance.unlist();
        self.save();
    }

    /// Starts the NRI plugin if the options name the runtime's socket. The runtime then asks it before each
    /// container.
    pub(crate) fn lock_twice(&mut self, own: Vec<String>) -> std::io::Result<()> {
        let options = &self.options.nri;
        let Some(socket) = options.nri_socket.clone() else {
            return Ok(());
        };
        let rules = VerdictRules {
            mode: options.nri_policy,
            exempt: options.exempt().to_vec(),
            accounts: self.instance.path(place::ACCOUNTS).display().to_string(),
            own,
        };
        self.second_lock = Some(NriPlugin::start(socket, rules)?);
        self.show();
        Ok(())
    }

    fn hear(&mut self, news: NriEvent) {
        if let Some(lock) = &mut self.second_lock {
            lock.hear(news);
        }
        self.show();
    }

    fn tick(&mut self) {
        for process in self.members.exits.silently_ended() {
            self.ended(process);
        }
        self.apply_quietly(LedgerEvent::Tick);
        self.keep_owners();
        if self.followed.elapsed() >= FOLLOW_EVERY {
            self.members.follow();
            self.let_users_in();
            self.followed = Instant::now();
        }
        self.give_up_probe();
        self.keep_socket();
        if self.driver.silence() > SILENCE {
            self.doubt_cards();
        }
        self.sample();
    }

    /// Listens again if somebody removed the socket. Otherwise clients would wait for an agent that holds the lock
    /// and that nobody can reach.
    fn keep_socket(&mut self) {
        if self.instance.is_listed() {
            return;
        }
        match self.instance.listen() {
            Ok(listener) => {
                warn!("Socket was removed, listening again");
                let _ = self.listeners.try_send(listener);
            }
            Err(problem) => debug!(
                problem = error_chain(&problem),
                "Failed to listen again after the socket was removed"
            ),
        }
    }

    /// Watches every owner. A process that owns two allocations is a member of the later one only. When it leaves
    /// that one, it must become a member of the first again.
    fn keep_owners(&mut self) {
        for allocation in self.ledger.allocations() {
            if let AllocationPhase::Allocated(apportion_ledger::AllocationOwner::Process(owner)) =
                allocation.state
                && !self.members.contains(owner)
            {
                self.members.join(owner, &allocation.id);
            }
        }
    }

    /// Asks the driver for a sample. If it still owes an answer, it is asked again right after that.
    fn sample(&mut self) {
        if self.driver.silence() > Duration::ZERO {
            self.is_stale = true;
            return;
        }
        self.accounts.values_mut().for_each(AccountFiles::begin);
        self.asked_at = self.ledger.generation();
        let _ = self.driver.ask();
    }

    fn ended(&mut self, process: apportion_ledger::ProcessId) {
        let Some(id) = self.members.leave(process) else {
            return;
        };
        self.left.enter(process, &id);
        if let Some(account) = self.accounts.get(&id) {
            account.retire_dead(&mut self.namespaces);
        }
        self.apply_quietly(LedgerEvent::ProcessGone {
            id: id.clone(),
            process,
        });
        let is_owner = self.ledger.allocation(&id).is_some_and(|allocation| {
            allocation.state
                == AllocationPhase::Allocated(apportion_ledger::AllocationOwner::Process(process))
        });
        if is_owner {
            self.apply_quietly(LedgerEvent::OwnerGone { id: id.clone() });
        }
        self.end_with_pod(&id);
        self.end_if_empty(&id);
        self.sample();
    }

    /// Removes a draining allocation when its last process has ended.
    fn end_if_empty(&mut self, id: &AllocationId) {
        let is_draining = self
            .ledger
            .allocation(id)
            .is_some_and(|allocation| allocation.state == AllocationPhase::Draining);
        if is_draining && self.members.of(id).is_empty() && !self.members.search(id) {
            self.apply_quietly(LedgerEvent::Emptied { id: id.clone() });
        }
    }

    fn doubt_cards(&mut self) {
        for card in self.driver.cards.clone() {
            let is_healthy = |card: &apportion_ledger::LedgerCard| card.health == Health::Healthy;
            if self.ledger.card(card.uuid).is_some_and(is_healthy) {
                self.apply_quietly(LedgerEvent::CardHealth {
                    card: card.uuid,
                    health: Health::Unhealthy,
                });
            }
        }
    }

    fn is_idle(&self, contact: &RequestTracker) -> bool {
        let is_needed = !self.ledger.allocations().is_empty() || !self.waiting.is_empty();
        self.options
            .idle_exit()
            .is_some_and(|wait| !is_needed && contact.quiet_for() >= wait)
    }
}

/// The wall-clock time, because reservations outlive the agent.
fn now() -> EpochMillis {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    EpochMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
