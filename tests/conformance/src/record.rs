//! What a case finds: one JSON line per fact.
//!
//! CUDA's or NVML's documentation promises a *documented* fact. If it does not hold, the driver (in practice: the
//! simulation, or a hook) is wrong. No document promises an *observed* fact, such as a rounding. It is recorded so that
//! two machines can be compared.

use std::io::Write;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::code::ResultCode;

/// Where a fact comes from.
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
    /// What was tested.
    pub(crate) fact: String,
    /// Where it comes from.
    pub(crate) kind: FactSource,
    /// Whether it is as documented.
    pub(crate) holds: bool,
    /// The observed value.
    pub(crate) seen: Value,
    /// The documented value, if it is a single one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) wanted: Option<Value>,
}

/// Why a case stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaseError {
    /// A library could not be loaded.
    #[error("failed to load a driver library")]
    Library(#[from] libloading::Error),
    /// A call failed that the case needs for its preparation.
    #[error("{0} returned {1}")]
    Call(&'static str, ResultCode),
    /// A process that the case needs could not be started.
    #[error("failed to run a second process")]
    Process(#[from] std::io::Error),
}

/// The output of a case.
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

    /// A documented relation, with the numbers that decide it.
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
        // A closed output is no error: the reader has stopped.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }
}

fn value(seen: impl Serialize) -> Value {
    serde_json::to_value(seen).expect("what is seen is plain data")
}
