//! Settings of the cards: the NVML library, the charge for contexts, and the policy for offenders.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use apportion_abi::units::parse_time;
use apportion_abi::{Bytes, OvercommitFactor, paths};
use apportion_ledger::OffenderPolicy;
use clap::{Args, ValueEnum};

use crate::driver::Sizes;

/// The NVML of the system's library path.
const SYSTEM_NVML: &str = "libnvidia-ml.so.1";

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "GPUs and limits")]
pub(crate) struct CardOptions {
    /// NVML library of the NVIDIA driver
    #[arg(long, env = "APPORTION_NVML_LIBRARY", value_name = "PATH", default_value = SYSTEM_NVML)]
    pub(crate) nvml_library: PathBuf,

    /// What to do with a process that exceeds or bypasses its limit: observe, kill, or evict its pod (without
    /// --node-name: kill)
    #[arg(long, env = "APPORTION_POLICY", value_name = "POLICY", default_value = "observe", value_parser = policy)]
    pub(crate) policy: OffenderPolicy,

    /// Another policy for the pods of one namespace; several with commas
    #[arg(long, env = "APPORTION_POLICY_OVERRIDE", value_name = "NAMESPACE=POLICY", value_delimiter = ',',
        value_parser = policy_override)]
    pub(crate) policy_override: Vec<PolicyOverride>,

    /// Memory charged for the first CUDA context of a process on a GPU: MiB, at most 65536, or probe (measured once
    /// for each model and driver)
    #[arg(long, env = "APPORTION_CONTEXT_RESERVE", value_name = "MIB", default_value = "probe",
        value_parser = context_reserve)]
    context_reserve: ContextReserve,

    /// Memory to grant of GPUs that use the machine's memory, such as NVIDIA GB10; several with commas
    /// [default: a GPU that does not report its memory size is not shared]
    #[arg(long, env = "APPORTION_CARD_MEMORY", value_name = "MODEL_OR_UUID=MIB", value_delimiter = ',',
        value_parser = card_memory)]
    card_memory: Vec<CardMemory>,

    /// How many times the memory of a GPU the limits on it may add up to, 1 to 100; what is guaranteed never exceeds it
    #[arg(
        long,
        env = "APPORTION_GPU_MEMORY_OVERCOMMIT",
        value_name = "FACTOR",
        default_value = "4"
    )]
    pub(crate) gpu_memory_overcommit: OvercommitFactor,

    /// What happens if a new allocation's guarantee is used by programs above theirs
    #[arg(
        long,
        env = "APPORTION_BURST_RECLAIM",
        value_name = "WAY",
        default_value = "refuse"
    )]
    pub(crate) burst_reclaim: BurstReclaim,

    /// How long a new allocation waits at most for its guarantee to be called in, 2s to 60s; after that it is refused
    #[arg(long, env = "APPORTION_GUARANTEE_DEADLINE", value_name = "TIME", default_value = "60s",
        value_parser = guarantee_deadline)]
    pub(crate) guarantee_deadline: Duration,

    /// How long a program that was suspended for a guarantee waits before it may take the place of another one that uses
    /// more than its guarantee, and how long that one runs before; 1s to 24h
    #[arg(long, env = "APPORTION_SUSPEND_TURN", value_name = "TIME", default_value = "30s", value_parser = turn)]
    pub(crate) suspend_turn: Duration,

    /// The shortest time without a call of the driver after which a program of `apportion run --suspend-when-idle`, or a pod
    /// with apportion.dev/suspend-when-idle, is put to sleep; 1s to 24h
    #[arg(long, env = "APPORTION_SUSPEND_WHEN_IDLE_MIN", value_name = "TIME", default_value = "10s", value_parser = turn)]
    pub(crate) suspend_when_idle_min: Duration,

    /// Whether the driver keeps a memory limit of its own for each container with a share, behind the library: auto
    /// (where driver 615 or newer and the control groups allow it) or off
    #[arg(
        long,
        env = "APPORTION_DRIVER_MEMORY_LIMITS",
        value_name = "SWITCH",
        default_value = "auto"
    )]
    driver_memory_limits: DriverMemoryLimitsMode,

    /// Folder where the control groups of this machine, version 2, are mounted
    #[arg(
        long,
        env = "APPORTION_CGROUP_ROOT",
        value_name = "PATH",
        default_value = "/sys/fs/cgroup"
    )]
    pub(crate) cgroup_root: PathBuf,

    /// How often accounts are compared with NVML, 10 to 60000
    #[arg(long, env = "APPORTION_TICK", value_name = "MILLISECONDS", default_value = "250", value_parser = tick)]
    pub(crate) tick: Duration,
}

