//! The ledger on disk, so that a new agent has the allocations of the one that was killed.
//!
//! The checkpoint has only the promises. The use is read again from the accounts and the driver. A checkpoint that
//! cannot be read, or of another version, is never guessed at: it is moved aside, and living allocations are found
//! through their accounts. So an agent that does not know elastic grants never gives out what their programs use: their
//! accounts have the allowances.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apportion_abi::Bytes;
use apportion_ledger::{
    Allocation, AllocationId, AllocationOwner, AllocationPhase, BurstRange, CardGrant, ClaimOwner,
    EpochMillis, Ledger, ProcessId, SuspensionCause,
};
use serde::{Deserialize, Serialize};

use crate::atomic_write;

mod burst_terms;
mod suspension;

use burst_terms::TermsRecord;
use suspension::SuspensionRecord;

/// The version of the format.
const VERSION: u32 = 1;

/// Why a checkpoint is not usable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error("failed to read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to parse {path}")]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{path} has version {version}, this agent reads {VERSION}")]
    Version { path: PathBuf, version: u32 },
    #[error("{path} has an invalid GPU UUID: {text:?}")]
    Card { path: PathBuf, text: String },
    #[error("{path} names an allocation by what is no id: {text:?}")]
    Id { path: PathBuf, text: String },
}

