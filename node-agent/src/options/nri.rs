//! Settings of the NRI plugin.

use std::path::PathBuf;

use apportion_nri::VerdictMode;
use clap::Args;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Containers without a grant")]
pub(crate) struct NriOptions {
    /// NRI socket of the container runtime, such as /var/run/nri/nri.sock [default: none, no NRI plugin]
    #[arg(long, env = "APPORTION_NRI_SOCKET", value_name = "PATH")]
    pub(crate) nri_socket: Option<PathBuf>,

    /// What to do with a container that would reach a GPU without a share: audit (log it) or enforce (refuse it)
    #[arg(long, env = "APPORTION_NRI_POLICY", value_name = "POLICY", default_value = "audit", value_parser = mode)]
    pub(crate) nri_policy: VerdictMode,

    /// Namespaces whose containers may reach a GPU without a share; with commas, or none
    #[arg(long, env = "APPORTION_NRI_EXEMPT_NAMESPACES", value_name = "NAMESPACES",
        default_value = "kube-system,gpu-operator,nvidia-gpu-operator", value_parser = exempt_namespaces)]
    nri_exempt_namespaces: ExemptNamespaces,
}

#[derive(Clone, Debug)]
struct ExemptNamespaces(Vec<String>);

impl NriOptions {
    /// Namespaces whose containers may reach a GPU without a grant.
    pub(crate) fn exempt(&self) -> &[String] {
        &self.nri_exempt_namespaces.0
    }
}

fn mode(text: &str) -> Result<VerdictMode, String> {
    match text {
        "audit" => Ok(VerdictMode::Audit),
        "enforce" => Ok(VerdictMode::Enforce),
        _ => Err("expected audit or enforce".to_owned()),
    }
}

fn exempt_namespaces(text: &str) -> Result<ExemptNamespaces, String> {
    if text == "none" {
        return Ok(ExemptNamespaces(Vec::new()));
    }
    let names: Vec<_> = text.split(',').map(str::to_owned).collect();
    if names.iter().any(String::is_empty) {
        return Err("expected names, separated by commas, or none".to_owned());
    }
    Ok(ExemptNamespaces(names))
}
