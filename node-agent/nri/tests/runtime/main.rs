//! The plugin against a runtime over a real socket, in a real runtime's order and with its faults: it closes the
//! connection on unknown events, splits messages, restarts, sends garbage, falls silent.

mod fake;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apportion_nri::{
    ContainerVerdict, GrantHolder, Grants, NriClientConfig, NriEvent, NriReceivers,
    StartingContainer, VerdictMode, VerdictRules, run,
};
use fake::{FakeNriRuntime, container, pod};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(10);
/// All events that a current runtime knows, and those of one from before validation.
const NEW: i32 = (1 << 14) - 1;
const OLD: i32 = (1 << 13) - 1;

/// A running plugin, the grants that it sees and the events that it sends.
struct RunningPlugin {
    grants: watch::Sender<Arc<Grants>>,
    events: mpsc::Receiver<NriEvent>,
    starting: mpsc::Receiver<StartingContainer>,
}

fn start(socket: &Path) -> RunningPlugin {
    let (grants, known) = watch::channel(Arc::new(Grants::new()));
    let (event, events) = mpsc::channel(64);
    let (start, starting) = mpsc::channel(64);
    let plugin = NriClientConfig {
        socket: socket.to_owned(),
        name: "apportion".to_owned(),
        index: "10".to_owned(),
        rules: VerdictRules {
            mode: VerdictMode::Enforce,
            ..VerdictRules::default()
        },
    };
    let receivers = NriReceivers {
        events: event,
        starting: start,
    };
    tokio::spawn(run(plugin, known, receivers));
    RunningPlugin {
        grants,
        events,
        starting,
    }
}

impl RunningPlugin {
    async fn events(&mut self) -> NriEvent {
        let events = timeout(PATIENCE, self.events.recv()).await;
        events.expect("nothing is told").expect("it goes on")
    }

    fn grant(&self, id: &str, pod: &str) {
        let granted = GrantHolder {
            claimed_in: None,
            pod: pod.to_owned(),
            container: Some("main".to_owned()),
            account: id.to_owned(),
            env: vec![("APPORTION_GRANT".to_owned(), id.to_owned())],
            is_limited: true,
        };
        self.grants
            .send_replace(Arc::new(Grants::from([(id.to_owned(), granted)])));
    }
}

fn socket() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let socket = folder.path().join("nri.sock");
    (folder, socket)
}

#[tokio::test]
async fn a_granted_container_is_created_and_another_is_refused_in_one_sentence() {
    let (_folder, path) = socket();
    let runtime = FakeNriRuntime::listen(&path, NEW);
    let mut plugin = start(&path);
    let mut asking = runtime.accept(&[]).await;
    assert_eq!(plugin.events().await, NriEvent::Synchronized(Vec::new()));

    plugin.grant("7-1", "uid-1");
    let granted = container("main", &["APPORTION_GRANT=7-9", "APPORTION_GRANT=7-1"]);
    let adjust = asking.create(&pod("uid-1"), &granted).await;
    let adjust = adjust
        .expect("it is granted")
        .expect("one variable stands there twice");
    assert_eq!(adjust.env.len(), 1);
    assert_eq!(
        (adjust.env[0].key.as_str(), adjust.env[0].value.as_str()),
        ("APPORTION_GRANT", "7-1")
    );
    assert!(matches!(
        plugin.events().await,
        NriEvent::Judged(_, ContainerVerdict::Admit(_))
    ));

    let refused = asking.create(&pod("uid-2"), &granted).await;
    let sentence = "container main names grant 7-1, which belongs to another container";
    assert_eq!(refused.expect_err("it is another's"), sentence);
    assert!(matches!(
        plugin.events().await,
        NriEvent::Judged(_, ContainerVerdict::Refuse(_))
    ));

    let plain = asking.create(&pod("uid-3"), &container("main", &[])).await;
    assert_eq!(plain, Ok(None));
}

