//! Nodes as their distributions set them up, each a small tree of files: the findings, and the values to set.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::choice::PRESETS;
use super::*;

/// Creates a tree: `== PATH` begins a file, and `#` before the first one is a comment. A script becomes executable.
fn host(tree: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in tree.split("== /").skip(1) {
        let (path, text) = file.split_once('\n').unwrap();
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        if text.starts_with("#!") {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    root
}

struct ExpectedChoice {
    tree: &'static str,
    runtime: &'static str,
    kubernetes: &'static str,
    mode: &'static str,
    preset: Option<&'static str>,
    values: &'static [(&'static str, &'static str)],
    missing: &'static [&'static str],
    notes: &'static [&'static str],
}

const HOSTS: &[ExpectedChoice] = &[
    ExpectedChoice {
        tree: include_str!("hosts/gke-cos.tree"),
        runtime: "containerd 2.0.6",
        kubernetes: "1.33.4-gke.1134000",
        mode: "cdi",
        preset: Some("gke"),
        values: &[],
        missing: &[],
        notes: &["device plugin"],
    },
    ExpectedChoice {
        tree: include_str!("hosts/eks-al2023.tree"),
        runtime: "containerd 1.7.27",
        kubernetes: "1.33.4-eks-3abbec1",
        mode: "cdi",
        preset: Some("eks"),
        values: &[("runtime.cdi", "on")],
        missing: &[],
        notes: &["nri", "nvidia runtime"],
    },
    ExpectedChoice {
        tree: include_str!("hosts/openshift.tree"),
        runtime: "cri-o 1.32.8",
        kubernetes: "1.32.8",
        mode: "cdi",
        preset: Some("openshift"),
        values: &[],
        missing: &[],
        notes: &["device plugin"],
    },
    ExpectedChoice {
        tree: include_str!("hosts/k3s.tree"),
        runtime: "containerd 2.0.5-k3s2",
        kubernetes: "1.33.4+k3s1",
        mode: "cdi",
        preset: Some("k3s"),
        values: &[],
        missing: &[],
        notes: &[],
    },
    ExpectedChoice {
        tree: include_str!("hosts/kind.tree"),
        runtime: "containerd 2.1.4",
        kubernetes: "1.34.0",
        mode: "cdi",
        preset: Some("kind"),
        values: &[],
        missing: &[],
        notes: &["driver"],
    },
    ExpectedChoice {
        tree: include_str!("hosts/debian-12.tree"),
        runtime: "containerd 1.6.20~ds1",
        kubernetes: "1.31.13",
        mode: "mounts",
        preset: None,
        values: &[
            ("driverLibraries", "usr/lib/x86_64-linux-gnu"),
            ("driverRoot", "/"),
            ("privileged", "true"),
        ],
        missing: &[],
        notes: &["cdi", "nri"],
    },
    ExpectedChoice {
        tree: include_str!("hosts/debian-13.tree"),
        runtime: "containerd 1.7.24~ds1",
        kubernetes: "1.34.1",
        mode: "cdi",
        preset: None,
        values: &[("runtime.cdi", "on"), ("runtimeClassName", "nvidia")],
        missing: &["kubelet"],
        notes: &["nri"],
    },
];

#[test]
fn every_usual_host_is_told_what_to_set() {
    for expected in HOSTS {
        let root = host(expected.tree);
        let report = report(&NodeFilesystem::at(root.path()));
        let system = &report.findings[0].found;
        let found = |check: &str| {
            let of = report
                .findings
                .iter()
                .find(|finding| finding.check == check);
            of.map(|finding| finding.found.clone()).unwrap()
        };
        let in_state = |state: FindingState| -> Vec<_> {
            let of = report
                .findings
                .iter()
                .filter(|finding| finding.state == state);
            of.map(|finding| finding.check).collect()
        };
        assert_eq!(found("runtime"), expected.runtime, "{system}");
        assert_eq!(found("kubernetes"), expected.kubernetes, "{system}");
        assert_eq!(report.choice.mode, expected.mode, "{system}");
        assert_eq!(report.choice.preset, expected.preset, "{system}");
        let values = report
            .choice
            .values
            .iter()
            .map(|(name, value)| (*name, value.as_str()));
        assert_eq!(values.collect::<Vec<_>>(), expected.values, "{system}");
        assert_eq!(
            in_state(FindingState::Missing),
            expected.missing,
            "{system}"
        );
        assert_eq!(in_state(FindingState::Note), expected.notes, "{system}");
    }
}

