//! Quantities of the three resources that queues divide: CPU, memory and GPUs.
//!
//! CPU is in milli-CPU, memory in bytes, GPUs in cards (half a card is 0.5). They are floating-point
//! numbers because shares of them are; every sum is rounded to a millionth, so that an amount that was
//! added and taken away again leaves nothing behind and the order of additions does not matter.

use std::ops::{Index, IndexMut};

/// No bound, as Queue objects write it.
pub const UNLIMITED: f64 = -1.0;

/// One of the resources that queues divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// Processor time, in milli-CPU.
    Cpu,
    /// Host memory, in bytes.
    Memory,
    /// Cards.
    Gpu,
}

impl ResourceKind {
    /// All of them. A refusal names the first of them that is short.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::Gpu];
}

/// An amount of each resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResourceAmounts([f64; 3]);

impl ResourceAmounts {
    /// These amounts.
    #[must_use]
    pub const fn new(cpu: f64, memory: f64, gpu: f64) -> Self {
        Self([cpu, memory, gpu])
    }

    /// The amount that `of` returns for each resource.
    #[must_use]
    pub fn of_each(of: impl Fn(ResourceKind) -> f64) -> Self {
        Self(ResourceKind::ALL.map(of))
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self::of_each(|resource| rounded(self[resource] + other[resource]))
    }

    /// The difference, which may be negative.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self::of_each(|resource| rounded(self[resource] - other[resource]))
    }

    /// The product with `count`.
    #[must_use]
    pub fn times(self, count: f64) -> Self {
        Self::of_each(|resource| rounded(self[resource] * count))
    }

    /// Whether no resource is above its bound.
    #[must_use]
    pub fn within(self, bounds: Self) -> bool {
        ResourceKind::ALL
            .into_iter()
            .all(|resource| !exceeds(self[resource], bounds[resource]))
    }

    /// The resources with an amount above zero.
    pub fn involved(self) -> impl Iterator<Item = ResourceKind> {
        ResourceKind::ALL
            .into_iter()
            .filter(move |resource| self[*resource] > 0.0)
    }
}

impl Index<ResourceKind> for ResourceAmounts {
    type Output = f64;

    fn index(&self, resource: ResourceKind) -> &f64 {
        let Self([cpu, memory, gpu]) = self;
        match resource {
            ResourceKind::Cpu => cpu,
            ResourceKind::Memory => memory,
            ResourceKind::Gpu => gpu,
        }
    }
}

impl IndexMut<ResourceKind> for ResourceAmounts {
    fn index_mut(&mut self, resource: ResourceKind) -> &mut f64 {
        let Self([cpu, memory, gpu]) = self;
        match resource {
            ResourceKind::Cpu => cpu,
            ResourceKind::Memory => memory,
            ResourceKind::Gpu => gpu,
        }
    }
}

impl std::iter::Sum for ResourceAmounts {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), Self::plus)
    }
}

/// Whether `amount` is above `bound`, where either may be unlimited.
#[must_use]
pub fn exceeds(amount: f64, bound: f64) -> bool {
    if bound == UNLIMITED {
        return false;
    }
    amount == UNLIMITED || amount > bound
}

/// Rounds to the nearest millionth, so that sums of the same amounts compare equal.
pub(crate) fn rounded(amount: f64) -> f64 {
    // Most amounts are whole, and `round` is slow where it is a function call.
    if amount as i64 as f64 == amount {
        return amount;
    }
    (amount * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_and_taken_away_leaves_nothing() {
        let third = ResourceAmounts::new(0.0, 0.0, 0.1);
        let sum = third.plus(third).plus(third);
        assert_eq!(sum, ResourceAmounts::new(0.0, 0.0, 0.3));
        assert_eq!(
            sum.minus(third).minus(third).minus(third),
            ResourceAmounts::default()
        );
    }

    #[test]
    fn nothing_is_above_an_unlimited_bound_and_unlimited_is_above_any_other() {
        assert!(!exceeds(5.0, UNLIMITED) && !exceeds(UNLIMITED, UNLIMITED));
        assert!(exceeds(UNLIMITED, 1000.0) && exceeds(2.0, 1.0) && !exceeds(1.0, 1.0));
    }
}
