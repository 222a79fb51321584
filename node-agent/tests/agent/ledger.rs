//! Allocation, refusal, resize and release.

use std::process::{Command, Stdio};

use apportion_proto::v1::{
    AllocationState, CommitRequest, EventKind, Holder, NodeStateRequest, ReleaseRequest,
    ResizeRequest, Share, WatchRequest, allocate_reply, holder, resize_reply, watch_reply,
};
use rustix::process::{Uid, geteuid};
use tonic::Code;

use crate::host::{
    CARD, Host, KillOnDrop, MIB, allocate, card, commit, eventually, find, list, wish,
};

fn sleeper() -> KillOnDrop {
    let child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn();
    KillOnDrop(child.expect("sleep is everywhere"))
}

#[tokio::test]
async fn an_allocation_lives_from_its_reservation_to_the_end_of_its_process() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let before = card(&mut client, 0).await;
    assert_eq!((before.total_bytes, before.granted_bytes), (CARD, 0));
    assert_eq!(before.free_bytes, before.allocatable_bytes);

    let reserved = allocate(&mut client, "train", 2000).await.unwrap();
    assert_eq!(reserved.state(), AllocationState::Reserved);
    let folder = std::path::PathBuf::from(&reserved.account_dir);
    assert!(folder.join("limits").exists() && folder.join("usage").exists());
    assert_eq!(card(&mut client, 0).await.granted_bytes, 2000 * MIB);

    let mut program = sleeper();
    let committed = commit(&mut client, &reserved.id, program.pid()).await;
    assert_eq!(committed.state(), AllocationState::Allocated);
    program.kill();
    eventually("the allocation ends with its process", async || {
        find(&mut client, &reserved.id)
            .await
            .is_none()
            .then_some(())
    })
    .await;
    assert!(!folder.exists());
    assert_eq!(card(&mut client, 0).await.granted_bytes, 0);
}

