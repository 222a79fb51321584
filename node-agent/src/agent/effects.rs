//! Performs the ledger's effects, in their order.

use super::*;
use apportion_abi::ContainerRef;
use apportion_ledger::AllocationOwner;

/// The outcome of a request: the ledger's answer, or why it could not be performed.
pub(super) enum RequestOutcome {
    Answered(Result<AllocationId, AllocationRefusal>),
    Failed(String),
}

/// Whether an effect changes this allocation or reports a change of it.
fn is_of(effect: &LedgerEffect, id: &AllocationId) -> bool {
    match effect {
        LedgerEffect::SetLimit { id: of, .. } | LedgerEffect::SetOverhead { id: of, .. } => {
            of == id
        }
        LedgerEffect::Notice(notice) => notice.allocation.iter().any(|(of, _)| of == id),
        LedgerEffect::OpenAccount(_)
        | LedgerEffect::CloseAccount(_)
        | LedgerEffect::Kill(_)
        | LedgerEffect::Save
        | LedgerEffect::Answer(_) => false,
    }
}

impl NodeAgent {
    /// Applies an event that no request waits for.
    pub(super) fn apply_quietly(&mut self, event: LedgerEvent) {
        if let RequestOutcome::Failed(problem) = self.apply(event) {
            error!(problem, "Failed to apply a ledger event");
        }
    }

    /// Applies an event and performs its effects. A change is undone if its account cannot be created or the
    /// checkpoint cannot be written.
    pub(super) fn apply(&mut self, event: LedgerEvent) -> RequestOutcome {
        let before = self.revocable(&event);
        let effects = self.ledger.apply(now(), event);
        let mut outcome =
            RequestOutcome::Answered(Err(AllocationRefusal::Malformed("the request is empty")));
        let has_changed = !effects.is_empty();
        for effect in effects {
            let is_failed = matches!(outcome, RequestOutcome::Failed(_));
            // Skip the effects of a change that will be undone.
            if is_failed && before.iter().any(|before| is_of(&effect, &before.id)) {
                continue;
            }
            let performed = match effect {
                LedgerEffect::OpenAccount(id) => self.open_account(&id),
                LedgerEffect::Save if self.is_taking_over => Ok(()),
                LedgerEffect::Save => self.try_save(),
                LedgerEffect::Answer(answer) => {
                    if let RequestOutcome::Answered(_) = outcome {
                        outcome = RequestOutcome::Answered(answer);
                    }
                    Ok(())
                }
                effect => {
                    self.perform(effect);
                    Ok(())
                }
            };
            if let Err(problem) = performed {
                outcome = RequestOutcome::Failed(problem);
            }
        }
        if let (RequestOutcome::Failed(_), Some(before)) = (&outcome, before) {
            self.ledger.revert(before);
        }
        if has_changed && !self.is_taking_over {
            self.show();
        }
        outcome
    }

    /// The allocation before a change that must be undone if it cannot be saved. Its effects other than the answer
    /// come after the checkpoint.
    fn revocable(&self, event: &LedgerEvent) -> Option<Allocation> {
        match event {
            LedgerEvent::Commit { id, .. } | LedgerEvent::Resize { id, .. } => {
                self.ledger.allocation(id).cloned()
            }
            _ => None,
        }
    }

    fn perform(&mut self, effect: LedgerEffect) {
        match effect {
            LedgerEffect::SetLimit { id, card, limit } => {
                self.accounts
                    .get(&id)
                    .inspect(|account| account.set_limit(card, limit));
            }
            LedgerEffect::SetOverhead { id, card, overhead } => {
                self.accounts
                    .get(&id)
                    .inspect(|account| account.set_overhead(card, overhead));
            }
            LedgerEffect::CloseAccount(id) => self.close_account(&id),
            LedgerEffect::Kill(process) => {
                let pid = process.pid;
                if self.members.exits.kill(process) {
                    warn!(pid, "Process killed by offender policy");
                } else {
                    warn!(
                        pid,
                        "Process to be killed by offender policy has ended, or can't be reached"
                    );
                }
            }
            LedgerEffect::Notice(told) => {
                *self.counts.notices.entry(told.kind).or_default() += 1;
                // It is no failure if nobody watches.
                let _ = self.events.send(notice::tell(&told, now().0));
            }
            LedgerEffect::OpenAccount(_) | LedgerEffect::Save | LedgerEffect::Answer(_) => {}
        }
    }

