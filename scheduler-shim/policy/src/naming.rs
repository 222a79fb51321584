//! Which cards pods get, by name.
//!
//! While a plan is made, cards of one size that nobody shares are alike. In the end those that are started at
//! once get the cards that nobody is on now, in the order of their names; who waits for others to leave learns
//! its cards when they have left.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::Status;
use crate::session::{Session, Standing};
use crate::stock::CardKey;

/// The names that were given out on one node in what was decided.
#[derive(Debug, Default)]
pub(crate) struct Names {
    opened: BTreeMap<CardKey, String>,
    whole: BTreeMap<usize, Vec<String>>,
}

impl Session<'_> {
    /// The names that cards of a node get.
    pub(crate) fn names_on(&self, node: usize) -> Names {
        let mut names = Names::default();
        if !self.stocks[node].sizes.is_listed() {
            return names;
        }
        let mut free = self.unoccupied(node);
        for (task, standing) in self.standings.iter().enumerate() {
            let starts = standing.status == Status::Binding && self.opening[task] != *standing;
            if !starts || standing.node != Some(node) {
                continue;
            }
            for &key in &standing.cards.shared {
                let class = self.stocks[node].sizes.class_of(key);
                let is_named =
                    self.card_names.contains_key(&key) || names.opened.contains_key(&key);
                let name = class
                    .filter(|_| !is_named)
                    .and_then(|class| free[class].pop());
                names.opened.extend(name.map(|name| (key, name)));
            }
            let counts = standing.cards.whole.iter().enumerate();
            let own = counts.flat_map(|(class, &count)| (0..count).map(move |_| class));
            let own: Vec<String> = own.filter_map(|class| free[class].pop()).collect();
            names.whole.insert(task, own);
        }
        names
    }

    /// The cards of a node on which nobody was when the session opened, by the place of their size; the last
    /// goes first.
    fn unoccupied(&self, node: usize) -> Vec<Vec<String>> {
        let here = self.opening.iter().enumerate();
        let here =
            here.filter(|(_, standing)| standing.node == Some(node) && standing.status.is_active());
        let occupied: BTreeSet<&String> = here
            .flat_map(|(task, _)| &self.tasks[task].task.on)
            .collect();
        let sizes = &self.stocks[node].sizes;
        let mut free = vec![Vec::new(); sizes.count()];
        let listed = self.nodes[node].listed.iter();
        for card in listed.filter(|card| card.is_healthy && !occupied.contains(&card.name)) {
            if let Some(class) = sizes.class(card.memory) {
                free[class].push(card.name.clone());
            }
        }
        for names in &mut free {
            names.sort_unstable_by(|left, right| right.cmp(left));
        }
        free
    }

    /// The names of a task's cards where it is.
    pub(crate) fn cards_by_name(
        &self,
        task: usize,
        standing: &Standing,
        names: &Names,
    ) -> Vec<String> {
        let name = |card: &CardKey| {
            let known = self.card_names.get(card).or(names.opened.get(card));
            known.cloned().unwrap_or_else(|| format!("new-{card}"))
        };
        let is_listed = standing
            .node
            .is_some_and(|node| self.stocks[node].sizes.is_listed());
        let stays = || {
            let is_promised = standing.status == Status::Pipelined;
            standing.node == self.opening[task].node && !is_promised
        };
        let whole = names.whole.get(&task).cloned();
        let as_before = || {
            let on = &self.tasks[task].task.on;
            let is_alone = !standing.cards.whole.is_empty();
            if is_listed && is_alone && stays() {
                on.clone()
            } else {
                Vec::new()
            }
        };
        let shared = standing.cards.shared.iter().map(name);
        shared.chain(whole.unwrap_or_else(as_before)).collect()
    }
}
