//! The NVIDIA driver's checkpoints of processes: `cuCheckpointProcess…`. They put the CUDA part of another process to
//! sleep and wake it. The calls name the process by its pid, need no context, and can take as long as a copy of all its
//! memory. So the agent makes them in a child process only, see [`transition`].
//!
//! Drivers have the functions since release 570 (CUDA 12.8). They are looked up when the library is opened, so the same
//! program runs on older drivers.
//!
//! Source: "CUDA Checkpointing" in NVIDIA's CUDA driver API, `cuda.h` of CUDA 13.4, and the README and issues of
//! NVIDIA/cuda-checkpoint. What they say beyond the states:
//! - A restore needs `cuInit` in the caller, or a driver in persistence mode.
//! - Without a timeout, a lock waits for as long as the process's calls take.
//! - The driver does not repair a process whose checkpoint or restore failed. After a restore that found too little
//!   memory, release 580 refuses every later one (issue 44). So nobody may restore before the memory is free.
//! - Releases before 610 refuse processes with managed memory, or with memory that is shared by IPC handles.

use std::ffi::{CStr, OsStr, c_int, c_uint, c_void};

use libloading::Library;
use serde::{Deserialize, Serialize};

pub mod transition;

/// `CUresult`.
type Status = c_uint;
type Init = unsafe extern "C" fn(c_uint) -> Status;
type GetState = unsafe extern "C" fn(c_int, *mut c_uint) -> Status;
type Lock = unsafe extern "C" fn(c_int, *mut ForeignLockArguments) -> Status;
/// The optional arguments are null.
type Operation = unsafe extern "C" fn(c_int, *mut c_void) -> Status;

/// `CUcheckpointLockArgs`.
#[repr(C)]
struct ForeignLockArguments {
    timeout_ms: c_uint,
    reserved: c_uint,
    reserved_words: [u64; 7],
}

/// `CUprocessState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointState {
    /// The process runs.
    Running,
    /// Its CUDA calls wait.
    Locked,
    /// Its memory is in the host, and it holds nothing on a GPU.
    Checkpointed,
    /// It failed in a checkpoint or a restore and is lost.
    Failed,
    /// Something is being done to it, or a state of a newer driver.
    Other(u32),
}

/// An error of the driver: its number (`CUresult`).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct CudaStatus(pub u32);

impl CudaStatus {
    /// `CUDA_ERROR_INVALID_VALUE`: the driver knows no such process.
    pub const INVALID_VALUE: Self = Self(1);
    /// `CUDA_ERROR_ILLEGAL_STATE`: the process is in another state, or something is being done to it.
    pub const ILLEGAL_STATE: Self = Self(401);
    /// `CUDA_ERROR_NOT_READY`: the timeout of a lock is over.
    pub const NOT_READY: Self = Self(600);

    /// What the error means for a checkpoint or a restore.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self.0 {
            1 => "the driver knows no such process",
            2 => "there is too little memory",
            3 | 4 | 100 => "the driver does not work",
            304 => "the operating system refused it; the agent may lack privileges",
            401 => "the driver is doing something else with the process",
            600 => "its CUDA calls and kernels did not end in time",
            800 => "the agent may not do this to processes of that user",
            801 => {
                "the driver cannot do this to the process; it may use managed memory, memory shared with another \
                 process, or a MIG instance"
            }
            _ => "the driver does not say more",
        }
    }
}

