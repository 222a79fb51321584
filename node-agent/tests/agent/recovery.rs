//! After the agent is killed, the next one has the same ledger, and programs notice nothing.

use std::fs;
use std::path::Path;

use apportion_proto::v1::{AllocationState, EnforcementState};

use crate::host::{Host, MIB, allocate, card, commit, eventually, find, list};
use crate::reconcile::{claim, context_cost};

#[tokio::test]
async fn a_killed_agents_book_is_taken_over_with_its_accounts() {
    let host = Host::new(1);
    let (mut agent, mut client) = host.agent(&[]).await;
    let reserved = allocate(&mut client, "reserved", 100).await.unwrap();
    let allocation = allocate(&mut client, "train", 4000).await.unwrap();
    let cost = context_cost(&mut client).await;
    let mut program = host.context(Some(Path::new(&allocation.account_dir)), "0");
    let (usage, slot) = claim(&allocation.account_dir, &program, 100 * MIB);
    commit(&mut client, &allocation.id, program.pid()).await;
    eventually("the overhead shows", async || {
        let found = find(&mut client, &allocation.id).await?;
        (found.grants[0].overhead_bytes == cost - 100 * MIB).then_some(())
    })
    .await;
    let before = list(&mut client).await;
    agent.kill();
    // Without an agent the program goes on.
    assert!(
        usage
            .usage()
            .claim_anyway(slot, 0, apportion_abi::Bytes(10 * MIB))
    );

    let (_agent, mut client) = host.agent(&[]).await;
    let after = list(&mut client).await;
    let names = |list: &apportion_proto::v1::ListReply| -> Vec<_> {
        list.allocations
            .iter()
            .map(|a| {
                (
                    a.id.clone(),
                    a.name.clone(),
                    a.state,
                    a.holder.clone(),
                    a.created_at_ms,
                    a.expires_at_ms,
                )
            })
            .collect()
    };
    assert_eq!(names(&after), names(&before));
    assert_eq!(host.metric("apportion_adopted_grants", ""), Some(2.0));
    let found = eventually("the account goes on", async || {
        let found = find(&mut client, &allocation.id).await?;
        (found.grants[0].overhead_bytes == cost - 110 * MIB).then_some(found)
    })
    .await;
    assert_eq!(found.grants[0].claimed_bytes, 110 * MIB);
    assert_eq!(found.grants[0].enforcement(), EnforcementState::Attached);
    assert_eq!(
        allocate(&mut client, "reserved", 100).await.unwrap().id,
        reserved.id
    );
    program.kill();
    eventually("it ends with its process", async || {
        find(&mut client, &allocation.id)
            .await
            .is_none()
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_ended_while_no_agent_ran_is_gone() {
    let host = Host::new(1);
    let (mut agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "train", 4000).await.unwrap();
    let mut program = host.context(Some(Path::new(&allocation.account_dir)), "0");
    let (_usage, _slot) = claim(&allocation.account_dir, &program, 100 * MIB);
    commit(&mut client, &allocation.id, program.pid()).await;
    agent.kill();
    program.kill();
    let (_agent, mut client) = host.agent(&[]).await;
    assert_eq!(list(&mut client).await.allocations, []);
    assert!(!Path::new(&allocation.account_dir).exists());
    assert_eq!(card(&mut client, 0).await.granted_bytes, 0);
}

#[tokio::test]
async fn without_a_checkpoint_live_accounts_are_adopted_and_dead_ones_removed() {
    let host = Host::new(1);
    let (mut agent, mut client) = host.agent(&[]).await;
    let live = allocate(&mut client, "live", 4000).await.unwrap();
    let dead = allocate(&mut client, "dead", 4000).await.unwrap();
    let mut program = host.context(Some(Path::new(&live.account_dir)), "0");
    let (_usage, _slot) = claim(&live.account_dir, &program, 100 * MIB);
    commit(&mut client, &live.id, program.pid()).await;
    agent.kill();
    fs::write(host.instance().join("checkpoint.json"), "half a check").unwrap();
    let (_agent, mut client) = host.agent(&[]).await;
    let found = list(&mut client).await.allocations;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (found[0].id.as_str(), found[0].state()),
        (live.id.as_str(), AllocationState::Draining)
    );
    assert_eq!(found[0].grants[0].limit_bytes, 4000 * MIB);
    assert!(!Path::new(&dead.account_dir).exists());
    assert!(host.instance().join("checkpoint.unreadable").exists());
    let id = allocate(&mut client, "new", 10).await.unwrap().id;
    assert_ne!(id, dead.id);
    program.kill();
    eventually("it ends with its process", async || {
        find(&mut client, &live.id).await.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_is_asked_to_leave_keeps_every_account() {
    let host = Host::new(1);
    let (mut agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "train", 4000).await.unwrap();
    let program = host.context(Some(Path::new(&allocation.account_dir)), "0");
    let (_usage, _slot) = claim(&allocation.account_dir, &program, 100 * MIB);
    commit(&mut client, &allocation.id, program.pid()).await;
    // A watcher must not keep the agent from stopping.
    let _watched = client
        .watch(apportion_proto::v1::WatchRequest {})
        .await
        .unwrap();
    let pid = rustix::process::Pid::from_child(&agent.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = eventually("it leaves", async || agent.0.try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(0));
    assert!(!host.instance().join("agent.sock").exists());
    assert!(Path::new(&allocation.account_dir).join("limits").exists());
    let (_agent, mut client) = host.agent(&[]).await;
    assert!(find(&mut client, &allocation.id).await.is_some());
}

#[tokio::test]
async fn a_socket_that_somebody_deletes_comes_back() {
    let host = Host::new(1);
    let (_agent, mut before) = host.agent(&[]).await;
    let socket = host.instance().join("agent.sock");
    for _ in 0..2 {
        fs::remove_file(&socket).unwrap();
        let mut after = host.client().await;
        assert_eq!(list(&mut after).await.cards.len(), 1);
    }
    let _ = allocate(&mut before, "goes on", 100).await.unwrap();
    assert_eq!(list(&mut host.client().await).await.allocations.len(), 1);
}

#[tokio::test]
async fn after_a_restart_of_the_machine_pods_keep_their_shares_and_processes_have_none() {
    use apportion_proto::v1::{CommitRequest, Holder, holder};
    let host = Host::new(1);
    let (mut agent, mut client) = host.agent(&[]).await;
    let of_pod = allocate(&mut client, "pod", 3000).await.unwrap();
    let uid = "6f1c2d3e-4b5a-4978-8a6b-1c2d3e4f5a6b".to_owned();
    let kind = Some(holder::Kind::PodUid(uid.clone()));
    let request = CommitRequest {
        id: of_pod.id.clone(),
        holder: Some(Holder { kind }),
    };
    client.commit(request).await.unwrap();
    let of_process = allocate(&mut client, "train", 4000).await.unwrap();
    let program = host.context(Some(Path::new(&of_process.account_dir)), "0");
    let (_usage, _slot) = claim(&of_process.account_dir, &program, 100 * MIB);
    commit(&mut client, &of_process.id, program.pid()).await;
    agent.kill();
    // As after a reboot: another boot id, no accounts, and meaningless pids. This process still runs; a new one
    // could have the same pid.
    let path = host.instance().join("checkpoint.json");
    let text = fs::read_to_string(&path).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(text.contains(boot.trim()), "{text}");
    fs::write(&path, text.replace(boot.trim(), "another-boot")).unwrap();
    fs::remove_dir_all(host.instance().join("accounts")).unwrap();

    let (_agent, mut client) = host.agent(&[]).await;
    let found = list(&mut client).await.allocations;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].id, of_pod.id);
    assert_eq!(found[0].grants[0].limit_bytes, 3000 * MIB);
    assert_eq!(found[0].grants[0].used_bytes, 0);
    assert!(Path::new(&of_pod.account_dir).join("limits").exists());
    assert!(!Path::new(&of_process.account_dir).exists());
    // The old process's memory is now unmanaged.
    let cost = context_cost(&mut client).await;
    eventually("it is subtracted", async || {
        (card(&mut client, 0).await.unmanaged_bytes == cost).then_some(())
    })
    .await;
}

#[tokio::test]
async fn after_a_restart_of_the_machine_pods_keep_their_shares_and_nobody_a_claim() {
    let host = Host::new(1);
    let (mut agent, mut client) = host.agent(&[]).await;
    let pods = allocate(&mut client, "pods", 4000).await.unwrap();
    let process = allocate(&mut client, "process", 1000).await.unwrap();
    let holder = apportion_proto::v1::holder::Kind::PodUid("u1".to_owned());
    let request = apportion_proto::v1::CommitRequest {
        id: pods.id.clone(),
        holder: Some(apportion_proto::v1::Holder { kind: Some(holder) }),
    };
    client.commit(request).await.unwrap();
    // It is alive, like a new process with the pid and start time of an old one.
    let program = host.context(Some(Path::new(&process.account_dir)), "0");
    commit(&mut client, &process.id, program.pid()).await;
    let _claims = [&pods, &process].map(|of| claim(&of.account_dir, &program, 100 * MIB));
    agent.kill();
    let path = host.instance().join("checkpoint.json");
    let mut checkpoint: serde_json::Value =
        serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    checkpoint["boot_id"] = "another".into();
    fs::write(&path, checkpoint.to_string()).unwrap();

    let (_agent, mut client) = host.agent(&[]).await;
    let found = list(&mut client).await.allocations;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0].id, found[0].holder.is_some()), (&pods.id, true));
    assert_eq!(found[0].grants[0].claimed_bytes, 0);
    assert_eq!(found[0].grants[0].limit_bytes, 4000 * MIB);
    assert!(!Path::new(&process.account_dir).exists());
    eventually("its account is whole", async || {
        let found = find(&mut client, &pods.id).await?;
        (found.grants[0].enforcement() == EnforcementState::Pending).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_account_of_another_version_is_left_to_its_programs_and_told() {
    /// One context fits, and two do not.
    const SHARE: u64 = 600;
    let host = Host::new(1);
    let (mut agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "train", SHARE).await.unwrap();
    let program = host.context(Some(Path::new(&allocation.account_dir)), "0");
    let (usage, slot) = claim(&allocation.account_dir, &program, 100 * MIB);
    commit(&mut client, &allocation.id, program.pid()).await;
    agent.kill();
    let files = ["limits", "usage"].map(|name| Path::new(&allocation.account_dir).join(name));
    let written = files.each_ref().map(|path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[8..12].copy_from_slice(&99u32.to_ne_bytes());
        use std::os::unix::fs::FileExt;
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&bytes[8..12], 8).unwrap();
        bytes
    });

    let (_agent, mut client) = host.agent(&["--policy", "kill"]).await;
    eventually("it is told", async || {
        let found = find(&mut client, &allocation.id).await?;
        (found.grants[0].enforcement() == EnforcementState::Missing).then_some(())
    })
    .await;
    let bytes = apportion_abi::Bytes(10 * MIB);
    assert!(
        usage.usage().claim_anyway(slot, 0, bytes),
        "its program goes on"
    );
    assert_eq!(fs::read(&files[0]).unwrap(), written[0]);
    assert_eq!(fs::read(&files[1]).unwrap()[..64], written[1][..64]);
    let granted = card(&mut client, 0).await.granted_bytes;
    assert_eq!(granted, SHARE * MIB, "nobody else gets its share");

    // Its charges are unknown, which is not its fault.
    let mut worker = host.context(Some(Path::new(&allocation.account_dir)), "0");
    let mut looks = 0;
    eventually("more than the limit has been seen often", async || {
        let found = find(&mut client, &allocation.id).await?;
        looks += u32::from(found.grants[0].nvml_bytes > SHARE * MIB);
        (looks > 200).then_some(())
    })
    .await;
    assert_eq!(worker.0.try_wait().unwrap(), None, "{}", host.log());
}
