//! What a queue may have, has and wants of each resource.
//!
//! Pure numbers: [`divide`](crate::divide) computes the fair shares, the session the allocations. Every rule of the
//! policy is made of the comparisons here.

use std::time::Duration;

use crate::amounts::{ResourceAmounts, ResourceKind, UNLIMITED, exceeds};

/// What a sum of limits may exceed its bound by: rounding, and less than the smallest share of the largest card.
const ROUNDING: f64 = 1e-5;

/// One resource of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResourceShare {
    /// The quota: what it can always have.
    pub deserved: f64,
    /// What it can never exceed.
    pub limit: f64,
    /// Its weight when the surplus is divided.
    pub weight: f64,
    /// Its fair share, from the division.
    pub fair: f64,
    /// What its pods hold.
    pub allocated: f64,
    /// The part of it that can't be preempted.
    pub non_preemptible: f64,
    /// What its pods hold and what they wait for.
    pub request: f64,
    /// What it used in the past, as a part of the cluster.
    pub usage: f64,
}

impl ResourceShare {
    /// What it asks for, up to its limit.
    #[must_use]
    pub fn requestable(&self) -> f64 {
        if self.limit == UNLIMITED {
            self.request
        } else {
            self.limit.min(self.request)
        }
    }

    /// What it may hold before others may take from it.
    #[must_use]
    pub fn allocatable(&self) -> f64 {
        if self.deserved == UNLIMITED {
            return self.limit;
        }
        let share = self.deserved.max(self.fair);
        if self.limit == UNLIMITED {
            share
        } else {
            share.min(self.limit)
        }
    }
}

/// A queue's quota, usage and fair share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueShare {
    /// Its name, the last tie-break.
    pub uid: String,
    /// The index of its parent in the tree; none for a queue at the top.
    pub parent: Option<usize>,
    /// Queues of higher priority are served first.
    pub priority: i32,
    /// When it was created; the older queue wins a tie.
    pub created: Duration,
    /// CPU, memory and GPUs, in the order of [`ResourceKind::ALL`].
    pub shares: [ResourceShare; 3],
    /// What the limits of its pods on cards may add up to, in cards, if that is bounded.
    pub burst_limit: Option<f64>,
    /// How many cards its pods may use above those that they hold. It is only counted if a queue has a burst limit.
    pub burst: f64,
}

impl QueueShare {
    /// Its share of `resource`.
    #[must_use]
    pub fn of(&self, resource: ResourceKind) -> &ResourceShare {
        let [cpu, memory, gpu] = &self.shares;
        match resource {
            ResourceKind::Cpu => cpu,
            ResourceKind::Memory => memory,
            ResourceKind::Gpu => gpu,
        }
    }

    /// Its share of `resource`, to change.
    pub fn of_mut(&mut self, resource: ResourceKind) -> &mut ResourceShare {
        let [cpu, memory, gpu] = &mut self.shares;
        match resource {
            ResourceKind::Cpu => cpu,
            ResourceKind::Memory => memory,
            ResourceKind::Gpu => gpu,
        }
    }

    /// One number of each resource.
    #[must_use]
    pub fn each(&self, of: impl Fn(&ResourceShare) -> f64) -> ResourceAmounts {
        ResourceAmounts::of_each(|resource| of(self.of(resource)))
    }

    /// What its pods hold.
    #[must_use]
    pub fn allocated(&self) -> ResourceAmounts {
        self.each(|share| share.allocated)
    }

    /// Its fair share.
    #[must_use]
    pub fn fair(&self) -> ResourceAmounts {
        self.each(|share| share.fair)
    }

    /// Its quota.
    #[must_use]
    pub fn deserved(&self) -> ResourceAmounts {
        self.each(|share| share.deserved)
    }

    /// What it may hold before others may take from it.
    #[must_use]
    pub fn allocatable(&self) -> ResourceAmounts {
        self.each(ResourceShare::allocatable)
    }

    /// Whether it holds more than its fair share of every resource.
    #[must_use]
    pub fn is_over_utilized(&self) -> bool {
        self.shares.iter().all(|share| share.fair < share.allocated)
    }

    /// Whether it stays within its quota with `more`.
    #[must_use]
    pub fn deserves(&self, more: ResourceAmounts) -> bool {
        self.allocated().plus(more).within(self.deserved())
    }

    /// The first resource in which `more` would lift it above its limit.
    #[must_use]
    pub fn over_limit(&self, more: ResourceAmounts) -> Option<ResourceKind> {
        more.involved().find(|&resource| {
            let share = self.of(resource);
            exceeds(share.allocated + more[resource], share.limit)
        })
    }

    /// The first resource in which `more` that can't be preempted would lift it above its quota.
    #[must_use]
    pub fn over_quota(&self, more: ResourceAmounts) -> Option<ResourceKind> {
        more.involved().find(|&resource| {
            let share = self.of(resource);
            exceeds(share.non_preemptible + more[resource], share.deserved)
        })
    }

    /// What the limits of its pods on cards add up to, in cards. It is only right if a queue has a burst limit.
    #[must_use]
    pub fn limits(&self) -> f64 {
        self.of(ResourceKind::Gpu).allocated + self.burst
    }

    /// Whether pods with these limits would lift it above its burst limit.
    #[must_use]
    pub fn exceeds_burst_limit(&self, more: f64) -> bool {
        let bound = self.burst_limit.filter(|_| more > 0.0);
        bound.is_some_and(|bound| self.limits() + more > bound + ROUNDING)
    }

    /// The largest part, over the resources, of what it may hold that it would hold with `more`.
    ///
    /// A resource of which it may hold nothing counts a thousandfold.
    #[must_use]
    pub fn dominant_share(&self, more: ResourceAmounts, total: ResourceAmounts) -> f64 {
        const NO_SHARE: f64 = 1000.0;
        let part = |resource| {
            let share = self.of(resource);
            let allocated = share.allocated + more[resource];
            match share.allocatable() {
                0.0 => allocated * NO_SHARE,
                UNLIMITED => allocated / total[resource],
                allocatable => allocated / allocatable,
            }
        };
        let parts = ResourceKind::ALL.into_iter().map(part);
        parts.filter(|part| !part.is_nan()).fold(0.0, f64::max)
    }
}
