//! NVIDIA's container toolkit brings the driver into containers: a share has its one GPU and its limit, and nobody has a
//! GPU without a share.
//!
//! The agent does not know that the driver is simulated. The driver lies in a folder of its own and has its device files
//! there, as NVIDIA's driver container leaves them: the host's `/dev` has none.

use apportion_cluster::managed::{ManagedNode, ManagedPod};
use apportion_cluster::nvidia::{
    InstalledDriver, InstalledToolkit, ROOT, RUNTIME_CLASS, SpecAudience, ToolkitMode,
};

use super::*;

/// What the chart's defaults say, but for the policy: a container without a share that would reach a GPU is refused.
const ENFORCE: &[&str] = &[
    "--nri-socket",
    "/run/nri/nri.sock",
    "--nri-policy",
    "enforce",
];
/// The same as the chart's defaults.
const AUDIT: &[&str] = &["--nri-socket", "/run/nri/nri.sock", "--nri-policy", "audit"];
/// Says which GPUs' device files there are, where the loader finds the driver, and takes the limit and more.
const TAKES_ALL: &str = "echo files $(ls /dev | grep '^nvidia[0-9]'); echo cached $(grep -c libcuda.so.1 /etc/ld.so.cache); \
    victim total alloc 1000M alloc 1000M hold & echo $! > /tmp/pid; wait";

/// A node with NVIDIA's toolkit and an agent.
struct ToolkitNode {
    node: ManagedNode,
    _toolkit: InstalledToolkit,
    _driver: InstalledDriver,
    _turn: MutexGuard<'static, ()>,
}

impl ToolkitNode {
    fn start(mode: ToolkitMode, audience: SpecAudience, options: &[&str]) -> Self {
        let turn = turn();
        let cluster = LocalCluster::of_tests();
        let driver = InstalledDriver::install(&cluster).unwrap();
        let toolkit = InstalledToolkit::install(&cluster, &driver, mode, audience).unwrap();
        Self {
            node: ManagedNode::with_driver(&driver, options),
            _toolkit: toolkit,
            _driver: driver,
            _turn: turn,
        }
    }

    /// A share that runs `script` in NVIDIA's RuntimeClass.
    fn share(&self, name: &str, script: &str) -> ManagedPod {
        self.node.pod(name, script, of_nvidia)
    }

    /// A pod of NVIDIA's RuntimeClass without a share, which asks NVIDIA's runtime for `devices`.
    fn without_share(&self, name: &str, devices: Option<&str>) -> ManagedPod {
        self.node
            .pod(name, "ls /dev; echo started; sleep 600", |pod| {
                of_nvidia(pod);
                pod["metadata"]["annotations"] = json!({});
                let container = &mut pod["spec"]["containers"][0];
                container["resources"] = json!({});
                let ask = |value| json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": value});
                container["env"] = devices.map(ask).into_iter().collect();
            })
    }
}

fn of_nvidia(pod: &mut Value) {
    pod["spec"]["runtimeClassName"] = RUNTIME_CLASS.into();
}

/// It has one GPU, by its device file and by the driver; NVIDIA's hook has told the loader of the driver; and of two
/// allocations one goes beyond the limit.
fn is_limited(pod: &ManagedPod) {
    let mut log = String::new();
    let given = |log: &str| -> Vec<String> {
        let lines = log.lines().filter(|line| line.starts_with("alloc"));
        lines.map(str::to_owned).collect()
    };
    eventually(&format!("{} has asked twice", pod.name), || {
        log = pod.logs("main");
        given(&log).len() == 2
    });
    let given = given(&log);
    let line = |what: &str| {
        let mut lines = log.lines().filter_map(|line| line.strip_prefix(what));
        lines
            .next()
            .unwrap_or_else(|| panic!("no {what} in {log}"))
            .to_owned()
    };
    assert_eq!(line("files ").split_whitespace().count(), 1, "{log}");
    assert_ne!(line("cached "), "0", "{log}");
    assert!(log.contains(&limited()), "{log}");
    assert!(
        given[0].starts_with("alloc 0") && given[1].starts_with("alloc 2"),
        "{log}"
    );
}

/// Two shares on one GPU, one of which would have all GPUs, and one that ends and starts again.
fn shares_are_limited(node: &ToolkitNode, change: fn(&mut Value)) {
    let first = node.node.pod("first", TAKES_ALL, change);
    let greedy = node.node.pod("greedy", TAKES_ALL, |pod| {
        change(pod);
        pod["spec"]["containers"][0]["env"] =
            json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
    });
    is_limited(&first);
    is_limited(&greedy);
    let restarts = node.node.pod("restarts", TAKES_ALL, |pod| {
        change(pod);
        pod["spec"]["restartPolicy"] = "Always".into();
    });
    is_limited(&restarts);
    restarts.exec("kill $(cat /tmp/pid)");
    eventually("the container runs again", || {
        restarts.at(".status.containerStatuses[0].restartCount") == "1"
    });
    is_limited(&restarts);
}