/// The ledger that an earlier agent saved.
#[derive(Debug, Default)]
pub(crate) struct RestoredLedger {
    pub(crate) epoch: u64,
    pub(crate) serial: u64,
    pub(crate) allocations: Vec<Allocation>,
    /// Whether the machine was rebooted since it was saved.
    pub(crate) is_of_another_boot: bool,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct CheckpointFile {
    version: u32,
    boot_id: String,
    epoch: u64,
    serial: u64,
    allocations: Vec<AllocationRecord>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct AllocationRecord {
    id: String,
    key: String,
    name: String,
    created_ms: u64,
    state: StateRecord,
    grants: Vec<GrantRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    burst: Option<TermsRecord>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    whole: bool,
    #[serde(default, skip_serializing_if = "SuspensionRecord::is_running")]
    suspension: SuspensionRecord,
    /// Whether it was put to sleep because a guarantee was called in, so that the agent must wake it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    called_in: bool,
    /// Whether it was put to sleep because it was idle, so that a call of the driver must wake it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    idle: bool,
    /// After how long without a call of the driver it is put to sleep, if ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idle_after_ms: Option<u64>,
    /// When it last fell asleep or woke, if it ever did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    moved_ms: Option<u64>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum StateRecord {
    Reserved {
        expires_ms: u64,
    },
    Process {
        pid: u32,
        start: u64,
    },
    Pod {
        uid: String,
    },
    Claim {
        uid: String,
        name: String,
        pods: BTreeMap<String, String>,
    },
    Draining,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct GrantRecord {
    card: String,
    /// What is guaranteed.
    limit_bytes: u64,
    /// The limit of an elastic grant. Its allowance is in the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ceiling_bytes: Option<u64>,
    /// What a resume needs, if that is more than the limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    needed_bytes: u64,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

pub(crate) fn save(path: &Path, ledger: &Ledger, boot_id: &str) -> io::Result<()> {
    let (epoch, serial) = ledger.numbering();
    let allocations = ledger.allocations().into_iter().map(record).collect();
    let file = CheckpointFile {
        version: VERSION,
        boot_id: boot_id.to_owned(),
        epoch,
        serial,
        allocations,
    };
    atomic_write::replace(
        path,
        &serde_json::to_vec_pretty(&file).map_err(io::Error::other)?,
    )
}

/// Loads what an earlier agent saved, or `None` if there is nothing. After a reboot only reservations and the
/// allocations of pods remain.
pub(crate) fn load(path: &Path, boot_id: &str) -> Result<Option<RestoredLedger>, CheckpointError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(CheckpointError::Read {
                path: path.to_owned(),
                source,
            });
        }
    };
    let parse = |source| CheckpointError::Parse {
        path: path.to_owned(),
        source,
    };
    let version: CheckpointVersion = serde_json::from_slice(&text).map_err(parse)?;
    if version.version != VERSION {
        return Err(CheckpointError::Version {
            path: path.to_owned(),
            version: version.version,
        });
    }
    let file: CheckpointFile = serde_json::from_slice(&text).map_err(parse)?;
    let is_same_boot = file.boot_id == boot_id;
    let records = file.allocations.into_iter().filter(|record| {
        is_same_boot
            || matches!(
                record.state,
                StateRecord::Reserved { .. } | StateRecord::Pod { .. } | StateRecord::Claim { .. }
            )
    });
    let allocations: Result<_, _> = records.map(|record| allocation(path, record)).collect();
    Ok(Some(RestoredLedger {
        epoch: file.epoch,
        serial: file.serial,
        allocations: allocations?,
        is_of_another_boot: !is_same_boot,
    }))
}

/// The only field that every version has.
#[derive(Debug, Deserialize)]
struct CheckpointVersion {
    version: u32,
}

fn record(allocation: &Allocation) -> AllocationRecord {
    let state = match &allocation.state {
        AllocationPhase::Reserved { expires } => StateRecord::Reserved {
            expires_ms: expires.0,
        },
        AllocationPhase::Allocated(AllocationOwner::Process(ProcessId { pid, start })) => {
            StateRecord::Process {
                pid: *pid,
                start: *start,
            }
        }
        AllocationPhase::Allocated(AllocationOwner::Pod(uid)) => {
            StateRecord::Pod { uid: uid.clone() }
        }
        AllocationPhase::Allocated(AllocationOwner::Claim(ClaimOwner { uid, name, pods })) => {
            StateRecord::Claim {
                uid: uid.clone(),
                name: name.clone(),
                pods: pods.clone(),
            }
        }
        AllocationPhase::Draining => StateRecord::Draining,
    };
    let grant = |grant: &CardGrant| GrantRecord {
        card: grant.card.to_string(),
        limit_bytes: grant.guaranteed().0,
        ceiling_bytes: grant.burst.map(|range| range.ceiling.0),
        needed_bytes: grant.needed.0,
    };
    let is_asleep_for = |cause| suspension::is_asleep_for(allocation, cause);
    let idle_after = allocation.idle_after.map(|idle| idle.as_millis());
    AllocationRecord {
        id: allocation.id.0.clone(),
        key: allocation.key.clone(),
        name: allocation.name.clone(),
        created_ms: allocation.created.0,
        state,
        grants: allocation.grants.iter().map(grant).collect(),
        burst: TermsRecord::of(allocation),
        whole: allocation.is_whole,
        suspension: SuspensionRecord::of(allocation.suspension),
        called_in: is_asleep_for(SuspensionCause::Guarantee),
        idle: is_asleep_for(SuspensionCause::Idle),
        idle_after_ms: idle_after.map(|idle| u64::try_from(idle).unwrap_or(u64::MAX)),
        moved_ms: (allocation.moved != allocation.created).then_some(allocation.moved.0),
    }
}

fn allocation(path: &Path, record: AllocationRecord) -> Result<Allocation, CheckpointError> {
    let state = match record.state {
        StateRecord::Reserved { expires_ms } => AllocationPhase::Reserved {
            expires: EpochMillis(expires_ms),
        },
        StateRecord::Process { pid, start } => {
            AllocationPhase::Allocated(AllocationOwner::Process(ProcessId { pid, start }))
        }
        StateRecord::Pod { uid } => AllocationPhase::Allocated(AllocationOwner::Pod(uid)),
        StateRecord::Claim { uid, name, pods } => {
            AllocationPhase::Allocated(AllocationOwner::Claim(ClaimOwner { uid, name, pods }))
        }
        StateRecord::Draining => AllocationPhase::Draining,
    };
    let id = AllocationId::parse(&record.id).ok_or_else(|| CheckpointError::Id {
        path: path.to_owned(),
        text: record.id.clone(),
    })?;
    Ok(Allocation {
        id,
        key: record.key,
        name: record.name,
        state,
        created: EpochMillis(record.created_ms),
        grants: record
            .grants
            .into_iter()
            .map(|record| grant(path, record))
            .collect::<Result<_, _>>()?,
        terms: record.burst.map(Into::into).unwrap_or_default(),
        is_whole: record.whole,
        suspension: record.suspension.phase(),
        suspension_cause: suspension::cause(record.called_in, record.idle),
        idle_after: record.idle_after_ms.map(Duration::from_millis),
        moved: EpochMillis(record.moved_ms.unwrap_or(record.created_ms)),
    })
}

fn grant(path: &Path, record: GrantRecord) -> Result<CardGrant, CheckpointError> {
    let card = record.card.parse().map_err(|_| CheckpointError::Card {
        path: path.to_owned(),
        text: record.card.clone(),
    })?;
    let guaranteed = Bytes(record.limit_bytes);
    let mut restored = match record.ceiling_bytes {
        Some(ceiling) => {
            let ceiling = Bytes(ceiling).max(guaranteed);
            CardGrant::elastic(
                card,
                BurstRange {
                    guaranteed,
                    ceiling,
                },
            )
        }
        None => CardGrant::new(card, guaranteed),
    };
    restored.needed = Bytes(record.needed_bytes);
    Ok(restored)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apportion_abi::{BurstTerms, CardCapacity, CardRequest, CardUuid};
    use apportion_ledger::{LedgerEvent, OffenderPolicy, PlacementProposal, SuspensionPhase};

    use super::*;

    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(77, OffenderPolicy::Observe);
        let card = CardUuid([3; 16]);
        let capacity = CardCapacity {
            total: Bytes(100),
            reserved: Bytes(0),
        };
        let _ = ledger.apply(EpochMillis(1), LedgerEvent::CardFound { card, capacity });
        for name in ["a", "b", "c"] {
            let (key, name) = (name.to_owned(), name.to_owned());
            let asks = vec![CardRequest {
                card,
                bytes: Bytes(20),
            }];
            let ttl = Duration::from_secs(9);
            let proposal = PlacementProposal {
                key,
                name,
                asks,
                ceilings: Vec::new(),
                terms: BurstTerms::default(),
                ttl,
                idle_after: None,
            };
            let _ = ledger.apply(EpochMillis(1), LedgerEvent::Allocate(proposal));
        }
        let id = |serial: u32| AllocationId(format!("4d-{serial}"));
        let owner = AllocationOwner::Process(ProcessId { pid: 5, start: 6 });
        let _ = ledger.apply(EpochMillis(2), LedgerEvent::Commit { id: id(1), owner });
        let owner = AllocationOwner::Pod("uid".into());
        let _ = ledger.apply(EpochMillis(2), LedgerEvent::Commit { id: id(2), owner });
        ledger
    }

