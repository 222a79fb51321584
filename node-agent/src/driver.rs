//! The driver through NVML, on its own thread: a call that hangs delays samples and nothing else.
//!
//! # Requirements
//!
//! `nvmlDeviceGetMemoryInfo_v2`, which reports the driver's reserve, came with driver 510. An older driver is
//! refused with an error that says so. A card without its own memory (it uses the machine's) reports none: its size
//! comes from the settings ([`Sizes`]), and its use is the sum of its processes. A card in MIG mode is ignored: the
//! agent does not allocate MIG instances yet.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use apportion_abi::{Bytes, CardCapacity, CardUuid};
use apportion_ledger::Health;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use tokio::sync::{mpsc as channel, oneshot};
use tracing::warn;

mod child;
pub(crate) mod faults;
pub(crate) mod group_limits;
pub(crate) mod identity;
mod locality;
mod ordinals;
pub(crate) mod probe;
mod processes;
pub(crate) mod reserve;
pub(crate) mod transition;
mod utilization;

use identity::CardIdentity;
pub(crate) use locality::{CardLocality, topology};
use utilization::UtilizationSampler;

/// How long the driver may take to start. A card without persistence mode needs seconds.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait between attempts to restart a driver that went away, for example in an upgrade.
const RESTART_WAIT: Duration = Duration::from_secs(2);

/// Why there is no driver.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    #[error("failed to load the NVIDIA driver's management library {library}")]
    Load {
        library: String,
        #[source]
        source: NvmlError,
    },
    #[error("the NVIDIA driver did not answer within {} s", START_TIMEOUT.as_secs())]
    Silent,
    #[error("the NVIDIA driver {version} does not report {what}")]
    Mute {
        version: String,
        what: &'static str,
        #[source]
        source: NvmlError,
    },
    #[error("the NVIDIA driver {0} has no usable GPU")]
    NoCards(String),
}

impl DriverError {
    /// Whether there is nothing to serve yet, as on a node without GPUs. A driver may be installed later.
    pub(crate) const fn is_absence(&self) -> bool {
        match self {
            Self::Load { .. } | Self::NoCards(_) => true,
            Self::Silent | Self::Mute { .. } => false,
        }
    }
}

/// The memory sizes of cards that do not report theirs, by UUID or by model.
pub(crate) type Sizes = BTreeMap<String, Bytes>;

/// A card as the agent found it.
#[derive(Clone, Debug)]
pub(crate) struct FoundCard {
    pub(crate) uuid: CardUuid,
    pub(crate) index: u32,
    pub(crate) model: String,
    pub(crate) capacity: CardCapacity,
    /// Whether the driver reports its memory and use.
    pub(crate) is_measured: bool,
    /// The minor number of its device file, if it has one.
    pub(crate) minor: Option<u32>,
    pub(crate) near: CardLocality,
    /// CUDA's ordinal for it in PCI bus order; `None` if uncertain.
    pub(crate) cuda_ordinal: Option<u32>,
    pub(crate) identity: CardIdentity,
}

/// A reading of one card.
#[derive(Clone, Debug)]
pub(crate) struct CardReading {
    pub(crate) uuid: CardUuid,
    /// If it is not `Healthy`, the other fields are empty.
    pub(crate) health: Health,
    /// What the driver reports, or the sum of its processes if it reports only these.
    pub(crate) used: Bytes,
    pub(crate) utilisation: Option<u32>,
    /// The share of the card's time in per cent, by pid; `None` if the card does not report it.
    pub(crate) loads: Option<BTreeMap<u32, u32>>,
    /// NVML's bits for what slows its clocks; `None` if the card does not report them.
    pub(crate) throttled: Option<u64>,
    /// The memory by pid; `None` if the card does not report how much.
    pub(crate) processes: BTreeMap<u32, Option<Bytes>>,
}

/// A reading of all cards.
#[derive(Debug)]
pub(crate) struct DriverReadings {
    /// The number that [`NvmlDriver::ask`] returned for it.
    pub(crate) sequence: u64,
    pub(crate) cards: Vec<CardReading>,
    /// Cards that are new.
    pub(crate) found: Vec<FoundCard>,
}

/// The driver's version and its cards.
#[derive(Debug)]
struct DriverInventory {
    version: String,
    cuda_version: Option<i32>,
    /// How many cards the driver has, usable or not.
    count: u32,
    cards: Vec<FoundCard>,
}

