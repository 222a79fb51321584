//! KAI Scheduler's programs, built from a checkout: no Go module proxy serves them. They run beside the cluster, as the
//! operators do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use super::kai_checkout::{KaiCheckout, PROGRAMS};
use super::private_files::command_with;
use super::{await_port, free_port, install, webhooks, write_certificate};
use crate::LocalCluster;
use crate::image;
use crate::server::ClusterServer;

/// Where its admission program looks for its certificate.
const CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";
const WEBHOOKS: [&str; 2] = [
    "mutatingwebhookconfiguration",
    "validatingwebhookconfiguration",
];
const ADMISSION: &str = "kai-admission";
/// KAI's namespace, and the pod of its grouper. The grouper runs beside the cluster, but others look for this pod.
const NAMESPACE: &str = "kai-scheduler";
const GROUPER: &str = "pod-grouper";
/// The namespace of its reservation pods, and of their service account.
const RESERVATIONS: &str = "kai-resource-reservation";
/// How a reservation pod says which GPU the kubelet gave it.
const RESERVED: &str = "run.ai/reserve_for_gpu_index";

/// KAI Scheduler with its binder, grouper, controllers and webhook. Dropping this stops it.
#[derive(Debug)]
pub struct KaiScheduler {
    programs: PathBuf,
    servers: BTreeMap<&'static str, ClusterServer>,
    admission_port: u16,
}

impl KaiScheduler {
    /// Builds KAI from a checkout, installs its CRDs, queues and webhook, and starts it.
    ///
    /// # Errors
    /// If it cannot be built or does not start.
    pub fn start(cluster: &LocalCluster, checkout: &Path) -> Result<Self> {
        let checkout = KaiCheckout::at(checkout)?;
        let programs = checkout.build()?;
        install(cluster, &checkout.crds())?;
        for object in objects() {
            cluster.apply(&object)?;
        }
        let mut kai = Self {
            programs,
            servers: BTreeMap::new(),
            admission_port: free_port()?,
        };
        for program in PROGRAMS {
            kai.start_program(cluster, program)?;
        }
        await_port(cluster, &server("admission"), kai.admission_port)?;
        let authority = webhooks::authority(cluster)?;
        for webhook in webhooks(kai.admission_port, &authority) {
            cluster.apply(&webhook)?;
        }
        Ok(kai)
    }

    fn start_program(&mut self, cluster: &LocalCluster, program: &'static str) -> Result<()> {
        let path = self.programs.join(program);
        let mut command = match program {
            "admission" => {
                let folder = cluster.folder().path().join("kai");
                let folder = write_certificate(cluster, folder)?;
                command_with(&path, CERTIFICATES, &folder, cluster.folder().path())
            }
            _ => Command::new(path),
        };
        command.args(self.arguments(program)?);
        command.env("KUBECONFIG", cluster.folder().kubeconfig());
        let name = server(program);
        let log = cluster.folder().log(&name);
        let started = ClusterServer::start(&name, &mut command, &log)?;
        self.servers.insert(program, started);
        Ok(())
    }

    fn arguments(&self, program: &str) -> Result<Vec<String>> {
        let own = match program {
            "scheduler" => vec![
                format!("--listen-address=127.0.0.1:{}", free_port()?),
                format!("--plugin-server-port={}", free_port()?),
            ],
            "binder" => vec![
                // The suite does what the program in the pod would do, so any image that runs is right.
                format!("--resource-reservation-pod-image={}", image::PAUSE),
            ],
            "podgroupcontroller" => vec!["--enable-podgroup-webhook=false".to_owned()],
            "queuecontroller" => vec![
                "--enable-webhook=false".to_owned(),
                format!("--metrics-listen-address=127.0.0.1:{}", free_port()?),
            ],
            "admission" => vec![
                format!("--webhook-addr={}", self.admission_port),
                "--gpu-sharing-enabled=true".to_owned(),
                // There is no such RuntimeClass here.
                "--gpu-fraction-runtime-class-name=".to_owned(),
            ],
            _ => Vec::new(),
        };
        let has_ports = !["scheduler", "queuecontroller"].contains(&program);
        let off = ["--metrics-bind-address=0", "--health-probe-bind-address=0"];
        let off = off.map(str::to_owned).into_iter().filter(|_| has_ports);
        Ok(own.into_iter().chain(off).collect())
    }

