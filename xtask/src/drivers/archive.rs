//! Driver libraries from the Debian archive that this machine's apt already uses. apt itself downloads them, but with
//! its own lists and sources: the machine's stay unchanged, and nothing is installed.
//!
//! Each driver is kept in a folder named by its version. Only a branch that is not there yet costs a download (about 4
//! MB a driver, and 1.5 MB of lists).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::steps::{run, typed};

/// The suites in which Debian has had drivers. A suite that the archive no longer has is skipped.
const SUITES: [&str; 5] = ["bullseye", "bookworm", "trixie", "sid", "experimental"];
/// The keys that sign Debian's suites.
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];
/// The package names of a branch: those of the current driver, and those of legacy branches. `BRANCH` stands for the
/// number.
const FAMILIES: [[&str; 3]; 4] = [
    ["libcuda1", "libnvidia-ml1", "nvidia-smi"],
    [
        "libnvidia-tesla-cuda1",
        "libnvidia-tesla-ml1",
        "nvidia-tesla-smi",
    ],
    [
        "libnvidia-tesla-BRANCH-cuda1",
        "libnvidia-tesla-BRANCH-ml1",
        "nvidia-tesla-BRANCH-smi",
    ],
    [
        "libnvidia-legacy-BRANCHxx-cuda1",
        "libnvidia-legacy-BRANCHxx-ml1",
        "nvidia-legacy-BRANCHxx-smi",
    ],
];
/// The prefixes of the files to unpack.
const FILES: [&str; 3] = ["libcuda.so", "libnvidia-ml.so", "nvidia-smi"];

/// Each branch's driver folder below `folder`, or why there is none.
pub(crate) fn drivers<'a>(
    folder: &Path,
    branches: &[&'a str],
) -> Result<Vec<(&'a str, Result<PathBuf>)>> {
    fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let archive = if branches.iter().any(|branch| kept(folder, branch).is_none()) {
        Some(AptArchive::update(&folder.join("apt")))
    } else {
        None
    };
    Ok(branches
        .iter()
        .map(|branch| {
            let driver = match (kept(folder, branch), &archive) {
                (Some(kept), _) => Ok(kept),
                (None, Some(Ok(archive))) => archive.fetch(folder, branch),
                (None, Some(Err(error))) => Err(anyhow::anyhow!("{error:#}")),
                (None, None) => Err(anyhow::anyhow!("it has gone from {}", folder.display())),
            };
            (*branch, driver)
        })
        .collect())
}

/// The driver of a branch that an earlier run has downloaded.
fn kept(folder: &Path, branch: &str) -> Option<PathBuf> {
    let start = format!("{branch}.");
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let versions = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&start));
    versions.map(|entry| entry.path()).max()
}

/// apt with its own lists, sources and downloads below a folder.
struct AptArchive {
    folder: PathBuf,
}

impl AptArchive {
    /// Downloads the package lists.
    fn update(folder: &Path) -> Result<Self> {
        for name in ["lists/partial", "cache/archives/partial"] {
            let part = folder.join(name);
            fs::create_dir_all(&part)
                .with_context(|| format!("failed to make {}", part.display()))?;
        }
        let archive = Self {
            folder: folder.to_owned(),
        };
        let mirrors = mirrors()?;
        ensure!(
            !mirrors.is_empty(),
            "no source of apt's is a Debian archive"
        );
        let keyring = KEYRINGS.iter().find(|keyring| Path::new(keyring).exists());
        let signed = keyring.map_or(String::new(), |keyring| format!("[signed-by={keyring}] "));
        let lines = mirrors.iter().flat_map(|mirror| {
            let signed = &signed;
            SUITES.map(move |suite| format!("deb {signed}{mirror} {suite} non-free\n"))
        });
        fs::write(archive.sources(), lines.collect::<String>())
            .context("failed to write apt's sources")?;
        // apt fails if one suite is unavailable, but the lists of the others are still there.
        let updated = run(archive.apt("apt-get").args(["-qq", "update"]));
        if archive.versions("libcuda1")?.is_empty() {
            updated?;
            bail!("the archive has no libcuda1");
        }
        Ok(archive)
    }

    fn sources(&self) -> PathBuf {
        self.folder.join("sources.list")
    }