    fn open_account(&mut self, id: &AllocationId) -> Result<(), String> {
        let Some(allocation) = self.ledger.allocation(id) else {
            return Ok(());
        };
        let cards: Vec<_> = allocation
            .grants
            .iter()
            .map(|grant| self.new_card(grant))
            .collect();
        let folder = self.account_folder(id);
        let account = AccountFiles::open(folder, &cards).map_err(|error| error_chain(&error))?;
        for card in &cards {
            account.set_context_cost(card.uuid, self.context_cost(card.uuid));
        }
        self.accounts.insert(id.clone(), account);
        self.give_account(id);
        Ok(())
    }

    /// Opens the account to the users of the allocation. Until these are known, only the agent may open it.
    pub(super) fn give_account(&mut self, id: &AllocationId) {
        let (Some(allocation), Some(account)) =
            (self.ledger.allocation(id), self.accounts.get_mut(id))
        else {
            return;
        };
        let given = match &allocation.state {
            AllocationPhase::Allocated(AllocationOwner::Process(owner)) => {
                match crate::processes::procfs::users(owner.pid) {
                    Some((_, user)) => account.let_in(user).map(drop),
                    None => Ok(()),
                }
            }
            AllocationPhase::Allocated(AllocationOwner::Pod(_)) => account.open_to_all(),
            AllocationPhase::Reserved { .. } | AllocationPhase::Draining
                if ContainerRef::of(&allocation.name).is_some() =>
            {
                account.open_to_all()
            }
            AllocationPhase::Reserved { .. } | AllocationPhase::Draining => Ok(()),
        };
        if let Err(problem) = given {
            warn!(%id, %problem, "Failed to give the account to its user");
        }
        self.members.restrict(id, account.access().clone());
    }

    /// Opens accounts to the users that their processes run as by now: a program that is started as another user
    /// must have the limit, too. A process that only claims membership is no member.
    pub(super) fn let_users_in(&mut self) {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        for (process, id) in self.members.all() {
            let Some(account) = self.accounts.get_mut(id) else {
                continue;
            };
            let user = crate::processes::procfs::users(process.pid).map(|(_, user)| user);
            let Some(user) = user.filter(|user| !account.access().admits(*user)) else {
                continue;
            };
            match account.let_in(user) {
                Ok(_) => {
                    info!(%id, user, pid = process.pid, "Account opened to another user of the allocation")
                }
                Err(problem) => {
                    warn!(%id, user, %problem, "Failed to open the account to its user")
                }
            }
        }
        for (id, account) in &self.accounts {
            self.members.restrict(id, account.access().clone());
        }
    }

    fn new_card(&self, grant: &apportion_ledger::CardGrant) -> NewCard {
        let found = self
            .driver
            .cards
            .iter()
            .find(|card| card.uuid == grant.card);
        NewCard {
            uuid: grant.card,
            total: found.map_or(grant.limit, |card| card.capacity.total),
            limit: grant.limit,
            context_reserve: self.context_reserve(grant.card),
        }
    }

    fn close_account(&mut self, id: &AllocationId) {
        self.accounts.remove(id);
        self.slots.remove(id);
        // A `Gone` event is never refused.
        let _ = self.apply_slots(SlotEvent::Gone(id.clone()));
        self.whole_gone(id);
        self.members.dissolve(id);
        let folder = self.account_folder(id);
        if let Err(problem) = crate::account::remove(&folder) {
            warn!(folder = %folder.display(), %problem, "Failed to remove an account");
        }
    }

    pub(super) fn account_folder(&self, id: &AllocationId) -> PathBuf {
        self.instance.path(place::ACCOUNTS).join(&id.0)
    }

    pub(super) fn save(&self) {
        if let Err(problem) = self.try_save() {
            error!(problem, "Failed to write the checkpoint");
        }
    }

