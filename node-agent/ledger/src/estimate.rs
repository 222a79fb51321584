//! The overhead of one process on one card, estimated from samples that cannot be atomic.
//!
//! NVML says what a process uses, and the account says what it claimed. The program may allocate and free between
//! the two readings. A claim is published before the driver call and taken back after the driver has freed, so
//! claims are never below what the driver holds for them. So NVML's number less the *highest* claim during the NVML
//! query is never above the true overhead. If the claim did not change meanwhile, it is the true overhead.
//!
//! An overhead that is too high refuses memory that is free. One that is too low lasts until the next quiet sample.
//! So a sample during which claims changed counts as a lower bound, and the highest of the last few bounds is used.

use std::collections::VecDeque;

use apportion_abi::Bytes;

use crate::sample::ClaimWindow;

/// How many samples a lower bound lasts.
const REMEMBERED: usize = 4;

/// The overhead bounds of one process on one card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverheadEstimate {
    bounds: VecDeque<Bytes>,
}

impl OverheadEstimate {
    /// Records one sample. A quiet one replaces all bounds.
    pub(crate) fn observe(&mut self, nvml: Bytes, claimed: ClaimWindow) {
        if claimed.is_quiet() {
            self.bounds.clear();
        }
        self.bounds.truncate(REMEMBERED - 1);
        self.bounds.push_front(nvml.minus(claimed.highest));
    }

    /// The highest remembered bound.
    pub(crate) fn overhead(&self) -> Bytes {
        self.bounds.iter().max().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet(claimed: u64) -> ClaimWindow {
        ClaimWindow {
            lowest: Bytes(claimed),
            highest: Bytes(claimed),
        }
    }

    #[test]
    fn a_quiet_sample_is_exact_in_both_directions() {
        let mut estimate = OverheadEstimate::default();
        estimate.observe(Bytes(150), quiet(100));
        assert_eq!(estimate.overhead(), Bytes(50));
        estimate.observe(Bytes(110), quiet(100));
        assert_eq!(estimate.overhead(), Bytes(10));
    }

    #[test]
    fn an_allocation_during_the_sample_is_not_overhead() {
        let mut estimate = OverheadEstimate::default();
        let racing = ClaimWindow {
            lowest: Bytes(100),
            highest: Bytes(400),
        };
        estimate.observe(Bytes(400), racing);
        assert_eq!(estimate.overhead(), Bytes(0));
    }

    #[test]
    fn a_restless_sample_neither_forgets_nor_keeps_an_overhead_for_ever() {
        let mut estimate = OverheadEstimate::default();
        estimate.observe(Bytes(150), quiet(100));
        let racing = ClaimWindow {
            lowest: Bytes(0),
            highest: Bytes(400),
        };
        estimate.observe(Bytes(150), racing);
        assert_eq!(estimate.overhead(), Bytes(50));
        for _ in 0..REMEMBERED {
            estimate.observe(Bytes(150), racing);
        }
        assert_eq!(estimate.overhead(), Bytes(0));
    }
}