    fn apt(&self, program: &str) -> Command {
        let mut apt = Command::new(program);
        let paths = [
            ("Dir::State::Lists", "lists"),
            ("Dir::Cache", "cache"),
            ("Dir::Etc::SourceList", "sources.list"),
        ];
        for (option, path) in paths {
            let path = self.folder.join(path);
            apt.arg("-o").arg(format!("{option}={}", path.display()));
        }
        for option in [
            "Dir::Etc::SourceParts=/dev/null",
            "Dir::Etc::Preferences=/dev/null",
            "Dir::Etc::PreferencesParts=/dev/null",
            "Acquire::Languages=none",
            "APT::Architecture=amd64",
            "APT::Sandbox::User=root",
        ] {
            apt.args(["-o", option]);
        }
        apt
    }

    /// The versions of a package in the archive, newest first.
    fn versions(&self, package: &str) -> Result<Vec<String>> {
        let table = printed(self.apt("apt-cache").args(["madison", package]))?;
        Ok(table
            .lines()
            .filter_map(|row| Some(row.split('|').nth(1)?.trim().to_owned()))
            .collect())
    }

    /// Downloads and unpacks the newest driver of a branch.
    fn fetch(&self, folder: &Path, branch: &str) -> Result<PathBuf> {
        let start = format!("{branch}.");
        for family in FAMILIES {
            let packages = family.map(|name| name.replace("BRANCH", branch));
            let versions = self.versions(&packages[0])?;
            let Some(version) = versions.iter().find(|version| version.starts_with(&start)) else {
                continue;
            };
            return self.unpack(folder, &packages, version);
        }
        bail!("the Debian archive has none")
    }

    /// Unpacks the libraries of one version into a folder named by it. The folder appears complete or not at all.
    fn unpack(&self, folder: &Path, packages: &[String], version: &str) -> Result<PathBuf> {
        let (new, tree) = (self.folder.join("new"), self.folder.join("tree"));
        for part in [&new, &tree] {
            if part.exists() {
                fs::remove_dir_all(part).context("failed to remove what an earlier run left")?;
            }
            fs::create_dir(part).with_context(|| format!("failed to make {}", part.display()))?;
        }
        let wanted = packages
            .iter()
            .map(|package| format!("{package}={version}"));
        run(self
            .apt("apt-get")
            .args(["-qq", "download"])
            .args(wanted)
            .current_dir(&new))?;
        for package in files(&new)? {
            run(Command::new("dpkg-deb")
                .arg("--extract")
                .arg(&package)
                .arg(&tree))?;
            fs::remove_file(&package).context("failed to remove a package")?;
        }
        for file in files(&tree)? {
            let name = file.file_name().unwrap_or_default();
            if FILES
                .iter()
                .any(|start| name.to_string_lossy().starts_with(start))
                && !name.to_string_lossy().ends_with(".gz")
            {
                fs::rename(&file, new.join(name)).context("failed to move a library")?;
            }
        }
        ensure!(
            new.join("libcuda.so.1").exists(),
            "{} has no libcuda.so.1",
            packages[0]
        );
        let upstream = version.split('-').next().unwrap_or(version);
        let place = folder.join(upstream);
        fs::rename(&new, &place).with_context(|| format!("failed to make {}", place.display()))?;
        println!("fetched driver {upstream}");
        Ok(place)
    }
}

/// The Debian archives among the machine's own sources. Without lists only their address is known; its path ends in
/// `debian`.
fn mirrors() -> Result<BTreeSet<String>> {
    let lists = printed(Command::new("apt-get").args(["--print-uris", "update"]))?;
    Ok(lists
        .lines()
        .filter_map(|line| {
            let line = line.strip_prefix('\'')?;
            let (archive, _) = line.split_once("/dists/")?;
            archive.ends_with("/debian").then(|| archive.to_owned())
        })
        .collect())
}

/// What a command prints. A status other than 0 is an error that names the command.
fn printed(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("failed to start {}", typed(command)))?;
    ensure!(
        output.status.success(),
        "{} ended with {}",
        typed(command),
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// All files and links below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries =
        fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
    for entry in entries {
        let entry = entry.context("failed to read a folder")?;
        if entry
            .file_type()
            .context("failed to read a folder")?
            .is_dir()
        {
            found.extend(files(&entry.path())?)
        } else {
            found.push(entry.path())
        }
    }
    Ok(found)
}
