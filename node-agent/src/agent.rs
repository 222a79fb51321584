//! The agent's one loop. It turns requests, process exits, samples and time into events of the ledger, and performs
//! the ledger's effects. It owns all mutable state.
//!
//! The parts of the state are in files of their own: cards, context costs, accounts, grants, the instance's files and
//! what is published. `state.rs` performs the ledger's effects on them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use apportion_abi::paths;
use apportion_ledger::{Ledger, LedgerEvent, OffenderPolicy};
use apportion_nri::VerdictRules;
use apportion_proto::v1;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tracing::{error, info};

use crate::api::request::AgentRequest;
use crate::api::request_tracker::RequestTracker;
use crate::api::wire;
use crate::delivery::GrantDelivery;
use crate::driver::NvmlDriver;
use crate::driver::faults::FaultMonitor;
use crate::instance::ServedInstance;
use crate::options::{AgentOptions, BurstReclaim};
use crate::processes::members::AllocationMembers;
use crate::processes::procfs;
use crate::runtime::cgroups::CgroupLookup;
use crate::runtime::nri_plugin::{NriPlugin, NriReport};
use crate::telemetry::view::AgentHandle;

mod abandoned_requests;
mod accounts;
mod attribute;
mod burst_listeners;
mod bursts;
mod cards;
mod checkpoint;
mod claims;
mod clock;
mod container_groups;
mod context_cost;
mod deliver;
mod driver_limits;
mod foreign_cards;
mod grants;
mod guarantee_calls;
mod health;
mod host_memory;
mod idle_shares;
mod idle_watches;
mod instance;
mod lingering;
mod picture;
mod publisher;
mod respond;
mod restore;
mod sampling;
mod state;
mod suspend;
mod suspensions;
mod waiting_calls;
mod whole;

pub(crate) use restore::ORPHAN;

use accounts::AccountTable;
use burst_listeners::BurstListeners;
use cards::{CardInventory, DriverReport, SILENCE};
use context_cost::{ContextCosts, ProbeStep};
use driver_limits::DriverLimits;
use grants::ContainerGrants;
use idle_watches::IdleShares;
use instance::InstanceFiles;
use lingering::LingeringProcesses;
use publisher::StatusPublisher;
use state::AgentState;
use suspensions::ProcessSuspensions;
use waiting_calls::WaitingCalls;

/// How often the agent looks for child processes. A process that uses a card is found at once through its parents;
/// this finds those that do not use one yet.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// How long the driver may take to show whether it keeps limits, before the agent goes on without.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// The file that says which containers have a limit of the driver, in the folder of the instance.
const DRIVER_LIMITS: &str = "driver-limits.json";