#[test]
fn the_text_ends_with_what_to_type() {
    let debian = host(HOSTS[6].tree);
    let text = text(&report(&NodeFilesystem::at(debian.path())));
    assert!(
        text.ends_with("chart: --set runtime.cdi=on --set runtimeClassName=nvidia\n"),
        "{text}"
    );
    assert!(
        text.contains("kubelet: libraries in it cannot be loaded"),
        "{text}"
    );
}

#[test]
fn nvidias_description_of_the_cards_is_found_and_read() {
    let with = |text: &str| {
        let tree = format!("{}== /etc/cdi/nvidia.yaml\n{text}", HOSTS[3].tree);
        report(&NodeFilesystem::at(host(&tree).path()))
    };
    let said = |report: &NodeDoctorReport| {
        let mut findings = report.findings.iter();
        let finding = findings.find(|finding| finding.check == "nvidia cdi");
        finding
            .map(|finding| (finding.state, finding.found.clone()))
            .unwrap()
    };
    let good = with("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n");
    assert_eq!(
        said(&good),
        (FindingState::Good, "/etc/cdi/nvidia.yaml".into())
    );
    assert_eq!(good.choice.values["fixedCdiDir"], "/etc/cdi");
    for text in ["kind: [", "kind: nvidia.com/gpu\ndevices: 1\n"] {
        let (state, found) = said(&with(text));
        assert_eq!(state, FindingState::Missing);
        assert!(found.starts_with("/etc/cdi/nvidia.yaml is not "), "{found}");
    }
}

#[test]
fn a_runtime_that_looks_for_cdi_files_elsewhere_is_given_them_there() {
    let with = |dirs: &str| {
        let tree = format!(
            "{}== /etc/containerd/config.toml\nversion = 3\n[plugins.'io.containerd.cri.v1.runtime']\n\
             cdi_spec_dirs = {dirs}\n",
            HOSTS[4].tree
        );
        let choice = report(&NodeFilesystem::at(host(&tree).path())).choice;
        choice.values.get("cdiDir").cloned()
    };
    assert_eq!(
        with("['/etc/cdi', '/run/runtime/cdi']").as_deref(),
        Some("/run/runtime/cdi")
    );
    assert_eq!(with("['/etc/cdi']").as_deref(), Some("/etc/cdi"));
    assert_eq!(with("['/etc/cdi', '/var/run/cdi/']"), None);
    assert_eq!(with("[]"), None);
}

#[test]
fn nvidias_plugin_is_found_by_what_the_kubelet_has_of_it() {
    let with = |registered: &str| {
        let tree = format!(
            "{}== /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint\n\
             {{\"Data\":{{\"PodDeviceEntries\":null,\"RegisteredDevices\":{registered}}},\"Checksum\":1}}",
            HOSTS[4].tree
        );
        let report = report(&NodeFilesystem::at(host(&tree).path()));
        let mut findings = report.findings.into_iter();
        let finding = findings.find(|finding| finding.check == "device plugin");
        finding.map(|finding| finding.found)
    };
    let found = with(r#"{"nvidia.com/gpu.shared": ["GPU-1::0", "GPU-1::1"], "x/y": ["GPU-2"]}"#);
    let said = "the kubelet has 2 nvidia.com/gpu.shared on record from NVIDIA's device plugin";
    assert_eq!(found.as_deref(), Some(said));
    let ours = r#"{"nvidia.com/gpu": ["w-0001"], "apportion.dev/gpu-slot": ["s-0001"]}"#;
    assert_eq!(with(ours), None);
}

#[test]
fn a_machine_that_is_no_node_is_told_so() {
    let root = tempfile::tempdir().unwrap();
    let report = report(&NodeFilesystem::at(root.path()));
    let missing = report
        .findings
        .iter()
        .filter(|of| of.state == FindingState::Missing);
    assert_eq!(missing.count(), 2);
    assert_eq!(report.choice.mode, "mounts");
}

#[test]
fn a_root_that_is_none_is_named_and_nothing_is_said_of_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let gone = folder.path().join("gone");
    let looped = folder.path().join("looped");
    std::os::unix::fs::symlink(&looped, &looped).unwrap();
    for (root, why) in [
        (gone.as_path(), "No such file or directory"),
        (&file, "Not a directory"),
        (&looped, "Too many levels of symbolic links"),
        (folder.path(), "holds no file system of a node"),
    ] {
        let said = doctor(false, root).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
        assert!(said.contains(&root.display().to_string()), "{said}");
        assert!(!said.contains("kubelet"), "{said}");
    }
}

