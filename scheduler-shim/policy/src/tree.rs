//! The tree of queues, with what each of them may hold and holds.
//!
//! A queue whose parent does not exist, or whose parents form a cycle, is left out with everything below it; the
//! rest of the cluster goes on. The list is sorted by name, so the same queues in any order make the same tree.

use std::collections::BTreeMap;

use crate::amounts::{ResourceAmounts, ResourceKind, rounded};
use crate::cluster::Queue;
use crate::divide::{DivisionSettings, divide};
use crate::share::{QueueShare, ResourceShare};

/// The queues that are connected to the top.
#[derive(Clone, Debug, Default)]
pub struct QueueTree {
    queues: Vec<QueueShare>,
    children: Vec<Vec<usize>>,
    top: Vec<usize>,
    has_burst_limits: bool,
}

impl QueueTree {
    /// Builds the tree from queues without shares.
    #[must_use]
    pub fn of(queues: &[Queue]) -> Self {
        Self::from_shares(queues.iter().map(|queue| {
            let of = |quota: crate::cluster::Quota, usage| ResourceShare {
                deserved: quota.deserved,
                limit: quota.limit,
                weight: quota.weight,
                usage,
                ..ResourceShare::default()
            };
            let [cpu, memory, gpu] = queue.usage;
            let share = QueueShare {
                uid: queue.name.clone(),
                parent: None,
                priority: queue.priority,
                created: queue.created,
                shares: [
                    of(queue.cpu, cpu),
                    of(queue.memory, memory),
                    of(queue.gpu, gpu),
                ],
                burst_limit: queue.burst_limit,
                burst: 0.0,
            };
            (share, queue.parent.clone())
        }))
    }

    /// Builds the tree from queues and the names of their parents.
    #[must_use]
    pub fn from_shares(queues: impl IntoIterator<Item = (QueueShare, Option<String>)>) -> Self {
        let named: BTreeMap<String, (QueueShare, Option<String>)> = queues
            .into_iter()
            .map(|queue| (queue.0.uid.clone(), queue))
            .collect();
        let connected_names: Vec<&String> = named
            .keys()
            .filter(|name| {
                let mut at: &str = name;
                for _ in 0..=named.len() {
                    match named.get(at) {
                        None => return false,
                        Some((_, None)) => return true,
                        Some((_, Some(parent))) => at = parent,
                    }
                }
                false
            })
            .collect();
        let mut tree = Self {
            queues: Vec::new(),
            children: vec![Vec::new(); connected_names.len()],
            top: Vec::new(),
            has_burst_limits: named.values().any(|(share, _)| share.burst_limit.is_some()),
        };
        for (index, name) in connected_names.iter().enumerate() {
            let (share, parent) = &named[*name];
            let parent = parent.as_ref().and_then(|parent| {
                connected_names
                    .iter()
                    .position(|connected_names| *connected_names == parent)
            });
            match parent {
                Some(parent) => tree.children[parent].push(index),
                None => tree.top.push(index),
            }
            tree.queues.push(QueueShare {
                parent,
                ..share.clone()
            });
        }
        tree
    }

    /// The index of a queue.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.queues
            .binary_search_by(|queue| queue.uid.as_str().cmp(name))
            .ok()
    }

    /// The queue with this number.
    #[must_use]
    pub fn get(&self, queue: usize) -> &QueueShare {
        &self.queues[queue]
    }

    /// Whether the limits of pods count in any queue.
    #[must_use]
    pub fn has_burst_limits(&self) -> bool {
        self.has_burst_limits
    }

    /// The queues without a parent.
    #[must_use]
    pub fn top(&self) -> &[usize] {
        &self.top
    }

    /// The queues right below a queue.
    #[must_use]
    pub fn children(&self, queue: usize) -> &[usize] {
        &self.children[queue]
    }

    /// All queues, in order of names.
    #[must_use]
    pub fn all(&self) -> &[QueueShare] {
        &self.queues
    }

    /// A queue and those above it, from the queue up.
    pub fn upward(&self, queue: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(queue), |&at| self.queues[at].parent)
    }

    /// A queue and those above it, from the top down.
    #[must_use]
    pub fn path(&self, queue: usize) -> Vec<usize> {
        let mut path: Vec<usize> = self.upward(queue).collect();
        path.reverse();
        path
    }

    /// Where the paths to two queues diverge: the queue on each side.
    ///
    /// If one is above the other, or they are the same: the last queue of the shorter path.
    #[must_use]
    pub fn parting(&self, left: usize, right: usize) -> (usize, usize) {
        let (lefts, rights) = (self.path(left), self.path(right));
        let mut pairs = lefts.iter().copied().zip(rights.iter().copied());
        let last = lefts.len().min(rights.len()) - 1;
        pairs
            .find(|(left, right)| left != right)
            .unwrap_or((lefts[last], rights[last]))
    }

    /// Adds what pods hold to a queue and all above it; a negative amount removes it.
    pub fn charge(&mut self, queue: usize, amounts: ResourceAmounts, is_preemptible: bool) {
        let mut at = Some(queue);
        while let Some(queue) = at {
            let queue = &mut self.queues[queue];
            let allocated = queue.allocated().plus(amounts);
            let fixed = queue.each(|share| share.non_preemptible).plus(amounts);
            for resource in ResourceKind::ALL {
                let share = queue.of_mut(resource);
                share.allocated = allocated[resource];
                if !is_preemptible {
                    share.non_preemptible = fixed[resource];
                }
            }
            at = queue.parent;
        }
    }

    /// Adds what pods may use of cards above what they hold to a queue and all above it; a negative number removes it.
    pub fn charge_burst(&mut self, queue: usize, cards: f64) {
        let mut at = Some(queue).filter(|_| cards != 0.0);
        while let Some(queue) = at {
            let queue = &mut self.queues[queue];
            queue.burst = rounded(queue.burst + cards);
            at = queue.parent;
        }
    }

    /// Adds what pods hold or wait for to a queue and all above it.
    pub fn request(&mut self, queue: usize, amounts: ResourceAmounts) {
        let mut at = Some(queue);
        while let Some(queue) = at {
            let queue = &mut self.queues[queue];
            let request = queue.each(|share| share.request).plus(amounts);
            for resource in ResourceKind::ALL {
                queue.of_mut(resource).request = request[resource];
            }
            at = queue.parent;
        }
    }

    /// Divides `total` among the top queues, and the fair share of each queue among its children.
    pub fn divide(&mut self, division: DivisionSettings, total: ResourceAmounts) {
        let mut levels = vec![(self.top.clone(), total)];
        while let Some((members, total)) = levels.pop() {
            for resource in ResourceKind::ALL {
                divide(
                    division,
                    resource,
                    total[resource],
                    &mut self.queues,
                    &members,
                );
            }
            for member in members {
                let below = self.children[member].clone();
                levels.push((below, self.queues[member].fair()));
            }
        }
    }
}
