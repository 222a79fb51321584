//! The agent's answers match what was saved, with full file systems, foreign folders, a deleted lock and a long
//! checkpoint.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use apportion_proto::v1::{
    AllocationState, CommitRequest, Holder, ResizeRequest, Share, holder, resize_reply,
};

use crate::host::{
    Host, KillOnDrop, MIB, allocate, card, commit, eventually, find, list, output, wish,
};

/// A folder in the place of the checkpoint's temporary file. Even root cannot write a checkpoint then.
pub(crate) struct BlockedCheckpoint(PathBuf);

impl BlockedCheckpoint {
    pub(crate) fn new(host: &Host) -> Self {
        let path = host.instance().join("checkpoint.tmp");
        fs::create_dir(&path).expect("the folder is ours");
        Self(path)
    }
}

impl Drop for BlockedCheckpoint {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).expect("it is empty");
    }
}

#[tokio::test]
async fn a_commit_that_cannot_be_written_down_is_not_made() {
    let host = Host::new(1);
    let (mut agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "train", 4000).await.unwrap();
    let request = CommitRequest {
        id: allocation.id.clone(),
        holder: Some(Holder {
            kind: Some(holder::Kind::Pid(std::process::id())),
        }),
    };
    let blocked = BlockedCheckpoint::new(&host);
    let refused = client.commit(request.clone()).await.unwrap_err();
    assert!(refused.message().contains("checkpoint.json"), "{refused}");
    let found = find(&mut client, &allocation.id).await.unwrap();
    assert_eq!(found.state(), AllocationState::Reserved);
    assert_eq!(found.expires_at_ms, allocation.expires_at_ms);
    drop(blocked);

    client.commit(request).await.unwrap();
    agent.kill();
    let (_agent, mut client) = host.agent(&[]).await;
    let found = find(&mut client, &allocation.id).await.unwrap();
    assert_eq!(found.state(), AllocationState::Allocated);
}

#[tokio::test]
async fn a_resize_that_cannot_be_written_down_is_not_made() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "train", 4000).await.unwrap();
    let limits = Path::new(&allocation.account_dir).join("limits");
    let written = fs::read(&limits).unwrap();
    for mib in [6000, 2000] {
        let request = ResizeRequest {
            id: allocation.id.clone(),
            shares: vec![Share {
                card: allocation.grants[0].card.clone(),
                bytes: mib * MIB,
                limit_bytes: 0,
            }],
        };
        let blocked = BlockedCheckpoint::new(&host);
        let refused = client.resize(request.clone()).await.unwrap_err();
        assert!(refused.message().contains("checkpoint.json"), "{refused}");
        let found = find(&mut client, &allocation.id).await.unwrap();
        assert_eq!(found.grants[0].limit_bytes, 4000 * MIB);
        assert_eq!(card(&mut client, 0).await.granted_bytes, 4000 * MIB);
        assert_eq!(fs::read(&limits).unwrap(), written, "no program sees it");
        drop(blocked);
    }
    let request = ResizeRequest {
        id: allocation.id,
        shares: vec![Share {
            card: allocation.grants[0].card.clone(),
            bytes: 6000 * MIB,
            limit_bytes: 0,
        }],
    };
    let reply = client.resize(request).await.unwrap().into_inner();
    assert!(matches!(
        reply.result,
        Some(resize_reply::Result::Allocation(_))
    ));
}

#[tokio::test]
async fn an_accounts_pages_are_there_before_its_program_is() {
    use std::os::unix::fs::MetadataExt;
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "train", 4000).await.unwrap();
    for name in ["limits", "usage"] {
        let found = fs::metadata(Path::new(&allocation.account_dir).join(name)).unwrap();
        assert!(found.blocks() * 512 >= found.size(), "{name} has holes");
    }
}

/// A small tmpfs mounted over a folder, if the test may mount.
struct MountedTmpfs(std::path::PathBuf);