#[test]
fn what_of_a_node_cannot_be_read_is_said_and_no_value_is_recommended() {
    let root = host(HOSTS[6].tree);
    let kubelet = root.path().join("var/lib/kubelet");
    fs::remove_dir_all(&kubelet).unwrap();
    // As unreadable as another user's folder, even for root.
    std::os::unix::fs::symlink(&kubelet, &kubelet).unwrap();
    let report = report(&NodeFilesystem::at(root.path()));
    let finding = report
        .findings
        .iter()
        .find(|of| of.check == UNREAD)
        .expect("it is said");
    assert_eq!(finding.state, FindingState::Missing);
    assert!(
        finding.found.starts_with("cannot read /var/lib/kubelet/"),
        "{}",
        finding.found
    );
    let text = text(&report);
    assert!(
        text.ends_with("chart: unknown, because a part of the node could not be read\n"),
        "{text}"
    );
}

/// The presets here match the chart's files.
#[test]
fn the_presets_are_those_of_the_chart() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart/apportion/presets");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), PRESETS.len());
    for preset in &PRESETS {
        let text = fs::read_to_string(folder.join(format!("{}.yaml", preset.name))).unwrap();
        let values: serde_json::Value = serde_norway::from_str(&text).unwrap();
        let text = |name: &str, usual: &str| values[name].as_str().unwrap_or(usual).to_owned();
        assert_eq!(
            text("runtimeClassName", ""),
            preset.runtime_class,
            "{}",
            preset.name
        );
        assert_eq!(
            text("driverRoot", ""),
            preset.driver_root,
            "{}",
            preset.name
        );
        assert_eq!(
            text("driverLibraries", "usr/lib64"),
            preset.driver_libraries,
            "{}",
            preset.name
        );
        assert_eq!(
            values["privileged"] == true,
            preset.privileged,
            "{}",
            preset.name
        );
        let gpus = values["simulatedGpus"].as_u64().unwrap_or_default();
        assert_eq!(gpus, u64::from(preset.simulated_gpus), "{}", preset.name);
        let label = values["seLinuxOptions"]["type"]
            .as_str()
            .unwrap_or_default();
        assert_eq!(label, preset.se_linux_type, "{}", preset.name);
    }
}

#[test]
fn a_node_says_whether_its_driver_keeps_limits() {
    let v2 = "== /sys/fs/cgroup/cgroup.controllers\ncpu memory\n";
    let dmem = "== /sys/fs/cgroup/cgroup.controllers\ncpu dmem memory\n";
    let driver = |version: &str| {
        format!(
            "== /proc/driver/nvidia/version\nNVRM version: NVIDIA UNIX Open Kernel Module  {version}  Release\n"
        )
    };
    let record = |backend: &str, absence: &str| {
        format!(
            "== /run/apportion/driver-limits.json\n{{\"version\": 1, \"backend\": \"{backend}\", \
             \"absence\": \"{absence}\", \"groups\": []}}\n"
        )
    };
    for (tree, expected) in [
        (driver("615.71.09"), "none: control groups of version 1"),
        (v2.to_owned(), "none: no NVIDIA driver is loaded"),
        (
            format!("{v2}{}", driver("570.86.10")),
            "none: driver 570, 615 or newer is needed",
        ),
        (
            format!("{v2}{}", driver("615.71.09")),
            "possible (misc); the agent tries it when it starts",
        ),
        (
            format!("{dmem}{}", driver("620.10")),
            "possible (dmem); the agent tries it when it starts",
        ),
        // The agent's word counts more than what is possible.
        (format!("{dmem}{}", record("misc", "")), "kept (misc)"),
        (
            format!("{dmem}{}{}", driver("620.10"), record("", "turned off")),
            "none: turned off",
        ),
    ] {
        let root = host(&tree);
        let report = report(&NodeFilesystem::at(root.path()));
        let mut findings = report.findings.iter();
        let found = findings.find(|finding| finding.check == "driver limits");
        assert_eq!(found.map(|of| of.found.as_str()), Some(expected), "{tree}");
    }
}
