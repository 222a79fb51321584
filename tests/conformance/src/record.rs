//! What a case finds out: one JSON line per fact.
//!
//! A *documented* fact is one that CUDA's or NVML's documentation promises; it holds everywhere or the
//! driver (in practice: the simulation, or a hook) is wrong. An *observed* fact is one that no document
//! promises, such as a rounding; it is written down, so that two machines can be compared.

use std::io::Write;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::code::ResultCode;

/// Who vouches for a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FactSource {
    /// The documentation.
    Documented,
    /// This run.
    Observed,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FactRecord {
    /// The case that found it.
    pub(crate) case: String,
    /// What was looked at.
    pub(crate) fact: String,
    /// Who vouches for it.
    pub(crate) kind: FactSource,
    /// Whether it is as documented.
    pub(crate) holds: bool,
    /// What was seen.
    pub(crate) seen: Value,
    /// What the documentation says, where it is one value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) wanted: Option<Value>,
}

/// Why a case could not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaseError {
    /// A library is not there.
    #[error("failed to load a driver library")]
    Library(#[from] libloading::Error),
    /// A call that the case only prepares with failed.
    #[error("{0} returned {1}")]
    Call(&'static str, ResultCode),
    /// A process that the case needs could not be run.
    #[error("failed to run a second process")]
    Process(#[from] std::io::Error),
}

/// Where a case writes.
#[derive(Debug)]
pub(crate) struct CaseReport {
    case: String,
}

impl CaseReport {
    pub(crate) fn of(case: &str) -> Self {
        Self {
            case: case.to_owned(),
        }
    }

    /// A documented value.
    pub(crate) fn equals(&self, fact: &str, wanted: impl Serialize, seen: impl Serialize) {
        let (wanted, seen) = (value(wanted), value(seen));
        let holds = wanted == seen;
        self.write(fact, FactSource::Documented, holds, seen, Some(wanted));
    }

    /// A documented relation, and the numbers that it was judged by.
    pub(crate) fn holds(&self, fact: &str, holds: bool, seen: impl Serialize) {
        self.write(fact, FactSource::Documented, holds, value(seen), None);
    }

    /// A value that no document promises.
    pub(crate) fn observed(&self, fact: &str, seen: impl Serialize) {
        self.write(fact, FactSource::Observed, true, value(seen), None);
    }

    fn write(&self, fact: &str, kind: FactSource, holds: bool, seen: Value, wanted: Option<Value>) {
        let record = FactRecord {
            case: self.case.clone(),
            fact: fact.to_owned(),
            kind,
            holds,
            seen,
            wanted,
        };
        let line = serde_json::to_string(&record).expect("a record is plain data");
        // Whoever stops reading has seen enough.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }
}

fn value(seen: impl Serialize) -> Value {
    serde_json::to_value(seen).expect("what is seen is plain data")
}