/// Why the library cannot be used for checkpoints.
#[derive(Debug, thiserror::Error)]
pub enum OpenCheckpointsError {
    /// The driver is older than the functions.
    #[error("the driver is too old to suspend programs: release 570 or newer is needed")]
    Older,
    /// The library could not be opened.
    #[error("failed to open the CUDA library of the driver")]
    Open(#[source] libloading::Error),
    /// The driver does not work.
    #[error("failed to initialise CUDA: error {}", .0.0)]
    Init(CudaStatus),
}

/// The functions of the driver's CUDA library, which is initialised and stays loaded.
#[derive(Debug)]
pub struct ProcessCheckpoints {
    get_state: GetState,
    lock: Lock,
    checkpoint: Operation,
    restore: Operation,
    unlock: Operation,
}

impl ProcessCheckpoints {
    /// Opens and initialises the library. That opens no context.
    ///
    /// # Errors
    /// If it is not there, is older than the functions, or does not work.
    pub fn open(library: &OsStr) -> Result<Self, OpenCheckpointsError> {
        // SAFETY: the library is the driver's, as every CUDA program loads it.
        let library = unsafe { Library::new(library) }.map_err(OpenCheckpointsError::Open)?;
        let init: Init = symbol(&library, c"cuInit")?;
        let functions = Self {
            get_state: symbol(&library, c"cuCheckpointProcessGetState")?,
            lock: symbol(&library, c"cuCheckpointProcessLock")?,
            checkpoint: symbol(&library, c"cuCheckpointProcessCheckpoint")?,
            restore: symbol(&library, c"cuCheckpointProcessRestore")?,
            unlock: symbol(&library, c"cuCheckpointProcessUnlock")?,
        };
        // The function pointers must outlive this value.
        std::mem::forget(library);
        // SAFETY: the only valid flags are zero.
        outcome(unsafe { init(0) }).map_err(OpenCheckpointsError::Init)?;
        Ok(functions)
    }

    /// The state of a process.
    ///
    /// # Errors
    /// What the driver answers, for example about a process that does not use CUDA.
    pub fn state(&self, pid: i32) -> Result<CheckpointState, CudaStatus> {
        let mut state = u32::MAX;
        // SAFETY: the place is valid for the call.
        outcome(unsafe { (self.get_state)(pid, &raw mut state) })?;
        Ok(match state {
            0 => CheckpointState::Running,
            1 => CheckpointState::Locked,
            2 => CheckpointState::Checkpointed,
            3 => CheckpointState::Failed,
            other => CheckpointState::Other(other),
        })
    }

    /// Lets the CUDA calls of a running process wait. It runs on if those in flight take longer than the timeout, which
    /// is not zero.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn lock(&self, pid: i32, timeout_ms: u32) -> Result<(), CudaStatus> {
        let mut arguments = ForeignLockArguments {
            timeout_ms: timeout_ms.max(1),
            reserved: 0,
            reserved_words: [0; 7],
        };
        // SAFETY: the structure is the function's.
        outcome(unsafe { (self.lock)(pid, &raw mut arguments) })
    }

    /// Moves the memory of a locked process to the host.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn checkpoint(&self, pid: i32) -> Result<(), CudaStatus> {
        // SAFETY: the arguments are optional.
        outcome(unsafe { (self.checkpoint)(pid, std::ptr::null_mut()) })
    }

    /// Moves the memory of a checkpointed process back. It is locked then.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn restore(&self, pid: i32) -> Result<(), CudaStatus> {
        // SAFETY: the arguments are optional.
        outcome(unsafe { (self.restore)(pid, std::ptr::null_mut()) })
    }

    /// Lets the CUDA calls of a locked process go on.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn unlock(&self, pid: i32) -> Result<(), CudaStatus> {
        // SAFETY: the arguments are optional.
        outcome(unsafe { (self.unlock)(pid, std::ptr::null_mut()) })
    }
}

fn outcome(status: Status) -> Result<(), CudaStatus> {
    if status == 0 {
        Ok(())
    } else {
        Err(CudaStatus(status))
    }
}

/// A function of the library.
fn symbol<T: Copy>(library: &Library, name: &CStr) -> Result<T, OpenCheckpointsError> {
    const { assert!(size_of::<T>() == size_of::<unsafe extern "C" fn() -> c_int>()) };
    // SAFETY: every caller asks for a function by the type that `cuda.h` declares for this name.
    let found = unsafe { library.get::<T>(name.to_bytes_with_nul()) };
    found
        .map(|found| *found)
        .map_err(|_| OpenCheckpointsError::Older)
}

const _: () = assert!(size_of::<ForeignLockArguments>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_the_functions_is_an_older_driver() {
        let opened = ProcessCheckpoints::open(OsStr::new("libc.so.6"));
        assert!(
            matches!(opened, Err(OpenCheckpointsError::Older)),
            "{opened:?}"
        );
    }

    #[test]
    fn a_missing_library_is_told_apart_from_an_older_driver() {
        let opened = ProcessCheckpoints::open(OsStr::new("libapportion-is-not-there.so.1"));
        assert!(
            matches!(opened, Err(OpenCheckpointsError::Open(_))),
            "{opened:?}"
        );
    }
}
