//! A node without a driver: the chart's agent waits without failing, and serves when a driver appears.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use apportion_cluster::eventually;
use apportion_cluster::release::{ChartRelease, NAMESPACE};

/// The agent's folder. The cluster's simulated driver listens below it.
const STATE: &str = "/run/apportion";
/// Where the driver will appear, as a path on the node and below the cluster's folder.
const ROOT: &str = "/run/apportion/late-driver";
const LIBRARIES: &str = "apportion/late-driver/usr/lib64";
/// Longer than the kubelet takes to restart a failing container three times.
const LONG: Duration = Duration::from_secs(40);
/// The agent's log message.
const WAITS: &str = "No NVIDIA driver with GPUs on this node, waiting for one";

/// Removes what an agent leaves in its folder.
struct FolderCleanup {
    folder: PathBuf,
    before: BTreeSet<OsString>,
}

fn names(folder: &Path) -> BTreeSet<OsString> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).collect()
}

impl Drop for FolderCleanup {
    fn drop(&mut self) {
        for name in names(&self.folder).difference(&self.before) {
            let path = self.folder.join(name);
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    }
}

fn agent_at(release: &ChartRelease, path: &str) -> String {
    let path = format!("jsonpath={{.items[*]{path}}}");
    let selector = "app.kubernetes.io/name=apportion-agent";
    release.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", selector, "-o", &path])
}

fn restarts(release: &ChartRelease) -> String {
    agent_at(release, ".status.containerStatuses[*].restartCount")
}

fn waits(release: &ChartRelease) -> usize {
    release.log("agent").matches(WAITS).count()
}

#[test]
fn an_agent_without_a_driver_waits_and_serves_when_one_appears() {
    let cluster = apportion_cluster::LocalCluster::of_tests();
    let folder = cluster.folder().path().join("apportion");
    let before = names(&folder);
    let _swept = FolderCleanup { folder, before };
    let libraries = cluster.folder().path().join(LIBRARIES);
    fs::create_dir_all(&libraries).unwrap();
    let values = format!(
        "driverRoot={ROOT},env[2].name=APPORTION_SIM_SOCKET,env[2].value={STATE}/sim/driver.sock"
    );
    let release = ChartRelease::prepare(STATE, &values, &[]);
    release.install();
    // Another suite's agent may have left an object.
    release.kubectl(&["delete", "gpunodes", "--all"]);
    // A node without GPUs does not block a rollout.
    release.rolled_out();
    eventually("a metric says that the agent waits", || {
        release.metric("apportion_idle", &[]) == 1.0
    });
    sleep(LONG);
    assert_eq!(restarts(&release), "0");
    assert_eq!(waits(&release), 1, "{}", release.log("agent"));
    assert!(release.gpu_node().is_null(), "a node without GPUs has none");

    let staged = PathBuf::from(std::env::var_os("APPORTION_STAGED").unwrap());
    for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        let from = staged.join("lib/apportion/sim").join(library);
        fs::copy(from, libraries.join(library)).unwrap();
    }
    eventually("its GPUs are there", || {
        let status = &release.gpu_node()["status"];
        let cards = status["cards"].as_array().map_or(0, Vec::len);
        cards == 2 && status["conditions"][0]["status"] == "True"
    });
    assert_eq!(release.metric("apportion_idle", &[]), 0.0);
    assert_eq!(restarts(&release), "0");

    // If the driver is missing at the agent's next start, the existing object reports it.
    for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        fs::remove_file(libraries.join(library)).unwrap();
    }
    let selector = "app.kubernetes.io/name=apportion-agent";
    release.kubectl(&["delete", "pod", "-n", NAMESPACE, "-l", selector]);
    eventually("its GpuNode says so", || {
        let condition = &release.gpu_node()["status"]["conditions"][0];
        condition["status"] == "False" && condition["reason"] == "NoDriver"
    });
}
