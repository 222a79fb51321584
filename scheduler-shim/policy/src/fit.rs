//! Whether a pod may run on a node.
//!
//! Free resources first, then what the pod, the node and the queue say about each other.

use crate::amounts::Amounts;
use crate::cluster::{Cards, MigStrategy, Neighbours, Status};
use crate::session::Session;
use crate::stock::Need;

impl Session<'_> {
    /// Whether the task fits the node, counting what is being released there.
    pub(crate) fn fits(&self, task: usize, node: usize, need: &Need) -> bool {
        self.stocks[node].fits_soon(need)
            && (!self.settings.has_predicates || self.is_allowed(task, node, need))
    }

    fn is_allowed(&self, task: usize, node: usize, need: &Need) -> bool {
        self.grants_claims(task, node)
            && self.aligns(task, node)
            && self.may_ever_be(task, node)
            && self.may_take_partitions(task, node)
            && self.has_pod_place(node, need)
            && self.matches_neighbours(task, node)
    }

    /// Whether the queues have room for what the task would be charged on this very node.
    pub(crate) fn has_node_quota(&self, task: usize, node: usize) -> bool {
        let stock = &self.stocks[node];
        match &self.tasks[task].task.cards {
            // The least that it could be charged: what cards it gets follows from what its queues can pay for.
            Cards::Shared { .. } if stock.sizes.is_listed() => {
                self.has_quota(task, self.charged(task, stock.largest()))
            }
            _ => self.has_quota(task, self.charged(task, stock.card_memory)),
        }
    }

    /// Whether the queues have room for that charge of a task.
    pub(crate) fn has_quota(&self, task: usize, charge: Amounts) -> bool {
        !self.settings.has_predicates || self.is_within_bounds(self.tasks[task].job, charge)
    }

    /// Whether the job's queue and all above have room for `more`.
    pub(crate) fn is_within_bounds(&self, job: usize, more: Amounts) -> bool {
        self.is_within_limits(job, more) && self.is_within_quota(job, more)
    }

    fn is_within_limits(&self, job: usize, more: Amounts) -> bool {
        let Some(queue) = self.jobs[job].queue.filter(|_| self.settings.has_quotas) else {
            return true;
        };
        let mut queues = self.queues.upward(queue);
        queues.all(|queue| self.queues.get(queue).over_limit(more).is_none())
    }

    /// Whether a job that can't be evicted keeps its queues within their quotas.
    pub(crate) fn is_within_quota(&self, job: usize, more: Amounts) -> bool {
        let facts = &self.jobs[job];
        let bound = self.settings.has_quotas && !facts.job.is_preemptible;
        let Some(queue) = facts.queue.filter(|_| bound) else {
            return true;
        };
        let mut queues = self.queues.upward(queue);
        queues.all(|queue| self.queues.get(queue).over_quota(more).is_none())
    }

    /// Whether the kubelet would admit the task.
    fn aligns(&self, task: usize, node: usize) -> bool {
        !self.stocks[node].zones.is_strict() || self.zones_for(task, node).is_some()
    }

    /// Whether no pod of the old kind keeps partitions from the task.
    fn may_take_partitions(&self, task: usize, node: usize) -> bool {
        let facts = self.tasks[task].task;
        let stock = &self.stocks[node];
        let takes_partitions = matches!(facts.cards, Cards::Partitions(_));
        !(takes_partitions && stock.legacy > 0)
    }

    /// Whether the task may be on the node, whoever else is there.
    pub(crate) fn may_ever_be(&self, task: usize, node: usize) -> bool {
        let facts = self.tasks[task].task;
        let takes_partitions = matches!(facts.cards, Cards::Partitions(_));
        let is_kind = match self.stocks[node].mig {
            _ if !self.wants_cards(task) => true,
            None => !takes_partitions,
            Some(MigStrategy::Single) => matches!(facts.cards, Cards::Whole(_)),
            Some(MigStrategy::Mixed) => takes_partitions,
        };
        !self.settings.has_predicates
            || (!facts.is_legacy_mig && is_kind && self.matches_labels(task, node))
    }

    /// A share that opens a card needs a second place, as KAI's reservation pod does.
    fn has_pod_place(&self, node: usize, need: &Need) -> bool {
        let stock = &self.stocks[node];
        let places = stock.idle.pods + stock.releasing.pods;
        match need.share {
            None => places > 0,
            Some(share) if stock.with_room(share).count() >= share.devices => places > 0,
            Some(_) => places > 1,
        }
    }

    pub(crate) fn matches_labels(&self, task: usize, node: usize) -> bool {
        let labels = &self.nodes[node].labels;
        let mut wanted = self.tasks[task].task.node_affinity.iter();
        wanted.all(|(label, values)| {
            let value = labels.get(label);
            value.is_some_and(|value| values.contains(value))
        })
    }

    fn matches_neighbours(&self, task: usize, node: usize) -> bool {
        let facts = self.tasks[task].task;
        let is_near = facts.near.iter().all(|wanted| {
            self.neighbours(task, node, wanted).next().is_some()
                || (matches(wanted, &facts.labels) && !self.exists_anywhere(task, wanted))
        });
        let is_apart = || {
            let mut unwanted = facts.apart.iter();
            unwanted.all(|unwanted| self.neighbours(task, node, unwanted).next().is_none())
        };
        is_near && is_apart() && self.is_welcome(task, node)
    }

    /// Whether no pod that is there wants to be apart from this one.
    fn is_welcome(&self, task: usize, node: usize) -> bool {
        let labels = &self.tasks[task].task.labels;
        if labels.is_empty() {
            return true;
        }
        let shy = self.shy.iter().filter(|&&other| other != task);
        let mut present = shy.filter_map(|&other| Some((other, self.stays(other)?)));
        present.all(|(other, place)| {
            let mut unwanted = self.tasks[other].task.apart.iter();
            unwanted.all(|unwanted| {
                !matches(unwanted, labels) || !self.share_domain(place, node, &unwanted.domain)
            })
        })
    }

    pub(crate) fn neighbours<'s>(
        &'s self,
        task: usize,
        node: usize,
        wanted: &'s Neighbours,
    ) -> impl Iterator<Item = usize> + 's {
        let present = self.present(task);
        present
            .filter(move |&(other, place)| {
                matches(wanted, &self.tasks[other].task.labels)
                    && self.share_domain(place, node, &wanted.domain)
            })
            .map(|(other, _)| other)
    }

    fn exists_anywhere(&self, task: usize, wanted: &Neighbours) -> bool {
        let mut present = self.present(task);
        present.any(|(other, _)| matches(wanted, &self.tasks[other].task.labels))
    }

    /// The other pods that are somewhere to stay, and where.
    pub(crate) fn present(&self, task: usize) -> impl Iterator<Item = (usize, usize)> {
        let others = (0..self.standings.len()).filter(move |&other| other != task);
        others.filter_map(|other| Some((other, self.stays(other)?)))
    }

    /// The node where a pod is to stay.
    fn stays(&self, task: usize) -> Option<usize> {
        let standing = &self.standings[task];
        let stays = standing.status.is_active() && standing.status != Status::Releasing;
        standing.node.filter(|_| stays)
    }

    fn share_domain(&self, left: usize, right: usize, label: &str) -> bool {
        let value = |node: usize| self.nodes[node].labels.get(label);
        value(left).is_some() && value(left) == value(right)
    }
}

/// Whether labels have everything that is looked for.
pub(crate) fn matches(
    wanted: &Neighbours,
    labels: &std::collections::BTreeMap<String, String>,
) -> bool {
    let mut looked_for = wanted.labels.iter();
    looked_for.all(|(label, value)| labels.get(label) == Some(value))
}