/// The agent's side of the NVML thread.
#[derive(Debug)]
pub(crate) struct NvmlDriver {
    pub(crate) version: String,
    /// The newest CUDA version that it supports, as NVML's number.
    pub(crate) cuda_version: Option<i32>,
    pub(crate) cards: Vec<FoundCard>,
    asks: mpsc::Sender<u64>,
    readings: channel::UnboundedReceiver<DriverReadings>,
    sequence: u64,
    pending: Option<Instant>,
}

impl NvmlDriver {
    /// Loads NVML and finds the cards.
    pub(crate) async fn start(library: OsString, sizes: Sizes) -> Result<Self, DriverError> {
        let (found_here, found_there) = oneshot::channel();
        let (asks, asked) = mpsc::channel();
        let (answers, readings) = channel::unbounded_channel();
        std::thread::spawn(move || match find(&library, &sizes) {
            Ok((nvml, found)) => {
                let (cards, count) = (found.cards.clone(), found.count);
                let _ = found_here.send(Ok(found));
                NvmlThread {
                    library,
                    sizes,
                    nvml,
                    cards,
                    count,
                    loads: BTreeMap::new(),
                    restarted: Instant::now(),
                }
                .run(&asked, &answers);
            }
            Err(error) => drop(found_here.send(Err(error))),
        });
        let found = tokio::time::timeout(START_TIMEOUT, found_there).await;
        let found = found
            .ok()
            .and_then(Result::ok)
            .ok_or(DriverError::Silent)??;
        let DriverInventory {
            version,
            cuda_version,
            cards,
            ..
        } = found;
        Ok(Self {
            version,
            cuda_version,
            cards,
            asks,
            readings,
            sequence: 0,
            pending: None,
        })
    }

    /// Requests readings, unless a request is pending.
    pub(crate) fn ask(&mut self) -> Option<u64> {
        if self.pending.is_some() {
            return None;
        }
        self.sequence += 1;
        self.pending = Some(Instant::now());
        let _ = self.asks.send(self.sequence);
        Some(self.sequence)
    }

    /// How long a request has been pending.
    pub(crate) fn silence(&self) -> Duration {
        self.pending.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// The next readings. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> DriverReadings {
        match self.readings.recv().await {
            Some(readings) => {
                self.pending = None;
                readings
            }
            // The thread ends only after this end was dropped, so nothing can follow.
            None => std::future::pending().await,
        }
    }
}

fn find(library: &OsString, sizes: &Sizes) -> Result<(Nvml, DriverInventory), DriverError> {
    let nvml = Nvml::builder()
        .lib_path(library)
        .init()
        .map_err(|source| DriverError::Load {
            library: library.to_string_lossy().into_owned(),
            source,
        })?;
    let mute = |version: &str, what| {
        let version = version.to_owned();
        move |source| DriverError::Mute {
            version,
            what,
            source,
        }
    };
    let version = nvml.sys_driver_version().map_err(mute("", "its version"))?;
    let cuda_version = nvml.sys_cuda_driver_version().ok();
    let count = nvml.device_count().map_err(mute(&version, "its GPUs"))?;
    let mut cards: Vec<FoundCard> = Vec::new();
    for index in 0..count {
        match found_card(&nvml, index, sizes) {
            Ok(Some(card)) => cards.push(card),
            Ok(None) => warn!(index, "GPU in MIG mode ignored"),
            Err(source @ NvmlError::FailedToLoadSymbol(_)) => {
                return Err(mute(
                    &version,
                    "its reserved memory (driver 510 or later is needed)",
                )(source));
            }
            Err(error) => warn!(index, %error, "Failed to read a GPU, ignored"),
        }
    }
    locality::read_links(&nvml, &mut cards);
    ordinals::enter(&nvml, count, &mut cards);
    if cards.is_empty() {
        Err(DriverError::NoCards(version))
    } else {
        Ok((
            nvml,
            DriverInventory {
                version,
                cuda_version,
                count,
                cards,
            },
        ))
    }
}

fn found_card(nvml: &Nvml, index: u32, sizes: &Sizes) -> Result<Option<FoundCard>, NvmlError> {
    let device = nvml.device_by_index(index)?;
    if device.mig_mode().is_ok_and(|mode| mode.current != 0) {
        return Ok(None);
    }
    let uuid: CardUuid = device.uuid()?.parse().map_err(|_| NvmlError::Unknown)?;
    let model = device.name()?;
    let memory = match device.memory_info() {
        Err(NvmlError::NotSupported) => None,
        memory => Some(memory?),
    };
    let capacity = match &memory {
        Some(memory) => CardCapacity {
            total: Bytes(memory.total),
            reserved: Bytes(memory.reserved),
        },
        None => configured(uuid, &model, sizes),
    };
    Ok(Some(FoundCard {
        uuid,
        index,
        model,
        capacity,
        is_measured: memory.is_some(),
        minor: device.minor_number().ok(),
        near: CardLocality::default(),
        cuda_ordinal: None,
        identity: CardIdentity::read(&device),
    }))
}

