//! A real control plane without a kubelet: etcd and kube-apiserver on loopback, for suites about what the scheduler
//! writes.
//!
//! Nodes are objects that a test creates. They have an agent with simulated cards, or nothing. Every client may do
//! everything until a test enables authorization. The programs come from `KUBEBUILDER_ASSETS`, or `cargo xtask cluster`
//! has built them.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::wait::{PATIENCE, eventually};

/// Names a folder with Kubernetes programs.
const ASSETS: &str = "KUBEBUILDER_ASSETS";
/// The token of the only user.
const TOKEN: &str = "everybody";

/// The control plane. Dropping this ends it.
#[derive(Debug)]
pub struct ControlPlane {
    dir: TempDir,
    etcd: Child,
    apiserver: Option<Child>,
    ports: [u16; 3],
    /// The authorization mode.
    authorization: &'static str,
}

impl Default for ControlPlane {
    fn default() -> Self {
        Self::new()
    }
}

impl ControlPlane {
    /// Starts a control plane.
    ///
    /// # Panics
    /// If its programs do not exist or do not start to serve.
    #[must_use]
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("apportion-").tempdir();
        let dir = dir.expect("a folder for the test");
        let ports = free_ports();
        let [client, peer, _] = ports.map(|port| format!("http://127.0.0.1:{port}"));
        let mut etcd = Command::new(program("etcd"));
        etcd.arg("--data-dir").arg(dir.path().join("etcd"));
        etcd.args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .args(["--initial-cluster", &format!("default={peer}")])
        // The data needs no durability.
        .arg("--unsafe-no-fsync");
        let etcd = logged(etcd, &dir.path().join("etcd.log"));
        let mut plane = Self {
            dir,
            etcd,
            apiserver: None,
            ports,
            authorization: "AlwaysAllow",
        };
        plane.write_files();
        plane.start_apiserver();
        plane
    }

    fn write_files(&self) {
        let path = |name: &str| self.dir.path().join(name);
        let key = Command::new("openssl")
            .args(["genrsa", "-out"])
            .arg(path("service-accounts.key"))
            .stderr(Stdio::null())
            .status();
        assert!(
            key.is_ok_and(|status| status.success()),
            "openssl makes a key"
        );
        let user = format!("{TOKEN},everybody,1,system:masters\n");
        fs::write(path("tokens.csv"), user).expect("the folder is writable");
        self.write_config(&self.kubeconfig(), TOKEN);
    }

    /// Writes the kubeconfig of a client with this token.
    fn write_config(&self, path: &Path, token: &str) {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.ports[2]),
                "insecure-skip-tls-verify": true,
            }}],
            "users": [{"name": "everybody", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "everybody"}}],
        });
        fs::write(path, config.to_string()).expect("the folder is writable");
    }

    /// The kubeconfig of a client with a token of a service account in the namespace `default`, bound to a pod on this
    /// node.
    ///
    /// # Panics
    /// If the API server does not issue one.
    #[must_use]
    pub fn kubeconfig_on(&self, node: &str, account: &str) -> PathBuf {
        let on = ["--bound-object-kind=Node", "--bound-object-name", node];
        let token = self.kubectl(&[&["create", "token", account], &on[..]].concat());
        let path = self.dir.path().join(format!("kubeconfig-{node}"));
        self.write_config(&path, token.trim());
        path
    }

    /// The kubeconfig of a client with a token of this service account, which is created here.
    ///
    /// # Panics
    /// If the API server does not issue one.
    #[must_use]
    pub fn kubeconfig_of(&self, namespace: &str, account: &str) -> PathBuf {
        self.apply(&[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": account, "namespace": namespace}}),
        ]);
        let token = self.kubectl(&["create", "token", account, "--namespace", namespace]);
        let path = self.dir.path().join(format!("kubeconfig-{account}"));
        self.write_config(&path, token.trim());
        path
    }

    /// Starts the API server and waits until it is ready.
    ///
    /// # Panics
    /// If it does not start to serve.
    pub fn start_apiserver(&mut self) {
        let path = |name: &str| self.dir.path().join(name);
        let mut command = Command::new(program("kube-apiserver"));
        let [etcd, _, port] = self.ports;
        command
            .args([
                &format!("--etcd-servers=http://127.0.0.1:{etcd}"),
                &format!("--secure-port={port}"),
                "--bind-address=127.0.0.1",
                &format!("--authorization-mode={}", self.authorization),
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-cluster-ip-range=10.0.0.0/24",
                // No controller creates service accounts or removes taints here.
                "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            ])
            .arg(option("--cert-dir", &path("certificates")))
            .arg(option("--token-auth-file", &path("tokens.csv")))
            .arg(option(
                "--service-account-key-file",
                &path("service-accounts.key"),
            ))
            .arg(option(
                "--service-account-signing-key-file",
                &path("service-accounts.key"),
            ));
        self.apiserver = Some(logged(command, &path("apiserver.log")));
        eventually(PATIENCE * 4, "the API server is ready", || {
            self.try_kubectl(&["get", "--raw", "/readyz"]).is_some()
                && self.try_kubectl(&["get", "namespace", "default"]).is_some()
        });
    }

    /// Restarts the API server with authorization for service accounts. The test's own client may still do everything.
    ///
    /// # Panics
    /// If it does not start to serve.
    pub fn ask_for_rights(&mut self) {
        self.kill_apiserver();
        self.authorization = "RBAC";
        self.start_apiserver();
    }

    /// Kills the API server.
    pub fn kill_apiserver(&mut self) {
        if let Some(mut server) = self.apiserver.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// The pids of etcd and of the API server. Zero if the API server was killed.
    #[must_use]
    pub fn processes(&self) -> [u32; 2] {
        [self.etcd.id(), self.apiserver.as_ref().map_or(0, Child::id)]
    }

    /// The kubeconfig for clients.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// The folder of logs.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn kubectl_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("kubectl"));
        command.arg(option("--kubeconfig", &self.kubeconfig()));
        command.args(arguments);
        command
    }

    fn try_kubectl(&self, arguments: &[&str]) -> Option<String> {
        let output = self.kubectl_command(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then_some(text)
    }

    /// The output of `kubectl ARGUMENTS`.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.kubectl_command(arguments).output();
        let output = output.expect("kubectl starts");
        assert!(
            output.status.success(),
            "kubectl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The error of `kubectl ARGUMENTS`. None if it succeeds.
    ///
    /// # Panics
    /// If kubectl does not start.
    #[must_use]
    pub fn refusal(&self, arguments: &[&str]) -> Option<String> {
        let output = self.kubectl_command(arguments).output();
        let output = output.expect("kubectl starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success()).then_some(said)
    }

    /// The error output of a successful `kubectl ARGUMENTS`: warnings of the API server.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn warnings(&self, arguments: &[&str]) -> String {
        let output = self.kubectl_command(arguments).output();
        let output = output.expect("kubectl starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "kubectl {arguments:?}: {said}");
        said
    }

    /// Creates or changes objects.
    ///
    /// # Panics
    /// If the API server refuses one.
    pub fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let mut kubectl = self
            .kubectl_command(&["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("kubectl starts");
        let mut input = kubectl.stdin.take().expect("it is piped");
        let written = input.write_all(list.to_string().as_bytes());
        drop(input);
        let ended = kubectl.wait().expect("kubectl ends");
        assert!(written.is_ok() && ended.success(), "kubectl apply");
    }

    /// All objects of a kind.
    #[must_use]
    pub fn all(&self, kind: &str) -> Vec<Value> {
        let text = self.kubectl(&["get", kind, "--all-namespaces", "-o", "json"]);
        let list: Value = serde_json::from_str(&text).expect("kubectl prints JSON");
        list["items"].as_array().cloned().unwrap_or_default()
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.kill_apiserver();
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
    }
}

fn option(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// Starts a program that ends with the thread that started it.
fn logged(program: Command, log: &Path) -> Child {
    let file = File::options().create(true).append(true).open(log);
    let file = file.expect("the folder is writable");
    let name = program.get_program().to_owned();
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(&name);
    command.args(program.get_args());
    let second = file.try_clone().expect("a file can be written to twice");
    let child = command
        .stdin(Stdio::null())
        .stdout(second)
        .stderr(file)
        .spawn();
    child.unwrap_or_else(|error| panic!("{}: {error}", Path::new(&name).display()))
}

/// The path of a Kubernetes program, or of a tool such as helm.
///
/// # Panics
/// If it is not found.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let named = env::var_os(ASSETS).map(PathBuf::from).into_iter();
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    let cached = cache.into_iter().flat_map(|cache| {
        let kinds = ["kubernetes", "tools"].into_iter();
        kinds.flat_map(move |kind| versions(&cache.join("apportion").join(kind)))
    });
    let mut found = named
        .chain(cached)
        .map(|folder| folder.join(name))
        .filter(|path| path.exists());
    found.next().unwrap_or_else(|| {
        panic!("no {name}: run `cargo xtask cluster up` once, or name a folder with it in {ASSETS}")
    })
}

/// The subfolders of a folder, in descending order of their names.
fn versions(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    folders.sort_by(|left, right| name_of(right).cmp(name_of(left)));
    folders
}

fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

fn free_ports() -> [u16; 3] {
    let held = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    held.map(|held| held.local_addr().expect("it listens").port())
}
