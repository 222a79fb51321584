//! The cgroup decides which allocation a process belongs to: in a pod nothing else counts.
//!
//! The cgroups are made as the kubelet makes them, in any hierarchy that root can write. A process is moved there
//! after its start, because the agent must not depend on anything inside the process.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use apportion_proto::AgentClient;
use apportion_proto::v1::{CommitRequest, EnforcementState, Holder, holder};

use crate::host::*;

const UID: &str = "6f1c2d3e-4b5a-4978-8a6b-1c2d3e4f5a6b";
const OTHER_UID: &str = "11111111-2222-4333-8444-555555555555";
/// The longest time until a process that bypasses the library is detected.
const DETECTION: Duration = Duration::from_secs(2);

/// A container's cgroup, removed when dropped. Drop it after its processes.
pub(crate) struct ContainerCgroup(pub(crate) Vec<PathBuf>);

impl ContainerCgroup {
    /// `None` if no hierarchy is writable, as for an ordinary user.
    fn new(test: &str, uid: &str) -> Option<Self> {
        let roots = [
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup/memory",
        ];
        Self::below(&roots, test, uid)
    }

    /// The same, in a hierarchy of version 2.
    pub(crate) fn unified(test: &str, uid: &str) -> Option<Self> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let roots: Vec<_> = roots
            .into_iter()
            .filter(|root| fs::exists(format!("{root}/cgroup.controllers")).unwrap_or_default())
            .collect();
        Self::below(&roots, test, uid)
    }

    fn below(roots: &[&str], test: &str, uid: &str) -> Option<Self> {
        let mut roots = roots
            .iter()
            .filter(|root| fs::exists(format!("{root}/cgroup.procs")).unwrap_or_default());
        let name = format!("apportion-{test}-{}", std::process::id());
        let id = "c0ffee00".repeat(8);
        roots.find_map(|root| {
            let mut made = vec![PathBuf::from(root).join(&name)];
            for part in ["kubepods", &format!("pod{uid}"), &id] {
                made.push(made.last()?.join(part));
            }
            fs::create_dir_all(made.last()?).ok()?;
            Some(Self(made))
        })
    }

    pub(crate) fn put(&self, program: &KillOnDrop) {
        let procs = self.0.last().expect("it has folders").join("cgroup.procs");
        fs::write(procs, program.pid().to_string()).expect("root may move a process");
    }
}

impl Drop for ContainerCgroup {
    fn drop(&mut self) {
        for folder in self.0.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

async fn grant(client: &mut AgentClient, name: &str, uid: &str) -> String {
    let allocation = allocate(client, name, 200).await.expect("it fits");
    let holder = Some(Holder {
        kind: Some(holder::Kind::PodUid(uid.to_owned())),
    });
    let id = allocation.id;
    let request = CommitRequest {
        id: id.clone(),
        holder,
    };
    client.commit(request).await.expect("it is reserved");
    id
}

#[tokio::test]
async fn a_process_of_the_pod_that_goes_around_the_library_is_found_within_two_seconds() {
    let Some(group) = ContainerCgroup::new("around", UID) else {
        eprintln!("skipped: no control group can be made here");
        return;
    };
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&["--tick", "250"]).await;
    let id = grant(&mut client, "team/train-0/main", UID).await;
    // It loads the driver itself, without our account or environment.
    let program = host.context(None, "0");
    group.put(&program);
    let moved = Instant::now();
    eventually("the pod's allocation is bypassed", async || {
        let found = find(&mut client, &id).await?;
        let is_its = found
            .processes
            .iter()
            .any(|process| process.pid == program.pid());
        let state = found.grants[0].enforcement();
        (is_its && state == EnforcementState::Bypassed).then_some(())
    })
    .await;
    assert!(moved.elapsed() < DETECTION, "it took {:?}", moved.elapsed());
    assert_eq!(card(&mut client, 0).await.unmanaged_bytes, 0);
    drop(program);
    drop(group);
}

#[tokio::test]
async fn a_process_of_another_pod_belongs_to_nobody_whatever_its_environment_says() {
    let Some(group) = ContainerCgroup::new("other", OTHER_UID) else {
        eprintln!("skipped: no control group can be made here");
        return;
    };
    let host = Host::new(1);
    let id;
    let free;
    {
        let (_agent, mut client) = host.agent(&[]).await;
        id = grant(&mut client, "team/train-0/main", UID).await;
        free = card(&mut client, 0).await.free_bytes;
    }
    // Move it into its cgroup before the agent starts.
    let account = host.instance().join("accounts").join(&id);
    let program = host.context(Some(&account), "0");
    group.put(&program);
    let (_agent, mut client) = host.agent(&[]).await;
    let unmanaged = eventually("its memory is nobody's", async || {
        let card = card(&mut client, 0).await;
        (card.unmanaged_bytes > 0).then_some(card)
    })
    .await;
    assert_eq!(unmanaged.free_bytes + unmanaged.unmanaged_bytes, free);
    let found = find(&mut client, &id).await.expect("it is adopted");
    assert!(found.processes.is_empty(), "{found:?}");
    drop(program);
    drop(group);
}
