//! The images that people install. A release names the digest and the bill of materials (SBOM) of each.
//!
//! The bill is a CycloneDX file. It lists every crate that is linked into the image's programs, every file, and the
//! Debian packages of the C library and other system files. It contains no time, so the same image has the same bill.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use apportion_image::{
    ContainerImage, ImageArchive, Platform, RELEASED, digests, index, pack, released_for,
};
use serde_json::{Value, json};

use crate::stage;
use crate::steps::typed;
use crate::workspace::Workspace;

/// The file with the chart's values for these digests.
const VALUES: &str = "images.json";
/// The program of the second image.
const SCHEDULER: &str = "bin/apportion-scheduler";

/// A crate or a distribution package in a bill.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SbomComponent {
    name: String,
    version: String,
    /// Its package URL; `None` for our own crates.
    purl: Option<String>,
    licence: String,
}

impl SbomComponent {
    fn component(&self) -> Value {
        let reference = format!("{}@{}", self.name, self.version);
        let mut component = json!({"type": "library", "name": self.name, "version": self.version,
            "bom-ref": self.purl.as_deref().unwrap_or(&reference)});
        if let Some(purl) = &self.purl {
            component["purl"] = json!(purl);
        }
        if !self.licence.is_empty() {
            component["licenses"] = json!([{"expression": self.licence}]);
        }
        component
    }
}

/// The released images of one platform, packed: the agent's and the scheduler's.
pub(crate) struct PackedImages([PackedImage; 2]);

/// One image, packed, with its bill of materials.
pub(crate) struct PackedImage {
    pub(crate) archive: ImageArchive,
    pub(crate) bill: PathBuf,
}

/// Builds the images for these platforms into `out`, with names below `registry`. Those of several platforms are in one
/// file with an index, and the digest is that of the index.
pub(crate) fn make(
    workspace: &Workspace,
    platforms: &[Platform],
    out: &Path,
    registry: &str,
) -> Result<()> {
    if let [platform] = platforms {
        let images = build(&workspace.for_platform(*platform)?, out)?;
        let digests = images.0.map(|image| image.archive.digest);
        return write_values(out, registry, &digests).map(drop);
    }
    let parts = platforms.iter().map(|platform| {
        let part = out.join(platform.architecture());
        build(&workspace.for_platform(*platform)?, &part)
    });
    let parts = parts.collect::<Result<Vec<_>>>()?;
    merge(&parts, out, registry).map(drop)
}

/// Builds the images of the workspace's platform into `out`.
pub(crate) fn build(workspace: &Workspace, out: &Path) -> Result<PackedImages> {
    let platform = workspace.platform();
    let tree = workspace.target.join("image");
    stage::install(&stage::build(workspace, true)?, &tree)?;
    stage::strip(workspace, &tree)?;
    let [agent, scheduler] = released_for(platform, &tree)?;
    let is_scheduler = |placed: &str| placed == SCHEDULER;
    let of_agent = stage::packages(|at| !is_scheduler(at));
    let mut crates_of_agent = crates(workspace.cargo(), platform, &of_agent)?;
    crates_of_agent.extend(crates(workspace.cargo_of_preload(), platform, &[])?);
    let crates_of_scheduler = crates(workspace.cargo(), platform, &stage::packages(is_scheduler))?;
    Ok(PackedImages([
        write(&agent, crates_of_agent, out)?,
        write(&scheduler, crates_of_scheduler, out)?,
    ]))
}

/// Merges the images of several platforms into `out`. Returns the new archives and the chart's values.
pub(crate) fn merge(
    parts: &[PackedImages],
    out: &Path,
    registry: &str,
) -> Result<[ImageArchive; 2]> {
    let one = |place: usize| {
        let archives: Vec<PathBuf> = parts
            .iter()
            .filter_map(|part| Some(part.0.get(place)?.archive.path.clone()))
            .collect();
        let name = archives.first().and_then(|path| path.file_name());
        let archive = index(&archives, &out.join(name.context("there are no images")?))?;
        println!("{}  {}", archive.path.display(), archive.digest);
        Ok::<_, anyhow::Error>(archive)
    };
    let both = [one(0)?, one(1)?];
    write_values(out, registry, &both.each_ref().map(|it| it.digest.clone()))?;
    Ok(both)
}

