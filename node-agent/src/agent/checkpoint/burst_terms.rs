//! The weight and the priority of elastic shares in the checkpoint.
//!
//! They are there only if they are not the usual ones, because an older agent does not read a checkpoint that has them.

use apportion_abi::{BurstTerms, BurstWeight};
use apportion_ledger::Allocation;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TermsRecord {
    weight_thousandths: u32,
    priority: i32,
}

impl TermsRecord {
    pub(super) fn of(allocation: &Allocation) -> Option<Self> {
        let BurstTerms { weight, priority } = allocation.terms;
        let has_own = allocation.is_elastic() && allocation.terms != BurstTerms::default();
        has_own.then_some(Self {
            weight_thousandths: weight.thousandths(),
            priority,
        })
    }
}

impl From<TermsRecord> for BurstTerms {
    fn from(record: TermsRecord) -> Self {
        Self {
            weight: BurstWeight::from_thousandths(record.weight_thousandths).unwrap_or_default(),
            priority: record.priority,
        }
    }
}
