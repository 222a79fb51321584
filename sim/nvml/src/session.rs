//! The library's initialisation count, as NVML has one, and its connection to the simulated driver. Every query asks
//! the daemon, so no answer is stale.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_uint};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use apportion_sim_client::{MachineClient, given_cards, socket};
use apportion_sim_machine::{
    CudaRefusal, MachineReply, MachineRequest, MachineSnapshot, NvmlReply, NvmlRequest, XidEvent,
};
use nvml_wrapper_sys::bindings::nvmlReturn_t;

use crate::status::{self, NvmlStatus};

/// How many more times the library was initialised than shut down.
///
/// Written by: init and shutdown. Read by: every call. No other data depends on it, so `Relaxed` is enough.
static USERS: AtomicU32 = AtomicU32::new(0);

/// The cards that this container was given. None outside of containers.
static GIVEN: OnceLock<Option<Vec<String>>> = OnceLock::new();

/// The simulated driver, at the socket that the environment named at first use.
static MACHINE: OnceLock<MachineClient> = OnceLock::new();

thread_local! {
    /// The exported function that is running, for the machine's faults and latencies.
    static CALL: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Begins a call. Its first request carries its name.
pub(crate) fn begin(call: &'static str) {
    CALL.set(Some(call));
}

pub(crate) fn init() -> Result<(), NvmlStatus> {
    init_with_flags(0)
}

/// `nvmlInitWithFlags`: the flags allow failures that cannot happen here.
pub(crate) fn init_with_flags(_flags: c_uint) -> Result<(), NvmlStatus> {
    exchange(NvmlRequest::Snapshot)?;
    USERS.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn shutdown() -> Result<(), NvmlStatus> {
    let left = USERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |users| {
        users.checked_sub(1)
    });
    left.map(drop).map_err(|_| NvmlStatus::Uninitialized)
}

/// `nvmlErrorString`, the only function that works before the initialisation.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    CStr::as_ptr(status::text(code))
}

/// Fails unless the library is initialised.
pub(crate) fn running() -> Result<(), NvmlStatus> {
    let is = USERS.load(Ordering::Relaxed) > 0;
    is.then_some(()).ok_or(NvmlStatus::Uninitialized)
}

/// Sends a request to the simulated driver.
pub(crate) fn ask(request: NvmlRequest) -> Result<NvmlReply, NvmlStatus> {
    running()?;
    match exchange(request)? {
        NvmlReply::Refused(refusal) => Err(refusal.into()),
        reply => Ok(reply),
    }
}

/// The machine's current state.
pub(crate) fn snapshot() -> Result<MachineSnapshot, NvmlStatus> {
    match ask(NvmlRequest::Snapshot)? {
        NvmlReply::Snapshot(mut snapshot) => {
            if let Some(given) = GIVEN.get_or_init(given_cards) {
                snapshot.cards.retain(|card| given.contains(&card.uuid));
            }
            Ok(snapshot)
        }
        _ => Err(NvmlStatus::Unknown),
    }
}

/// The events after `since`, and the number of the newest one.
pub(crate) fn events(since: u64) -> Result<(Vec<XidEvent>, u64), NvmlStatus> {
    match ask(NvmlRequest::Events { since })? {
        NvmlReply::Events { events, newest } => Ok((events, newest)),
        _ => Err(NvmlStatus::Unknown),
    }
}

/// Fails if one of these cards has fallen off the bus.
pub(crate) fn none_lost<'a>(positions: impl Iterator<Item = &'a u32>) -> Result<(), NvmlStatus> {
    let cards = snapshot()?.cards;
    let mut places = positions.filter_map(|position| usize::try_from(*position).ok());
    let lost = places.any(|place| cards.get(place).is_some_and(|card| card.lost));
    if lost {
        Err(NvmlStatus::CardLost)
    } else {
        Ok(())
    }
}

fn exchange(request: NvmlRequest) -> Result<NvmlReply, NvmlStatus> {
    let machine = MACHINE.get_or_init(|| MachineClient::at(socket()));
    let answer = machine.ask(CALL.take(), MachineRequest::Nvml(request));
    match answer.map_err(|_| NvmlStatus::DriverNotLoaded)?.reply {
        MachineReply::Nvml(reply) => Ok(reply),
        MachineReply::Refused(CudaRefusal::Code(code)) => {
            Err(NvmlStatus::Ruled(code.cast_unsigned()))
        }
        _ => Err(NvmlStatus::Unknown),
    }
}
