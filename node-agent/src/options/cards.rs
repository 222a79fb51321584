//! Settings of the cards: the NVML library, the charge for contexts, and the policy for offenders.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use apportion_abi::Bytes;
use apportion_ledger::OffenderPolicy;

use super::{AgentSetting, SYSTEM_NVML};
use crate::driver::Sizes;

pub(super) const ROWS: &[AgentSetting] = &[
    AgentSetting {
        flag: "--nvml-library",
        env: "APPORTION_NVML_LIBRARY",
        form: "PATH",
        default: SYSTEM_NVML,
        help: "NVML library of the NVIDIA driver",
        set: |options, text| {
            options.nvml = OsString::from(text);
            !text.is_empty()
        },
    },
    AgentSetting {
        flag: "--policy",
        env: "APPORTION_POLICY",
        form: "observe, kill or evict (without --node-name: kill)",
        default: "observe",
        help: "What to do with a process that exceeds or bypasses its limit",
        set: |options, text| {
            let policy = policy(text);
            options.policy = policy.unwrap_or_default();
            policy.is_some()
        },
    },
    AgentSetting {
        flag: "--policy-override",
        env: "APPORTION_POLICY_OVERRIDE",
        form: "NAMESPACE=observe, NAMESPACE=kill or NAMESPACE=evict, several with commas",
        default: "none",
        help: "Another policy for the pods of one namespace",
        set: |options, text| {
            let policies: Option<BTreeMap<_, _>> = text.split(',').map(policy_of).collect();
            let is_right = policies.is_some();
            options.policies.extend(policies.unwrap_or_default());
            is_right
        },
    },
    AgentSetting {
        flag: "--context-reserve",
        env: "APPORTION_CONTEXT_RESERVE",
        form: "MiB, at most 65536, or probe",
        default: "probe: measured once for each model and driver",
        help: "Memory charged for the first CUDA context of a process on a GPU",
        set: |options, text| {
            options.context_reserve = match (text, text.parse::<u64>()) {
                ("probe", _) => None,
                (_, Ok(mib)) if mib <= 65_536 => Some(Bytes::from_mib(mib)),
                _ => return false,
            };
            true
        },
    },
    AgentSetting {
        flag: "--card-memory",
        env: "APPORTION_CARD_MEMORY",
        form: "MODEL=MiB or UUID=MiB, separated by commas",
        default: "none: a GPU that does not report its memory size is not shared",
        help: "Memory to grant of GPUs that use the machine's memory, such as NVIDIA GB10",
        set: |options, text| {
            let sizes: Option<Sizes> = text.split(',').map(size).collect();
            let is_right = sizes.is_some();
            options.card_memory.extend(sizes.unwrap_or_default());
            is_right
        },
    },
    AgentSetting {
        flag: "--tick",
        env: "APPORTION_TICK",
        form: "milliseconds, 10 to 60000",
        default: "250",
        help: "How often accounts are compared with NVML",
        set: |options, text| {
            let tick = text
                .parse()
                .ok()
                .filter(|tick| (10..=60_000).contains(tick));
            options.tick = Duration::from_millis(tick.unwrap_or_default());
            tick.is_some()
        },
    },
];

fn policy(text: &str) -> Option<OffenderPolicy> {
    match text {
        "observe" => Some(OffenderPolicy::Observe),
        "kill" => Some(OffenderPolicy::Kill),
        "evict" => Some(OffenderPolicy::Evict),
        _ => None,
    }
}

/// Parses a namespace with its policy.
fn policy_of(text: &str) -> Option<(String, OffenderPolicy)> {
    let (namespace, text) = text.split_once('=')?;
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let is_name = !namespace.is_empty() && namespace.bytes().all(is_allowed);
    Some((namespace.to_owned(), policy(text)?)).filter(|_| is_name)
}

/// Parses a card, by model or UUID, with its memory size.
fn size(text: &str) -> Option<(String, Bytes)> {
    let (card, mib) = text.split_once('=')?;
    let mib = mib.parse().ok().filter(|mib| (1..=1 << 30).contains(mib))?;
    let card = card.trim();
    (!card.is_empty()).then(|| (card.to_owned(), Bytes::from_mib(mib)))
}
