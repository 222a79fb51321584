//! The one driver of this process: its machine, the cards that the process may see, and its tables.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use apportion_sim_client::{MachineClient, given_cards};
use apportion_sim_machine::{CardFacts, MachineFacts, MachineReply, MachineRequest};

use crate::error::{
    CudaError, DEVICE_UNAVAILABLE, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED,
    Outcome, UNKNOWN,
};
use crate::export::{exports, take_call};
use crate::pointer::Out;
use crate::tables::{MemoryKind, ProcessTables};
use crate::{mapping, restore_thread, visible};

/// What `cuInit` found.
pub(crate) struct InitializedDriver {
    facts: MachineFacts,
    visible: Vec<usize>,
}

static MACHINE: OnceLock<MachineClient> = OnceLock::new();
static DRIVER: OnceLock<InitializedDriver> = OnceLock::new();
static TABLES: Mutex<Option<ProcessTables>> = Mutex::new(None);

/// Written by: the child of a fork of an initialised process. Read by: every call. Relaxed: the child has one thread
/// when it is written.
static FORKED: AtomicBool = AtomicBool::new(false);

/// The CUDA version that is reported if no machine can be asked.
const VERSION_WITHOUT_MACHINE: i32 = 13000;

exports! {
    cuInit(flags: u32) = init => "cuInit" @ 2000, anytime;
    cuDriverGetVersion(version: Out<i32>) = get_version => "cuDriverGetVersion" @ 2020, anytime;
}

/// Whether `cuInit` has succeeded in this very process, not in a parent before a fork.
pub(crate) fn is_ready() -> bool {
    DRIVER.get().is_some() && !FORKED.load(Ordering::Relaxed)
}

pub(crate) fn driver() -> Result<&'static InitializedDriver, CudaError> {
    DRIVER.get().ok_or(NOT_INITIALIZED)
}

impl InitializedDriver {
    /// The number of cards that the process sees.
    pub(crate) fn count(&self) -> usize {
        self.visible.len()
    }

    /// The machine's number of a visible device.
    pub(crate) fn card(&self, device: i32) -> Result<usize, CudaError> {
        let device = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
        self.visible.get(device).copied().ok_or(INVALID_DEVICE)
    }

    /// The facts of a visible device.
    pub(crate) fn facts(&self, device: i32) -> Result<&CardFacts, CudaError> {
        Ok(&self.facts.cards[self.card(device)?])
    }
}

/// The tables of this process, locked.
pub(crate) struct LockedTables(MutexGuard<'static, Option<ProcessTables>>);

pub(crate) fn tables() -> LockedTables {
    let mut guard = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_default();
    LockedTables(guard)
}

impl std::ops::Deref for LockedTables {
    type Target = ProcessTables;
    fn deref(&self) -> &ProcessTables {
        self.0.as_ref().expect("`tables` has filled it in")
    }
}

impl std::ops::DerefMut for LockedTables {
    fn deref_mut(&mut self) -> &mut ProcessTables {
        self.0.as_mut().expect("`tables` has filled it in")
    }
}

/// Sends a request to the machine and removes from the tables what the reply says is gone.
pub(crate) fn ask(request: MachineRequest) -> Result<MachineReply, CudaError> {
    let answer = machine()
        .ask(take_call(), request)
        .map_err(|_| DEVICE_UNAVAILABLE)?;
    if !answer.gone.is_empty() {
        for (base, bytes) in tables().lose_blocks(&answer.gone) {
            mapping::unmap(base, bytes);
        }
    }
    match answer.reply {
        MachineReply::Refused(refusal) => Err(refusal.into()),
        reply => Ok(reply),
    }
}

/// Sends a request that creates something, and returns its name in the machine.
pub(crate) fn create(request: MachineRequest) -> Result<u64, CudaError> {
    match ask(request)? {
        MachineReply::Created(name) => Ok(name),
        _ => Err(UNKNOWN),
    }
}

/// Tells the rules about a call that they watch and that may otherwise never ask the machine.
pub(crate) fn touch(function: &'static str) -> Outcome {
    let Some(driver) = DRIVER.get() else {
        return Ok(());
    };
    if driver
        .facts
        .watched
        .iter()
        .any(|watched| watched == function)
    {
        ask(MachineRequest::Touch)?;
    }
    Ok(())
}

/// The CUDA version of the driver.
pub(crate) fn cuda_version() -> i32 {
    match DRIVER.get() {
        Some(driver) => driver.facts.cuda_version,
        None => facts().map_or(VERSION_WITHOUT_MACHINE, |facts| facts.cuda_version),
    }
}

fn machine() -> &'static MachineClient {
    MACHINE.get_or_init(|| MachineClient::at(apportion_sim_client::socket()))
}

fn facts() -> Result<MachineFacts, CudaError> {
    match machine().ask(None, MachineRequest::Hello) {
        Ok(answer) => match answer.reply {
            MachineReply::Facts(facts) => Ok(facts),
            _ => Err(UNKNOWN),
        },
        Err(_) => Err(NO_DEVICE),
    }
}

fn init(flags: u32) -> Outcome {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    if FORKED.load(Ordering::Relaxed) {
        return Err(NOT_INITIALIZED);
    }
    if DRIVER.get().is_some() {
        return Ok(());
    }
    let facts = facts()?;
    if facts.watched.iter().any(|watched| watched == "cuInit") {
        ask(MachineRequest::Touch)?;
    }
    let wish = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let uuids: Vec<&str> = facts.cards.iter().map(|card| card.uuid.as_str()).collect();
    let given = given_cards();
    let order = std::env::var("CUDA_DEVICE_ORDER").ok();
    let there: Vec<usize> = visible::order(order.as_deref(), &facts.cards)
        .into_iter()
        .filter(|card| {
            let uuid = uuids[*card];
            given
                .iter()
                .all(|given| given.iter().any(|card| card == uuid))
        })
        .collect();
    let uuids: Vec<&str> = there.iter().map(|card| uuids[*card]).collect();
    let visible = visible::visible(wish.as_deref(), &uuids);
    let visible: Vec<usize> = visible.into_iter().map(|card| there[card]).collect();
    if visible.is_empty() {
        return Err(NO_DEVICE);
    }
    if DRIVER.set(InitializedDriver { facts, visible }).is_ok() {
        // SAFETY: the handler only stores to an atomic, which is allowed in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        restore_thread::start(ask, has_managed_memory);
    }
    Ok(())
}

fn has_managed_memory() -> bool {
    tables()
        .ranges
        .values()
        .any(|range| matches!(range.kind, MemoryKind::Managed { .. }))
}

unsafe extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

fn get_version(out: Out<i32>) -> Outcome {
    out.check()?;
    out.put(cuda_version())
}

/// A point of synchronization: if a pool was used since the last one, lets the machine trim the pools.
pub(crate) fn synchronize() -> Outcome {
    if tables().take_pools_touched() {
        ask(MachineRequest::Synchronize)?;
    }
    Ok(())
}