/// What happens if a guarantee is used by programs above theirs.
///
/// # Decision: nobody is suspended unless the operator says so
/// A newcomer that is refused can come again. A program that is put to sleep without its consent may lose its connections
/// and its deadlines, may sleep for as long as others need what they were promised, and depends on a driver that can
/// bring its memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BurstReclaim {
    /// The newcomer is refused
    Refuse,
    /// Those who use most above their guarantees are suspended
    Suspend,
}

/// Whether the driver's own limits are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DriverMemoryLimitsMode {
    /// Where they can be
    Auto,
    /// Never
    Off,
}

/// The policy of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct PolicyOverride {
    pub(crate) namespace: String,
    pub(crate) policy: OffenderPolicy,
}

/// The memory to grant of the cards of one model, or of the card with one UUID.
#[derive(Clone, Debug)]
struct CardMemory {
    card: String,
    memory: Bytes,
}

/// How the agent knows what a context costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContextReserve {
    /// It measures a context.
    Probe,
    Fixed(Bytes),
}

impl CardOptions {
    /// The charge for a context; `None`: measure it with a probe.
    pub(crate) fn context_reserve(&self) -> Option<Bytes> {
        match self.context_reserve {
            ContextReserve::Probe => None,
            ContextReserve::Fixed(bytes) => Some(bytes),
        }
    }

    /// Whether the driver's own limits are used where they can be.
    pub(crate) fn has_driver_limits(&self) -> bool {
        self.driver_memory_limits == DriverMemoryLimitsMode::Auto
    }

    /// The memory of cards that do not report it.
    pub(crate) fn sizes(&self) -> Sizes {
        let sizes = self.card_memory.iter();
        sizes.map(|size| (size.card.clone(), size.memory)).collect()
    }

    /// Uses the simulated NVML beside this program, if it is installed.
    pub(super) fn use_simulated_nvml(&mut self) {
        let Some(libraries) = paths::lib_dir() else {
            return;
        };
        let library = libraries.join(paths::SIM_LIBRARIES).join(SYSTEM_NVML);
        if library.exists() {
            self.nvml_library = library;
        }
    }
}

fn policy(text: &str) -> Result<OffenderPolicy, String> {
    match text {
        "observe" => Ok(OffenderPolicy::Observe),
        "kill" => Ok(OffenderPolicy::Kill),
        "evict" => Ok(OffenderPolicy::Evict),
        _ => Err("expected observe, kill or evict".to_owned()),
    }
}

fn policy_override(text: &str) -> Result<PolicyOverride, String> {
    let expected = || "expected NAMESPACE=observe, NAMESPACE=kill or NAMESPACE=evict".to_owned();
    let (namespace, text) = text.split_once('=').ok_or_else(expected)?;
    if namespace.is_empty()
        || !namespace
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
    {
        return Err(expected());
    }
    Ok(PolicyOverride {
        namespace: namespace.to_owned(),
        policy: policy(text).map_err(|_| expected())?,
    })
}

fn context_reserve(text: &str) -> Result<ContextReserve, String> {
    match text.parse() {
        _ if text == "probe" => Ok(ContextReserve::Probe),
        Ok(mib @ 0..=65_536) => Ok(ContextReserve::Fixed(Bytes::from_mib(mib))),
        _ => Err("expected MiB, at most 65536, or probe".to_owned()),
    }
}

fn card_memory(text: &str) -> Result<CardMemory, String> {
    let expected = || "expected MODEL=MiB or UUID=MiB".to_owned();
    let (card, mib) = text.split_once('=').ok_or_else(expected)?;
    let (card, mib) = (card.trim(), mib.parse().map_err(|_| expected())?);
    if card.is_empty() || !(1..=1 << 30).contains(&mib) {
        return Err(expected());
    }
    Ok(CardMemory {
        card: card.to_owned(),
        memory: Bytes::from_mib(mib),
    })
}

fn tick(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(milliseconds @ 10..=60_000) => Ok(Duration::from_millis(milliseconds)),
        _ => Err("expected milliseconds, 10 to 60000".to_owned()),
    }
}

/// Clients wait a little longer than the longest one.
fn guarantee_deadline(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time from 2s to 60s, such as 30s".to_owned();
    time_within(text, 2..=60).ok_or_else(expected)
}

fn turn(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time from 1s to 24h, such as 30s, 5m or 1h".to_owned();
    time_within(text, 1..=86_400).ok_or_else(expected)
}

fn time_within(text: &str, seconds: RangeInclusive<u64>) -> Option<Duration> {
    parse_time(text).filter(|time| seconds.contains(&time.as_secs()))
}
