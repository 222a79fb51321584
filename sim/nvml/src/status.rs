//! NVML's return codes as one Rust type, so that every function can use `?`, and the texts of `nvmlErrorString`.

use std::ffi::CStr;

use apportion_sim_machine::NvmlRefusal;
use nvml_wrapper_sys::bindings::nvmlReturn_t;

/// A return code other than success that this library returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NvmlStatus {
    Uninitialized,
    InvalidArgument,
    NotSupported,
    NoPermission,
    NotFound,
    InsufficientSize,
    DriverNotLoaded,
    Timeout,
    CardLost,
    OperatingSystem,
    VersionMismatch,
    Unknown,
    /// The code that a rule of the machine makes the call return.
    Ruled(nvmlReturn_t),
}

pub(crate) const SUCCESS: nvmlReturn_t = 0;

impl From<NvmlStatus> for nvmlReturn_t {
    fn from(status: NvmlStatus) -> Self {
        match status {
            NvmlStatus::Uninitialized => 1,
            NvmlStatus::InvalidArgument => 2,
            NvmlStatus::NotSupported => 3,
            NvmlStatus::NoPermission => 4,
            NvmlStatus::NotFound => 6,
            NvmlStatus::InsufficientSize => 7,
            NvmlStatus::DriverNotLoaded => 9,
            NvmlStatus::Timeout => 10,
            NvmlStatus::CardLost => 15,
            NvmlStatus::OperatingSystem => 17,
            NvmlStatus::VersionMismatch => 25,
            NvmlStatus::Unknown => 999,
            NvmlStatus::Ruled(code) => code,
        }
    }
}

impl From<NvmlRefusal> for NvmlStatus {
    fn from(refusal: NvmlRefusal) -> Self {
        match refusal {
            NvmlRefusal::InvalidArgument => Self::InvalidArgument,
            NvmlRefusal::NotSupported => Self::NotSupported,
            NvmlRefusal::NoPermission => Self::NoPermission,
            NvmlRefusal::NotFound => Self::NotFound,
            NvmlRefusal::OperatingSystem => Self::OperatingSystem,
            NvmlRefusal::CardLost => Self::CardLost,
        }
    }
}

/// `nvmlErrorString`: every code of the header, also those that this library never returns.
pub(crate) fn text(code: nvmlReturn_t) -> &'static CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires restart",
        17 => c"The operating system has blocked the request.",
        18 => c"RM has detected an NVML/RM version mismatch.",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"The requested vgpu operation is not available on target device, because ECC is enabled.",
        23 => c"Insufficient Resources",
        24 => c"Frequency not supported",
        25 => c"Argument version mismatch",
        26 => c"Deprecated",
        27 => c"Not Ready",
        28 => c"GPU not found",
        29 => c"Invalid state",
        30 => c"Reset type not supported",
        _ => c"Unknown Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_outside_the_header_is_an_unknown_error() {
        assert_eq!(text(31), text(NvmlStatus::Unknown.into()));
        assert_ne!(text(30), text(31));
    }
}
