//! Installs the webhooks of an operator, at a port of this machine.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use super::OperatorStart;
use crate::LocalCluster;

/// Applies the webhook configurations of `manifests`, with the webhooks whose path `is_served` accepts. Pod webhooks
/// are called only for pods with the label `of_pods`: otherwise a stopped operator would block all pods of the cluster.
pub(super) fn install(
    starting: &OperatorStart<'_>,
    manifests: &Path,
    port: u16,
    of_pods: &str,
    is_served: impl Fn(&str) -> bool,
) -> Result<()> {
    let authority = authority(starting.cluster)?;
    let text = fs::read_to_string(manifests)
        .with_context(|| format!("failed to read {}", manifests.display()))?;
    for document in serde_norway::Deserializer::from_str(&text) {
        let mut configuration = Value::deserialize(document)?;
        let name = configuration["metadata"]["name"].as_str();
        let name = format!(
            "{}-{}",
            starting.operator.folder(),
            name.unwrap_or_default()
        );
        let Some(webhooks) = configuration["webhooks"].as_array_mut() else {
            continue;
        };
        webhooks.retain(|webhook| is_served(path(webhook)));
        for webhook in webhooks {
            let path = path(webhook).to_owned();
            let url = format!("https://127.0.0.1:{port}{path}");
            webhook["clientConfig"] = json!({"url": url, "caBundle": authority});
            if path.ends_with("--v1-pod") {
                let has_label = json!({"key": of_pods, "operator": "Exists"});
                webhook["objectSelector"] = json!({"matchExpressions": [has_label]});
            }
        }
        configuration["metadata"]["name"] = name.into();
        starting.cluster.apply(&configuration)?;
    }
    Ok(())
}

fn path(webhook: &Value) -> &str {
    let path = webhook["clientConfig"]["service"]["path"].as_str();
    path.unwrap_or_default()
}

/// The cluster's CA in the form of a webhook configuration.
pub(super) fn authority(cluster: &LocalCluster) -> Result<String> {
    let file = cluster.folder().certificate("ca");
    let file = format!("--from-file=ca={}", file.display());
    let encode = [
        "create",
        "secret",
        "generic",
        "ca",
        &file,
        "--dry-run=client",
        "-o",
        "jsonpath={.data.ca}",
    ];
    Ok(cluster.kubectl(&encode)?.trim().to_owned())
}
