//! A pod of a suite: what the cluster says of it, and its end with the test.

use std::time::SystemTime;

use serde_json::Value;

use crate::cluster::LocalCluster;
use crate::wait::eventually;

/// Whether a failed pod has this reason because the kubelet rejected it, for good: no agent answered, or earlier pods'
/// slots were not free yet.
#[must_use]
pub fn is_rejection(reason: &str) -> bool {
    reason == "UnexpectedAdmissionError" || reason.starts_with("OutOf")
}

/// A pod that goes when the test ends.
pub struct ManagedPod {
    cluster: LocalCluster,
    /// Its name, in the namespace `default`.
    pub name: String,
    /// Tells it from others that have had its name.
    pub uid: String,
    /// When the API server had taken it.
    pub taken: SystemTime,
}

impl ManagedPod {
    #[track_caller]
    pub(super) fn create(name: &str, pod: &Value) -> Self {
        let cluster = LocalCluster::of_tests();
        cluster.apply(pod).expect("the API server takes the pod");
        let taken = SystemTime::now();
        let uid = ["get", "pod", name, "-o", "jsonpath={.metadata.uid}"];
        let uid = cluster.kubectl(&uid).expect("it was just taken");
        Self {
            cluster,
            name: name.to_owned(),
            uid,
            taken,
        }
    }

    fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl(args).unwrap_or_default()
    }

    /// What stands at a path of the pod's object, as `kubectl` prints it.
    #[must_use]
    pub fn at(&self, path: &str) -> String {
        let path = format!("jsonpath={{{path}}}");
        self.kubectl(&["get", "pod", &self.name, "-o", &path])
    }

    /// Its phase; nothing once it is gone.
    #[must_use]
    pub fn phase(&self) -> String {
        self.at(".status.phase")
    }

    /// What a container of it has said.
    #[must_use]
    pub fn logs(&self, container: &str) -> String {
        self.kubectl(&["logs", &self.name, "-c", container])
    }

    /// What all of its containers have said.
    #[must_use]
    pub fn all_logs(&self) -> String {
        self.kubectl(&["logs", &self.name, "--all-containers"])
    }

    /// What a shell command in its main container says.
    pub fn exec(&self, command: &str) -> String {
        self.kubectl(&[
            "exec", &self.name, "-c", "main", "--", "/bin/sh", "-c", command,
        ])
    }

    /// What its own events say, a line each.
    #[must_use]
    pub fn events(&self) -> String {
        self.events_by("{.message}")
    }

    /// A column of its events, a line each.
    #[must_use]
    pub fn events_by(&self, column: &str) -> String {
        let selector = format!("involvedObject.uid={}", self.uid);
        let path = format!("jsonpath={{range .items[*]}}{column}{{\"\\n\"}}{{end}}");
        self.kubectl(&["get", "events", "--field-selector", &selector, "-o", &path])
    }

    /// Waits until it has ended well.
    #[track_caller]
    pub fn succeeds(&self) {
        eventually("the pod ends", || {
            matches!(self.phase().as_str(), "Succeeded" | "Failed")
        });
        let said = || format!("{}\n{}", self.logs("main"), self.events());
        assert_eq!(self.phase(), "Succeeded", "{}", said());
    }

    /// Waits until it runs.
    #[track_caller]
    pub fn runs(&self) {
        eventually("the pod runs", || self.phase() == "Running");
    }

    /// Waits until a container of it has said something.
    #[track_caller]
    pub fn says(&self, what: &str) -> String {
        let mut log = String::new();
        eventually(&format!("{} says {what:?}", self.name), || {
            log = self.logs("main");
            log.contains(what)
        });
        log
    }

    /// Deletes it without waiting for its end.
    pub fn delete(&self) {
        let name = self.name.as_str();
        let delete = ["delete", "pod", name, "--wait=false", "--ignore-not-found"];
        let _ = self.cluster.kubectl(&delete);
    }
}

impl Drop for ManagedPod {
    fn drop(&mut self) {
        let name = self.name.as_str();
        if std::thread::panicking() {
            eprintln!("{name}:\n{}\n{}", self.all_logs(), self.events());
        }
        let delete = ["delete", "pod", name, "--ignore-not-found", "--now"];
        let _ = self.cluster.kubectl(&delete);
    }
}
