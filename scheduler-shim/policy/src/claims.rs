//! Resource claims: which devices a pod may use, and on which node.
//!
//! A claim gets its devices, all on one node, with the first pod that names it. It loses them when the last such
//! pod is gone. Until then, every pod that names it must run on that node.

use crate::session::Session;

/// How many pods may share a claim.
const CONSUMERS: usize = 256;

/// Why a pod can't use its claims on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimRefusal {
    /// Claims are not allowed.
    Disallowed,
    /// One of its claims does not exist.
    Missing,
    /// The claim with this name belongs to another queue.
    OtherQueue(String),
    /// The claim with this name has as many users as it may have.
    TooManyUsers(String),
    /// The claim has its devices on another node: the names of the claim and of the node.
    Elsewhere(String, String),
    /// Too few devices of a class are free: the class, how many are wanted, how many are free.
    TooFewDevices(String, i64, i64),
}

impl Session<'_> {
    /// Why the pod can't use its claims on that node, if so.
    #[must_use]
    pub fn claim_refusal(&self, task: &str, node: &str) -> Option<ClaimRefusal> {
        let (task, node) = self.named(task, node)?;
        self.refused_claim(task, node)
    }

    /// Whether the task can use its claims on this node.
    pub(crate) fn grants_claims(&self, task: usize, node: usize) -> bool {
        self.tasks[task].task.claims.is_empty() || self.refused_claim(task, node).is_none()
    }

    fn refused_claim(&self, task: usize, node: usize) -> Option<ClaimRefusal> {
        let facts = &self.tasks[task];
        if facts.task.claims.is_empty() {
            return None;
        }
        if !self.settings.allows_claims {
            return Some(ClaimRefusal::Disallowed);
        }
        let Some(claims) = &facts.claims else {
            return Some(ClaimRefusal::Missing);
        };
        let queue = &self.jobs[facts.job].job.queue;
        let unusable = claims.iter().find_map(|&claim| {
            let claim = self.claims[claim].claim;
            let is_open = !claim.is_of_cards || claim.is_for_one_pod;
            if claim.consumers >= CONSUMERS {
                Some(ClaimRefusal::TooManyUsers(claim.name.clone()))
            } else if !is_open && claim.queue.as_ref() != Some(queue) {
                Some(ClaimRefusal::OtherQueue(claim.name.clone()))
            } else {
                None
            }
        });
        unusable.or_else(|| self.lacking_devices(task, claims, node))
    }

    /// The first claim that is on another node, or that finds too few devices here.
    fn lacking_devices(&self, task: usize, claims: &[usize], node: usize) -> Option<ClaimRefusal> {
        let mut wanted = claims.iter().enumerate();
        wanted.find_map(|(place, &claim)| {
            let own = self.claims[claim].claim;
            if let Some(home) = self.home_of(claim, task) {
                let (name, home_name) = (own.name.clone(), self.nodes[home].name.clone());
                return (home != node).then_some(ClaimRefusal::Elsewhere(name, home_name));
            }
            // Earlier claims of the same pod are served first.
            let before = claims[..place].iter().filter(|&&other| {
                self.claims[other].claim.class == own.class && self.home_of(other, task).is_none()
            });
            let taken = before.fold(0, |sum: i64, &other| {
                sum.saturating_add(self.claims[other].claim.devices)
            });
            let asked = taken.saturating_add(own.devices);
            let free = self.free_devices(&own.class, node, task);
            (asked > free).then(|| ClaimRefusal::TooFewDevices(own.class.clone(), asked, free))
        })
    }

    /// The node that has the devices of a claim, as long as another pod than `task` uses them.
    fn home_of(&self, claim: usize, task: usize) -> Option<usize> {
        let facts = &self.claims[claim];
        let mut others = facts.users.iter().filter(|&&user| user != task);
        let used_on = others.find_map(|&user| {
            let state = &self.task_states[user];
            state.node.filter(|_| state.status.is_active_allocated())
        });
        let strangers = facts.claim.consumers > facts.users.len();
        let given = facts.given.as_ref().map(|(node, _)| *node);
        used_on.or(given.filter(|_| strangers))
    }

    /// Devices of a class on a node that no claim has.
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
