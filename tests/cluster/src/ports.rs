//! Free ports on loopback, picked together so that all differ.
//!
//! Another program may take a port before the server starts. Then the server logs the error and `up` fails with that
//! line. This is rare, so running `up` again is good enough.

use std::net::TcpListener;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The ports of one cluster, all on 127.0.0.1.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterPorts {
    pub(crate) etcd: u16,
    pub(crate) etcd_peers: u16,
    pub(crate) apiserver: u16,
    pub(crate) kubelet: u16,
}

impl ClusterPorts {
    pub(crate) fn pick() -> Result<Self> {
        let listen = || TcpListener::bind("127.0.0.1:0").context("failed to find a free port");
        let held = [listen()?, listen()?, listen()?, listen()?];
        let port = |held: &TcpListener| anyhow::Ok(held.local_addr()?.port());
        let [etcd, etcd_peers, apiserver, kubelet] = &held;
        Ok(Self {
            etcd: port(etcd)?,
            etcd_peers: port(etcd_peers)?,
            apiserver: port(apiserver)?,
            kubelet: port(kubelet)?,
        })
    }
}
