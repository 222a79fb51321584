//! Reads containerd's configuration: files that import others, keys that moved between versions, and defaults that
//! changed with them.

use toml::{Table, Value};

use super::facts::FeatureSupport;
use super::host::NodeFilesystem;

/// The folder where all runtimes look for CDI files, by both of its names.
const USUAL_CDI: [&str; 2] = ["/var/run/cdi", "/run/cdi"];

/// The relevant part of the configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerdConfig {
    pub(super) enables_cdi: Option<bool>,
    pub(super) disables_nri: Option<bool>,
    pub(super) default_runtime: Option<String>,
    pub(super) runtimes: Vec<String>,
    /// The configured folders for CDI files, if any.
    pub(super) cdi_dirs: Vec<String>,
}

/// Reads `path` and its imports. Later files take precedence.
pub(super) fn read(host: &NodeFilesystem, path: &str) -> ContainerdConfig {
    let mut config = ContainerdConfig::default();
    for text in texts(host, path) {
        // containerd would reject this file too, so it is ignored.
        if let Ok(table) = text.parse::<Table>() {
            config.add(&table);
        }
    }
    config
}

fn texts(host: &NodeFilesystem, path: &str) -> Vec<String> {
    let Some(text) = host.text(path) else {
        return Vec::new();
    };
    let table = text.parse::<Table>().unwrap_or_default();
    let imports = table
        .get("imports")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let imported: Vec<_> = imports.flat_map(|import| imported(host, import)).collect();
    std::iter::once(text).chain(imported).collect()
}

/// The files of an import: one file, or those of a folder (`/etc/containerd/conf.d/*.toml`).
fn imported(host: &NodeFilesystem, import: &str) -> Vec<String> {
    let Some((folder, "*.toml")) = import.rsplit_once('/') else {
        return host.text(import).into_iter().collect();
    };
    let names = host.names(folder).into_iter();
    names
        .filter(|name| name.ends_with(".toml"))
        .filter_map(|name| host.text(&format!("{folder}/{name}")))
        .collect()
}

impl ContainerdConfig {
    /// Adds a file's settings. The plugins have different names in each version of the format; the keys do not.
    fn add(&mut self, table: &Table) {
        let plugins = table.get("plugins").and_then(Value::as_table);
        for (name, plugin) in plugins.into_iter().flatten() {
            let Some(plugin) = plugin.as_table() else {
                continue;
            };
            if name.ends_with(".nri") {
                self.disables_nri = flag(plugin, "disable").or(self.disables_nri);
            } else if name.contains("cri") {
                self.enables_cdi = flag(plugin, "enable_cdi").or(self.enables_cdi);
                let dirs = plugin.get("cdi_spec_dirs").and_then(Value::as_array);
                if let Some(dirs) = dirs {
                    let dirs = dirs.iter().filter_map(Value::as_str);
                    self.cdi_dirs = dirs.map(str::to_owned).collect();
                }
                self.add_runtimes(plugin);
            }
        }
    }

    fn add_runtimes(&mut self, plugin: &Table) {
        let Some(containerd) = plugin.get("containerd").and_then(Value::as_table) else {
            return;
        };
        if let Some(name) = containerd
            .get("default_runtime_name")
            .and_then(Value::as_str)
        {
            self.default_runtime = Some(name.to_owned());
        }
        let runtimes = containerd.get("runtimes").and_then(Value::as_table);
        self.runtimes
            .extend(runtimes.into_iter().flatten().map(|(name, _)| name.clone()));
    }

    /// Version 1.7 introduced CDI, version 2 enabled it by default.
    pub(super) fn cdi(&self, version: Option<(u32, u32)>) -> FeatureSupport {
        FeatureSupport::of(version, self.enables_cdi)
    }

    /// The folder for CDI files, if the usual one is not configured; preferably one that a reboot empties.
    pub(super) fn cdi_dir(&self) -> Option<String> {
        if self
            .cdi_dirs
            .iter()
            .any(|dir| USUAL_CDI.contains(&dir.trim_end_matches('/')))
        {
            return None;
        }
        let best = self
            .cdi_dirs
            .iter()
            .find(|dir| dir.starts_with("/run/") || dir.starts_with("/var/run/"));
        best.or(self.cdi_dirs.last()).cloned()
    }

    /// Version 1.7 introduced NRI, version 2 enabled it by default.
    pub(super) fn nri(&self, version: Option<(u32, u32)>) -> FeatureSupport {
        FeatureSupport::of(version, self.disables_nri.map(|disabled| !disabled))
    }
}

fn flag(table: &Table, key: &str) -> Option<bool> {
    table.get(key).and_then(Value::as_bool)
}
