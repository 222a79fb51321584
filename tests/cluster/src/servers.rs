//! The servers of a cluster in start order: one function for each, with its arguments.
//!
//! All listen only on loopback, with certificates of the cluster's CA. With silent nodes, the controller manager
//! tolerates missing heartbeats for long, since nothing sends those of silent nodes.

use std::process::Command;

use crate::binaries::ClusterBinaries;
use crate::certificates::SERVICE_ACCOUNTS;
use crate::containerd;
use crate::folder::ClusterFolder;
use crate::kubeconfig;
use crate::kubelet;
use crate::mount_namespace;
use crate::ports::ClusterPorts;

/// The input for the commands.
pub(crate) struct ServerCommands<'a> {
    pub(crate) folder: &'a ClusterFolder,
    pub(crate) ports: ClusterPorts,
    pub(crate) binaries: &'a ClusterBinaries,
    /// Whether there are nodes without a kubelet.
    pub(crate) has_silent_nodes: bool,
}

impl ServerCommands<'_> {
    pub(crate) fn etcd(&self) -> Command {
        let clients = format!("https://127.0.0.1:{}", self.ports.etcd);
        let peers = format!("http://127.0.0.1:{}", self.ports.etcd_peers);
        let mut command = self.command("etcd");
        option(&mut command, "data-dir", self.folder.path().join("etcd"));
        option(&mut command, "listen-client-urls", &clients);
        option(&mut command, "advertise-client-urls", &clients);
        option(&mut command, "listen-peer-urls", &peers);
        option(&mut command, "initial-advertise-peer-urls", &peers);
        option(&mut command, "initial-cluster", format!("default={peers}"));
        option(&mut command, "cert-file", self.folder.certificate("etcd"));
        option(&mut command, "key-file", self.folder.key("etcd"));
        option(&mut command, "client-cert-auth", "true");
        option(
            &mut command,
            "trusted-ca-file",
            self.folder.certificate("ca"),
        );
        // The data needs no durability: `down` deletes it.
        option(&mut command, "unsafe-no-fsync", "true");
        command
    }

    pub(crate) fn apiserver(&self) -> Command {
        let name = "kube-apiserver";
        let certificate = self.folder.certificate(name);
        let key = self.folder.key(name);
        let signing = self.folder.key(SERVICE_ACCOUNTS);
        let checking = self.folder.certificate(SERVICE_ACCOUNTS);
        let ca = self.folder.certificate("ca");
        let etcd = format!("https://127.0.0.1:{}", self.ports.etcd);
        let mut command = self.command(name);
        option(&mut command, "bind-address", "127.0.0.1");
        option(&mut command, "advertise-address", "127.0.0.1");
        option(&mut command, "endpoint-reconciler-type", "none");
        option(
            &mut command,
            "secure-port",
            self.ports.apiserver.to_string(),
        );
        option(&mut command, "tls-cert-file", &certificate);
        option(&mut command, "tls-private-key-file", &key);
        option(&mut command, "client-ca-file", &ca);
        option(&mut command, "etcd-servers", etcd);
        option(&mut command, "etcd-cafile", &ca);
        option(&mut command, "etcd-certfile", &certificate);
        option(&mut command, "etcd-keyfile", &key);
        option(&mut command, "kubelet-client-certificate", &certificate);
        option(&mut command, "kubelet-client-key", &key);
        option(
            &mut command,
            "kubelet-preferred-address-types",
            "InternalIP",
        );
        option(&mut command, "kubelet-certificate-authority", &ca);
        option(
            &mut command,
            "service-account-issuer",
            "https://kubernetes.default.svc",
        );
        option(&mut command, "service-account-key-file", &checking);
        option(&mut command, "service-account-signing-key-file", &signing);
        option(&mut command, "service-cluster-ip-range", "10.96.0.0/16");
        option(&mut command, "authorization-mode", "Node,RBAC");
        option(&mut command, "enable-admission-plugins", "NodeRestriction");
        option(&mut command, "allow-privileged", "true");
        option(
            &mut command,
            "cert-dir",
            self.folder.path().join("certificates"),
        );
        command
    }

    pub(crate) fn controller_manager(&self) -> Command {
        let mut command = self.client("kube-controller-manager");
        option(&mut command, "leader-elect", "false");
        option(&mut command, "secure-port", "0");
        option(&mut command, "use-service-account-credentials", "true");
        option(
            &mut command,
            "service-account-private-key-file",
            self.folder.key(SERVICE_ACCOUNTS),
        );
        option(&mut command, "root-ca-file", self.folder.certificate("ca"));
        if self.has_silent_nodes {
            option(&mut command, "node-monitor-grace-period", "1000h");
        }
        command
    }

    pub(crate) fn scheduler(&self) -> Command {
        let mut command = self.client("kube-scheduler");
        option(&mut command, "leader-elect", "false");
        option(&mut command, "secure-port", "0");
        command
    }

    /// The first of the node's processes. It creates the mount namespace that the others enter.
    pub(crate) fn containerd(&self) -> Command {
        let mut command = self.command("containerd");
        option(&mut command, "config", containerd::settings(self.folder));
        mount_namespace::furnished(self.folder, &command)
    }

    /// The node's address is set from outside (`external`): loopback, with or without a network.
    pub(crate) fn kubelet(&self, containerd: i32) -> Command {
        let mut command = self.client("kubelet");
        option(&mut command, "config", kubelet::settings(self.folder));
        option(&mut command, "hostname-override", self.folder.name());
        option(&mut command, "root-dir", mount_namespace::KUBELET);
        option(
            &mut command,
            "cert-dir",
            self.folder.path().join("certificates"),
        );
        option(&mut command, "cloud-provider", "external");
        mount_namespace::entered(containerd, &command)
    }

    fn client(&self, name: &str) -> Command {
        let mut command = self.command(name);
        option(
            &mut command,
            "kubeconfig",
            kubeconfig::of_server(self.folder, name),
        );
        command
    }

    fn command(&self, name: &str) -> Command {
        self.binaries.command(name)
    }
}

fn option(command: &mut Command, name: &str, value: impl AsRef<std::ffi::OsStr>) {
    let mut word = std::ffi::OsString::from(format!("--{name}="));
    word.push(value);
    command.arg(word);
}
