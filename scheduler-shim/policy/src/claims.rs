//! Devices that pods claim by name: what a pod may have, and where it would be.
//!
//! A claim gets its devices, all on one node, with the first pod that names it, and loses them when the last
//! has gone. Until then every pod that names it has to be there.

use crate::session::Session;

/// How many pods may share a claim.
const CONSUMERS: usize = 256;

impl Session<'_> {
    /// Whether the task may have the devices that it claims, on this node.
    pub(crate) fn grants_claims(&self, task: usize, node: usize) -> bool {
        let facts = &self.tasks[task];
        if facts.task.claims.is_empty() {
            return true;
        }
        let queue = &self.jobs[facts.job].job.queue;
        let granted = facts.claims.as_ref();
        let Some(claims) = granted.filter(|_| self.settings.allows_claims) else {
            return false;
        };
        let may_use = |claim: &usize| {
            let claim = self.claims[*claim].claim;
            claim.consumers < CONSUMERS
                && (!claim.is_of_cards || claim.queue.as_ref() == Some(queue))
        };
        claims.iter().all(may_use) && self.has_devices(task, claims, node)
    }

    /// Whether every claim is on the node already, or finds its devices there.
    fn has_devices(&self, task: usize, claims: &[usize], node: usize) -> bool {
        let mut wanted = claims.iter().enumerate();
        wanted.all(|(place, &claim)| {
            if let Some(home) = self.home_of(claim, task) {
                return home == node;
            }
            let class = &self.claims[claim].claim.class;
            // Those of the same pod that come before it are served before it.
            let before = claims[..place].iter().filter(|&&other| {
                self.claims[other].claim.class == *class && self.home_of(other, task).is_none()
            });
            let taken = before.fold(0, |sum: i64, &other| {
                sum.saturating_add(self.claims[other].claim.devices)
            });
            let asked = taken.saturating_add(self.claims[claim].claim.devices);
            asked <= self.free_devices(class, node, task)
        })
    }

    /// The node that has the devices of a claim, as long as somebody beside `task` uses them.
    fn home_of(&self, claim: usize, task: usize) -> Option<usize> {
        let facts = &self.claims[claim];
        let mut others = facts.users.iter().filter(|&&user| user != task);
        let used_on = others.find_map(|&user| {
            let standing = &self.standings[user];
            standing
                .node
                .filter(|_| standing.status.is_active_allocated())
        });
        let strangers = facts.claim.consumers > facts.users.len();
        let given = facts.given.as_ref().map(|(node, _)| *node);
        used_on.or(given.filter(|_| strangers))
    }

    /// Devices of a class that no claim has, on a node.
    fn free_devices(&self, class: &str, node: usize, task: usize) -> i64 {
        let has = self.nodes[node].devices.get(class).copied().unwrap_or(0);
        let taken = self.claims.iter().enumerate().filter(|(claim, facts)| {
            facts.claim.class == class && self.home_of(*claim, task) == Some(node)
        });
        taken.fold(has, |free, (_, facts)| {
            free.saturating_sub(facts.claim.devices)
        })
    }
}
