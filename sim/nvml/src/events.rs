//! Events: a set stores the cards and event kinds that a program waits for and the last event that it has seen. The
//! simulated hardware has only XID events. The other kinds can be registered but never occur.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use apportion_sim_machine::XidEvent;
use nvml_wrapper_sys::bindings::nvmlEventData_t;

use crate::foreign::ForeignPointer;
use crate::handles::DeviceHandle;
use crate::session;
use crate::status::NvmlStatus;

const XID: c_ulonglong = 8;

/// Single and double bit ECC errors, performance states, XIDs, clocks.
const SUPPORTED: c_ulonglong = 1 | 2 | 4 | XID | 16;

/// How often a waiting program polls, so that it does not block the daemon.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Every event set of the process by its handle. Invariant: a handle is never reused.
static SETS: Mutex<EventSets> = Mutex::new(EventSets {
    newest: 0,
    sets: BTreeMap::new(),
});

/// `nvmlEventSet_t`: like a device's handle, a number that only looks like a pointer.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct EventSet(usize);

/// `nvmlEventData_t` of the first version of the wait, without instances.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct EventData {
    device: DeviceHandle,
    kind: c_ulonglong,
    data: c_ulonglong,
}

struct EventSets {
    newest: usize,
    sets: BTreeMap<usize, EventInterest>,
}

/// What one set waits for: kinds by card, and the last event that it has seen.
#[derive(Debug, Clone, Default)]
struct EventInterest {
    kinds: BTreeMap<u32, c_ulonglong>,
    announced: u64,
}

impl EventInterest {
    fn wants(&self, event: &XidEvent) -> bool {
        let kinds = self.kinds.get(&event.card);
        event.sequence > self.announced && kinds.is_some_and(|kinds| kinds & XID != 0)
    }
}

pub(crate) fn create(set: ForeignPointer<EventSet>) -> Result<(), NvmlStatus> {
    session::running()?;
    let handle = {
        let mut sets = lock();
        sets.newest += 1;
        sets.newest
    };
    set.put(EventSet(handle))?;
    lock().sets.insert(handle, EventInterest::default());
    Ok(())
}

pub(crate) fn free(set: EventSet) -> Result<(), NvmlStatus> {
    session::running()?;
    let freed = lock().sets.remove(&set.0);
    freed.map(drop).ok_or(NvmlStatus::InvalidArgument)
}

pub(crate) fn supported(
    device: DeviceHandle,
    kinds: ForeignPointer<c_ulonglong>,
) -> Result<(), NvmlStatus> {
    device.card()?;
    kinds.put(SUPPORTED)
}

/// `nvmlDeviceRegisterEvents`: earlier events of a card are not reported.
pub(crate) fn register(
    device: DeviceHandle,
    kinds: c_ulonglong,
    set: EventSet,
) -> Result<(), NvmlStatus> {
    device.card()?;
    if kinds & !SUPPORTED != 0 {
        return Err(NvmlStatus::NotSupported);
    }
    let position = device.position()?;
    let (_, newest) = session::events(u64::MAX)?;
    let mut sets = lock();
    let interest = sets
        .sets
        .get_mut(&set.0)
        .ok_or(NvmlStatus::InvalidArgument)?;
    if interest.kinds.is_empty() {
        interest.announced = newest;
    }
    *interest.kinds.entry(position).or_default() |= kinds;
    Ok(())
}

pub(crate) fn wait_v1(
    set: EventSet,
    data: ForeignPointer<EventData>,
    milliseconds: c_uint,
) -> Result<(), NvmlStatus> {
    let (device, xid) = next(set, milliseconds)?;
    data.put(EventData {
        device,
        kind: XID,
        data: xid,
    })
}

pub(crate) fn wait_v2(
    set: EventSet,
    data: ForeignPointer<nvmlEventData_t>,
    milliseconds: c_uint,
) -> Result<(), NvmlStatus> {
    let (device, xid) = next(set, milliseconds)?;
    data.put(nvmlEventData_t {
        device: device.pointer(),
        eventType: XID,
        eventData: xid,
        gpuInstanceId: c_uint::MAX,
        computeInstanceId: c_uint::MAX,
    })
}

/// The next event of a set. If a card of the set is lost, returns an error after all its events.
fn next(set: EventSet, milliseconds: c_uint) -> Result<(DeviceHandle, u64), NvmlStatus> {
    let end = Instant::now() + Duration::from_millis(milliseconds.into());
    loop {
        let interest = interest(set)?;
        let (events, _) = session::events(interest.announced)?;
        if let Some(event) = events.iter().find(|event| interest.wants(event)) {
            see(set, event.sequence);
            return Ok((DeviceHandle::at(event.card)?, event.xid));
        }
        session::none_lost(interest.kinds.keys())?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(NvmlStatus::Timeout);
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
}

fn interest(set: EventSet) -> Result<EventInterest, NvmlStatus> {
    lock()
        .sets
        .get(&set.0)
        .cloned()
        .ok_or(NvmlStatus::InvalidArgument)
}

fn see(set: EventSet, sequence: u64) {
    if let Some(interest) = lock().sets.get_mut(&set.0) {
        interest.announced = sequence;
    }
}

fn lock() -> MutexGuard<'static, EventSets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: XidEvent = XidEvent {
        sequence: 4,
        card: 1,
        xid: 79,
    };

    #[test]
    fn a_set_is_told_of_the_cards_that_it_registered() {
        let mut interest = EventInterest::default();
        assert!(!interest.wants(&FIRST));
        interest.kinds.insert(0, XID);
        assert!(!interest.wants(&FIRST));
        interest.kinds.insert(1, XID);
        assert!(interest.wants(&FIRST));
    }

    #[test]
    fn a_set_is_told_once() {
        let kinds = BTreeMap::from([(1, XID)]);
        let interest = EventInterest {
            kinds,
            announced: 4,
        };
        assert!(!interest.wants(&FIRST));
    }
}
