//! Checkpoints of processes, by the states and errors of NVIDIA's documentation ("CUDA Checkpointing"). The caller names
//! the process by its pid. The machine passes lock and unlock on to the restore thread of that process, which opens and
//! closes the gate of its calls.
//!
//! Not documented, and decided here: a process without a restore thread (it has not called `cuInit`) cannot be named; a
//! restore that finds too little memory leaves the process checkpointed, so that it can be tried again; memory that is
//! shared with other processes is refused, with every driver.

use apportion_sim_machine::{MachineReply, MachineRequest};

use crate::driver::ask;
use crate::error::{CudaError, INVALID_VALUE, NOT_SUPPORTED, Outcome, UNKNOWN};
use crate::export::exports;
use crate::pointer::{In, Out};

/// `CUcheckpointLockArgs`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct LockArguments {
    timeout_ms: u32,
    reserved: u32,
    reserved_words: [u64; 7],
}

/// `CUcheckpointCheckpointArgs` and `CUcheckpointUnlockArgs`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ReservedArguments {
    reserved: [u64; 8],
}

/// `CUcheckpointRestoreArgs`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RestoreArguments {
    pairs: u64,
    pairs_count: u32,
    reserved: [u8; 52],
}

exports! {
    cuCheckpointProcessGetState(process: i32, state: Out<u32>) = get_state => "cuCheckpointProcessGetState" @ 12080;
    cuCheckpointProcessGetRestoreThreadId(process: i32, thread: Out<i32>) = get_thread => "cuCheckpointProcessGetRestoreThreadId" @ 12080;
    cuCheckpointProcessLock(process: i32, arguments: In<LockArguments>) = lock => "cuCheckpointProcessLock" @ 12080;
    cuCheckpointProcessCheckpoint(process: i32, arguments: In<ReservedArguments>) = checkpoint => "cuCheckpointProcessCheckpoint" @ 12080;
    cuCheckpointProcessRestore(process: i32, arguments: In<RestoreArguments>) = restore => "cuCheckpointProcessRestore" @ 12080;
    cuCheckpointProcessUnlock(process: i32, arguments: In<ReservedArguments>) = unlock => "cuCheckpointProcessUnlock" @ 12080;
}

fn value(request: MachineRequest) -> Result<u64, CudaError> {
    match ask(request)? {
        MachineReply::Value(value) => Ok(value),
        _ => Err(UNKNOWN),
    }
}

fn get_state(process: i32, state: Out<u32>) -> Outcome {
    state.check()?;
    let number = value(MachineRequest::ProcessState(process))?;
    state.put(u32::try_from(number).map_err(|_| UNKNOWN)?)
}

fn get_thread(process: i32, thread: Out<i32>) -> Outcome {
    thread.check()?;
    let number = value(MachineRequest::RestoreThread(process))?;
    thread.put(i32::try_from(number).map_err(|_| UNKNOWN)?)
}

fn lock(process: i32, arguments: In<LockArguments>) -> Outcome {
    let mut timeout_ms = 0;
    if !arguments.is_null() {
        let arguments = arguments.get()?;
        if arguments.reserved != 0 || arguments.reserved_words != [0; 7] {
            return Err(INVALID_VALUE);
        }
        timeout_ms = arguments.timeout_ms;
    }
    ask(MachineRequest::ProcessLock {
        process,
        timeout_ms,
    })?;
    Ok(())
}

fn check_reserved(arguments: In<ReservedArguments>) -> Outcome {
    if !arguments.is_null() && arguments.get()?.reserved != [0; 8] {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

fn checkpoint(process: i32, arguments: In<ReservedArguments>) -> Outcome {
    check_reserved(arguments)?;
    ask(MachineRequest::ProcessCheckpoint(process))?;
    Ok(())
}

/// A move to other cards is not simulated.
fn restore(process: i32, arguments: In<RestoreArguments>) -> Outcome {
    if !arguments.is_null() {
        let arguments = arguments.get()?;
        let has_pairs = arguments.pairs_count > 0;
        if arguments.reserved != [0; 52] || has_pairs != (arguments.pairs != 0) {
            return Err(INVALID_VALUE);
        }
        if has_pairs {
            return Err(NOT_SUPPORTED);
        }
    }
    ask(MachineRequest::ProcessRestore(process))?;
    Ok(())
}

fn unlock(process: i32, arguments: In<ReservedArguments>) -> Outcome {
    check_reserved(arguments)?;
    ask(MachineRequest::ProcessUnlock(process))?;
    Ok(())
}

/// Each structure has the 64 bytes that it has in `cuda.h`.
const _: () = assert!(
    size_of::<LockArguments>() == 64
        && size_of::<ReservedArguments>() == 64
        && size_of::<RestoreArguments>() == 64
);
