//! A release as files, and the script that publishes them.
//!
//! `cargo xtask release --dry-run` does all that needs no registry, and prints the script. Without `--dry-run` the script
//! runs at the end. The workflow builds each platform on a machine of its own (`--step build`), puts the files together
//! (`--step assemble`), and runs the script where the rights to publish are and no code is built.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use apportion_image::{ImageArchive, Platform};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::image::{self, PackedImages};
use crate::steps::run;
use crate::workspace::Workspace;
use crate::{chart, stage};

const CHART: &str = "deploy/chart/apportion/Chart.yaml";
const KREW: &str = "apportion/kubectl/krew.yaml";
/// How the part of a platform begins in it.
const KREW_ENTRY: &str = "    - selector:\n";
/// The file with what an earlier step built for a platform.
const BUILT: &str = "built.json";
const SCRIPT: &str = "publish.sh";
const NOTES: &str = "notes.md";
const SUMS: &str = "SHA256SUMS";

/// Which part of a release to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReleaseStep {
    /// Only what is built for each platform.
    Build,
    /// Only what is made of the files that are built.
    Assemble,
}

/// The options of `cargo xtask release`.
#[derive(Args, Debug)]
pub(crate) struct ReleaseOptions {
    /// Make and print everything, and publish nothing.
    #[arg(long)]
    dry_run: bool,
    /// The tag [default: v and the version of the workspace].
    #[arg(long)]
    tag: Option<String>,
    /// Folder for the files.
    #[arg(long, default_value = "target/dist")]
    out: PathBuf,
    /// Where the images and the chart are pushed.
    #[arg(long, default_value = "ghcr.io/OWNER/apportion")]
    registry: String,
    /// The repository on GitHub, for the manifest of the kubectl plugin.
    #[arg(long, default_value = "OWNER/apportion")]
    repository: String,
    /// Platforms, with commas between.
    #[arg(long, value_name = "TRIPLES", value_delimiter = ',', default_values_t = Platform::ALL)]
    target: Vec<Platform>,
    /// Make only a part, when several machines make a release.
    #[arg(long)]
    step: Option<ReleaseStep>,
}

pub(crate) fn perform(workspace: &Workspace, options: &ReleaseOptions) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let tag = options.tag.clone().unwrap_or_else(|| format!("v{version}"));
    let read = |path: &str| {
        let path = workspace.root.join(path);
        fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
    };
    let notes = ReleaseNotes::of(&tag, version, &read(CHART)?, &read("CHANGELOG.md")?)?;
    if notes.is_unreleased {
        let message = format!("CHANGELOG.md says that {version} is unreleased");
        ensure!(options.dry_run, "{message}");
        println!("{message}; a release would end here");
    }
    let has_all = Platform::ALL.iter().all(|one| options.target.contains(one));
    ensure!(
        has_all || options.dry_run || options.step == Some(ReleaseStep::Build),
        "a release has images for all platforms; hint: leave out --target, or make a --dry-run"
    );
    let out = std::path::absolute(&options.out).context("failed to find the folder")?;
    fs::create_dir_all(&out).with_context(|| format!("failed to make {}", out.display()))?;
    if options.step != Some(ReleaseStep::Assemble) {
        for platform in &options.target {
            build(&workspace.for_platform(*platform)?, &out)?;
        }
    }
    if options.step == Some(ReleaseStep::Build) {
        return Ok(());
    }
    let release = Release {
        version,
        tag: &tag,
        out: &out,
        registry: options.registry.to_lowercase(),
    };
    release.assemble(workspace, options, &notes)?;
    let script = out.join(SCRIPT);
    if options.dry_run {
        println!("\nTo publish, {SCRIPT} would run:\n");
        print!("{}", fs::read_to_string(&script)?);
        return Ok(());
    }
    run(Command::new("bash").arg(&script))
}

/// What the changelog says of a version.
#[derive(Debug, PartialEq, Eq)]
struct ReleaseNotes {
    text: String,
    is_unreleased: bool,
}

impl ReleaseNotes {
    /// Checks that tag, workspace and chart name the same version, and that the changelog has a section of it.
    fn of(tag: &str, version: &str, chart: &str, changelog: &str) -> Result<Self> {
        ensure!(
            tag.strip_prefix('v') == Some(version),
            "the tag is {tag} and Cargo.toml says {version}"
        );
        for field in ["version", "appVersion"] {
            let line = chart
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{field}: ")));
            let of_chart = line.unwrap_or_default().trim().trim_matches('"');
            ensure!(
                of_chart == version,
                "Cargo.toml says {version} and {field} in Chart.yaml says {of_chart}"
            );
        }
        let heading = format!("## [{version}]");
        let mut lines = changelog
            .lines()
            .skip_while(|line| !line.starts_with(&heading));
        let Some(title) = lines.next() else {
            bail!("CHANGELOG.md has no section {heading}");
        };
        let section = lines.take_while(|line| !line.starts_with("## ") && !line.starts_with('['));
        let text = section.collect::<Vec<_>>().join("\n").trim().to_owned();
        ensure!(
            !text.is_empty(),
            "the section {heading} of CHANGELOG.md is empty"
        );
        Ok(Self {
            text: format!("{text}\n"),
            is_unreleased: title.contains("unreleased"),
        })
    }
}

