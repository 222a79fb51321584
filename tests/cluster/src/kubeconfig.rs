//! Kubeconfig files: one for each client, with the API server and the client's identity. Certificates are named by
//! path, not copied.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::json;

use crate::folder::ClusterFolder;
use crate::ports::ClusterPorts;

/// The file of the server `name`.
pub(crate) fn of_server(folder: &ClusterFolder, name: &str) -> PathBuf {
    folder
        .path()
        .join("settings")
        .join(format!("{name}.kubeconfig"))
}

/// Writes the file at `path` for the client whose certificate is called `identity`.
pub(crate) fn write(
    folder: &ClusterFolder,
    ports: &ClusterPorts,
    identity: &str,
    path: &std::path::Path,
) -> Result<()> {
    let name = folder.name();
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {
            "server": format!("https://127.0.0.1:{}", ports.apiserver),
            "certificate-authority": folder.certificate("ca"),
        }}],
        "users": [{"name": identity, "user": {
            "client-certificate": folder.certificate(identity),
            "client-key": folder.key(identity),
        }}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": identity}}],
        "current-context": name,
    });
    // JSON is valid YAML, and the readers of this file accept any YAML.
    folder.write(path, &format!("{config:#}\n"))
}