#[test]
#[ignore = "it builds NVIDIA's parts from their Go modules: `cargo xtask cluster test --suite nvidia -- --ignored`"]
fn a_share_gets_what_the_cdi_spec_of_nvidias_toolkit_says_and_its_limit() {
    let node = ToolkitNode::start(ToolkitMode::Cdi, SpecAudience::Node, ENFORCE);
    shares_are_limited(&node, |_| {});
}

#[test]
#[ignore = "it builds NVIDIA's parts from their Go modules: `cargo xtask cluster test --suite nvidia -- --ignored`"]
fn a_share_of_nvidias_runtime_class_gets_its_gpu_from_the_runtime_and_its_limit() {
    let node = ToolkitNode::start(ToolkitMode::Cdi, SpecAudience::NvidiaRuntime, ENFORCE);
    shares_are_limited(&node, of_nvidia);
}

#[test]
#[ignore = "it builds NVIDIA's parts from their Go modules: `cargo xtask cluster test --suite nvidia -- --ignored`"]
fn a_runtime_that_heeds_no_variables_is_asked_by_mounts() {
    let node = ToolkitNode::start(
        ToolkitMode::CdiByMounts,
        SpecAudience::NvidiaRuntime,
        ENFORCE,
    );
    is_limited(&node.share("by-mounts", TAKES_ALL));
}

/// In this mode NVIDIA's runtime makes a spec for each container, which cannot have the socket of a simulated GPU. So only
/// files are looked at.
#[test]
#[ignore = "it builds NVIDIA's parts from their Go modules: `cargo xtask cluster test --suite nvidia -- --ignored`"]
fn a_share_of_a_runtime_without_any_cdi_spec_has_one_gpu() {
    let node = ToolkitNode::start(ToolkitMode::Automatic, SpecAudience::NvidiaRuntime, ENFORCE);
    let script = "ls /dev | grep '^nvidia[0-9]' | wc -l; grep -c libcuda.so.1 /etc/ld.so.cache; cat /etc/ld.so.preload; \
        echo hold; sleep 600";
    let log = node.share("automatic", script).says("hold");
    assert!(log.starts_with("1\n1\n"), "{log}");
    assert!(log.contains("libapportion_cuda.so"), "{log}");
}

#[test]
#[ignore = "it builds NVIDIA's parts from their Go modules: `cargo xtask cluster test --suite nvidia -- --ignored`"]
fn a_pod_of_nvidias_runtime_class_without_a_share_gets_no_gpu() {
    let node = ToolkitNode::start(ToolkitMode::Cdi, SpecAudience::NvidiaRuntime, ENFORCE);
    let asks = node.without_share("asks", Some("all"));
    let sentence = "would reach a GPU through NVIDIA_VISIBLE_DEVICES=all";
    eventually(sentence, || asks.events().contains(sentence));
    assert!(!asks.logs("main").contains("started"));
    let quiet = node.without_share("quiet", None);
    let log = quiet.says("started");
    assert!(!log.contains("nvidia0"), "{log}");
}

#[test]
#[ignore = "it builds NVIDIA's parts from their Go modules: `cargo xtask cluster test --suite nvidia -- --ignored`"]
fn a_pod_without_a_share_that_reaches_a_gpu_is_counted_where_nothing_is_refused() {
    let node = ToolkitNode::start(ToolkitMode::Cdi, SpecAudience::NvidiaRuntime, AUDIT);
    let asks = node.without_share("asks", Some("all"));
    let log = asks.says("started");
    assert!(log.contains("nvidia0") && log.contains("nvidia1"), "{log}");
    eventually("it is counted", || {
        let counted = node.node.metric("apportion_nri_verdicts_total", &[]);
        counted.is_some_and(|counted| counted > 0.0)
    });
}

#[test]
#[ignore = "it builds NVIDIA's parts from their Go modules: `cargo xtask cluster test --suite nvidia -- --ignored`"]
fn without_nvidias_toolkit_the_agent_brings_libraries_and_device_files() {
    let _turn = turn();
    let driver = InstalledDriver::install(&LocalCluster::of_tests()).unwrap();
    let libraries = format!("{ROOT}/usr/lib64");
    let options = [ENFORCE, &["--driver-libraries", &libraries]].concat();
    let node = ManagedNode::with_driver(&driver, &options);
    let script = "stat -c 'device %t:%T' /dev/nvidiactl; ls /dev | grep -c '^nvidia[0-9]'; ls /usr/lib64; \
        cat /etc/ld.so.preload; echo hold; sleep 600";
    let log = node.pod("alone", script, |_| {}).says("hold");
    assert!(log.starts_with("device c3:ff\n1\n"), "{log}");
    assert!(log.contains("libcuda.so.1"), "{log}");
    assert!(log.contains("libapportion_cuda.so"), "{log}");
}
