//! The agent with a container runtime that asks it through NRI.

#[path = "../../nri/tests/runtime/fake.rs"]
mod fake;

use apportion_nri::wire::{CdiDevice, ContainerAdjustment, PodSandbox};
use apportion_proto::v1::{CommitRequest, Holder, holder};

use crate::host::*;
use crate::pods::ContainerCgroup;
use fake::{FakeNriRuntime, container};

/// All events that a current runtime knows.
const EVENTS: i32 = (1 << 14) - 1;
const UID: &str = "6f1c2d3e-4b5a-4978-8a6b-1c2d3e4f5a6b";

fn pod(namespace: &str, uid: &str) -> PodSandbox {
    PodSandbox {
        namespace: namespace.to_owned(),
        ..fake::pod(uid)
    }
}

async fn grant(client: &mut apportion_proto::AgentClient, name: &str, pod: &str) -> String {
    let allocation = allocate(client, name, 1000).await.expect("it fits");
    let commit = CommitRequest {
        id: allocation.id.clone(),
        holder: Some(Holder {
            kind: Some(holder::Kind::PodUid(pod.to_owned())),
        }),
    };
    client.commit(commit).await.expect("it is reserved");
    allocation.id
}

#[tokio::test]
async fn an_enforcing_agent_lets_the_runtime_create_the_granted_container_and_no_other() {
    let host = Host::new(1);
    let socket = host.instance().with_extension("nri");
    let runtime = FakeNriRuntime::listen(&socket, EVENTS);
    let path = socket.display().to_string();
    let options = ["--nri-socket", &path, "--nri-policy", "enforce"];
    let (agent, mut client) = host.agent(&options).await;
    let mut asking = runtime.accept(&[]).await;
    eventually("it shows that it is asked", async || {
        (host.metric("apportion_nri_connected", "") == Some(1.0)).then_some(())
    })
    .await;

    let id = grant(&mut client, "team/train-0/main", UID).await;
    let granted = container("main", &[&format!("APPORTION_GRANT={id}")]);
    assert_eq!(asking.create(&pod("team", UID), &granted).await, Ok(None));
    let other = asking.create(&pod("team", "another"), &granted).await;
    assert!(other.unwrap_err().contains("belongs to another container"));
    let side = container("side", &[&format!("APPORTION_GRANT={id}")]);
    let side = asking.create(&pod("team", UID), &side).await;
    assert!(side.unwrap_err().contains("belongs to another container"));

    let all = container("main", &["NVIDIA_VISIBLE_DEVICES=all"]);
    let refused = asking.create(&pod("team", "another"), &all).await;
    assert!(refused.unwrap_err().contains("without a share"));
    assert_eq!(
        asking.create(&pod("kube-system", "plugin"), &all).await,
        Ok(None)
    );
    let added = ContainerAdjustment {
        cdi_devices: vec![CdiDevice {
            name: "nvidia.com/gpu=0".to_owned(),
        }],
        ..ContainerAdjustment::default()
    };
    let plain = container("main", &[]);
    let refused = asking
        .validate(&pod("team", "another"), &plain, added)
        .await;
    assert!(refused.is_some_and(|reason| reason.contains("without a share")));
    let series = "apportion_nri_verdicts_total{verdict=\"refuse\",reason=\"no_grant\"}";
    eventually("the veto is counted", async || {
        (host.metric(series, "") == Some(2.0)).then_some(())
    })
    .await;

    drop(asking);
    eventually("it shows that it is not asked", async || {
        (host.metric("apportion_nri_connected", "") == Some(0.0)).then_some(())
    })
    .await;
    drop(agent);
}

#[tokio::test]
async fn the_driver_limits_a_container_between_its_creation_and_its_start() {
    let Some(group) = ContainerCgroup::unified("start", UID) else {
        eprintln!("skipped: no control group of version 2 can be made here");
        return;
    };
    let (root, folder) = (group.0[0].parent().unwrap(), group.0.last().unwrap());
    let name = folder.strip_prefix(root).unwrap().display().to_string();
    let host = Host::with_release("615");
    let socket = host.instance().with_extension("nri");
    let runtime = FakeNriRuntime::listen(&socket, EVENTS);
    let path = socket.display().to_string();
    // Other tests have groups of pods, too, with containers of the same id.
    let own = group.0[0].display().to_string();
    let options = ["--nri-socket", &path, "--cgroup-root", &own];
    let (_agent, mut client) = host
        .agent(&[&options[..], &["--context-reserve", "300"]].concat())
        .await;
    let mut asking = runtime.accept(&[]).await;
    let id = grant(&mut client, "team/train-0/main", UID).await;

    let own = [
        &format!("APPORTION_GRANT={id}"),
        "NVIDIA_GPU_MEMORY_LIMIT=9999",
    ];
    let mut main = container("main", &own);
    main.id = "c0ffee00".repeat(8);
    let adjust = asking.create(&pod("team", UID), &main).await;
    let adjust = adjust.unwrap().expect("it has a limit of its own");
    let env = adjust.env.iter();
    let env: Vec<_> = env.map(|set| (&*set.key, &*set.value)).collect();
    let ours = [
        ("NVIDIA_GPU_MEMORY_REQUEST", "0"),
        ("NVIDIA_GPU_MEMORY_LIMIT", "1300"),
    ];
    assert_eq!(env, ours);

    let limit = || {
        let group = format!("/{name}");
        let request = serde_json::json!({"Nvml": {"GetMemoryLimits": {"card": 0, "group": group}}});
        host.ask(&request.to_string())
    };
    assert!(limit().contains("NotFound"), "{}", limit());
    // The runtime's own process waits in the group for the start.
    let sleep = std::process::Command::new("sleep").arg("60").spawn();
    let waiting = KillOnDrop(sleep.expect("sleep is everywhere"));
    group.put(&waiting);
    asking.start(&pod("team", UID), &main, false).await;
    let set = limit();
    let hard = format!("\"hard\":{}", 1300 * MIB);
    assert!(set.contains("\"soft\":0") && set.contains(&hard), "{set}");
    drop(waiting);
    eventually("it is lifted with the last process", async || {
        limit().contains("NotFound").then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_auditing_agent_refuses_nothing_and_counts_also_what_was_created_meanwhile() {
    let host = Host::new(1);
    let socket = host.instance().with_extension("nri");
    let runtime = FakeNriRuntime::listen(&socket, EVENTS);
    let path = socket.display().to_string();
    let (_agent, _client) = host.agent(&["--nri-socket", &path]).await;
    let all = container("main", &["NVIDIA_VISIBLE_DEVICES=all"]);
    let mut asking = runtime.accept(std::slice::from_ref(&all)).await;
    let series = "apportion_nri_verdicts_total{verdict=\"audit\",reason=\"no_grant\"}";
    eventually("what runs is judged", async || {
        (host.metric(series, "") == Some(1.0)).then_some(())
    })
    .await;
    assert_eq!(asking.create(&pod("team", "another"), &all).await, Ok(None));
    eventually("what is created is judged", async || {
        (host.metric(series, "") == Some(2.0)).then_some(())
    })
    .await;
}
