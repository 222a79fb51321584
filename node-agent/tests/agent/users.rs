//! Users of one machine: nobody can open another user's account, join another user's allocation, or change it.
//!
//! Only root can act as several users. For an ordinary user these tests do nothing.

use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use apportion_proto::v1::{
    AllocateRequest, CommitRequest, Holder, NodeStateRequest, ReleaseRequest, ResizeRequest, Share,
    allocate_reply, holder::Kind,
};
use apportion_proto::{AgentClient, connect};
use rustix::process::geteuid;
use rustix::thread::set_thread_uid;
use tonic::Code;

use crate::host::{
    Host, KillOnDrop, MIB, allocate, card, commit, eventually, find, list, output, wish,
};
use crate::reconcile::context_cost;

const ALICE: u32 = 4711;
const BOB: u32 = 4712;

/// A machine whose folders other users can enter.
fn shared_host() -> Option<Host> {
    if !geteuid().is_root() {
        return None;
    }
    let host = Host::new(1);
    fs::set_permissions(host.dir(), Permissions::from_mode(0o711)).expect("it is ours");
    Some(host)
}

/// Runs something in a thread of another user.
fn r#as<T: Send + 'static>(user: u32, act: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        set_thread_uid(rustix::process::Uid::from_raw(user)).expect("root may");
        act()
    });
    thread.join().expect("it does not panic")
}

fn opens(user: u32, file: &Path) -> bool {
    let file = file.to_owned();
    let opened = r#as(user, move || {
        File::options().read(true).write(true).open(file)
    });
    match opened {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            false
        }
    }
}

fn sleeper(user: u32) -> KillOnDrop {
    let mut command = Command::new("sleep");
    let command = command.arg("60").stdin(Stdio::null()).uid(user).gid(user);
    KillOnDrop(command.spawn().expect("sleep is everywhere"))
}

#[tokio::test]
async fn an_account_is_its_users_alone() {
    let Some(host) = shared_host() else { return };
    let (agent, mut client) = host.agent(&[]).await;
    let program = sleeper(ALICE);
    let allocation = allocate(&mut client, "alices", 1000).await.unwrap();
    let usage = Path::new(&allocation.account_dir).join("usage");
    assert!(!opens(ALICE, &usage), "it is not hers yet");
    commit(&mut client, &allocation.id, program.pid()).await;
    let is_hers = || {
        let found = usage.metadata().unwrap();
        assert_eq!((found.uid(), found.mode() & 0o777), (ALICE, 0o600));
        assert!(opens(ALICE, &usage) && !opens(BOB, &usage));
    };
    is_hers();
    drop(agent);
    let _next = host.agent(&[]).await;
    is_hers();
    let text = host.http("/metrics");
    assert!(text.contains("container=\"alices/"), "{text}");
    assert!(!text.contains(&allocation.id), "{text}");
}

#[tokio::test]
async fn a_pods_account_is_for_whoever_its_image_says() {
    let Some(host) = shared_host() else { return };
    let (_agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "team/train-0/main", 1000)
        .await
        .unwrap();
    let kind = Some(Kind::PodUid("0a-1".into()));
    let holder = Some(Holder { kind });
    let id = allocation.id.clone();
    client.commit(CommitRequest { id, holder }).await.unwrap();
    let usage = Path::new(&allocation.account_dir).join("usage");
    assert_eq!(usage.metadata().unwrap().mode() & 0o777, 0o666);
}

#[tokio::test]
async fn who_names_anothers_account_is_not_charged_to_it() {
    let Some(host) = shared_host() else { return };
    let (_agent, mut client) = host.agent(&[]).await;
    let program = sleeper(ALICE);
    let allocation = allocate(&mut client, "alices", 1000).await.unwrap();
    let cost = context_cost(&mut client).await;
    commit(&mut client, &allocation.id, program.pid()).await;
    let account = Path::new(&allocation.account_dir);
    let _bobs = host.context_of(Some(account), "0", BOB);
    eventually("Bob's memory is nobody's", async || {
        (card(&mut client, 0).await.unmanaged_bytes == cost).then_some(())
    })
    .await;
    let found = find(&mut client, &allocation.id).await.unwrap();
    assert_eq!((found.grants[0].nvml_bytes, found.processes.len()), (0, 1));
    // A process of Alice may name it.
    let _alices = host.context_of(Some(account), "0", ALICE);
    eventually("Alice's memory is hers", async || {
        let found = find(&mut client, &allocation.id).await?;
        (found.grants[0].nvml_bytes == cost).then_some(())
    })
    .await;
}

#[tokio::test]
async fn who_is_started_as_another_user_gets_the_account_of_who_started_it() {
    let Some(host) = shared_host() else { return };
    let (_agent, mut client) = host.agent(&[]).await;
    let start = |user| format!("setpriv --reuid {user} --clear-groups sleep 60 &");
    let script = format!("{} sleep 2; {} wait", start(ALICE), start(BOB));
    let program = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let program = KillOnDrop(program);
    let allocation = allocate(&mut client, "roots", 1000).await.unwrap();
    commit(&mut client, &allocation.id, program.pid()).await;
    let usage = Path::new(&allocation.account_dir).join("usage");
    eventually("Alice may", async || opens(ALICE, &usage).then_some(())).await;
    assert!(!opens(BOB, &usage));
    eventually("Bob may, too", async || opens(BOB, &usage).then_some(())).await;
    assert!(opens(ALICE, &usage) && !opens(4713, &usage));
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", program.pid()));
    for child in children.unwrap().split_whitespace() {
        let _ = Command::new("kill").arg(child).status();
    }
}