impl PackedImages {
    pub(crate) fn of((agent, scheduler): (PackedImage, PackedImage)) -> Self {
        Self([agent, scheduler])
    }

    /// The agent's, then the scheduler's.
    pub(crate) fn each(&self) -> &[PackedImage; 2] {
        &self.0
    }
}

/// The name of an image in its repository: `agent`, `scheduler`.
pub(crate) fn short_names() -> [&'static str; 2] {
    RELEASED.map(|name| {
        let name = name.rsplit('/').next().unwrap_or(name);
        name.split(':').next().unwrap_or(name)
    })
}

/// Writes the chart's values for these digests.
fn write_values(out: &Path, registry: &str, digests: &[String; 2]) -> Result<()> {
    let [agent, scheduler] = short_names();
    let [of_agent, of_scheduler] = digests;
    let values = json!({
        "image": {"repository": format!("{registry}/{agent}"), "digest": of_agent},
        "scheduler": {"image":
            {"repository": format!("{registry}/{scheduler}"), "digest": of_scheduler}},
    });
    let path = out.join(VALUES);
    fs::write(&path, format!("{values:#}\n"))
        .with_context(|| format!("failed to write {}", path.display()))
}

/// Writes an image and its bill.
fn write(
    image: &ContainerImage,
    crates: BTreeSet<SbomComponent>,
    out: &Path,
) -> Result<PackedImage> {
    let archive = pack(image, out)?;
    let mut parts = crates;
    parts.extend(packages(image.files.copies().map(|(_, from)| from)));
    let text = bill(image.name, &archive.digest, &parts, &digests(image)?);
    let bill = archive.path.with_extension("cdx.json");
    fs::write(&bill, format!("{text:#}\n"))
        .with_context(|| format!("failed to write {}", bill.display()))?;
    println!(
        "{}  {}  {}",
        archive.path.display(),
        image.name,
        archive.digest
    );
    Ok(PackedImage { archive, bill })
}

fn bill(
    name: &str,
    digest: &str,
    parts: &BTreeSet<SbomComponent>,
    files: &BTreeMap<PathBuf, String>,
) -> Value {
    let files = files.iter().map(|(path, hash)| {
        let path = path.display().to_string();
        json!({"type": "file", "bom-ref": path, "name": path,
            "hashes": [{"alg": "SHA-256", "content": hash}]})
    });
    let components: Vec<Value> = parts
        .iter()
        .map(SbomComponent::component)
        .chain(files)
        .collect();
    json!({"$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json", "bomFormat": "CycloneDX",
        "specVersion": "1.5", "version": 1, "components": components,
        "metadata": {"component":
            {"type": "container", "bom-ref": digest, "name": name, "version": digest}}})
}

