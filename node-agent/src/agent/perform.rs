//! Performing what the ledger decided, in its order.

use super::*;
use apportion_abi::Workload;
use apportion_ledger::Owner;

/// What a request got: the ledger's answer, or that it could not be carried out.
pub(super) enum Outcome {
    Answered(Result<AllocationId, Refusal>),
    Failed(String),
}

/// Whether an effect tells of a change to an allocation, or carries it out.
fn is_of(effect: &Effect, id: &AllocationId) -> bool {
    match effect {
        Effect::SetLimit { id: of, .. } | Effect::SetOverhead { id: of, .. } => of == id,
        Effect::Notice(notice) => notice.allocation.iter().any(|(of, _)| of == id),
        Effect::OpenAccount(_)
        | Effect::CloseAccount(_)
        | Effect::Kill(_)
        | Effect::Save
        | Effect::Answer(_) => false,
    }
}

impl Agent {
    /// Applies an event that is no request.
    pub(super) fn apply_quietly(&mut self, event: Event) {
        if let Outcome::Failed(problem) = self.apply(event) {
            error!(problem, "Failed to apply a ledger event");
        }
    }

    /// Applies an event and performs its effects. An account that cannot be made, or a promise that
    /// cannot be written down, is taken back.
    pub(super) fn apply(&mut self, event: Event) -> Outcome {
        let before = self.revocable(&event);
        let effects = self.ledger.apply(now(), event);
        let mut outcome = Outcome::Answered(Err(Refusal::Malformed("the request is empty")));
        let has_changed = !effects.is_empty();
        for effect in effects {
            let is_failed = matches!(outcome, Outcome::Failed(_));
            if is_failed && before.iter().any(|before| is_of(&effect, &before.id)) {
                continue;
            }
            let performed = match effect {
                Effect::OpenAccount(id) => self.open_account(&id),
                Effect::Save if self.is_taking_over => Ok(()),
                Effect::Save => self.try_save(),
                Effect::Answer(answer) => {
                    if let Outcome::Answered(_) = outcome {
                        outcome = Outcome::Answered(answer);
                    }
                    Ok(())
                }
                effect => {
                    self.perform(effect);
                    Ok(())
                }
            };
            if let Err(problem) = performed {
                outcome = Outcome::Failed(problem);
            }
        }
        if let (Outcome::Failed(_), Some(before)) = (&outcome, before) {
            self.ledger.revert(before);
        }
        if has_changed && !self.is_taking_over {
            self.show();
        }
        outcome
    }

    /// An allocation as it is before a change that is not to be if it cannot be written down. Its effects beside the
    /// answer come after the checkpoint.
    fn revocable(&self, event: &Event) -> Option<Allocation> {
        match event {
            Event::Commit { id, .. } | Event::Resize { id, .. } => {
                self.ledger.allocation(id).cloned()
            }
            _ => None,
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::SetLimit { id, card, limit } => {
                self.accounts
                    .get(&id)
                    .inspect(|account| account.set_limit(card, limit));
            }
            Effect::SetOverhead { id, card, overhead } => {
                self.accounts
                    .get(&id)
                    .inspect(|account| account.set_overhead(card, overhead));
            }
            Effect::CloseAccount(id) => self.close_account(&id),
            Effect::Kill(process) => {
                let is_killed = self.members.exits.kill(process);
                warn!(
                    pid = process.pid,
                    is_killed, "Process killed by offender policy"
                );
            }
            Effect::Notice(told) => {
                *self.counts.notices.entry(told.kind).or_default() += 1;
                // No watcher is no failure.
                let _ = self.events.send(notice::tell(&told, now().0));
            }
            Effect::OpenAccount(_) | Effect::Save | Effect::Answer(_) => {}
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
        let account = Account::open(folder, &cards).map_err(|error| chain(&error))?;
        for card in &cards {
            account.set_context_cost(card.uuid, self.context_cost(card.uuid));
        }
        self.accounts.insert(id.clone(), account);
        self.give_account(id);
        Ok(())
    }

    /// Gives the account to those for whom the allocation is. Until that is known it is the agent's alone.
    pub(super) fn give_account(&mut self, id: &AllocationId) {
        let (Some(allocation), Some(account)) =
            (self.ledger.allocation(id), self.accounts.get_mut(id))
        else {
            return;
        };
        let given = match &allocation.state {
            State::Allocated(Owner::Process(owner)) => match crate::procfs::users(owner.pid) {
                Some((_, user)) => account.let_in(user).map(drop),
                None => Ok(()),
            },
            State::Allocated(Owner::Pod(_)) => account.open_to_all(),
            State::Reserved { .. } | State::Draining
                if Workload::of(&allocation.name).is_some() =>
            {
                account.open_to_all()
            }
            State::Reserved { .. } | State::Draining => Ok(()),
        };
        if let Err(problem) = given {
            warn!(%id, %problem, "Failed to give the account to its user");
        }
        self.members.restrict(id, account.access().clone());
    }

    /// Lets in the users as whom processes of an allocation run by now: whoever starts a program as another user
    /// means it to have the limit. A process that only says so is no member.
    pub(super) fn let_users_in(&mut self) {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        for (process, id) in self.members.all() {
            let Some(account) = self.accounts.get_mut(id) else {
                continue;
            };
            let user = crate::procfs::users(process.pid).map(|(_, user)| user);
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

    fn new_card(&self, grant: &apportion_ledger::Grant) -> NewCard {
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
        // An end is never refused.
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

    /// Tells who is asked before a container is created what was granted.
    pub(super) fn show_second_lock(&self) {
        if let Some(lock) = &self.second_lock {
            let delivery = self.delivery.iter();
            lock.show(&self.ledger, delivery.flat_map(Delivery::named));
        }
    }

    /// Makes a new picture for everyone who looks.
    pub(super) fn show(&self) {
        self.show_second_lock();
        self.offer_wholes();
        let list = self.picture();
        let is_ready = self.sampled.is_some() && self.driver.silence() <= SILENCE;
        let sampled = self.sampled.map(|(at, _)| at);
        let view = View {
            list,
            sampled,
            is_ready,
            counts: Counts {
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
        // CUDA does not count a card that is not there.
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
        let of = |reading: &Reading| {
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
            simulated: self.options.is_simulated,
            generation: self.ledger.generation(),
            instance_dir: self.instance.dir().display().to_string(),
            metrics_address: self.metrics_address.clone(),
            policy: crate::wire::policy(self.options.policy).into(),
            pid: std::process::id(),
        }
    }
}