#[tokio::test]
async fn an_allocation_outlives_its_owner_while_a_descendant_lives() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let id = allocate(&mut client, "family", 100).await.unwrap().id;
    // The shell exits when its input closes, and init inherits the sleep.
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "sleep 60 & echo $!; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let mut line = String::new();
    let output = shell.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
    let child: i32 = line.trim().parse().unwrap();
    commit(&mut client, &id, shell.id()).await;
    drop(shell.stdin.take());
    shell.wait().unwrap();
    let draining = eventually("the allocation drains", async || {
        let found = find(&mut client, &id).await?;
        (found.state() == AllocationState::Draining).then_some(found)
    })
    .await;
    assert_eq!(draining.processes.len(), 1);
    assert_eq!(draining.processes[0].name, "sleep");
    let child = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    eventually("it ends", async || {
        find(&mut client, &id).await.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_numbers_and_what_fits_is_given() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let allocatable = card(&mut client, 0).await.allocatable_bytes / MIB;
    allocate(&mut client, "big", allocatable - 1000)
        .await
        .unwrap();
    let shortfall = allocate(&mut client, "late", 1002).await.unwrap_err();
    assert_eq!(shortfall.free_bytes, 1000 * MIB);
    assert_eq!(shortfall.holders[0].name, "big");
    assert!(shortfall.waiting_helps);
    assert!(
        shortfall.sentence.contains("1000 MiB free"),
        "{}",
        shortfall.sentence
    );
    assert!(allocate(&mut client, "fits", 1000).await.is_ok());
    let never = allocate(&mut client, "never", allocatable + 2)
        .await
        .unwrap_err();
    assert!(!never.waiting_helps);
    assert_eq!(host.metric("apportion_grants_total", "accepted"), Some(2.0));
    assert_eq!(
        host.metric("apportion_grants_total", "reason=\"shortfall\""),
        Some(2.0)
    );
}

#[tokio::test]
async fn the_same_key_gives_the_same_allocation_and_another_wish_under_it_is_an_error() {
    let host = Host::new(2);
    let (_agent, mut client) = host.agent(&[]).await;
    let first = allocate(&mut client, "once", 100).await.unwrap();
    assert_eq!(
        allocate(&mut client, "once", 100).await.unwrap().id,
        first.id
    );
    let mut other = wish(&mut client, "once", 100).await;
    other.shares[0].card = card(&mut client, 1).await.uuid;
    assert_eq!(
        client.allocate(other).await.unwrap_err().code(),
        Code::AlreadyExists
    );
    assert_eq!(list(&mut client).await.allocations.len(), 1);
}

#[tokio::test]
async fn nonsense_is_refused_by_name() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let good = wish(&mut client, "x", 2).await;
    let mut nameless = good.clone();
    nameless.name.clear();
    let mut cardless = good.clone();
    cardless.shares.clear();
    let mut twice = good.clone();
    twice.shares.push(good.shares[0].clone());
    let mut empty = good.clone();
    empty.shares[0].bytes = 0;
    let mut unknown = good.clone();
    unknown.shares[0].card = "GPU-00000000-0000-0000-0000-000000000000".into();
    let mut unreadable = good.clone();
    unreadable.shares[0].card = "0".into();
    for (request, code) in [
        (nameless, Code::InvalidArgument),
        (cardless, Code::InvalidArgument),
        (twice, Code::InvalidArgument),
        (empty, Code::InvalidArgument),
        (unreadable, Code::InvalidArgument),
        (unknown, Code::NotFound),
    ] {
        assert_eq!(client.allocate(request).await.unwrap_err().code(), code);
    }
    let id = allocate(&mut client, "x", 2).await.unwrap().id;
    let dead = Holder {
        kind: Some(holder::Kind::Pid(4_000_000)),
    };
    let request = CommitRequest {
        id: id.clone(),
        holder: Some(dead),
    };
    assert_eq!(
        client.commit(request).await.unwrap_err().code(),
        Code::FailedPrecondition
    );
    let own = Holder {
        kind: Some(holder::Kind::Pid(0)),
    };
    let request = CommitRequest {
        id: "none".into(),
        holder: Some(own.clone()),
    };
    assert_eq!(
        client.commit(request).await.unwrap_err().code(),
        Code::NotFound
    );
    let request = CommitRequest {
        id,
        holder: Some(own),
    };
    let committed = client
        .commit(request)
        .await
        .unwrap()
        .into_inner()
        .allocation
        .unwrap();
    let holder = committed.holder.unwrap().kind;
    assert_eq!(
        holder,
        Some(holder::Kind::Pid(std::process::id())),
        "0 is the caller"
    );
}

