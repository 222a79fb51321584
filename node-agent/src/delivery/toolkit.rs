//! The driver's files that containers need beside the cards: from NVIDIA's CDI spec, or from a folder of the host.
//!
//! They are looked up at every container start, because the toolkit may write its spec later, and again for each
//! driver version. Of a spec only the form is checked, see `apportion_runtime_class::nvidia`.

use std::fs;
use std::path::{Path, PathBuf};

use apportion_runtime_class::cdi::PassthroughEdits;
use apportion_runtime_class::nvidia::{NvidiaCdiSpec, NvidiaSpecError};
use apportion_runtime_class::{CONTROL_DEVICES, DriverFiles, GrantedCard};

/// The driver's libraries for compute programs. Some exist only under a name with the driver's version.
const LIBRARIES: [&str; 7] = [
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libcudadebugger.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-nvvm70.so.4",
    "libnvidia-gpucomp.so.",
];
/// The first of these, without which no program runs.
const NEEDED: usize = 2;

/// Why the driver's files cannot be determined.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverFilesError {
    #[error(transparent)]
    Description(#[from] NvidiaSpecError),
    #[error("{library} is not in {folder}, the folder of --driver-libraries")]
    NoLibrary {
        library: &'static str,
        folder: PathBuf,
    },
}

/// The sources of the driver's files on this node.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriverSources {
    /// The folders with CDI specs; later folders take precedence.
    pub(crate) descriptions: Vec<PathBuf>,
    /// The folder of the driver's libraries, if configured.
    pub(crate) libraries: Option<PathBuf>,
    /// The folder whose `dev` may have the driver's device files.
    pub(crate) device_root: Option<PathBuf>,
    /// Whether containers without a RuntimeClass run with NVIDIA's runtime.
    pub(crate) is_nvidia_default: bool,
}

impl DriverSources {
    /// The driver's files for these cards: from NVIDIA's CDI spec, if there is one.
    pub(crate) fn of(
        &self,
        cards: &[GrantedCard],
    ) -> Result<(DriverFiles, PassthroughEdits), DriverFilesError> {
        match description(&self.descriptions)? {
            Some(found) => Ok((DriverFiles::Toolkit, found.of(cards)?)),
            None => Ok((self.undescribed()?, PassthroughEdits::default())),
        }
    }

    /// The folder on the host whose `dev` has the driver's device files; empty for the host's own `/dev`. NVIDIA's
    /// driver container has them in its own root, `/run/nvidia/driver`. A driver on the host has them in `/dev`. So
    /// the agent checks the folder.
    pub(crate) fn device_root(&self) -> String {
        let roots = self.device_root.iter();
        let mut roots = roots.filter(|root| root.join("dev/nvidiactl").exists());
        let root = roots.next().map(|root| root.display().to_string());
        let root = root.unwrap_or_default();
        root.trim_end_matches('/').to_owned()
    }

    /// The control devices that are missing in that folder. The driver makes `nvidia-uvm` when its module is loaded. Nothing
    /// is known of the host's own `/dev`: the agent's container has another one.
    pub(crate) fn missing_devices(&self) -> Vec<&'static str> {
        let root = self.device_root();
        let devices = CONTROL_DEVICES.iter().copied();
        devices
            .filter(|_| !root.is_empty())
            .filter(|path| !Path::new(&format!("{root}{path}")).exists())
            .collect()
    }

    /// The driver's files for any card without a CDI spec. If NVIDIA's runtime is the default one, it adds them,
    /// because it knows its driver better.
    pub(crate) fn undescribed(&self) -> Result<DriverFiles, DriverFilesError> {
        match &self.libraries {
            Some(folder) if !self.is_nvidia_default => {
                let libraries = libraries(folder)?;
                Ok(DriverFiles::Host { libraries })
            }
            Some(_) | None => Ok(DriverFiles::Devices),
        }
    }
}

/// NVIDIA's CDI spec of this node's cards, if there is one. Later folders take precedence.
fn description(folders: &[PathBuf]) -> Result<Option<NvidiaCdiSpec>, NvidiaSpecError> {
    let mut found: Option<NvidiaCdiSpec> = None;
    for path in folders.iter().flat_map(|folder| files(folder)) {
        let Some(content) = content(&path)? else {
            continue;
        };
        let next = NvidiaCdiSpec::new(&path.display().to_string(), content)?;
        if let Some(next) =
            next.filter(|next| found.as_ref().is_none_or(|of| next.rank() <= of.rank()))
        {
            found = Some(next);
        }
    }
    Ok(found)
}

/// The CDI specs in a folder, sorted by name, without the grants.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| {
        let ending = path
            .extension()
            .is_some_and(|of| of == "json" || of == "yaml");
        ending && !name(path).starts_with("apportion.dev-")
    });
    paths.sort();
    paths
}

/// Parses a spec; JSON is YAML, too. An unreadable file is an error only if it is NVIDIA's.
fn content(path: &Path) -> Result<Option<serde_json::Value>, NvidiaSpecError> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string());
    let content =
        text.and_then(|text| serde_norway::from_str(&text).map_err(|error| error.to_string()));
    match content {
        Ok(content) => Ok(Some(content)),
        Err(problem) if name(path).contains("nvidia") => Err(NvidiaSpecError::Malformed {
            path: path.display().to_string(),
            problem,
        }),
        Err(_) => Ok(None),
    }
}

