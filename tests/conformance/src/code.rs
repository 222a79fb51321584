//! What a driver function returns, under its name in `cuda.h`.
//!
//! Records are read by people and compared between machines, so a code is written by name; one that
//! is not in the table is written as its number, never dropped.

use std::fmt;

use serde::{Serialize, Serializer};

/// A `CUresult`, or [`ResultCode::ABSENT`] for a function that the library does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResultCode(pub(crate) i32);

const NAMES: &[(i32, &str)] = &[
    (-1, "no such function"),
    (0, "CUDA_SUCCESS"),
    (1, "CUDA_ERROR_INVALID_VALUE"),
    (2, "CUDA_ERROR_OUT_OF_MEMORY"),
    (3, "CUDA_ERROR_NOT_INITIALIZED"),
    (100, "CUDA_ERROR_NO_DEVICE"),
    (101, "CUDA_ERROR_INVALID_DEVICE"),
    (201, "CUDA_ERROR_INVALID_CONTEXT"),
    (400, "CUDA_ERROR_INVALID_HANDLE"),
    (401, "CUDA_ERROR_ILLEGAL_STATE"),
    (500, "CUDA_ERROR_NOT_FOUND"),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    (708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"),
    (800, "CUDA_ERROR_NOT_PERMITTED"),
    (801, "CUDA_ERROR_NOT_SUPPORTED"),
    (910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"),
    (914, "CUDA_ERROR_INVALID_RESOURCE_TYPE"),
    (915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"),
    (904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"),
];

impl ResultCode {
    pub(crate) const ABSENT: Self = Self(-1);
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NOT_INITIALIZED: Self = Self(3);
    pub(crate) const NO_DEVICE: Self = Self(100);
    pub(crate) const INVALID_DEVICE: Self = Self(101);
    pub(crate) const INVALID_CONTEXT: Self = Self(201);
    pub(crate) const ILLEGAL_STATE: Self = Self(401);
    pub(crate) const NOT_FOUND: Self = Self(500);
    pub(crate) const CAPTURE_UNJOINED: Self = Self(904);
    pub(crate) const UPDATE_FAILURE: Self = Self(910);
    pub(crate) const INVALID_RESOURCE_TYPE: Self = Self(914);

    pub(crate) fn succeeded(self) -> bool {
        self == Self::SUCCESS
    }
}

impl fmt::Display for ResultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for ResultCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