#[tokio::test]
async fn a_reservation_that_nobody_commits_comes_back() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let mut request = wish(&mut client, "forgotten", 100).await;
    request.ttl_ms = 200;
    // Only check the reply: on a slow machine the reservation may have expired before the next call.
    let reply = client.allocate(request).await.unwrap().into_inner();
    let Some(allocate_reply::Result::Allocation(_)) = reply.result else {
        panic!("an empty card is refused: {reply:?}")
    };
    eventually("the reservation expires", async || {
        (card(&mut client, 0).await.granted_bytes == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn limits_grow_where_there_is_room_and_always_shrink() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let allocatable = card(&mut client, 0).await.allocatable_bytes;
    let id = allocate(&mut client, "a", 1000).await.unwrap().id;
    allocate(&mut client, "b", 1000).await.unwrap();
    let uuid = card(&mut client, 0).await.uuid;
    let mut resize = async |bytes: u64| {
        let shares = vec![Share {
            card: uuid.clone(),
            bytes,
            limit_bytes: 0,
        }];
        let request = ResizeRequest {
            id: id.clone(),
            shares,
        };
        client
            .resize(request)
            .await
            .unwrap()
            .into_inner()
            .result
            .unwrap()
    };
    let most = allocatable - 1000 * MIB;
    let resize_reply::Result::Shortfall(shortfall) = resize(most + 2 * MIB).await else {
        panic!("more than the card has was given")
    };
    assert_eq!(shortfall.free_bytes, most);
    for bytes in [most, 10 * MIB] {
        let resize_reply::Result::Allocation(allocation) = resize(bytes).await else {
            panic!("{bytes} was refused")
        };
        assert_eq!(allocation.grants[0].limit_bytes, bytes);
        assert_eq!(
            host.metric("apportion_container_memory_limit_bytes", "=\"a/"),
            Some(bytes as f64)
        );
    }
    eventually("what a shrink frees can be given", async || {
        let free = card(&mut client, 0).await.free_bytes;
        (free == allocatable - 1010 * MIB).then_some(())
    })
    .await;
}

#[tokio::test]
async fn releasing_is_final_and_may_be_repeated() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let id = allocate(&mut client, "a", 1000).await.unwrap().id;
    for _ in 0..2 {
        let request = ReleaseRequest { id: id.clone() };
        assert!(client.release(request).await.unwrap().into_inner().gone);
    }
    assert!(find(&mut client, &id).await.is_none());
}

#[tokio::test]
async fn who_watches_sees_the_list_and_each_event() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let mut watched = client.watch(WatchRequest {}).await.unwrap().into_inner();
    let first = watched.message().await.unwrap().unwrap().item;
    assert!(matches!(first, Some(watch_reply::Item::List(_))));
    let id = allocate(&mut client, "seen", 10).await.unwrap().id;
    client
        .release(ReleaseRequest { id: id.clone() })
        .await
        .unwrap();
    let mut kinds = Vec::new();
    while kinds.len() < 2 {
        if let Some(watch_reply::Item::Event(event)) =
            watched.message().await.unwrap().unwrap().item
        {
            assert_eq!(
                (event.allocation.as_str(), event.name.as_str()),
                (id.as_str(), "seen")
            );
            kinds.push(event.kind());
        }
    }
    assert_eq!(kinds, [EventKind::Allocated, EventKind::Released]);
}

#[tokio::test]
async fn the_node_says_who_it_is() {
    let host = Host::new(2);
    let (agent, mut client) = host.agent(&["--policy", "kill"]).await;
    let state = client
        .node_state(NodeStateRequest {})
        .await
        .unwrap()
        .into_inner();
    let node = state.node.unwrap();
    assert_eq!(state.cards.len(), 2);
    assert_eq!((node.simulated, node.pid), (true, agent.pid()));
    assert_eq!(node.instance_dir, host.instance().display().to_string());
    assert!(!node.driver_version.is_empty());
    assert_eq!(
        host.metric("apportion_node_info", &node.driver_version),
        Some(1.0)
    );
    let generation = host.metric("apportion_ledger_generation", "").unwrap();
    allocate(&mut client, "a", 2).await.unwrap();
    assert!(host.metric("apportion_ledger_generation", "").unwrap() > generation);
}

#[tokio::test]
async fn another_user_is_refused() {
    if !geteuid().is_root() {
        return; // An ordinary user cannot become another one; the folder keeps others out.
    }
    let host = Host::new(1);
    let (_agent, _client) = host.agent(&[]).await;
    let socket = host.instance().join("agent.sock");
    // Let the other user pass the file permissions, up to the agent's own check.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    for path in [host.instance().parent().unwrap(), &host.instance(), &socket] {
        std::fs::set_permissions(path, <std::fs::Permissions as Clone>::clone(&open)).unwrap();
    }
    let stranger = std::thread::spawn(move || {
        rustix::thread::set_thread_uid(Uid::from_raw(65534)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut client = apportion_proto::connect(&socket).await.unwrap();
            client
                .node_state(NodeStateRequest {})
                .await
                .unwrap_err()
                .code()
        })
    });
    assert_eq!(stranger.join().unwrap(), Code::PermissionDenied);
}