#[tokio::test]
async fn a_limited_container_starts_once_its_limit_is_set() {
    let (_folder, path) = socket();
    let runtime = FakeNriRuntime::listen(&path, NEW);
    let mut plugin = start(&path);
    let mut asking = runtime.accept(&[]).await;
    plugin.grant("7-1", "uid-1");
    let main = container("main", &["APPORTION_GRANT=7-1"]);
    for is_old in [false, true] {
        let of = pod("uid-1");
        let answer = asking.start(&of, &main, is_old);
        tokio::pin!(answer);
        let starting = tokio::select! {
            () = &mut answer => panic!("it started without its limit"),
            starting = plugin.starting.recv() => starting.expect("it goes on"),
        };
        assert_eq!(starting.container.id, "id-of-main");
        tokio::select! {
            biased;
            () = &mut answer => panic!("it started without its limit"),
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        starting.done.send(()).expect("the runtime waits");
        answer.await;
    }
}

#[tokio::test]
async fn a_container_starts_without_its_limit_if_that_takes_too_long() {
    let (_folder, path) = socket();
    let runtime = FakeNriRuntime::listen(&path, NEW);
    let mut plugin = start(&path);
    let mut asking = runtime.accept(&[]).await;
    plugin.grant("7-1", "uid-1");
    let main = container("main", &["APPORTION_GRANT=7-1"]);
    // The runtime waits for two seconds, and then drops the plugin.
    asking.start(&pod("uid-1"), &main, false).await;
    let starting = plugin.starting.recv().await.expect("it was told");
    assert!(starting.done.send(()).is_err(), "nobody waits any more");
    // Others are none of its business.
    asking.start(&pod("uid-2"), &main, false).await;
    assert!(plugin.starting.try_recv().is_err());
}

#[tokio::test]
async fn what_another_plugin_adds_is_refused_when_all_are_done() {
    let (_folder, path) = socket();
    let runtime = FakeNriRuntime::listen(&path, NEW);
    let _plugin = start(&path);
    let mut asking = runtime.accept(&[]).await;
    let plain = container("main", &[]);
    assert_eq!(asking.create(&pod("uid-1"), &plain).await, Ok(None));
    let added = apportion_nri::wire::ContainerAdjustment {
        cdi_devices: vec![apportion_nri::wire::CdiDevice {
            name: "nvidia.com/gpu=0".to_owned(),
        }],
        ..Default::default()
    };
    let reason = asking.validate(&pod("uid-1"), &plain, added).await;
    assert!(
        reason
            .expect("it is rejected")
            .contains("CDI device nvidia.com/gpu=0")
    );
}

#[tokio::test]
async fn a_runtime_that_knows_fewer_events_is_asked_for_fewer() {
    let (_folder, path) = socket();
    let runtime = FakeNriRuntime::listen(&path, OLD);
    let mut plugin = start(&path);
    assert!(runtime.try_accept(&[]).await.is_none());
    let mut asking = runtime.accept(&[]).await;
    assert_eq!(plugin.events().await, NriEvent::Synchronized(Vec::new()));
    assert!(
        asking
            .create(
                &pod("uid-1"),
                &container("main", &["NVIDIA_VISIBLE_DEVICES=all"])
            )
            .await
            .is_err()
    );
}

#[tokio::test]
async fn what_runs_is_told_after_every_connection_however_it_is_split() {
    let (_folder, path) = socket();
    let runtime = FakeNriRuntime::listen(&path, NEW);
    let mut plugin = start(&path);
    let running: Vec<_> = (0..40)
        .map(|n| container(&format!("c{n}"), &["APPORTION_GRANT=7-1"]))
        .collect();
    for _ in 0..2 {
        let asking = runtime.accept(&running).await;
        let NriEvent::Synchronized(event) = plugin.events().await else {
            panic!("something else is told");
        };
        assert_eq!(event.len(), 40);
        assert!(
            event
                .iter()
                .all(|asked| asked.pod == "uid-0" && asked.env("APPORTION_GRANT") == Some("7-1"))
        );
        drop(asking);
        assert_eq!(plugin.events().await, NriEvent::Disconnected);
    }
}

#[tokio::test]
async fn a_runtime_that_restarts_is_found_again() {
    let (_folder, path) = socket();
    let mut plugin = start(&path);
    let runtime = FakeNriRuntime::listen(&path, NEW);
    drop(runtime.accept(&[]).await);
    drop(runtime);
    std::fs::remove_file(&path).expect("the socket lies there");
    let runtime = FakeNriRuntime::listen(&path, NEW);
    let mut asking = runtime.accept(&[]).await;
    assert_eq!(
        asking.create(&pod("uid-1"), &container("main", &[])).await,
        Ok(None)
    );
    assert_eq!(plugin.events().await, NriEvent::Synchronized(Vec::new()));
    assert_eq!(plugin.events().await, NriEvent::Disconnected);
    assert_eq!(plugin.events().await, NriEvent::Synchronized(Vec::new()));
}

#[tokio::test]
async fn garbage_ends_the_connection_and_not_the_plugin() {
    let (_folder, path) = socket();
    let runtime = FakeNriRuntime::listen(&path, NEW);
    let _plugin = start(&path);
    for garbage in [
        [0xffu8; 64].as_slice(),
        &[0, 0, 0, 1, 0, 0, 0, 11, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0xff],
    ] {
        let asking = runtime.accept(&[]).await;
        asking.say(garbage).await;
    }
    let mut asking = runtime.accept(&[]).await;
    assert_eq!(
        asking.create(&pod("uid-1"), &container("main", &[])).await,
        Ok(None)
    );
}

#[tokio::test]
async fn a_pause_in_the_middle_of_a_message_changes_nothing() {
    let (_folder, path) = socket();
    let runtime = FakeNriRuntime::listen(&path, NEW);
    let _plugin = start(&path);
    let mut asking = runtime.accept(&[]).await;
    asking.is_halting = true;
    let long = "x".repeat(100_000);
    let created = asking
        .create(
            &pod("uid-1"),
            &container("main", &[&format!("LONG={long}")]),
        )
        .await;
    assert_eq!(created, Ok(None));
}