/// Builds what is made for one platform: images, preload library, kubectl plugin.
fn build(workspace: &Workspace, out: &Path) -> Result<()> {
    let platform = workspace.platform();
    let folder = out.join(platform.architecture());
    let images = image::build(workspace, &folder)?;
    let version = env!("CARGO_PKG_VERSION");
    let tree = workspace.target.join("image");
    let licence = ["LICENSE", "NOTICE"];
    let tar = |name: &str, from: &Path, file: &str| {
        let path = out.join(format!("{name}-{version}-linux-{platform}.tar.gz"));
        // Times, owners and order do not depend on the machine, so the same files give the same bytes.
        run(Command::new("tar")
            .args([
                "--create",
                "--sort=name",
                "--owner=0",
                "--group=0",
                "--numeric-owner",
            ])
            .args([
                "--mtime=@0",
                "--mode=u=rwX,go=rX",
                "--use-compress-program=gzip -n",
                "--file",
            ])
            .arg(&path)
            .arg("--directory")
            .arg(from)
            .arg(file)
            .arg("--directory")
            .arg(&workspace.root)
            .args(licence))?;
        println!("{}", path.display());
        Ok::<_, anyhow::Error>(())
    };
    tar(
        "apportion-preload",
        &tree.join("lib/apportion"),
        stage::PRELOAD,
    )?;
    tar("kubectl-apportion", &tree.join("bin"), "kubectl-apportion")?;
    let built = images.each().iter().map(|image| {
        json!({"file": name_of(&image.archive.path), "digest": image.archive.digest, "bill": name_of(&image.bill)})
    });
    let built = json!(built.collect::<Vec<_>>());
    write(&folder.join(BUILT), &format!("{built:#}\n"))
}

/// A release that is put together.
struct Release<'a> {
    version: &'a str,
    tag: &'a str,
    out: &'a Path,
    registry: String,
}

