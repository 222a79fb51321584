//! Watches the cards for XIDs, and asks the driver whether a card needs a recovery.
//!
//! This runs on its own thread with its own NVML handle. Each card has its own event set, so that a failure to wait
//! for one card says nothing about the others. Such a failure does not make a card unhealthy either: the readings
//! show whether a card answers.
//!
//! # Older drivers
//!
//! Before release 550 a driver does not report the recovery action. There a withdrawn card has no way to prove that
//! it works, and stays withdrawn until the agent is restarted. Row remapping is asked of every driver: a row whose
//! remapping is pending or failed withdraws the card even if its XID (63 or 64) was reported before the agent
//! listened.

use std::ffi::OsString;
use std::thread;
use std::time::{Duration, Instant};

use apportion_abi::CardUuid;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use tokio::sync::mpsc;

/// How often to check for events.
const LISTEN_EVERY: Duration = Duration::from_millis(200);
/// How often to ask for the recovery action.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long to wait for a driver that does not answer at all.
const RETRY: Duration = Duration::from_secs(2);
/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`; zero is none.
const RECOVERY_ACTION: FieldId = FieldId(230);
/// `NVML_FI_DEV_REMAPPED_PENDING`: whether memory rows will be remapped at the next reset.
const REMAP_PENDING: FieldId = FieldId(144);
/// `NVML_FI_DEV_REMAPPED_FAILURE`: whether remapping has ever failed.
const REMAP_FAILED: FieldId = FieldId(145);
/// NVML's value for an XID that it does not know.
const UNKNOWN_XID: u64 = 999;

/// An event of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CardEvent {
    /// It reported an XID.
    Fault { card: CardUuid, xid: u64 },
    /// The driver answered a check.
    Checked {
        card: CardUuid,
        /// The recovery action; zero is none. Older drivers do not report it.
        action: Option<u64>,
        /// Whether a row remapping is pending or has failed.
        is_worn: bool,
    },
}

/// Receives the events of all cards.
#[derive(Debug)]
pub(crate) struct FaultMonitor(mpsc::UnboundedReceiver<CardEvent>);

impl FaultMonitor {
    /// Starts the watching thread.
    pub(crate) fn listen(library: OsString) -> Self {
        let (events, receiver) = mpsc::unbounded_channel();
        thread::spawn(move || {
            while !events.is_closed() {
                if let Ok(nvml) = Nvml::builder().lib_path(&library).init() {
                    watch(&nvml, &events);
                }
                thread::sleep(RETRY);
            }
        });
        Self(receiver)
    }

    /// The next event. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> CardEvent {
        match self.0.recv().await {
            Some(receiver) => receiver,
            None => std::future::pending().await,
        }
    }
}

/// Watches all cards until none answers, which means that the driver went away.
fn watch(nvml: &Nvml, events: &mpsc::UnboundedSender<CardEvent>) {
    let mut cards: Vec<WatchedCard<'_>> = Vec::new();
    let mut checked: Option<Instant> = None;
    while !events.is_closed() {
        if checked.is_none_or(|at| at.elapsed() >= CHECK_EVERY) {
            checked = Some(Instant::now());
            let Ok(count) = nvml.device_count() else {
                return;
            };
            cards.retain(|card| card.set.is_some());
            for index in 0..count {
                watch_card(nvml, index, &mut cards);
            }
            let answered = cards.iter().filter(|card| card.check(events)).count();
            if answered == 0 && count > 0 {
                return;
            }
        }
        cards.iter_mut().for_each(|card| card.listen(events));
        thread::sleep(LISTEN_EVERY);
    }
}

/// Starts to watch a card, unless it is watched already.
fn watch_card<'nvml>(nvml: &'nvml Nvml, index: u32, cards: &mut Vec<WatchedCard<'nvml>>) {
    let found = nvml.device_by_index(index).and_then(|device| {
        let uuid = device.uuid()?;
        let uuid: CardUuid = uuid.parse().map_err(|_| NvmlError::Unknown)?;
        Ok((uuid, device))
    });
    let Ok((uuid, device)) = found else { return };
    if cards.iter().any(|card| card.uuid == uuid) {
        return;
    }
    // A card without event support is still checked.
    let set = nvml.create_event_set().ok();
    let set = set.and_then(|set| {
        let registered = device.register_events(EventTypes::CRITICAL_XID_ERROR, set);
        registered.ok()
    });
    cards.push(WatchedCard { uuid, device, set });
}

struct WatchedCard<'nvml> {
    uuid: CardUuid,
    device: Device<'nvml>,
    /// `None` if the card has no events, or after waiting failed. Then the card is registered again.
    set: Option<EventSet<'nvml>>,
}

impl WatchedCard<'_> {
    /// Sends all pending events of the card.
    fn listen(&mut self, events: &mpsc::UnboundedSender<CardEvent>) {
        while let Some(set) = &self.set {
            match set.wait(0) {
                Ok(event) => {
                    let xid = match event.event_data {
                        Some(XidError::Value(xid)) => xid,
                        Some(XidError::Unknown) => UNKNOWN_XID,
                        None => continue,
                    };
                    let _ = events.send(CardEvent::Fault {
                        card: self.uuid,
                        xid,
                    });
                }
                Err(NvmlError::Timeout) => return,
                Err(_) => self.set = None,
            }
        }
    }

    /// Asks for the recovery action. Returns whether the card answered.
    fn check(&self, events: &mpsc::UnboundedSender<CardEvent>) -> bool {
        let asked = [RECOVERY_ACTION, REMAP_PENDING, REMAP_FAILED];
        let Ok(values) = self.device.field_values_for(&asked) else {
            return false;
        };
        let mut numbers = values
            .into_iter()
            .map(|sample| number(sample.ok()?.value.ok()?));
        let action = numbers.next().flatten();
        let is_worn = numbers.flatten().any(|number| number != 0);
        let _ = events.send(CardEvent::Checked {
            card: self.uuid,
            action,
            is_worn,
        });
        true
    }
}

/// The value of an integer field.
fn number(value: SampleValue) -> Option<u64> {
    match value {
        SampleValue::U32(number) => Some(u64::from(number)),
        SampleValue::U64(number) => Some(number),
        SampleValue::F64(_) | SampleValue::I64(_) => None,
    }
}