/// Runs requests to the shared agent as one user.
fn told<T: Send + 'static>(
    host: &Host,
    user: u32,
    ask: impl AsyncFnOnce(AgentClient) -> T + Send + 'static,
) -> T {
    let socket = host.instance().join("agent.sock");
    r#as(user, move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        runtime.block_on(async { ask(connect(&socket).await.expect("it listens")).await })
    })
}

/// The result of a user's request.
fn granted(host: &Host, user: u32, request: AllocateRequest) -> Result<String, Code> {
    let reply = told(host, user, async |mut client| {
        client.allocate(request).await
    });
    match reply.map_err(|status| status.code())?.into_inner().result {
        Some(allocate_reply::Result::Allocation(allocation)) => Ok(allocation.id),
        other => panic!("{other:?}"),
    }
}

fn committed(host: &Host, user: u32, id: &str, pid: u32) -> Code {
    let kind = Some(Kind::Pid(pid));
    let id = id.to_owned();
    let holder = Some(Holder { kind });
    let commit = CommitRequest { id, holder };
    let reply = told(host, user, async |mut client| client.commit(commit).await);
    reply.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn users_share_one_agent_and_change_only_what_is_theirs() {
    let Some(host) = shared_host() else { return };
    let (_agent, mut client) = host
        .agent(&["--users", "all", "--user-quota", "2000"])
        .await;
    let roots = allocate(&mut client, "roots", 9000).await.unwrap().id;
    let (alices, bobs) = (sleeper(ALICE), sleeper(BOB));
    let first = wish(&mut client, "train", 1500).await;
    let id = granted(&host, ALICE, first.clone()).unwrap();
    assert_eq!(
        granted(&host, ALICE, first.clone()),
        Ok(id.clone()),
        "asked again"
    );
    // With another user the same key is another allocation, and the quota is separate.
    let other = granted(&host, BOB, first.clone()).unwrap();
    assert_ne!(id, other);
    let more = wish(&mut client, "more", 600).await;
    assert_eq!(granted(&host, ALICE, more), Err(Code::ResourceExhausted));
    let pods = wish(&mut client, "team/train-0/main", 2).await;
    assert_eq!(granted(&host, ALICE, pods), Err(Code::InvalidArgument));

    assert_eq!(
        committed(&host, BOB, &id, bobs.pid()),
        Code::PermissionDenied
    );
    assert_eq!(
        committed(&host, ALICE, &id, bobs.pid()),
        Code::PermissionDenied
    );
    assert_eq!(committed(&host, ALICE, &id, alices.pid()), Code::Ok);
    let resized = |user, id: &str, mib| {
        let share = Share {
            card: first.shares[0].card.clone(),
            bytes: mib * MIB,
            limit_bytes: 0,
        };
        let (id, shares) = (id.to_owned(), vec![share]);
        let resize = ResizeRequest { id, shares };
        let reply = told(&host, user, async |mut client| client.resize(resize).await);
        reply.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    assert_eq!(resized(BOB, &id, 100), Code::PermissionDenied);
    assert_eq!(resized(ALICE, &id, 2100), Code::ResourceExhausted);
    assert_eq!(resized(ALICE, &id, 2000), Code::Ok);
    for id in [roots.clone(), other.clone()] {
        let release = ReleaseRequest { id };
        let reply = told(&host, ALICE, async |mut client| {
            client.release(release).await
        });
        assert_eq!(reply.unwrap_err().code(), Code::PermissionDenied);
    }
    let seen = list(&mut client).await;
    assert_eq!(
        (seen.allocations.len(), seen.cards[0].granted_bytes),
        (3, 12_500 * MIB)
    );
    assert!(host.metric("apportion_grants_total", "reason=\"quota\"") == Some(1.0));
}

#[tokio::test]
async fn a_machine_has_one_agent_whoever_starts_another() {
    let Some(host) = shared_host() else { return };
    let folder = host.dir().join("alices");
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(ALICE), Some(ALICE)).unwrap();
    let alices = |host: &Host| {
        let mut command = host.agent_command(&[]);
        command.arg("--dir").arg(&folder).uid(ALICE).gid(ALICE);
        command
    };
    {
        let (_agent, _client) = host.agent(&[]).await;
        let second = output(alices(&host));
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert_eq!(second.status.code(), Some(1), "{said}");
        let last = said.lines().last().unwrap();
        assert!(
            last.contains("the agent of user 0 manages these GPUs"),
            "{said}"
        );
        assert!(last.contains("; hint: ask root"), "{said}");
    }
    let mut command = alices(&host);
    command.stderr(Stdio::null());
    let mut first = KillOnDrop(command.spawn().unwrap());
    let socket = folder.join("agent.sock");
    eventually("Alice's agent answers", async || {
        let mut client = connect(&socket).await.ok()?;
        client.node_state(NodeStateRequest {}).await.ok()
    })
    .await;
    let second = output(host.agent_command(&[]));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    let process = format!(
        "the agent of user {ALICE} manages these GPUs (process {})",
        first.pid()
    );
    assert!(said.lines().last().unwrap().contains(&process), "{said}");
    // Another machine has its own agent, and a killed agent frees its machine.
    let other = Host::new(1);
    let _others = other.agent(&[]).await;
    first.kill();
    let _roots = host.agent(&[]).await;
}
