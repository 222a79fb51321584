//! A tenant's virtual cluster: vCluster's chart and its program, both from its Go module and unchanged.
//!
//! It is a pod of the cluster, as everywhere. In it run the syncer and the virtual API server and controller manager.
//! The tenant talks to the virtual API server. The syncer copies the tenant's pods into the namespace of the virtual
//! cluster, and their status back. These values differ from the chart's own, because the cluster has no pod network and
//! no registry:
//!
//! - the images are made here, and the API server's address is given;
//! - the virtual objects are in the cluster's etcd under a prefix, instead of kine's `SQLite`;
//! - the pod that serves DNS has no image; its Service is there, because pods are given its address;
//! - all ports are the node's, so two of them must be free;
//! - Kubernetes is newer than the one that this vCluster is made for.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use apportion_image::ContainerImage;
use serde_json::{Value, json};

use crate::LocalCluster;
use crate::binaries;
use crate::cluster::output;
use crate::image;
use crate::operators;

/// The namespace of the virtual cluster, where its pods are copied to.
pub const NAMESPACE: &str = "tenant";
/// The name of the virtual cluster and of its release.
const NAME: &str = "team";
/// The folder of its `go.mod`, and its Go module.
const FOLDER: &str = "vcluster";
const MODULE: &str = "github.com/loft-sh/vcluster";
/// One image for the syncer, and for the programs of Kubernetes that it starts.
const IMAGE: &str = "apportion.test/vcluster:latest";
const REPOSITORY: &str = "apportion.test/vcluster";
/// What vCluster starts of Kubernetes; its init container copies them from this folder.
const PROGRAMS: [&str; 2] = ["kube-apiserver", "kube-controller-manager"];
const KUBERNETES: &str = "/kubernetes";
/// The ports of the syncer and of the virtual API server. The chart and the program have them fixed.
const PORTS: [u16; 2] = [PROXY, 6443];
const PROXY: u16 = 8443;
/// Features that vCluster's own Kubernetes (1.34) has off. With them, the virtual API server refuses the status of a pod
/// whose copy got a resource that the tenant did not write, such as the slot.
const FEATURES: &str =
    "--feature-gates=ResourceHealthStatus=false,ResourceHealthStatusMessage=false";
/// The controllers that vCluster leaves out, except one that Kubernetes no longer has by that name since 1.37.
const CONTROLLERS: &str = "--controllers=*,-nodeipam,-nodelifecycle,-persistentvolume-binder,-attachdetach,\
    -persistentvolume-expander,-ttl";
/// The Secret with the identity for etcd, and where the pod has it.
const ETCD: &str = "etcd-client";
const CERTIFICATES: &str = "/etcd";
/// How long the virtual cluster may take to be ready on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
const GLANCE: Duration = Duration::from_millis(500);

/// A virtual cluster. Dropping this removes it.
#[derive(Debug)]
pub struct VirtualCluster<'c> {
    host: &'c LocalCluster,
    kubeconfig: PathBuf,
}

impl<'c> VirtualCluster<'c> {
    /// Builds vCluster from the folder of `modules` that pins it, installs its chart, and waits until a tenant can use
    /// it.
    ///
    /// # Errors
    /// If it cannot be built, one of its ports is taken, or it does not get ready.
    pub fn install(host: &'c LocalCluster, modules: &Path) -> Result<Self> {
        for port in PORTS {
            TcpListener::bind(("127.0.0.1", port)).with_context(|| {
                format!("vCluster needs port {port} of this machine; hint: stop what listens there")
            })?;
        }
        image::import(host, &syncer_image(modules)?)?;
        let chart = operators::module(&modules.join(FOLDER), MODULE)?.join("chart");
        host.wait_for_deletion(NAMESPACE)?;
        let folder = host.folder().path().join(FOLDER);
        let virtual_cluster = Self {
            host,
            kubeconfig: folder.join("kubeconfig"),
        };
        host.apply(
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        )?;
        host.apply(&etcd_secret(host)?)?;
        let values = folder.join("values.json");
        host.folder().write(&values, &values_of(host).to_string())?;
        let mut helm = host.helm_command();
        helm.args(["install", NAME, "--namespace", NAMESPACE, "--values"]);
        output(helm.arg(values).arg(chart), "")?;
        virtual_cluster
            .await_ready()
            .with_context(|| virtual_cluster.state())?;
        Ok(virtual_cluster)
    }