impl Release<'_> {
    fn assemble(
        &self,
        workspace: &Workspace,
        options: &ReleaseOptions,
        notes: &ReleaseNotes,
    ) -> Result<()> {
        let parts = options.target.iter().map(|platform| {
            let folder = self.out.join(platform.architecture());
            PackedImages::read(&folder, &folder.join(BUILT))
        });
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let archives = image::merge(&parts, self.out, &self.registry)?;
        let mut bills = Vec::new();
        for (part, platform) in parts.iter().zip(&options.target) {
            for image in part.each() {
                let stem = image.bill.to_string_lossy();
                let stem = Path::new(stem.trim_end_matches(".cdx.json"));
                let name = format!("{}_{platform}.cdx.json", name_of(stem));
                fs::copy(&image.bill, self.out.join(&name)).context("failed to copy a bill")?;
                bills.push((name, image.archive.digest.clone()));
            }
        }
        write(&self.out.join(NOTES), &notes.text)?;
        let krew =
            fs::read_to_string(workspace.root.join(KREW)).context("failed to read krew.yaml")?;
        write(
            &self.out.join("krew.yaml"),
            &self.krew(&krew, &options.repository, &options.target)?,
        )?;
        let images = self.out.join("images.json");
        chart::package(workspace, self.out, Some(&images))?;
        write(&self.out.join(SCRIPT), &self.script(&archives, &bills))?;
        self.sum()
    }

    /// The manifest of the kubectl plugin for `platforms`, with the checksum of each one's file.
    fn krew(&self, template: &str, repository: &str, platforms: &[Platform]) -> Result<String> {
        let template = template
            .replace("OWNER/apportion", repository)
            .replace("VERSION", self.version);
        let mut entries = template.split(KREW_ENTRY);
        let mut text = entries.next().unwrap_or_default().to_owned();
        for entry in entries {
            let mark =
                |platform: &Platform| format!("SHA256_{}", platform.architecture().to_uppercase());
            let Some(platform) = platforms.iter().find(|one| entry.contains(&mark(one))) else {
                continue;
            };
            let file = format!("kubectl-apportion-{}-linux-{platform}.tar.gz", self.version);
            let path = self.out.join(file);
            ensure!(path.exists(), "{} is not there", path.display());
            text.push_str(KREW_ENTRY);
            text.push_str(&entry.replace(&mark(platform), &sum_of(&path)?));
        }
        Ok(text)
    }

    /// Writes the checksums of all files.
    fn sum(&self) -> Result<()> {
        let mut names: Vec<String> = Vec::new();
        for entry in fs::read_dir(self.out).context("failed to read the folder")? {
            let entry = entry.context("failed to read the folder")?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().is_file() && ![SUMS, SCRIPT, NOTES].contains(&name.as_str()) {
                names.push(name);
            }
        }
        names.sort();
        let mut file =
            File::create(self.out.join(SUMS)).context("failed to write the checksums")?;
        for name in names {
            writeln!(file, "{}  {name}", sum_of(&self.out.join(&name))?)
                .context("failed to write the checksums")?;
        }
        Ok(())
    }

    /// The commands that publish the files. They are the only ones that need a registry and an identity.
    fn script(&self, archives: &[ImageArchive; 2], bills: &[(String, String)]) -> String {
        let (registry, version, tag) = (&self.registry, self.version, self.tag);
        let mut script = "#!/usr/bin/env bash\n# Publishes the files beside it. It needs skopeo, cosign, helm and gh, \
                          each logged in.\nset -euo pipefail\ncd \"$(dirname \"$0\")\"\n"
            .to_owned();
        for (archive, name) in archives.iter().zip(image::short_names()) {
            let (file, digest) = (name_of(&archive.path), &archive.digest);
            let repository = format!("{registry}/{name}");
            let _ = write!(
                script,
                "\nskopeo copy --all --preserve-digests --digestfile pushed \"oci-archive:{file}\" \\\n    \
                 \"docker://{repository}:{version}\"\n\
                 [ \"$(cat pushed)\" = {digest} ] || {{ echo \"{repository} has another digest\" >&2; exit 1; }}\n\
                 cosign sign --yes --recursive {repository}@{digest}\n"
            );
            let own = bills
                .iter()
                .filter(|(bill, _)| bill.starts_with(&format!("apportion_{name}_")));
            for (bill, digest) in own {
                let _ = writeln!(
                    script,
                    "cosign attest --yes --type cyclonedx --predicate {bill} {repository}@{digest}"
                );
            }
        }
        let _ = write!(
            script,
            "\nhelm push apportion-{version}.tgz oci://{registry}/charts 2>&1 | tee pushed\n\
             digest=$(sed -n 's/^Digest: *//p' pushed)\n\
             cosign sign --yes \"{registry}/charts/apportion@$digest\"\n\
             rm pushed\n\
             \ncosign sign-blob --yes --bundle {SUMS}.sigstore.json {SUMS}\n\
             gh release create {tag} --verify-tag --title {tag} --notes-file {NOTES} \\\n    \
             ./*.tar ./*.tar.gz ./*.tgz ./*.json ./*.yaml {SUMS}\n"
        );
        script
    }
}

impl PackedImages {
    /// Reads what an earlier step wrote for a platform.
    fn read(folder: &Path, list: &Path) -> Result<Self> {
        let reading = || format!("failed to read {}", list.display());
        let text = fs::read_to_string(list).with_context(reading)?;
        let list: Value = serde_json::from_str(&text).with_context(reading)?;
        let image = |place: usize| {
            let text = |name: &str| list[place][name].as_str().map(str::to_owned);
            Some(image::PackedImage {
                archive: ImageArchive {
                    path: folder.join(text("file")?),
                    digest: text("digest")?,
                },
                bill: folder.join(text("bill")?),
            })
        };
        image(0).zip(image(1)).map(Self::of).with_context(reading)
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))
}