/// The agent: its loop, and the requests that it answers.
pub(crate) struct NodeAgent {
    options: AgentOptions,
    state: AgentState,
    /// When child processes were last looked for.
    followed: Instant,
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
        let boot_id = procfs::boot_id();
        let restored = restore::load(&instance.path(paths::CHECKPOINT), &boot_id);
        let accounts = instance.path(paths::ACCOUNTS);
        if restored.is_of_another_boot {
            info!("Machine rebooted, accounts removed");
            restore::forget_claims(&accounts);
        }
        let library = options.cards.nvml_library.clone().into_os_string();
        let reserves = instance.path(paths::RESERVES);
        let mut state = AgentState {
            ledger: ledger(&options, restored.epoch, restored.serial),
            costs: ContextCosts::load(&options.cards, &reserves, &driver.version),
            accounts: AccountTable::new(accounts.clone()),
            members: AllocationMembers::new(accounts),
            bursts: BurstListeners::default(),
            lingering: LingeringProcesses::default(),
            cgroups: CgroupLookup::new(),
            grants: ContainerGrants::default(),
            suspensions: ProcessSuspensions::new(options.cards.nvml_library.clone()),
            calls: WaitingCalls::default(),
            idle: IdleShares::default(),
            limits: DriverLimits::new(
                options.cards.has_driver_limits(),
                instance.path(DRIVER_LIMITS),
            ),
            publisher: StatusPublisher::new(node(&options, &instance, &driver)),
            cards: CardInventory::new(driver, FaultMonitor::listen(library)),
            instance: InstanceFiles::new(instance, listeners, boot_id),
        };
        restore::resume(&mut state, restored.allocations);
        state.suspensions.take_over(&state.ledger);
        Self {
            options,
            state,
            followed: Instant::now(),
        }
    }

    /// Sets the address under which metrics are served.
    pub(crate) fn set_metrics_address(&mut self, address: String) {
        self.state.publisher.set_metrics_address(address);
    }

    /// The handle through which other tasks read the agent's state.
    pub(crate) fn handle(&self) -> AgentHandle {
        self.state.publisher.handle()
    }

    /// Takes the first sample, so that the first request already finds the cards. A driver that does not answer now
    /// may answer later.
    pub(crate) async fn take_first_sample(&mut self) {
        self.state.sample();
        let readings = self.state.cards.next_readings();
        if let Ok(readings) = tokio::time::timeout(SILENCE, readings).await {
            self.report(DriverReport::Readings(readings));
        }
    }

    /// Finds out whether the driver keeps memory limits of containers. Grants say what the driver is to keep, so this
    /// must be known before the first one. A driver that does not answer now may answer later.
    pub(crate) async fn try_driver_limits(&mut self) {
        let cards = &self.options.cards;
        let library = cards.nvml_library.clone().into_os_string();
        let limits = &mut self.state.limits;
        limits.start(library, &cards.cgroup_root);
        if limits.is_started() {
            limits.try_out(self.state.cards.limitable());
            if let Ok(report) = tokio::time::timeout(TRIAL_TIMEOUT, limits.next()).await {
                limits.handle_report(report);
            }
        }
        self.state.keep_driver_limits();
        self.state.show();
    }

    /// Takes over the grants of the previous agent and delivers to containers from here on.
    pub(crate) fn deliver(&mut self, delivery: GrantDelivery) {
        let state = &mut self.state;
        state.grants.deliver(delivery, &state.ledger);
        state.write_claims();
        state.grants.show(state.grant_source());
    }

    /// Starts the NRI plugin if the options name the runtime's socket. The runtime then asks it before each
    /// container.
    pub(crate) fn start_nri(&mut self, own: Vec<String>) -> std::io::Result<()> {
        let options = &self.options.nri;
        let Some(socket) = options.nri_socket.clone() else {
            return Ok(());
        };
        let rules = VerdictRules {
            mode: options.nri_policy,
            exempt: options.exempt().to_vec(),
            accounts: self.state.accounts.folder().display().to_string(),
            own,
        };
        self.state.grants.set_nri(NriPlugin::start(socket, rules)?);
        self.state.show();
        Ok(())
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
            self.state.members.rescan();
            tokio::select! {
                biased;
                () = &mut stop => break,
                ended = self.state.members.exits.next() => self.state.ended(ended),
                woken = self.state.bursts.next() => {
                    self.state.answer_bursts(woken);
                    self.continue_idle_shares();
                }
                report = self.state.cards.next() => self.report(report),
                ready = self.state.costs.next() => self.probe_reported(ready),
                report = self.state.suspensions.next() => {
                    self.state.transition_reported(&report);
                    self.continue_suspensions();
                    self.continue_calls();
                    self.continue_idle_shares();
                }
                report = self.state.limits.next() => self.state.limits.handle_report(report),
                Some(request) = requests.recv() => self.respond(request),
                report = self.state.grants.next() => match report {
                    NriReport::Event(event) => {
                        self.state.grants.handle_event(event);
                        self.state.show();
                    }
                    NriReport::Starting(starting) => self.state.limit_at_start(starting),
                },
                _ = tick.tick() => {
                    if !self.state.instance.keep_lock() {
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
        self.state.instance.unlist();
        self.state.instance.save(&self.state.ledger);
    }

    fn tick(&mut self) {
        for process in self.state.members.exits.silently_ended() {
            self.state.ended(process);
        }
        self.state.apply_quietly(LedgerEvent::Tick);
        self.state.keep_owners();
        if self.followed.elapsed() >= FOLLOW_EVERY {
            self.state.members.follow();
            self.state.accounts.let_users_in(&mut self.state.members);
            self.followed = Instant::now();
        }
        self.state.keep_driver_limits();
        let step = self.state.costs.give_up();
        self.follow(step);
        self.continue_suspensions();
        self.continue_calls();
        self.continue_idle_shares();
        self.state.answer_settled(0);
        self.state.instance.keep_socket();
        if self.state.cards.is_silent() {
            self.state.doubt_cards();
        }
        self.state.sample();
    }

    fn report(&mut self, report: DriverReport) {
        match report {
            DriverReport::Readings(readings) => {
                let step = self.state.read(readings);
                self.follow(step);
                let sampled = self.state.cards.asked_at();
                self.state.answer_settled(sampled);
                self.state.calls.count_sample();
                self.continue_calls();
                self.continue_idle_shares();
                if self.state.cards.takes_another() {
                    self.state.sample();
                }
            }
            DriverReport::Event(event) => self.state.handle_card_event(event),
        }
    }

    fn probe_reported(&mut self, is_ready: bool) {
        let step = self.state.costs.advance(is_ready);
        self.follow(step);
        if self.state.cards.takes_another() {
            self.state.sample();
        }
    }

    /// Does what a step of the probe asks for.
    fn follow(&mut self, step: ProbeStep) {
        if let Some(card) = step.learned {
            let cost = self.state.context_cost(card);
            self.state.accounts.set_context_cost(card, cost);
        }
        if step.needs_sample {
            self.state.cards.want_another();
        }
        for request in step.ready {
            self.respond(request);
        }
    }

    fn is_idle(&self, contact: &RequestTracker) -> bool {
        let Some(wait) = self.options.idle_exit() else {
            return false;
        };
        let is_needed =
            !self.state.ledger.allocations().is_empty() || self.state.costs.has_waiting();
        !is_needed && contact.quiet_for() >= wait
    }
}

/// The empty ledger with the policies of the options.
fn ledger(options: &AgentOptions, epoch: u64, serial: u64) -> Ledger {
    let possible = |policy| match (policy, &options.node) {
        // Without a node there is no API server to evict through.
        (OffenderPolicy::Evict, None) => OffenderPolicy::Kill,
        (policy, _) => policy,
    };
    let mut ledger = Ledger::resume(epoch, serial, possible(options.cards.policy));
    ledger.set_overcommit(options.cards.gpu_memory_overcommit);
    if options.cards.burst_reclaim == BurstReclaim::Suspend {
        ledger.lend_guarantees();
    }
    for of in &options.cards.policy_override {
        ledger.override_policy(of.namespace.clone(), possible(of.policy));
    }
    ledger
}

/// What does not change of the node that is published.
fn node(options: &AgentOptions, instance: &ServedInstance, driver: &NvmlDriver) -> v1::Node {
    v1::Node {
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        driver_version: driver.version.clone(),
        simulated: options.sim,
        generation: 0,
        instance_dir: instance.dir().display().to_string(),
        metrics_address: String::new(),
        policy: wire::policy(options.cards.policy).into(),
        pid: std::process::id(),
        driver_limits: String::new(),
        driver_limits_absence: String::new(),
        suspends_bursts: options.cards.burst_reclaim == BurstReclaim::Suspend,
        can_suspend: idle_shares::has_checkpoints(&driver.version).is_ok(),
        overcommit_hundredths: options.cards.gpu_memory_overcommit.hundredths(),
    }
}