    /// Runs `kubectl` as the tenant, and returns its output.
    ///
    /// # Errors
    /// If it fails, with its error output.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.run(args, "")
    }

    /// Applies one object as the tenant.
    ///
    /// # Errors
    /// If `kubectl` refuses it, with its error output.
    pub fn apply(&self, object: &Value) -> Result<String> {
        self.run(&["apply", "-f", "-"], &object.to_string())
    }

    /// The name of the copy of a pod of the tenant's namespace `default`.
    #[must_use]
    pub fn copy_of(pod: &str) -> String {
        format!("{pod}-x-default-x-{NAME}")
    }

    fn run(&self, args: &[&str], input: &str) -> Result<String> {
        let mut kubectl = self.host.kubectl_command();
        kubectl.env("KUBECONFIG", &self.kubeconfig);
        output(kubectl.args(args), input)
    }

    /// Waits for the access that vCluster writes for the tenant, and for the syncer: pods need a service account, which
    /// the virtual controller manager makes, and the address of DNS, which the syncer gives.
    fn await_ready(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.is_ready() {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    bail!("vCluster is not ready within {PATIENCE:?}: {error:#}");
                }
                Err(_) => sleep(GLANCE),
            }
        }
    }

    fn is_ready(&self) -> Result<()> {
        let secret = format!("vc-{NAME}");
        let template = "go-template={{.data.config | base64decode}}";
        let get = ["get", "secret", &secret, "-n", NAMESPACE, "-o", template];
        let access = self.host.kubectl(&get)?;
        self.host.folder().write(&self.kubeconfig, &access)?;
        self.kubectl(&["get", "serviceaccount", "default"])?;
        let dns = format!("kube-dns-x-kube-system-x-{NAME}");
        let get = ["get", "service", &dns, "-n", NAMESPACE];
        self.host.kubectl(&get).map(drop)
    }

    /// Its pods and the end of its log, for the message of a failure.
    fn state(&self) -> String {
        let pods = ["get", "pods,events", "-n", NAMESPACE];
        let selector = "app=vcluster";
        let logs = [
            "logs",
            "-n",
            NAMESPACE,
            "-l",
            selector,
            "--all-containers",
            "--tail=40",
        ];
        [&pods[..], &logs[..]]
            .map(|args| {
                self.host
                    .kubectl(args)
                    .unwrap_or_else(|error| error.to_string())
            })
            .concat()
    }
}

impl Drop for VirtualCluster<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.state());
        }
        let mut helm = self.host.helm_command();
        helm.args(["uninstall", NAME, "--namespace", NAMESPACE, "--wait"]);
        let _ = output(&mut helm, "");
        let delete = ["delete", "namespace", NAMESPACE, "--timeout=60s"];
        let _ = self.host.kubectl(&delete);
    }
}

/// The image: vCluster's program, those of Kubernetes, and a userland.
fn syncer_image(modules: &Path) -> Result<ContainerImage> {
    let mut files = image::userland()?;
    let program = binaries::operator(modules, FOLDER)?;
    files.program(&program, Path::new("/vcluster"))?;
    let kubernetes = binaries::find(modules, None, None)?;
    for name in PROGRAMS {
        files.program(kubernetes.path(name), &Path::new(KUBERNETES).join(name))?;
    }
    Ok(ContainerImage {
        name: IMAGE,
        entrypoint: &["/vcluster", "start"],
        env: apportion_image::ENV,
        labels: &[],
        files,
    })
}

/// The identity with which the virtual API server uses the cluster's etcd.
fn etcd_secret(host: &LocalCluster) -> Result<Value> {
    let files = host.folder();
    let text = |path: PathBuf| {
        let text = fs::read_to_string(&path);
        text.with_context(|| format!("failed to read {}", path.display()))
    };
    Ok(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": ETCD, "namespace": NAMESPACE},
        "stringData": {"ca.crt": text(files.certificate("ca"))?,
            "tls.crt": text(files.certificate("kube-apiserver"))?, "tls.key": text(files.key("kube-apiserver"))?}}),
    )
}

/// The chart's values.
fn values_of(host: &LocalCluster) -> Value {
    let image = json!({"registry": "", "repository": REPOSITORY, "tag": "latest"});
    let file = |name: &str| format!("{CERTIFICATES}/{name}");
    let tls =
        json!({"caFile": file("ca.crt"), "certFile": file("tls.crt"), "keyFile": file("tls.key")});
    let etcd = format!("127.0.0.1:{}", host.etcd_port());
    // Objects of an earlier virtual cluster stay in etcd as long as the cluster.
    let prefix = format!("--etcd-prefix=/{NAME}-{}", std::process::id());
    json!({
        "controlPlane": {
            "distro": {"k8s": {
                "enabled": true, "image": image, "imagePullPolicy": "Never",
                // The init container copies 150 MB.
                "resources": {"limits": {"cpu": "1"}},
                "apiServer": {"extraArgs": [prefix, FEATURES]},
                "controllerManager": {"extraArgs": ["--secure-port=0", CONTROLLERS]}}},
            "backingStore": {"etcd": {"external": {"enabled": true, "endpoint": etcd, "tls": tls}}},
            "statefulSet": {
                "image": image, "imagePullPolicy": "Never",
                "env": [{"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
                    {"name": "KUBERNETES_SERVICE_PORT", "value": host.apiserver_port().to_string()}],
                "persistence": {"volumeClaim": {"enabled": false},
                    "addVolumes": [{"name": ETCD, "secret": {"secretName": ETCD}}],
                    "addVolumeMounts": [{"name": ETCD, "mountPath": CERTIFICATES}]}}},
        "exportKubeConfig": {"server": format!("https://127.0.0.1:{PROXY}")},
        "telemetry": {"enabled": false},
    })
}