/// The crates that are linked into `packages`, or without any into the workspace itself.
fn crates(
    mut cargo: Command,
    platform: Platform,
    packages: &[&str],
) -> Result<BTreeSet<SbomComponent>> {
    cargo.args([
        "tree",
        "--locked",
        "--prefix",
        "none",
        "--target",
        platform.triple(),
    ]);
    cargo.args(["--edges", "normal,no-proc-macro", "--format", "{p}|{l}"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    let text = stdout_of(&mut cargo)?;
    Ok(text.lines().filter_map(part).collect())
}

/// Parses `serde v1.0.228|MIT OR Apache-2.0`; our own crates also have a folder.
fn part(line: &str) -> Option<SbomComponent> {
    let (described, licence) = line.trim_end_matches(" (*)").split_once('|')?;
    let mut words = described.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let purl = words
        .next()
        .is_none()
        .then(|| format!("pkg:cargo/{name}@{version}"));
    Some(SbomComponent {
        name: name.to_owned(),
        version: version.to_owned(),
        purl,
        // Older crates write `/` for `OR`.
        licence: licence
            .split('/')
            .map(str::trim)
            .collect::<Vec<_>>()
            .join(" OR "),
    })
}

/// The packages that these files come from, if the machine has dpkg's database.
fn packages<'a>(files: impl Iterator<Item = &'a Path>) -> BTreeSet<SbomComponent> {
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = system
        .lines()
        .find_map(|line| line.strip_prefix("ID="))
        .unwrap_or("debian")
        .trim_matches('"')
        .to_owned();
    files
        .filter_map(|file| {
            // dpkg's database has the path from before /lib became a link.
            let older = Path::new("/").join(file.strip_prefix("/usr").ok()?);
            [file, &older].into_iter().find_map(|file| {
                let found = stdout_of(Command::new("dpkg-query").arg("--search").arg(file)).ok()?;
                let (package, _) = found.split_once(": ")?;
                let format = "--showformat=${Package} ${Version} ${Architecture}";
                let shown =
                    stdout_of(Command::new("dpkg-query").args(["--show", format, package])).ok()?;
                of_debian(&system, &shown)
            })
        })
        .collect()
}

/// Parses `libc6 2.36-9+deb12u10 amd64`.
fn of_debian(system: &str, shown: &str) -> Option<SbomComponent> {
    let mut words = shown.split_whitespace();
    let (name, version, machine) = (words.next()?, words.next()?, words.next()?);
    let escaped = version.replace('+', "%2B").replace(':', "%3A");
    Some(SbomComponent {
        name: name.to_owned(),
        version: version.to_owned(),
        purl: Some(format!("pkg:deb/{system}/{name}@{escaped}?arch={machine}")),
        licence: String::new(),
    })
}

/// What a program prints.
fn stdout_of(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("failed to start {}", typed(command)))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {why}", typed(command));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_cargos_tree_is_a_part_and_our_own_is_in_no_registry() {
        let known = part("serde v1.0.228|MIT / Apache-2.0 (*)").unwrap();
        assert_eq!(known.purl.as_deref(), Some("pkg:cargo/serde@1.0.228"));
        assert_eq!(known.licence, "MIT OR Apache-2.0");
        let own = part("apportion-abi v0.1.0 (/src/proto/abi)|Apache-2.0").unwrap();
        assert_eq!((own.name.as_str(), own.purl), ("apportion-abi", None));
        assert_eq!(part(""), None);
    }

    #[test]
    fn a_bill_has_the_crates_of_the_programs_and_no_others() {
        let workspace = Workspace::find().unwrap();
        let packages = stage::packages(|at| at == SCHEDULER);
        assert_eq!(packages, ["apportion-scheduler"]);
        let crates = crates(workspace.cargo(), Platform::HOST, &packages).unwrap();
        let has = |name: &str| crates.iter().any(|part| part.name == name);
        assert!(has("apportion-policy") && has("kube") && has("tokio"));
        // Macros and test dependencies are not in a program.
        assert!(!has("serde_derive") && !has("proptest"));
        let preload = super::crates(workspace.cargo_of_preload(), Platform::HOST, &[]).unwrap();
        assert!(
            preload
                .iter()
                .any(|part| part.name == "apportion-cuda-preload"),
            "{preload:?}"
        );
        let bill = bill("x:1", "sha256:0", &crates, &BTreeMap::new());
        assert_eq!(bill["components"].as_array().unwrap().len(), crates.len());
    }

    #[test]
    fn a_package_of_the_distribution_is_named_by_its_url() {
        let part = of_debian("debian", "libc6 1:2.36-9+deb12u10 amd64").unwrap();
        let url = "pkg:deb/debian/libc6@1%3A2.36-9%2Bdeb12u10?arch=amd64";
        assert_eq!(part.purl.as_deref(), Some(url));
    }
}