    fn try_save(&self) -> Result<(), String> {
        let path = self.instance.path(place::CHECKPOINT);
        if self.instance.is_anothers() {
            return Err(format!("another agent writes {}", path.display()));
        }
        let saved = checkpoint::save(&path, &self.ledger, &self.boot_id);
        saved.map_err(|problem| format!("failed to write {}: {problem}", path.display()))
    }

    /// Updates what the NRI plugin knows of grants.
    pub(super) fn show_second_lock(&self) {
        if let Some(lock) = &self.second_lock {
            let delivery = self.delivery.iter();
            lock.show(&self.ledger, delivery.flat_map(GrantDelivery::named));
        }
    }

    /// Publishes a new view of the agent's state.
    pub(super) fn show(&self) {
        self.show_second_lock();
        self.offer_wholes();
        let list = self.picture();
        let is_ready = self.sampled.is_some() && self.driver.silence() <= SILENCE;
        let sampled = self.sampled.map(|(at, _)| at);
        let view = AgentView {
            list,
            sampled,
            is_ready,
            counts: AgentStats {
                slots: (self.delivery.as_ref())
                    .map(|delivery| delivery.slots.tally())
                    .unwrap_or_default(),
                second_lock: self.second_lock.as_ref().map(|lock| lock.counts.clone()),
                ..self.counts.clone()
            },
            rival: self.rival.clone(),
            idle: None,
        };
        self.views.send_replace(Arc::new(view));
    }

    fn picture(&self) -> v1::ListReply {
        let mut cards: Vec<_> = self
            .driver
            .cards
            .iter()
            .map(|card| {
                let reading = self.readings.get(&card.uuid);
                view::card(card, reading, &self.ledger, self.context_reserve(card.uuid))
            })
            .collect();
        // CUDA does not count a lost card, so the ordinals are unknown.
        if cards
            .iter()
            .any(|card| card.health() == v1::CardHealth::Lost)
        {
            cards.iter_mut().for_each(|card| card.cuda_ordinal = None);
        }
        let allocations = self.ledger.allocations().into_iter();
        v1::ListReply {
            node: Some(self.node()),
            cards,
            allocations: allocations
                .map(|allocation| self.seen(allocation))
                .collect(),
            sampled_at_ms: self.sampled.map_or(0, |(_, at)| at),
        }
    }

    pub(super) fn seen(&self, allocation: &Allocation) -> v1::Allocation {
        let processes = self.members.of(&allocation.id).into_iter();
        let processes =
            processes.map(|process| view::process(process, self.uses(&allocation.id, process)));
        view::allocation(
            allocation,
            self.accounts.get(&allocation.id),
            processes.collect(),
        )
    }

    fn uses(&self, id: &AllocationId, process: apportion_ledger::ProcessId) -> Vec<v1::ProcessUse> {
        let slots = self.slots.get(id).into_iter().flatten();
        let slot = slots.into_iter().find(|slot| slot.process == process);
        let account = self.accounts.get(id);
        let of = |reading: &CardReading| {
            let position = account.and_then(|account| account.position(reading.uuid));
            let claimed = slot
                .zip(position)
                .and_then(|(slot, at)| slot.claimed.get(at).copied());
            let nvml = reading.processes.get(&process.pid).copied();
            (claimed.is_some_and(|claimed| claimed > Bytes::ZERO) || nvml.is_some()).then(|| {
                v1::ProcessUse {
                    card: reading.uuid.to_string(),
                    claimed_bytes: claimed.unwrap_or_default().0,
                    nvml_bytes: nvml.unwrap_or(Some(Bytes::ZERO)).map(|bytes| bytes.0),
                    utilisation_percent: (reading.loads.as_ref())
                        .map(|loads| loads.get(&process.pid).copied().unwrap_or_default()),
                }
            })
        };
        self.readings.values().filter_map(of).collect()
    }

    fn node(&self) -> v1::Node {
        v1::Node {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            driver_version: self.driver.version.clone(),
            simulated: self.options.sim,
            generation: self.ledger.generation(),
            instance_dir: self.instance.dir().display().to_string(),
            metrics_address: self.metrics_address.clone(),
            policy: crate::api::wire::policy(self.options.cards.policy).into(),
            pid: std::process::id(),
        }
    }
}
