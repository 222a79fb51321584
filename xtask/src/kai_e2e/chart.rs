//! The chart as a user of KAI installs it: with KAI's namespace, names, settings and PodGroups.
//!
//! The pods use their node's network, so the second replica of the scheduler gets another port. The agents run outside
//! containers, so the chart's DaemonSet gets no pods.

use std::net::TcpListener;
use std::process::Command;

use anyhow::{Context, Result};
use apportion_cluster::LocalCluster;
use serde_json::{Value, json};

use crate::steps::run;
use crate::workspace::Workspace;

pub(super) const NAMESPACE: &str = "kai-scheduler";
/// KAI's names for its programs and the webhook.
const DEPLOYMENTS: [&str; 3] = ["kai-scheduler-default", "binder", "admission"];

pub(super) fn install(workspace: &Workspace, cluster: &LocalCluster) -> Result<()> {
    let [scheduler, binder, webhook, health] = [(); 4].map(|()| free_port());
    let (scheduler, binder, webhook, health) = (scheduler?, binder?, webhook?, health?);
    let values = format!(
        "schedulerNames={{apportion-scheduler,kai-scheduler}},scheduler.kaiNames=true,scheduler.kaiSettings=true,\
         scheduler.podGroups=on,image.pullPolicy=Never,scheduler.port={scheduler},webhook.port={webhook},\
         webhook.healthPort={health},webhook.url=https://127.0.0.1:{webhook},webhook.hostNetwork=true,\
         webhook.replicas=1,nodeSelector.apportion\\.test/none=none,\
         scheduler.nodeSelector.kubernetes\\.io/hostname={node},webhook.nodeSelector.kubernetes\\.io/hostname={node}",
        node = cluster.node()
    );
    let way = format!(
        "env[0].name=KUBERNETES_SERVICE_HOST,env[0].value=127.0.0.1,\
         env[1].name=KUBERNETES_SERVICE_PORT,env[1].value={}",
        cluster.apiserver_port()
    );
    let everywhere = r#"[{"operator": "Exists"}]"#;
    let mut helm = cluster.helm_command();
    helm.args(["install", "apportion", "--create-namespace"])
        .arg(workspace.root.join("deploy/chart/apportion"))
        .args(["--namespace", NAMESPACE, "--set", &values])
        .args(["--set-string", &way])
        .args(["--set-json", &format!("scheduler.tolerations={everywhere}")])
        .args(["--set-json", &format!("webhook.tolerations={everywhere}")]);
    run(quiet(&mut helm))?;
    move_port(cluster, scheduler, binder)
}

/// Waits until the programs run.
pub(super) fn await_it(cluster: &LocalCluster) -> Result<()> {
    for name in DEPLOYMENTS {
        let what = format!("deployment/{name}");
        let wait = [
            "rollout",
            "status",
            &what,
            "-n",
            NAMESPACE,
            "--timeout=180s",
        ];
        cluster.kubectl(&wait)?;
    }
    Ok(())
}

/// Makes the second replica listen on another port.
fn move_port(cluster: &LocalCluster, from: u16, to: u16) -> Result<()> {
    let get = ["get", "deployment", "binder", "-n", NAMESPACE, "-o", "json"];
    let binder: Value = serde_json::from_str(&cluster.kubectl(&get)?)?;
    let arguments = binder["spec"]["template"]["spec"]["containers"][0]["args"].as_array();
    let mut arguments = arguments.into_iter().flatten();
    let listens = format!("--address=0.0.0.0:{from}");
    let place = arguments
        .position(|argument| argument.as_str() == Some(&listens))
        .context("the scheduler is not told where to listen")?;
    let container = "/spec/template/spec/containers/0";
    let patch = json!([
        {"op": "replace", "path": format!("{container}/ports/0/containerPort"), "value": to},
        {"op": "replace", "path": format!("{container}/args/{place}"),
            "value": format!("--address=0.0.0.0:{to}")},
    ]);
    let patch = patch.to_string();
    let words = ["patch", "deployment", "binder", "-n", NAMESPACE];
    cluster.kubectl(&[&words[..], &["--type=json", "-p", &patch]].concat())?;
    Ok(())
}

pub(super) fn restart(cluster: &LocalCluster) -> Result<()> {
    let all = ["delete", "pods", "--all", "--now", "-n", NAMESPACE];
    cluster.kubectl(&all)?;
    await_it(cluster)
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdout(std::process::Stdio::null())
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("failed to find a free port")?;
    Ok(listener.local_addr()?.port())
}
