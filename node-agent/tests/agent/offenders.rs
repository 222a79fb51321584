//! Processes that exceed their limit, charged or not, or use a card without a grant.

use std::path::Path;

use apportion_proto::v1::{EnforcementState, EventKind, WatchRequest, watch_reply};

use crate::host::{Host, MIB, allocate, card, commit, eventually, find};
use crate::reconcile::{claim, context_cost};

#[tokio::test]
async fn a_process_that_charges_nothing_is_seen_told_and_left_alone() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "sly", 100).await.unwrap();
    let mut watched = client.watch(WatchRequest {}).await.unwrap().into_inner();
    let program = host.context(Some(Path::new(&allocation.account_dir)), "0");
    commit(&mut client, &allocation.id, program.pid()).await;
    let event = loop {
        let item = watched.message().await.unwrap().unwrap().item;
        match item {
            Some(watch_reply::Item::Event(event)) if event.kind() == EventKind::Bypassed => {
                break event;
            }
            _ => {}
        }
    };
    assert_eq!((event.name.as_str(), event.pid), ("sly", program.pid()));
    let found = find(&mut client, &allocation.id).await.unwrap();
    assert_eq!(found.enforcement(), EnforcementState::Bypassed);
    assert_eq!(
        host.metric("apportion_container_enforcement_state", "bypassed"),
        Some(1.0)
    );
    assert_eq!(
        host.metric("apportion_offences_total", "bypassed"),
        Some(1.0)
    );
    // Its memory still counts against the limit of its allocation.
    let cost = context_cost(&mut client).await;
    assert_eq!(found.grants[0].overhead_bytes, cost);
    assert_eq!(host.log().matches("Process bypasses accounting").count(), 1);
}

#[tokio::test]
async fn an_offender_is_killed_where_that_is_the_policy_and_nobody_else() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&["--policy", "kill"]).await;
    let cost = context_cost(&mut client).await;
    let allocation = allocate(&mut client, "sly", cost / MIB + 100)
        .await
        .unwrap();
    let honest = host.context(Some(Path::new(&allocation.account_dir)), "0");
    let (_usage, _slot) = claim(&allocation.account_dir, &honest, cost);
    commit(&mut client, &allocation.id, honest.pid()).await;
    let mut offender = host.context(Some(Path::new(&allocation.account_dir)), "0");
    let status = eventually("it is killed", async || offender.0.try_wait().unwrap()).await;
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9)
    );
    let left = eventually("only the honest one is left", async || {
        let found = find(&mut client, &allocation.id).await?;
        (found.enforcement() == EnforcementState::Attached).then_some(found)
    })
    .await;
    assert_eq!(left.processes.len(), 1);
    assert_eq!(left.processes[0].pid, honest.pid());
    assert_eq!(host.metric("apportion_offences_total", "killed"), Some(1.0));
}

#[tokio::test]
async fn an_offender_of_a_namespace_with_a_policy_of_its_own_is_left_alone() {
    let host = Host::new(1);
    let options = ["--policy", "kill", "--policy-override", "lenient=observe"];
    let (_agent, mut client) = host.agent(&options).await;
    let mut programs = Vec::new();
    for name in ["lenient/sly", "strict/sly"] {
        let allocation = allocate(&mut client, name, 100).await.unwrap();
        let program = host.context(Some(Path::new(&allocation.account_dir)), "0");
        commit(&mut client, &allocation.id, program.pid()).await;
        programs.push(program);
    }
    eventually("the second is killed", async || {
        programs[1].0.try_wait().unwrap()
    })
    .await;
    assert_eq!(programs[0].0.try_wait().unwrap(), None);
    assert_eq!(
        host.metric("apportion_offences_total", "bypassed"),
        Some(2.0)
    );
}

#[tokio::test]
async fn more_than_the_limit_is_seen() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "greedy", 100).await.unwrap();
    let program = host.context(Some(Path::new(&allocation.account_dir)), "0");
    let (_usage, _slot) = claim(&allocation.account_dir, &program, 50 * MIB);
    commit(&mut client, &allocation.id, program.pid()).await;
    eventually("it shows", async || {
        let found = find(&mut client, &allocation.id).await?;
        (found.enforcement() == EnforcementState::Overlimit).then_some(())
    })
    .await;
    assert_eq!(
        host.metric("apportion_offences_total", "overlimit"),
        Some(1.0)
    );
    // The memory that it took is not given out.
    let (seen, cost) = (card(&mut client, 0).await, context_cost(&mut client).await);
    assert_eq!(seen.free_bytes, seen.allocatable_bytes - cost);
}

#[tokio::test]
async fn a_card_that_was_not_granted_is_seen() {
    let host = Host::new(2);
    let (_agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "stray", 4000).await.unwrap();
    let program = host.context(Some(Path::new(&allocation.account_dir)), "1");
    commit(&mut client, &allocation.id, program.pid()).await;
    eventually("it shows", async || {
        (host.metric("apportion_offences_total", "ungranted") == Some(1.0)).then_some(())
    })
    .await;
    let other = card(&mut client, 1).await;
    assert!(other.unmanaged_bytes > 0);
    assert_eq!(
        other.free_bytes,
        other.allocatable_bytes - other.unmanaged_bytes
    );
}

#[tokio::test]
async fn a_damaged_account_shows_as_missing() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "broken", 4000).await.unwrap();
    let usage = std::fs::File::options()
        .write(true)
        .open(Path::new(&allocation.account_dir).join("usage"));
    usage.unwrap().set_len(0).unwrap();
    eventually("it shows", async || {
        let found = find(&mut client, &allocation.id).await?;
        (found.enforcement() == EnforcementState::Missing).then_some(())
    })
    .await;
    assert_eq!(
        host.metric("apportion_container_enforcement_state", "missing"),
        Some(1.0)
    );
}
