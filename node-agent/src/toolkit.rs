//! The driver's files that containers need beside the cards: who has described them, or where they lie.
//!
//! Looked for whenever a container is about to start, because the toolkit describes a node's cards when it
//! gets to it, and anew with each driver. What is found is not believed beyond its form: see
//! `apportion_runtime_class::nvidia`.

use std::fs;
use std::path::{Path, PathBuf};

use apportion_runtime_class::cdi::PassthroughEdits;
use apportion_runtime_class::nvidia::{NvidiaCdiSpec, NvidiaSpecError};
use apportion_runtime_class::{DriverFiles, GrantedCard};

/// The driver's libraries for programs that compute. Some have the driver's version in their only name.
const LIBRARIES: [&str; 7] = [
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libcudadebugger.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-nvvm70.so.4",
    "libnvidia-gpucomp.so.",
];
/// How many of them, the first ones, nothing runs without.
const NEEDED: usize = 2;

/// Why the driver's files cannot be told.
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

/// From where the driver can come into containers on this node.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriverSources {
    /// Where descriptions lie; the later folder wins.
    pub(crate) descriptions: Vec<PathBuf>,
    /// The driver's libraries, where they are named.
    pub(crate) libraries: Option<PathBuf>,
    /// Whether containers that name no RuntimeClass run with NVIDIA's.
    pub(crate) is_nvidia_default: bool,
}

impl DriverSources {
    /// For these cards, from who has described them.
    pub(crate) fn of(
        &self,
        cards: &[GrantedCard],
    ) -> Result<(DriverFiles, PassthroughEdits), DriverFilesError> {
        match description(&self.descriptions)? {
            Some(found) => Ok((DriverFiles::Toolkit, found.of(cards)?)),
            None => Ok((self.undescribed()?, PassthroughEdits::default())),
        }
    }

    /// For any card, where nobody has described them. NVIDIA's runtime knows its driver better than we do;
    /// where it is the default one, it is left to it.
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

/// What NVIDIA's toolkit says of this node's cards, if it is there. In `folders` the later wins.
fn description(folders: &[PathBuf]) -> Result<Option<NvidiaCdiSpec>, NvidiaSpecError> {
    let mut found: Option<NvidiaCdiSpec> = None;
    for path in folders.iter().flat_map(|folder| files(folder)) {
        let Some(content) = content(&path)? else {
            continue;
        };
        let next = NvidiaCdiSpec::new(&path.display().to_string(), content)?;
        let is_usual =
            |next: &NvidiaCdiSpec| found.as_ref().is_none_or(|of| next.rank() <= of.rank());
        if let Some(next) = next.filter(is_usual) {
            found = Some(next);
        }
    }
    Ok(found)
}

/// The files of a folder that runtimes read, by name, but for the grants.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    let is_one = |path: &PathBuf| {
        let ending = path
            .extension()
            .is_some_and(|of| of == "json" || of == "yaml");
        ending && !name(path).starts_with("apportion.dev-")
    };
    paths.retain(is_one);
    paths.sort();
    paths
}

/// JSON is YAML, too. What cannot be read is somebody's fault, and only NVIDIA's is ours to tell of.
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
    let is_missing = |library: &&&'static str| !names.iter().any(|name| name == **library);
    if let Some(library) = LIBRARIES[..NEEDED].iter().find(is_missing) {
        let folder = folder.to_owned();
        return Err(DriverFilesError::NoLibrary { library, folder });
    }
    let paths = names.iter().map(|name| folder.join(name));
    Ok(paths.map(|path| path.display().to_string()).collect())
}

fn is_of(name: &str, known: &str) -> bool {
    match known.ends_with('.') {
        true => name.starts_with(known),
        false => name == known,
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