    /// Does what the program of each reservation pod does: says on its pod which GPU the kubelet gave it.
    ///
    /// # Errors
    /// If the API server refuses it.
    pub fn answer_reservations(&self, cluster: &LocalCluster) -> Result<()> {
        let get = ["get", "pods", "-n", RESERVATIONS, "-o", "json"];
        let pods: Value = serde_json::from_str(&cluster.kubectl(&get)?)?;
        let given = given_devices(cluster).unwrap_or_default();
        for pod in pods["items"].as_array().into_iter().flatten() {
            let metadata = &pod["metadata"];
            let [name, uid] = ["name", "uid"].map(|field| metadata[field].as_str());
            let gpu = uid.and_then(|uid| given.get(uid));
            let (Some(name), Some(gpu)) = (name, gpu) else {
                continue;
            };
            if metadata["annotations"][RESERVED].is_null() {
                let note = format!("{RESERVED}={gpu}");
                cluster.kubectl(&["annotate", "pod", name, "-n", RESERVATIONS, &note])?;
            }
        }
        Ok(())
    }

    /// Stops KAI and removes its webhooks, as `helm uninstall` does.
    ///
    /// # Errors
    /// If the API server refuses it.
    pub fn uninstall(mut self, cluster: &LocalCluster) -> Result<()> {
        self.stop();
        for kind in WEBHOOKS {
            cluster.kubectl(&["delete", kind, ADMISSION])?;
        }
        cluster.kubectl(&["delete", "pod", GROUPER, "-n", NAMESPACE, "--now"])?;
        Ok(())
    }

    fn stop(&mut self) {
        for server in std::mem::take(&mut self.servers).values() {
            server.kill();
        }
    }
}

impl Drop for KaiScheduler {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The name of a program's log.
fn server(program: &str) -> String {
    format!("kai-{program}")
}

/// What KAI's chart creates.
fn objects() -> Vec<Value> {
    let quota = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
    let resources = json!({"cpu": quota, "gpu": quota, "memory": quota});
    let queue = |name: &str, parent: Option<&str>| {
        json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name},
            "spec": {"parentQueue": parent, "resources": resources}})
    };
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RESERVATIONS}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": RESERVATIONS, "namespace": RESERVATIONS}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": NAMESPACE}}),
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": GROUPER, "namespace": NAMESPACE, "labels": {"app": GROUPER}},
            "spec": {"containers": [{"name": GROUPER, "image": image::PAUSE, "imagePullPolicy": "Never"}]}}),
        queue("default-parent-queue", None),
        queue("default-queue", Some("default-parent-queue")),
    ]
}

/// The webhook configurations that KAI's operator makes.
fn webhooks(port: u16, authority: &str) -> [Value; 2] {
    let configuration = |kind: &str, path: &str, operations: &[&str]| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": ADMISSION},
            "webhooks": [{"name": "admission.run.ai", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "failurePolicy": "Fail",
                "clientConfig": {"url": format!("https://127.0.0.1:{port}{path}"), "caBundle": authority},
                "matchConditions": [{"name": "scheduler", "expression": "object.spec.schedulerName == 'kai-scheduler'"}],
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": operations}]}]})
    };
    [
        configuration(
            "MutatingWebhookConfiguration",
            "/mutate--v1-pod",
            &["CREATE"],
        ),
        configuration(
            "ValidatingWebhookConfiguration",
            "/validate--v1-pod",
            &["CREATE", "UPDATE"],
        ),
    ]
}

/// The GPU that the kubelet gave to each pod, by the pod's UID, from its checkpoint.
fn given_devices(cluster: &LocalCluster) -> Option<BTreeMap<String, String>> {
    let file = "device-plugins/kubelet_internal_checkpoint";
    let text = fs::read_to_string(cluster.folder().kubelet().join(file)).ok()?;
    let checkpoint: Value = serde_json::from_str(&text).ok()?;
    let entries = checkpoint["Data"]["PodDeviceEntries"].as_array()?;
    let entry = |entry: &Value| {
        let of_numa_zones = entry["DeviceIDs"].as_object()?;
        let mut devices = of_numa_zones.values().filter_map(Value::as_array).flatten();
        let device = devices.next()?.as_str()?;
        Some((entry["PodUID"].as_str()?.to_owned(), device.to_owned()))
    };
    Some(entries.iter().filter_map(entry).collect())
}