impl MountedTmpfs {
    fn new(folder: &Path, size: &str) -> Option<Self> {
        fs::create_dir_all(folder).expect("the folder is ours");
        let size = format!("size={size}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(folder)
            .output();
        let is_mounted = mount.is_ok_and(|mount| mount.status.success());
        if !is_mounted {
            eprintln!("left out: no tmpfs can be mounted here, which takes root");
        }
        is_mounted.then(|| Self(folder.to_owned()))
    }
}

impl Drop for MountedTmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_file_system_refuses_in_words_and_leaves_programs_alone() {
    let host = Host::new(1);
    let Some(_mounted) = MountedTmpfs::new(&host.instance(), "2m") else {
        return;
    };
    let (_agent, mut client) = host.agent(&[]).await;
    let held = allocate(&mut client, "held", 4000).await.unwrap();
    let mut full = host.instance().join("ballast");
    fs::write(&full, "").unwrap();
    let mut size = 4 << 20;
    while size >= 4096 {
        use std::io::Write;
        let mut file = fs::File::options().append(true).open(&full).unwrap();
        if file.write_all(&vec![1; size]).is_err() {
            size /= 2;
        }
    }
    let request = wish(&mut client, "more", 100).await;
    let refused = client.allocate(request).await.unwrap_err();
    let words = ["the file system is full", "No space left on device"];
    let said = refused.message();
    assert!(words.iter().any(|words| said.contains(words)), "{said}");
    assert_eq!(list(&mut client).await.allocations.len(), 1);
    // It starts on the full file system, and a page that cannot be allocated does not kill it.
    let mut program = host.context(Some(Path::new(&held.account_dir)), "0");
    assert!(program.0.try_wait().unwrap().is_none());
    full.pop();
    fs::remove_file(full.join("ballast")).unwrap();
    commit(&mut client, &held.id, program.pid()).await;
    allocate(&mut client, "more", 100).await.unwrap();
}

#[tokio::test]
async fn folders_that_are_not_the_agents_are_not_touched() {
    let host = Host::new(1);
    let accounts = host.instance().join("accounts");
    let important = accounts.join("important");
    let mixed = accounts.join("4d-1");
    let escape = host.instance().parent().unwrap().join("escape");
    for folder in [&important, &mixed, &escape] {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("file"), "thesis").unwrap();
    }
    let dead = accounts.join("4d-2");
    fs::create_dir(&dead).unwrap();
    fs::write(dead.join("usage"), "").unwrap();
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    // Once with this boot and once with another, which removes the accounts.
    for boot_id in [boot_id.trim(), "another"] {
        let record = serde_json::json!({
            "id": "../../escape", "key": "k", "name": "n", "created_ms": 1,
            "state": {"reserved": {"expires_ms": 2}}, "grants": [],
        });
        let checkpoint = serde_json::json!({
            "version": 1, "boot_id": boot_id, "epoch": 1, "serial": 1, "allocations": [record],
        });
        fs::write(
            host.instance().join("checkpoint.json"),
            checkpoint.to_string(),
        )
        .unwrap();
        let (mut agent, mut client) = host.agent(&[]).await;
        allocate(&mut client, "lives", 100).await.unwrap();
        agent.kill();
        for folder in [&important, &mixed, &escape] {
            assert!(folder.join("file").exists(), "{}", folder.display());
        }
        assert!(!dead.exists());
    }
    assert!(host.log().contains("its name is no id"));
}

#[tokio::test]
async fn two_agents_cannot_serve_one_folder_after_the_lock_was_deleted() {
    let host = Host::new(1);
    let (mut first, mut client) = host.agent(&[]).await;
    allocate(&mut client, "held", 100).await.unwrap();
    let lock = host.instance().join("agent.lock");
    // The agent creates its missing lock file again, so a second agent is refused.
    fs::remove_file(&lock).unwrap();
    eventually("the lock is there again", async || {
        lock.exists().then_some(())
    })
    .await;
    let refused = output(host.agent_command(&[]));
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("another agent uses"), "{said}");

    // If the second agent is faster, the first one exits and removes nothing.
    freeze(&first, true);
    fs::remove_file(&lock).unwrap();
    let (_second, mut client) = {
        // The socket is the first agent's until the second has replaced it.
        let log = fs::File::create(host.instance().join("second.log")).unwrap();
        let mut command = host.agent_command(&[]);
        command.stderr(log);
        let second = KillOnDrop(command.spawn().unwrap());
        eventually("the second agent serves", async || {
            let said = fs::read_to_string(host.instance().join("second.log"));
            said.is_ok_and(|said| said.contains("Agent started"))
                .then_some(())
        })
        .await;
        (second, host.client().await)
    };
    freeze(&first, false);
    eventually("the first agent leaves", async || {
        first.0.try_wait().unwrap()
    })
    .await;
    assert_eq!(list(&mut host.client().await).await.allocations.len(), 1);
    allocate(&mut client, "more", 100).await.unwrap();
    let checkpoint = fs::read_to_string(host.instance().join("checkpoint.json")).unwrap();
    assert!(checkpoint.contains("more"), "{checkpoint}");
}