/// The SHA-256 of a file.
fn sum_of(path: &Path) -> Result<String> {
    let output = Command::new("sha256sum")
        .arg(path)
        .output()
        .context("failed to start sha256sum")?;
    ensure!(output.status.success(), "failed to read {}", path.display());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let sum = text.split_whitespace().next();
    Ok(sum.context("sha256sum printed nothing")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHART: &str = "apiVersion: v2\nversion: 1.2.3\nappVersion: \"1.2.3\"\n";
    const CHANGELOG: &str = "# Changelog\n\n## [2.0.0] - unreleased\n\n- new\n\n## [1.2.3] - 2026-01-02\n\n### Added\n\n- old\n\n## [1.0.0] - 2025-01-01\n\n[1.2.3]: https://example.org\n";

    fn notes(tag: &str, version: &str, chart: &str) -> Result<ReleaseNotes> {
        ReleaseNotes::of(tag, version, chart, CHANGELOG)
    }

    #[test]
    fn notes_are_the_section_of_the_version() {
        let notes = notes("v1.2.3", "1.2.3", CHART).unwrap();
        assert_eq!(notes.text, "### Added\n\n- old\n");
        assert!(!notes.is_unreleased);
        let newer = CHART.replace("1.2.3", "2.0.0");
        assert!(
            super::tests::notes("v2.0.0", "2.0.0", &newer)
                .unwrap()
                .is_unreleased
        );
    }

    #[test]
    fn tag_version_chart_and_changelog_must_agree() {
        let refused =
            |tag, version, chart: &str| notes(tag, version, chart).unwrap_err().to_string();
        assert!(refused("v1.2.4", "1.2.3", CHART).contains("the tag is v1.2.4"));
        assert!(refused("1.2.3", "1.2.3", CHART).contains("the tag is 1.2.3"));
        let other = CHART.replace("\nversion: 1.2.3", "\nversion: 1.2.2");
        assert!(refused("v1.2.3", "1.2.3", &other).contains("version in Chart.yaml says 1.2.2"));
        let missing = CHART.replace("1.2.3", "3.0.0");
        assert!(refused("v3.0.0", "3.0.0", &missing).contains("no section"));
        let empty = CHART.replace("1.2.3", "1.0.0");
        assert!(refused("v1.0.0", "1.0.0", &empty).contains("is empty"));
    }

    #[test]
    fn the_plugins_manifest_has_the_platforms_that_were_built() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder
            .path()
            .join("kubectl-apportion-1.2.3-linux-amd64.tar.gz");
        fs::write(&file, "plugin").unwrap();
        let release = Release {
            version: "1.2.3",
            tag: "v1.2.3",
            out: folder.path(),
            registry: "ghcr.io/x/apportion".to_owned(),
        };
        let template = include_str!("../../apportion/kubectl/krew.yaml");
        let [amd64, arm64] = [Platform::ALL[0], Platform::ALL[1]];
        let manifest = release.krew(template, "x/apportion", &[amd64]).unwrap();
        assert!(manifest.contains(&sum_of(&file).unwrap()), "{manifest}");
        assert!(manifest.contains("v1.2.3/kubectl-apportion-1.2.3-linux-amd64.tar.gz"));
        assert_eq!(manifest.matches("bin: kubectl-apportion").count(), 1);
        assert!(
            !manifest.contains("arm64") && !manifest.contains("SHA256_A"),
            "{manifest}"
        );
        let missing = release
            .krew(template, "x/apportion", &[amd64, arm64])
            .unwrap_err();
        assert!(
            missing
                .to_string()
                .ends_with("linux-arm64.tar.gz is not there")
        );
    }

    #[test]
    fn the_script_pushes_and_signs_every_image_by_its_digest() {
        let archive = |name: &str, digest: &str| ImageArchive {
            path: PathBuf::from(format!("/x/apportion_{name}_1.2.3.tar")),
            digest: digest.to_owned(),
        };
        let release = Release {
            version: "1.2.3",
            tag: "v1.2.3",
            out: Path::new("/x"),
            registry: "ghcr.io/x/apportion".to_owned(),
        };
        let archives = [
            archive("agent", "sha256:a"),
            archive("scheduler", "sha256:b"),
        ];
        let bill = |name: &str, digest: &str| (name.to_owned(), digest.to_owned());
        let bills = [
            bill("apportion_agent_1.2.3_amd64.cdx.json", "sha256:c"),
            bill("apportion_agent_1.2.3_arm64.cdx.json", "sha256:d"),
            bill("apportion_scheduler_1.2.3_arm64.cdx.json", "sha256:e"),
        ];
        let script = release.script(&archives, &bills);
        for line in [
            "cosign sign --yes --recursive ghcr.io/x/apportion/agent@sha256:a",
            "cosign sign --yes --recursive ghcr.io/x/apportion/scheduler@sha256:b",
            "--predicate apportion_agent_1.2.3_amd64.cdx.json ghcr.io/x/apportion/agent@sha256:c",
            "--predicate apportion_agent_1.2.3_arm64.cdx.json ghcr.io/x/apportion/agent@sha256:d",
            "--predicate apportion_scheduler_1.2.3_arm64.cdx.json ghcr.io/x/apportion/scheduler@sha256:e",
            "oci://ghcr.io/x/apportion/charts",
        ] {
            assert!(script.contains(line), "{line} in\n{script}");
        }
        let parsed = Command::new("bash").args(["-n", "-c", &script]).status();
        assert!(parsed.unwrap().success(), "{script}");
    }
}