    #[test]
    fn what_was_saved_is_what_is_restored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.json");
        assert!(load(&path, "boot").unwrap().is_none());
        let ledger = ledger();
        save(&path, &ledger, "boot").unwrap();
        let restored = load(&path, "boot").unwrap().unwrap();
        assert_eq!((restored.epoch, restored.serial), ledger.numbering());
        assert_eq!(
            restored.allocations.iter().collect::<Vec<_>>(),
            ledger.allocations()
        );
    }

    #[test]
    fn who_sleeps_and_what_a_resume_needs_is_restored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.json");
        let mut ledger = ledger();
        let id = AllocationId("4d-1".to_owned());
        let mut phases = Vec::new();
        for event in [
            LedgerEvent::Suspend { id: id.clone() },
            LedgerEvent::Suspended { id: id.clone() },
            LedgerEvent::Resume { id: id.clone() },
            LedgerEvent::Resumed { id: id.clone() },
        ] {
            let _ = ledger.apply(EpochMillis(3), event);
            save(&path, &ledger, "boot").unwrap();
            let restored = load(&path, "boot").unwrap().unwrap();
            let found = restored.allocations.iter().find(|of| of.id == id).unwrap();
            phases.push((found.suspension, found.grants[0].needed));
        }
        let expected = [
            (SuspensionPhase::Suspending, Bytes::ZERO),
            (SuspensionPhase::Suspended, Bytes(20)),
            (SuspensionPhase::Resuming, Bytes(20)),
            (SuspensionPhase::Running, Bytes::ZERO),
        ];
        assert_eq!(phases, expected);
    }

    #[test]
    fn an_elastic_grant_keeps_its_guarantee_and_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.json");
        let mut ledger = ledger();
        let share = |bytes| CardRequest {
            card: CardUuid([3; 16]),
            bytes: Bytes(bytes),
        };
        let terms = BurstTerms {
            weight: "2.5".parse().unwrap(),
            priority: -7,
        };
        let proposal = PlacementProposal {
            key: "d".into(),
            name: "d".into(),
            asks: vec![share(30)],
            ceilings: vec![share(90)],
            terms,
            ttl: Duration::from_secs(9),
            idle_after: None,
        };
        let _ = ledger.apply(EpochMillis(3), LedgerEvent::Allocate(proposal));
        save(&path, &ledger, "boot").unwrap();
        let restored = load(&path, "boot").unwrap().unwrap();
        let grants = restored.allocations.iter().map(|of| &of.grants[0]);
        let ranges: Vec<_> = grants
            .map(|grant| [grant.guaranteed(), grant.limit, grant.ceiling()])
            .collect();
        assert_eq!(ranges[0], [20, 20, 20].map(Bytes));
        assert_eq!(ranges[3], [30, 30, 90].map(Bytes));
        assert_eq!(restored.allocations[3].terms, terms);
        let text = fs::read_to_string(&path).unwrap();
        for field in ["ceiling_bytes", "weight_thousandths", "priority"] {
            assert_eq!(text.matches(field).count(), 1, "{text}");
        }
    }

    #[test]
    fn after_a_restart_of_the_machine_no_process_holds_anything() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.json");
        save(&path, &ledger(), "boot").unwrap();
        let restored = load(&path, "another boot").unwrap().unwrap();
        let names: Vec<_> = restored
            .allocations
            .iter()
            .map(|a| a.name.as_str())
            .collect();
        assert_eq!(names, ["b", "c"]);
    }

    #[test]
    fn an_id_that_leads_out_of_the_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.json");
        save(&path, &ledger(), "boot").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("4d-1", "../../escape")).unwrap();
        let error = load(&path, "boot").unwrap_err().to_string();
        assert!(error.contains("../../escape"), "{error}");
    }

    #[test]
    fn what_this_agent_does_not_understand_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.json");
        for (text, part) in [
            ("", "parse"),
            ("{\"version\": 2, \"more\": 1}", "version 2"),
            (
                "{\"version\": 1, \"boot_id\": \"\", \"epoch\": 1, \"serial\": 1, \"allocations\": [], \"x\": 1}",
                "parse",
            ),
        ] {
            fs::write(&path, text).unwrap();
            let error = load(&path, "boot").unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
