//! The ledger on disk, so that a new agent has the book of the one that was killed.
//!
//! Only what was promised is in it; what is used is in the accounts and in the driver, and is looked
//! up anew. A checkpoint of another version, or one that cannot be read, is never guessed at: it is set
//! aside, and what lives is found through the accounts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use apportion_abi::Bytes;
use apportion_ledger::{Allocation, AllocationId, Grant, Ledger, Owner, ProcessId, State, Time};
use serde::{Deserialize, Serialize};

use crate::durable;

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

/// What an earlier agent promised.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    pub(crate) epoch: u64,
    pub(crate) serial: u64,
    pub(crate) allocations: Vec<Allocation>,
    /// Whether the machine was restarted since it was written.
    pub(crate) is_of_another_boot: bool,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    boot_id: String,
    epoch: u64,
    serial: u64,
    allocations: Vec<Record>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Record {
    id: String,
    key: String,
    name: String,
    created_ms: u64,
    state: RecordState,
    grants: Vec<RecordGrant>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    whole: bool,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum RecordState {
    Reserved { expires_ms: u64 },
    Process { pid: u32, start: u64 },
    Pod { uid: String },
    Draining,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RecordGrant {
    card: String,
    limit_bytes: u64,
}

/// Writes the ledger.
pub(crate) fn save(path: &Path, ledger: &Ledger, boot_id: &str) -> io::Result<()> {
    let (epoch, serial) = ledger.numbering();
    let allocations = ledger.allocations().into_iter().map(record).collect();
    let file = File {
        version: VERSION,
        boot_id: boot_id.to_owned(),
        epoch,
        serial,
        allocations,
    };
    durable::replace(
        path,
        &serde_json::to_vec_pretty(&file).map_err(io::Error::other)?,
    )
}

/// Reads what an earlier agent wrote; nothing, if none did. After a restart of the machine nothing of
/// what processes held is left, and reservations and pods are as they were.
pub(crate) fn load(path: &Path, boot_id: &str) -> Result<Option<Restored>, CheckpointError> {
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
    let version: Version = serde_json::from_slice(&text).map_err(parse)?;
    if version.version != VERSION {
        return Err(CheckpointError::Version {
            path: path.to_owned(),
            version: version.version,
        });
    }
    let file: File = serde_json::from_slice(&text).map_err(parse)?;
    let is_same_boot = file.boot_id == boot_id;
    let survives = |record: &Record| {
        is_same_boot
            || matches!(
                record.state,
                RecordState::Reserved { .. } | RecordState::Pod { .. }
            )
    };
    let records = file.allocations.into_iter().filter(survives);
    let allocations: Result<_, _> = records.map(|record| allocation(path, record)).collect();
    Ok(Some(Restored {
        epoch: file.epoch,
        serial: file.serial,
        allocations: allocations?,
        is_of_another_boot: !is_same_boot,
    }))
}

/// The one field that every version has.
#[derive(Debug, Deserialize)]
struct Version {
    version: u32,
}

fn record(allocation: &Allocation) -> Record {
    let state = match &allocation.state {
        State::Reserved { expires } => RecordState::Reserved {
            expires_ms: expires.0,
        },
        State::Allocated(Owner::Process(ProcessId { pid, start })) => RecordState::Process {
            pid: *pid,
            start: *start,
        },
        State::Allocated(Owner::Pod(uid)) => RecordState::Pod { uid: uid.clone() },
        State::Draining => RecordState::Draining,
    };
    let grant = |grant: &Grant| RecordGrant {
        card: grant.card.to_string(),
        limit_bytes: grant.limit.0,
    };
    Record {
        id: allocation.id.0.clone(),
        key: allocation.key.clone(),
        name: allocation.name.clone(),
        created_ms: allocation.created.0,
        state,
        grants: allocation.grants.iter().map(grant).collect(),
        whole: allocation.is_whole,
    }
}

fn allocation(path: &Path, record: Record) -> Result<Allocation, CheckpointError> {
    let state = match record.state {
        RecordState::Reserved { expires_ms } => State::Reserved {
            expires: Time(expires_ms),
        },
        RecordState::Process { pid, start } => {
            State::Allocated(Owner::Process(ProcessId { pid, start }))
        }
        RecordState::Pod { uid } => State::Allocated(Owner::Pod(uid)),
        RecordState::Draining => State::Draining,
    };
    let grant = |grant: RecordGrant| match grant.card.parse() {
        Ok(card) => Ok(Grant::new(card, Bytes(grant.limit_bytes))),
        Err(_) => Err(CheckpointError::Card {
            path: path.to_owned(),
            text: grant.card,
        }),
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
        created: Time(record.created_ms),
        grants: record
            .grants
            .into_iter()
            .map(grant)
            .collect::<Result<_, _>>()?,
        is_whole: record.whole,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apportion_abi::{Ask, Capacity, CardUuid};
    use apportion_ledger::{Event, OffenderPolicy, Proposal};

    use super::*;

    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(77, OffenderPolicy::Observe);
        let card = CardUuid([3; 16]);
        let capacity = Capacity {
            total: Bytes(100),
            reserved: Bytes(0),
        };
        let _ = ledger.apply(Time(1), Event::CardFound { card, capacity });
        for name in ["a", "b", "c"] {
            let (key, name) = (name.to_owned(), name.to_owned());
            let asks = vec![Ask {
                card,
                bytes: Bytes(20),
            }];
            let ttl = Duration::from_secs(9);
            let proposal = Proposal {
                key,
                name,
                asks,
                ttl,
            };
            let _ = ledger.apply(Time(1), Event::Allocate(proposal));
        }
        let id = |serial: u32| AllocationId(format!("4d-{serial}"));
        let owner = Owner::Process(ProcessId { pid: 5, start: 6 });
        let _ = ledger.apply(Time(2), Event::Commit { id: id(1), owner });
        let owner = Owner::Pod("uid".into());
        let _ = ledger.apply(Time(2), Event::Commit { id: id(2), owner });
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
