//! Apportion's scheduler for the shares by annotation of a node, as a process that can be killed.

use std::path::Path;

use apportion_cluster::LocalCluster;
use apportion_cluster::managed::ManagedNode;
use apportion_cluster::programs::{self, StagedProgram};

/// Where Apportion's scheduler finds the agent.
const AGENT_ADDRESS: &str = "apportion.dev/agent-address";

pub(super) struct ShareScheduler {
    cluster: LocalCluster,
    program: StagedProgram,
}

impl ShareScheduler {
    pub(super) fn start(node: &ManagedNode) -> Self {
        let cluster = LocalCluster::of_tests();
        programs::install_kinds(&cluster);
        let queues = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/queues.yaml");
        let socket = node.instance().join("agent.sock");
        let address = format!("{AGENT_ADDRESS}=unix:{}", socket.display());
        for command in [
            &["apply", "-f", &queues.display().to_string()][..],
            &["annotate", "node", &cluster.node(), &address, "--overwrite"],
        ] {
            cluster.kubectl(command).expect("the API server takes it");
        }
        let program = Self::spawn(&cluster);
        Self { cluster, program }
    }

    fn spawn(cluster: &LocalCluster) -> StagedProgram {
        let options = ["run", "--address", "127.0.0.1:0", "--lease-duration", "3"];
        StagedProgram::scheduler(cluster, &options)
    }

    pub(super) fn restart(&mut self) {
        self.program.kill();
        self.program = Self::spawn(&self.cluster);
    }
}

impl Drop for ShareScheduler {
    fn drop(&mut self) {
        let forget = format!("{AGENT_ADDRESS}-");
        let node = self.cluster.node();
        for command in [
            &["annotate", "node", &node, &forget][..],
            &["delete", "queues", "--all"],
        ] {
            let _ = self.cluster.kubectl(command);
        }
    }
}
