//! Suspended allocations: what is refused, what is not written down, and a driver that hangs.

use std::path::Path;
use std::time::Duration;

use apportion_proto::v1::{
    CommitRequest, EventKind, Holder, ResumeRequest, SuspendRequest, SuspensionState, WatchRequest,
    holder, resume_reply, watch_reply,
};
use tonic::Code;

use crate::checkpoint::BlockedCheckpoint;
use crate::host::{Host, MIB, allocate, card, commit, eventually, find, list};

fn suspend(id: &str) -> SuspendRequest {
    SuspendRequest { id: id.into() }
}

#[tokio::test]
async fn the_share_of_a_pod_is_not_suspended() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let id = allocate(&mut client, "team/train/main", 4000)
        .await
        .unwrap()
        .id;
    let refused = client.suspend(suspend(&id)).await.unwrap_err();
    assert!(
        refused.message().contains("has no process yet"),
        "{refused}"
    );
    let holder = Some(Holder {
        kind: Some(holder::Kind::PodUid("uid".into())),
    });
    let request = CommitRequest {
        id: id.clone(),
        holder,
    };
    client.commit(request).await.unwrap();
    let refused = client.suspend(suspend(&id)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("belongs to a pod"), "{refused}");
    let unknown = client.suspend(suspend("1-1")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert_eq!(card(&mut client, 0).await.granted_bytes, 4000 * MIB);
}

#[tokio::test]
async fn a_suspension_that_cannot_be_written_down_is_not_made() {
    let host = Host::new(1);
    let (mut agent, mut client) = host.agent(&["--context-reserve", "0"]).await;
    let allocation = allocate(&mut client, "train", 4000).await.unwrap();
    let program = host.context(Some(Path::new(&allocation.account_dir)), "0");
    commit(&mut client, &allocation.id, program.pid()).await;
    let used = eventually("the driver shows its context", async || {
        let used = card(&mut client, 0).await.used_bytes;
        (used > 0).then_some(used)
    })
    .await;
    let blocked = BlockedCheckpoint::new(&host);
    let refused = client.suspend(suspend(&allocation.id)).await.unwrap_err();
    assert!(refused.message().contains("checkpoint.json"), "{refused}");
    let found = find(&mut client, &allocation.id).await.unwrap();
    assert_eq!(found.suspension(), SuspensionState::Running);
    assert_eq!(card(&mut client, 0).await.used_bytes, used);
    drop(blocked);

    let mut watch = client.watch(WatchRequest {}).await.unwrap().into_inner();
    let done = client
        .suspend(suspend(&allocation.id))
        .await
        .unwrap()
        .into_inner();
    assert!(done.changed);
    assert_eq!(done.moved_bytes, used);
    assert_eq!(card(&mut client, 0).await.used_bytes, 0);
    let kind = loop {
        let reply = watch.message().await.unwrap().unwrap();
        if let Some(watch_reply::Item::Event(event)) = reply.item {
            break event.kind();
        }
    };
    assert_eq!(kind, EventKind::Suspended);
    agent.kill();
    let (_agent, mut client) = host.agent(&["--context-reserve", "0"]).await;
    let found = find(&mut client, &allocation.id).await.unwrap();
    assert_eq!(found.suspension(), SuspensionState::Suspended);
    let request = ResumeRequest {
        id: allocation.id.clone(),
    };
    let woken = client.resume(request).await.unwrap().into_inner();
    assert!(woken.changed && woken.trouble.is_empty());
    let Some(resume_reply::Result::Allocation(now)) = woken.result else {
        panic!("there was room");
    };
    assert_eq!(now.suspension(), SuspensionState::Running);
    eventually("its context is back", async || {
        (card(&mut client, 0).await.used_bytes == used).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_driver_that_hangs_holds_up_no_other_request() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&["--context-reserve", "0"]).await;
    let allocation = allocate(&mut client, "train", 4000).await.unwrap();
    let program = host.context(Some(Path::new(&allocation.account_dir)), "0");
    commit(&mut client, &allocation.id, program.pid()).await;
    host.freeze_driver(true);
    let (mut second, id) = (client.clone(), allocation.id.clone());
    let suspended = tokio::spawn(async move { second.suspend(suspend(&id)).await });
    eventually("the suspension has begun", async || {
        let found = find(&mut client, &allocation.id).await?;
        (found.suspension() == SuspensionState::Suspending).then_some(())
    })
    .await;
    let answered = tokio::time::timeout(Duration::from_secs(2), list(&mut client));
    assert!(answered.await.is_ok(), "the agent's loop goes on");
    assert_eq!(
        card(&mut client, 0).await.granted_bytes,
        4000 * MIB,
        "all is held"
    );
    assert!(!suspended.is_finished());
    host.freeze_driver(false);
    assert!(suspended.await.unwrap().unwrap().into_inner().changed);
}
