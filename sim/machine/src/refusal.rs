//! Why the machine refuses a request: the driver errors that the machine can decide.

use serde::{Deserialize, Serialize};

/// A refusal. The CUDA library turns it into the `CUresult` of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CudaRefusal {
    /// The card, or the process's share of it, is full.
    #[error("out of memory")]
    OutOfMemory,
    /// An invalid number or handle.
    #[error("invalid value")]
    InvalidValue,
    /// There is no such card.
    #[error("invalid device")]
    InvalidDevice,
    /// The context does not exist or has ended.
    #[error("invalid context")]
    InvalidContext,
    /// The machine does not support this.
    #[error("not supported")]
    NotSupported,
    /// The state of the process does not allow it.
    #[error("illegal state")]
    IllegalState,
    /// It did not happen within the time that the caller gave.
    #[error("not ready")]
    NotReady,
    /// The caller may not do this to that process.
    #[error("not permitted")]
    NotPermitted,
    /// A rule asked for this `CUresult`.
    #[error("rule: error {0}")]
    Code(i32),
}