fn name(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// The driver's libraries in a folder.
fn libraries(folder: &Path) -> Result<Vec<String>, DriverFilesError> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| LIBRARIES.iter().any(|known| is_of(name, known)))
        .filter(|name| folder.join(name).exists())
        .collect();
    names.sort();
    if let Some(library) = LIBRARIES[..NEEDED]
        .iter()
        .find(|library| !names.iter().any(|name| name == **library))
    {
        let folder = folder.to_owned();
        return Err(DriverFilesError::NoLibrary { library, folder });
    }
    let paths = names.iter().map(|name| folder.join(name));
    Ok(paths.map(|path| path.display().to_string()).collect())
}

fn is_of(name: &str, known: &str) -> bool {
    if known.ends_with('.') {
        name.starts_with(known)
    } else {
        name == known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARDS: &str = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n";

    fn write(folder: &Path, name: &str, text: &str) {
        fs::write(folder.join(name), text).unwrap();
    }

    #[test]
    fn the_toolkits_description_is_found_among_others() {
        let (fixed, live) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folders = [fixed.path().to_owned(), live.path().to_owned()];
        let find = || description(&folders);
        assert_eq!(find().unwrap(), None);
        write(
            live.path(),
            "management.yaml",
            "kind: management.nvidia.com/gpu\ndevices: []\n",
        );
        write(live.path(), "broken.yaml", "kind: [");
        write(live.path(), "apportion.dev-grant-s-0001.json", "{");
        assert_eq!(find().unwrap(), None);
        write(fixed.path(), "nvidia.yaml", CARDS);
        assert_eq!(
            find().unwrap().unwrap().path(),
            fixed.path().join("nvidia.yaml").to_str().unwrap()
        );
        write(live.path(), "nvidia.yaml", CARDS);
        assert_eq!(
            find().unwrap().unwrap().path(),
            live.path().join("nvidia.yaml").to_str().unwrap()
        );
        write(live.path(), "nvidia.yaml", "kind: [");
        let problem = find().unwrap_err().to_string();
        assert!(
            problem.contains("nvidia.yaml is not a CDI spec"),
            "{problem}"
        );
    }

    #[test]
    fn the_driver_comes_from_its_description_else_from_nvidias_runtime_else_from_us() {
        let (cdi, driver) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for library in &LIBRARIES[..NEEDED] {
            write(driver.path(), library, "");
        }
        let of = |libraries: Option<&Path>, is_nvidia_default| {
            let sources = DriverSources {
                descriptions: vec![cdi.path().to_owned()],
                libraries: libraries.map(Path::to_owned),
                is_nvidia_default,
                ..DriverSources::default()
            };
            sources.of(&[]).map(|(files, _)| files)
        };
        let named = Some(driver.path());
        assert_eq!(of(None, false).unwrap(), DriverFiles::Devices);
        assert_eq!(of(named, true).unwrap(), DriverFiles::Devices);
        let ours = of(named, false).unwrap();
        assert!(matches!(ours, DriverFiles::Host { libraries } if libraries.len() == NEEDED));
        assert!(of(Some(cdi.path()), false).is_err());
        write(cdi.path(), "nvidia.yaml", CARDS);
        assert_eq!(of(named, true).unwrap(), DriverFiles::Toolkit);
        write(cdi.path(), "nvidia.yaml", "kind: [");
        assert!(of(named, true).is_err());
    }

    #[test]
    fn device_files_come_from_the_drivers_root_where_they_are_there() {
        let root = tempfile::tempdir().unwrap();
        let of = |device_root: Option<&Path>| {
            let device_root = device_root.map(Path::to_owned);
            let sources = DriverSources {
                device_root,
                ..DriverSources::default()
            };
            sources.device_root()
        };
        assert_eq!(of(None), "");
        assert_eq!(of(Some(root.path())), "");
        fs::create_dir(root.path().join("dev")).unwrap();
        write(&root.path().join("dev"), "nvidiactl", "");
        assert_eq!(of(Some(root.path())), root.path().to_str().unwrap());
        let sources = DriverSources {
            device_root: Some(root.path().to_owned()),
            ..DriverSources::default()
        };
        assert_eq!(sources.missing_devices(), CONTROL_DEVICES[1..]);
        assert_eq!(DriverSources::default().missing_devices(), [""; 0]);
        let with_slash = format!("{}/", root.path().display());
        let without = root.path().to_str().unwrap();
        assert_eq!(of(Some(Path::new(&with_slash))), without);
    }

    #[test]
    fn the_drivers_libraries_are_those_for_computing() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["libcuda.so.1", "libnvidia-gpucomp.so.570.86", "libc.so.6"] {
            write(folder.path(), name, "");
        }
        let missing = libraries(folder.path()).unwrap_err().to_string();
        assert!(
            missing.starts_with("libnvidia-ml.so.1 is not in "),
            "{missing}"
        );
        write(folder.path(), "libnvidia-ml.so.1", "");
        let found = libraries(folder.path()).unwrap();
        assert_eq!(found.len(), 3, "{found:?}");
    }
}
