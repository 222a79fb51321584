//! The messages between the simulated driver and its NVML library: NVML's requests, and the snapshot of the machine
//! that it gets. They are separate from the CUDA messages because a monitoring program asks about the whole machine,
//! while a CUDA program asks about its own process.

use serde::{Deserialize, Serialize};

/// A request of an NVML client, or of a test that plays the hardware.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NvmlRequest {
    /// The whole machine, as far as the asking process may see it.
    Snapshot,
    /// The events that are newer than this sequence number.
    Events {
        /// The sequence number of the last event that the client knows.
        since: u64,
    },
    /// `nvmlDeviceSetMemoryLimits_v1`: limits for one control group on one card.
    SetMemoryLimits {
        /// The card's position.
        card: u32,
        /// The path of the group below the control group mount, e.g. `/kubepods/pod1`.
        group: String,
        /// The guaranteed part in bytes.
        soft: u64,
        /// The most in bytes; [`NO_LIMIT`] clears the limit.
        hard: u64,
    },
    /// `nvmlDeviceGetMemoryLimits_v1`.
    GetMemoryLimits {
        /// The card's position.
        card: u32,
        /// The path of the group below the control group mount.
        group: String,
    },
    /// What only hardware does and no NVML client can: errors, load, loss.
    Control(NvmlControl),
}

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`: a hard limit of this value means no limit.
pub const NO_LIMIT: u64 = u64::MAX;

/// What a test makes the hardware do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NvmlControl {
    /// The card reports an XID error.
    Xid {
        /// The card's position.
        card: u32,
        /// The number, e.g. 79 for "fallen off the bus".
        xid: u64,
    },
    /// The card's load.
    Utilisation {
        /// The card's position.
        card: u32,
        /// How busy each part of the card is, in per cent.
        utilisation: CardUtilization,
    },
    /// The card is off the bus, or back on it. Every query about a lost card fails.
    Lost {
        /// The card's position.
        card: u32,
        /// Whether it is lost.
        lost: bool,
    },
    /// The recovery action that the driver reports for the card.
    Recovery {
        /// The card's position.
        card: u32,
        /// NVML's number: 0 is none, 1 a reset.
        action: u32,
    },
    /// The remapped rows of the card's memory.
    Rows {
        /// The card's position.
        card: u32,
        /// The remapped rows.
        rows: RemappedRows,
    },
    /// What slows the card's clocks down.
    Throttled {
        /// The card's position.
        card: u32,
        /// NVML's bits. 0 is nothing.
        reasons: u64,
    },
    /// Whether the card answers memory queries. Parts with unified memory do not.
    MemoryInfo {
        /// The card's position.
        card: u32,
        /// Whether it answers.
        supported: bool,
    },
    /// Whether process lists contain each process's memory.
    ProcessMemory {
        /// The card's position.
        card: u32,
        /// Whether they do.
        known: bool,
    },
}

/// The machine's answer to an [`NvmlRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NvmlReply {
    /// To [`NvmlRequest::Snapshot`].
    Snapshot(MachineSnapshot),
    /// To [`NvmlRequest::Events`].
    Events {
        /// The newer events, oldest first.
        events: Vec<XidEvent>,
        /// The sequence number of the machine's newest event.
        newest: u64,
    },
    /// To [`NvmlRequest::GetMemoryLimits`].
    MemoryLimits(MemoryLimits),
    /// The request was carried out.
    Done,
    /// The request was refused.
    Refused(NvmlRefusal),
}

/// Why the machine refuses an NVML request; each is one `nvmlReturn_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NvmlRefusal {
    /// No such card, or numbers that make no sense.
    InvalidArgument,
    /// This driver or card cannot do that.
    NotSupported,
    /// The asking process may not do that.
    NoPermission,
    /// No limit was set for this group.
    NotFound,
    /// The control group cannot be opened.
    OperatingSystem,
    /// The card has fallen off the bus.
    CardLost,
}

/// The machine at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSnapshot {
    /// The driver that the machine plays.
    pub driver: DriverVersions,
    /// The cards in PCI order.
    pub cards: Vec<CardSnapshot>,
}

/// The versions that the driver reports of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverVersions {
    /// The driver, e.g. `580.105.08`.
    pub driver: String,
    /// NVML, e.g. `13.580.105.08`.
    pub nvml: String,
    /// CUDA as a number, e.g. 13000.
    pub cuda: i32,
    /// Whether the driver can limit memory by control group.
    pub memory_limits: bool,
}

/// One card at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardSnapshot {
    /// `GPU-…`, as NVML prints it.
    pub uuid: String,
    /// The product name, e.g. `NVIDIA A100-SXM4-40GB`.
    pub name: String,
    /// The PCI domain, bus and device.
    pub pci: PciAddress,
    /// The CUDA compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// How many multiprocessors the card has.
    pub multiprocessors: u32,
    /// Physical memory in bytes.
    pub total: u64,
    /// The part of `total` that the driver keeps for itself.
    pub reserved: u64,
    /// What processes have taken physically, without `reserved`.
    pub used: u64,
    /// The driver's own limit for the asking process, where one is set.
    pub group: Option<GroupView>,
    /// How busy the card is, in per cent.
    pub utilisation: CardUtilization,
    /// Every query about a lost card fails.
    pub lost: bool,
    /// The recovery action that the driver reports. 0 is none.
    pub recovery: u32,
    /// The remapped rows of its memory.
    pub rows: RemappedRows,
    /// What slows its clocks down, in NVML's bits.
    pub throttled: u64,
    /// The cards at the other ends of its NVLinks, by position.
    pub links: Vec<u32>,
    /// Whether memory queries are answered.
    pub memory_info: bool,
    /// The processes that have a context on the card.
    pub processes: Vec<ProcessSnapshot>,
}

/// The rows of a card's memory that have failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// Some rows will be remapped at the next reset.
    pub pending: bool,
    /// A row could not be remapped.
    pub failed: bool,
}

/// What the asking process sees instead of the whole card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupView {
    /// The hard limit in bytes.
    pub limit: u64,
    /// What the processes of the group use, in bytes.
    pub used: u64,
}

/// The PCI address of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciAddress {
    /// The domain.
    pub domain: u32,
    /// The bus.
    pub bus: u32,
    /// The device.
    pub device: u32,
}

/// How busy the engines of a card are, in per cent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardUtilization {
    /// Time in which a kernel ran.
    pub gpu: u32,
    /// Time in which memory was read or written.
    pub memory: u32,
    /// The video encoder.
    pub encoder: u32,
    /// The video decoder.
    pub decoder: u32,
}

/// One process on one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSnapshot {
    /// The pid as the host sees it.
    pub pid: u32,
    /// The memory that it holds on the card, contexts included; `None` where the card cannot tell.
    pub used: Option<u64>,
}

/// Something that the hardware reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidEvent {
    /// Grows by one with each event.
    pub sequence: u64,
    /// The card's position.
    pub card: u32,
    /// The XID number.
    pub xid: u64,
}

/// The limits of one control group on one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimits {
    /// The guaranteed part in bytes.
    pub soft: u64,
    /// The most in bytes.
    pub hard: u64,
    /// What the group uses now.
    pub used: u64,
}