fn freeze(agent: &KillOnDrop, is_frozen: bool) {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = if is_frozen {
        Signal::STOP
    } else {
        Signal::CONT
    };
    kill_process(Pid::from_child(&agent.0), signal).expect("the agent runs");
}

/// Counts how often a checkpoint is replaced, by polling it.
struct CheckpointWrites {
    is_over: Arc<AtomicBool>,
    seen: JoinHandle<BTreeSet<(u64, i64, i64)>>,
}

impl CheckpointWrites {
    fn watch(path: PathBuf) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let watched = is_over.clone();
        let seen = std::thread::spawn(move || {
            let mut seen = BTreeSet::new();
            while !watched.load(Ordering::Relaxed) {
                if let Ok(found) = fs::metadata(&path) {
                    seen.insert((found.ino(), found.mtime(), found.mtime_nsec()));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            seen
        });
        Self { is_over, seen }
    }

    /// How many different files were seen.
    fn count(self) -> usize {
        self.is_over.store(true, Ordering::Relaxed);
        self.seen.join().expect("it only looks").len()
    }
}

#[tokio::test]
async fn three_thousand_reservations_are_taken_over_with_a_few_checkpoints() {
    const COUNT: u64 = 3000;
    /// One checkpoint for each reservation would be `COUNT`.
    const MOST_WRITES: usize = 100;
    let host = Host::new(1);
    let (mut agent, mut client) = host.agent(&[]).await;
    let uuid = card(&mut client, 0).await.uuid;
    agent.kill();
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let expires = u64::try_from(now.as_millis()).unwrap() + 3_600_000;
    let records = (1..=COUNT).map(|serial| {
        serde_json::json!({
            "id": format!("4d-{serial}"), "key": format!("k{serial}"), "name": format!("n{serial}"),
            "created_ms": 1, "state": {"reserved": {"expires_ms": expires}},
            "grants": [{"card": uuid, "limit_bytes": MIB}],
        })
    });
    let records: Vec<_> = records.collect();
    let checkpoint = serde_json::json!({
        "version": 1, "boot_id": boot_id.trim(), "epoch": 0x4d, "serial": COUNT,
        "allocations": records,
    });
    let path = host.instance().join("checkpoint.json");
    fs::write(&path, checkpoint.to_string()).unwrap();
    let writes = CheckpointWrites::watch(path);
    let began = Instant::now();
    let mut command = host.agent_command(&["--tick", "60000"]);
    command.stderr(std::process::Stdio::null());
    let _agent = KillOnDrop(command.spawn().unwrap());
    let socket = host.instance().join("agent.sock");
    eventually("the agent listens", async || {
        tokio::net::UnixStream::connect(&socket).await.ok()
    })
    .await;
    eventually("the agent answers", async || {
        let mut client = apportion_proto::connect(&socket).await.ok()?;
        client
            .node_state(apportion_proto::v1::NodeStateRequest {})
            .await
            .ok()
    })
    .await;
    let taken = began.elapsed();
    eprintln!("{COUNT} reservations were taken over in {taken:?}");
    let writes = writes.count();
    assert!((1..=MOST_WRITES).contains(&writes), "{writes} writes");
    assert_eq!(host.metric("apportion_adopted_grants", ""), Some(3000.0));
}