/// The card's size in the settings, or zero.
fn configured(uuid: CardUuid, model: &str, sizes: &Sizes) -> CardCapacity {
    let size = sizes.get(&uuid.to_string()).or_else(|| sizes.get(model));
    if size.is_none() {
        warn!(%uuid, model, "GPU does not report its memory size, not shared without --card-memory");
    }
    CardCapacity {
        total: size.copied().unwrap_or_default(),
        reserved: Bytes::ZERO,
    }
}

/// The thread that talks to the driver.
struct NvmlThread {
    library: OsString,
    sizes: Sizes,
    nvml: Nvml,
    cards: Vec<FoundCard>,
    count: u32,
    loads: BTreeMap<CardUuid, UtilizationSampler>,
    restarted: Instant,
}

impl NvmlThread {
    fn run(
        mut self,
        asked: &mpsc::Receiver<u64>,
        answers: &channel::UnboundedSender<DriverReadings>,
    ) {
        while let Ok(sequence) = asked.recv() {
            let mut cards = self.read();
            let mut found = Vec::new();
            // NVML must be loaded again after a driver restart or a change of cards.
            if self.is_another(&cards) && self.restart(&mut found) {
                cards = self.read();
            }
            if answers
                .send(DriverReadings {
                    sequence,
                    cards,
                    found,
                })
                .is_err()
            {
                return;
            }
        }
    }

    fn read(&mut self) -> Vec<CardReading> {
        let (nvml, loads) = (&self.nvml, &mut self.loads);
        self.cards
            .iter()
            .map(|card| read(nvml, card, loads.entry(card.uuid).or_default()))
            .collect()
    }

    /// Whether the driver went away, or its number of cards changed.
    fn is_another(&self, cards: &[CardReading]) -> bool {
        let is_gone = cards.iter().all(|reading| reading.health == Health::Lost);
        is_gone
            || self
                .nvml
                .device_count()
                .is_ok_and(|count| count != self.count)
    }

    /// Restarts NVML, at most once in `RESTART_WAIT`. Returns whether that worked.
    fn restart(&mut self, new: &mut Vec<FoundCard>) -> bool {
        if self.restarted.elapsed() < RESTART_WAIT {
            return false;
        }
        self.restarted = Instant::now();
        let Ok((nvml, found)) = find(&self.library, &self.sizes) else {
            return false;
        };
        self.nvml = nvml;
        self.count = found.count;
        new.extend(
            found
                .cards
                .into_iter()
                .filter(|card| !self.cards.iter().any(|known| known.uuid == card.uuid)),
        );
        self.cards.extend(new.iter().cloned());
        true
    }
}

fn read(nvml: &Nvml, card: &FoundCard, loads: &mut UtilizationSampler) -> CardReading {
    try_read(nvml, card, loads).unwrap_or_else(|error| {
        let health = match error {
            NvmlError::GpuLost
            | NvmlError::NotFound
            | NvmlError::Uninitialized
            | NvmlError::DriverNotLoaded => Health::Lost,
            _ => Health::Unhealthy,
        };
        let (used, processes) = (Bytes::ZERO, BTreeMap::new());
        CardReading {
            uuid: card.uuid,
            health,
            used,
            utilisation: None,
            loads: None,
            throttled: None,
            processes,
        }
    })
}

fn throttled(device: &Device) -> Option<u64> {
    Some(device.current_throttle_reasons().ok()?.bits())
}

fn try_read(
    nvml: &Nvml,
    card: &FoundCard,
    loads: &mut UtilizationSampler,
) -> Result<CardReading, NvmlError> {
    let device = nvml.device_by_uuid(card.uuid.to_string())?;
    // The list comes first. Then a process that starts in between shows as unexplained memory in one sample, and not
    // as a process whose memory is missing in the card's total.
    let processes = processes::of(&device)?;
    let used = if card.is_measured {
        Bytes(device.memory_info()?.used)
    } else {
        processes.values().flatten().copied().sum()
    };
    let utilisation = device.utilization_rates().ok().map(|rates| rates.gpu);
    Ok(CardReading {
        uuid: card.uuid,
        health: Health::Healthy,
        used,
        utilisation,
        loads: loads.of(&device),
        throttled: throttled(&device),
        processes,
    })
}
