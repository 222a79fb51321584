//! NVIDIA's device plugin serves the node's GPUs as well: none is given twice, whichever of the two came first.

use apportion_cluster::eventually;
use apportion_cluster::nvidia::{InstalledDriver, NvidiaDevicePlugin};
use apportion_cluster::release::ChartRelease;

use super::*;

/// The agent's folder. Its simulated GPUs have the UUIDs of the cluster's own ones, which the plugin is shown: a real
/// driver is there before both.
const STATE: &str = "/run/apportion/nvidia";
/// Values of the chart.
const DEFAULTS: &str = "simulatedGpus=2";
const WHOLE_GPUS: &str = "simulatedGpus=2,wholeCards=true";
/// Part of what a share is told that waits for the other owner to leave.
const WHY: &str = "another device plugin";

/// The chart on a node, and what it takes to have NVIDIA's plugin there.
struct CoexistenceSetup {
    _pods: NvidiaPods,
    release: ChartRelease,
    driver: InstalledDriver,
    _turn: MutexGuard<'static, ()>,
}

impl CoexistenceSetup {
    fn prepare(values: &str) -> Self {
        let turn = turn();
        let release = ChartRelease::prepare(STATE, values, &[]);
        let driver = InstalledDriver::install(&release.cluster).unwrap();
        Self {
            _pods: NvidiaPods,
            release,
            driver,
            _turn: turn,
        }
    }

    /// The chart, until shares can be asked for.
    fn install(&self) {
        self.release.install();
        self.release.rolled_out();
        self.release.shares_are_taken("the webhook is trusted");
    }

    fn start_plugin(&self) -> NvidiaDevicePlugin {
        let plugin = NvidiaDevicePlugin::start(&self.release.cluster, &self.driver).unwrap();
        eventually("the node has the plugin's GPUs to give", || {
            self.offered() == "2"
        });
        plugin
    }

    /// How many whole GPUs the node has to give.
    fn offered(&self) -> String {
        let path = "jsonpath={.status.allocatable.nvidia\\.com/gpu}";
        let node = self.release.cluster.node();
        self.release.kubectl(&["get", "node", &node, "-o", path])
    }

    fn apply(&self, pod: &Value) {
        self.release.cluster.apply(pod).unwrap();
    }

    /// While the plugin is there: the node's object says so, and no share is given.
    fn gives_no_share(&self, name: &str) {
        let release = &self.release;
        eventually("the GpuNode says that there is another owner", || {
            release.ready() == ("False".to_owned(), "OtherDevicePlugin".to_owned())
        });
        self.apply(&share(name, HOLD));
        eventually("the share is told why it waits", || {
            release.told(name).contains(WHY)
        });
        assert_eq!(release.at(name, ".spec.nodeName"), "", "it is bound");
    }

    /// What the plugin gave to a pod is this pod's, and nobody else has anything of it.
    fn is_alone(&self, pod: &str) {
        let release = &self.release;
        let given = || -> Vec<Vec<String>> {
            let uuids = release.uuids();
            let all = uuids.iter().map(|uuid| release.holders(uuid));
            all.filter(|holders| holders.iter().any(|holder| holder == pod))
                .collect()
        };
        eventually(&format!("the GPU of {pod} is shown as its own"), || {
            given() == [[pod]]
        });
    }

    /// After the plugin has left: shares are given again, of the GPU that it gave to nobody.
    fn gives_the_other_gpu(&self, waiting: &str, theirs: &str) {
        let release = &self.release;
        eventually("shares are given again", || release.ready().0 == "True");
        release.says(waiting, &limited());
        self.is_alone(waiting);
        self.is_alone(theirs);
        assert!(release.is_phase(theirs, "Running"));
    }
}

/// The plugin comes to a node on which a share runs, and leaves as it is asked to.
fn comes_later(values: &str) {
    let beside = CoexistenceSetup::prepare(values);
    beside.install();
    let release = &beside.release;
    beside.apply(&share("before", HOLD));
    release.says("before", &limited());

    let plugin = beside.start_plugin();
    beside.gives_no_share("waits");
    // What ran before goes on, and its GPU is its own.
    assert!(release.is_phase("before", "Running"));
    beside.is_alone("before");
    release.delete("before");
    beside.apply(&whole("theirs", "sleep 600"));
    release.reaches("theirs", "Running");
    beside.is_alone("theirs");

    drop(plugin);
    beside.gives_the_other_gpu("waits", "theirs");
}

/// The plugin is there before the chart, has given a GPU to a pod, and ends as by a crash.
fn was_first(values: &str) -> CoexistenceSetup {
    let beside = CoexistenceSetup::prepare(values);
    let release = &beside.release;
    let plugin = beside.start_plugin();
    beside.apply(&whole("theirs", "sleep 600"));
    release.reaches("theirs", "Running");

    beside.install();
    beside.gives_no_share("waits");
    beside.is_alone("theirs");

    plugin.kill();
    beside.gives_the_other_gpu("waits", "theirs");
    beside
}

/// With whole GPUs of ours, the node offers them again when the plugin and its pod have left.
fn gives_it_whole(beside: &CoexistenceSetup) {
    let release = &beside.release;
    release.delete("theirs");
    eventually("the GPU that is idle is offered", || {
        beside.offered() == "1"
    });
    beside.apply(&whole("ours", HOLD));
    let log = release.says("ours", "total 0 ");
    assert!(!log.contains(&limited()), "{log}");
    beside.is_alone("ours");
    beside.is_alone("waits");
}

#[test]
#[ignore = "it builds NVIDIA's parts from their Go modules: `cargo xtask cluster test --suite nvidia -- --ignored`"]
fn a_device_plugin_that_comes_later_and_the_charts_defaults_give_no_gpu_twice() {
    comes_later(DEFAULTS);
}

#[test]
#[ignore = "it builds NVIDIA's parts from their Go modules: `cargo xtask cluster test --suite nvidia -- --ignored`"]
fn a_device_plugin_that_comes_later_and_whole_gpus_of_ours_give_no_gpu_twice() {
    comes_later(WHOLE_GPUS);
}

#[test]
#[ignore = "it builds NVIDIA's parts from their Go modules: `cargo xtask cluster test --suite nvidia -- --ignored`"]
fn a_device_plugin_that_was_first_and_the_charts_defaults_give_no_gpu_twice() {
    was_first(DEFAULTS);
}

#[test]
#[ignore = "it builds NVIDIA's parts from their Go modules: `cargo xtask cluster test --suite nvidia -- --ignored`"]
fn a_device_plugin_that_was_first_and_whole_gpus_of_ours_give_no_gpu_twice() {
    gives_it_whole(&was_first(WHOLE_GPUS));
}
