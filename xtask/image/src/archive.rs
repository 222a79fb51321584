//! An image as one tar that every container tool reads: a layer, a configuration, and the indexes that name them by
//! digest, in OCI's form (`index.json`) and in Docker's (`manifest.json`).
//!
//! The same files give the same bytes: entries are sorted by path, times and owners are zero.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::ContainerImage;
use super::files::{FileSource, ImageFiles};

/// Folders that programs expect, even if empty. The last one is writable for all.
const FOLDERS: [&str; 5] = ["dev", "proc", "sys", "run", "tmp"];

/// The version of the archive's form.
const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;

/// An image in a file.
#[derive(Clone, Debug)]
pub struct ImageArchive {
    /// The file.
    pub path: PathBuf,
    /// The digest of its manifest, `sha256:…`, by which registries name it too.
    pub digest: String,
}

/// Packs `image` into a file in `folder`.
///
/// # Errors
/// If a file of it cannot be read, or the archive not be written.
pub fn pack(image: &ContainerImage, folder: &Path) -> Result<ImageArchive> {
    let packing = || format!("failed to pack {}", image.name);
    let name = image.name.trim_start_matches("docker.io/");
    let path = folder.join(format!("{}.tar", name.replace(['/', ':'], "_")));
    fs::create_dir_all(folder).with_context(packing)?;
    let digest = write(image, &path).with_context(packing)?;
    Ok(ImageArchive { path, digest })
}

/// The SHA-256 of every file of `image`, without links, by its path in the image.
///
/// # Errors
/// If a file cannot be read.
pub fn digests(image: &ContainerImage) -> Result<BTreeMap<PathBuf, String>> {
    let copies = image.files.copies();
    let digests = copies.map(|(place, from)| {
        let bytes = fs::read(from).with_context(|| format!("failed to read {}", from.display()))?;
        Ok((place.to_owned(), digest(&bytes)))
    });
    digests.collect()
}

/// A file of the archive that others refer to by its digest.
struct ImageBlob {
    digest: String,
    bytes: Vec<u8>,
}

impl ImageBlob {
    fn new(bytes: Vec<u8>) -> Self {
        let digest = digest(&bytes);
        Self { digest, bytes }
    }

    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.digest)
    }

    /// Its descriptor in another file.
    fn described(&self, kind: &str) -> Value {
        json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "size": self.bytes.len(),
            "digest": format!("sha256:{}", self.digest)})
    }
}

fn write(image: &ContainerImage, path: &Path) -> Result<String> {
    let layer = ImageBlob::new(layer(&image.files)?);
    let version = image.name.rsplit(':').next().unwrap_or_default();
    let mut labels: BTreeMap<&str, &str> = image.labels.iter().copied().collect();
    labels.insert("org.opencontainers.image.version", version);
    let config = json!({
        "architecture": image.files.platform.architecture(),
        "os": "linux",
        "config": {"Entrypoint": image.entrypoint, "Env": image.env, "Labels": labels, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", layer.digest)]},
    });
    let config = ImageBlob::new(config.to_string().into_bytes());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.described("config.v1+json"),
        "layers": [layer.described("layer.v1.tar")],
    });
    let manifest = ImageBlob::new(manifest.to_string().into_bytes());
    let mut named = manifest.described("manifest.v1+json");
    named["platform"] = json!({"architecture": image.files.platform.architecture(), "os": "linux"});
    named["annotations"] = json!({"io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": version});
    let index = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [named]});
    // Docker's own list, for tools that read no other.
    let list =
        json!([{"Config": config.path(), "RepoTags": [image.name], "Layers": [layer.path()]}]);

    let mut tar = Builder::new(File::create(path)?);
    for blob in [&layer, &config, &manifest] {
        append(&mut tar, Path::new(&blob.path()), 0o644, &blob.bytes)?;
    }
    for (name, text) in [
        ("index.json", index.to_string()),
        ("manifest.json", list.to_string()),
        ("oci-layout", LAYOUT.to_owned()),
    ] {
        append(&mut tar, Path::new(name), 0o644, text.as_bytes())?;
    }
    tar.into_inner()?.flush()?;
    Ok(format!("sha256:{}", manifest.digest))
}

/// Merges archives of one image, each for another platform, into one archive at `path`: an image index that names the
/// image of each platform. The digest is that of the index.
///
/// # Errors
/// If an archive cannot be read or is for several platforms, or the new one cannot be written.
pub fn index(archives: &[PathBuf], path: &Path) -> Result<ImageArchive> {
    let (mut blobs, mut images, mut name) = (BTreeMap::new(), Vec::new(), None);
    for archive in archives {
        let reading = || format!("failed to read {}", archive.display());
        let mut tar = tar::Archive::new(File::open(archive).with_context(reading)?);
        for entry in tar.entries().with_context(reading)? {
            let mut entry = entry.with_context(reading)?;
            let place = entry
                .path()
                .with_context(reading)?
                .to_string_lossy()
                .into_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).with_context(reading)?;
            if place == "index.json" {
                let list: Value = serde_json::from_slice(&bytes).with_context(reading)?;
                let named = list["manifests"].as_array().map_or(&[][..], Vec::as_slice);
                ensure!(
                    named.len() == 1,
                    "{} has {} images",
                    archive.display(),
                    named.len()
                );
                let mut image = named[0].clone();
                let noted = image["annotations"].take();
                if let Some(fields) = image.as_object_mut() {
                    fields.remove("annotations");
                }
                ensure!(
                    name.is_none() || name.as_ref() == Some(&noted),
                    "{} is another image",
                    archive.display()
                );
                name = Some(noted);
                images.push(image);
            } else if place.starts_with("blobs/") {
                blobs.insert(place, bytes);
            }
        }
    }
    images.sort_by_key(|image| image["platform"]["architecture"].to_string());
    let list = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": images});
    let list = ImageBlob::new(list.to_string().into_bytes());
    let mut named = list.described("index.v1+json");
    named["annotations"] = name.context("there are no archives")?;
    let top = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [named]});
    blobs.insert(list.path(), list.bytes);
    blobs.insert("index.json".to_owned(), top.to_string().into_bytes());
    blobs.insert("oci-layout".to_owned(), LAYOUT.as_bytes().to_vec());
    let mut tar = Builder::new(File::create(path)?);
    for (place, bytes) in &blobs {
        append(&mut tar, Path::new(place), 0o644, bytes)?;
    }
    tar.into_inner()?.flush()?;
    Ok(ImageArchive {
        path: path.to_owned(),
        digest: format!("sha256:{}", list.digest),
    })
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn layer(files: &ImageFiles) -> Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    for folder in folders(files) {
        let mode = if folder == Path::new("tmp") {
            0o1777
        } else {
            0o755
        };
        let mut header = header(EntryType::Directory, mode, 0);
        tar.append_data(&mut header, folder, std::io::empty())?;
    }
    for (path, source) in &files.entries {
        let path = below_root(path);
        match source {
            FileSource::Text(text) => append(&mut tar, path, 0o644, text.as_bytes())?,
            FileSource::Script(text) => append(
                &mut tar,
                path,
                0o755,
                format!("#!/bin/sh\n{text}\n").as_bytes(),
            )?,
            FileSource::Link(to) => {
                tar.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, to)?;
            }
            FileSource::Copy(from) => {
                let mode = fs::metadata(from)?.permissions().mode() & 0o777;
                append(&mut tar, path, mode | 0o444, &fs::read(from)?)?;
            }
        }
    }
    Ok(tar.into_inner()?)
}

/// All parent folders of the files, outer ones first.
fn folders(files: &ImageFiles) -> BTreeSet<PathBuf> {
    let above = files
        .entries
        .keys()
        .flat_map(|path| below_root(path).ancestors().skip(1))
        .filter(|path| !path.as_os_str().is_empty());
    above
        .map(Path::to_owned)
        .chain(FOLDERS.map(PathBuf::from))
        .collect()
}

fn below_root(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn append<W: Write>(tar: &mut Builder<W>, path: &Path, mode: u32, bytes: &[u8]) -> Result<()> {
    let size = u64::try_from(bytes.len())?;
    tar.append_data(&mut header(EntryType::Regular, mode, size), path, bytes)?;
    Ok(())
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::Platform;

    /// An image with one script and one link.
    fn image() -> ContainerImage {
        image_for(Platform::Amd64)
    }

    fn image_for(platform: Platform) -> ContainerImage {
        let mut files = ImageFiles::of(platform);
        files.script(Path::new("/bin/hello"), "echo hello");
        files.text(Path::new("/etc/motd"), "hello");
        ContainerImage {
            name: "docker.io/apportion/hello:1.2.3",
            entrypoint: &["/bin/hello"],
            env: &["PATH=/bin"],
            labels: &[("org.opencontainers.image.title", "Hello")],
            files,
        }
    }

    fn entries(path: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut tar = tar::Archive::new(File::open(path).unwrap());
        tar.entries()
            .unwrap()
            .map(|entry: std::io::Result<tar::Entry<'_, File>>| {
                let mut entry = entry.unwrap();
                let name = entry.path().unwrap().display().to_string();
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
                (name, bytes)
            })
            .collect()
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [first, second] = folders.each_ref().map(|folder| {
            let packed = pack(&image(), folder.path()).unwrap();
            fs::read(packed.path).unwrap()
        });
        assert_eq!(first, second);
    }

    #[test]
    fn both_lists_name_what_is_there_by_its_digest() {
        let folder = tempfile::tempdir().unwrap();
        let ImageArchive { path, digest } = pack(&image(), folder.path()).unwrap();
        assert!(path.ends_with("apportion_hello_1.2.3.tar"));
        let entries = entries(&path);
        for (name, bytes) in &entries {
            if let Some(named) = name.strip_prefix("blobs/sha256/") {
                assert_eq!(named, super::digest(bytes));
            }
        }
        let json =
            |name: &str| -> serde_json::Value { serde_json::from_slice(&entries[name]).unwrap() };
        let at = |digest: &Value| {
            let digest = digest.as_str().unwrap().trim_start_matches("sha256:");
            format!("blobs/sha256/{digest}")
        };
        let named = &json("index.json")["manifests"][0]["digest"];
        assert_eq!(*named, *digest);
        let manifest = json(&at(named));
        let docker = &json("manifest.json")[0];
        assert_eq!(docker["Config"], at(&manifest["config"]["digest"]));
        assert_eq!(docker["Layers"][0], at(&manifest["layers"][0]["digest"]));
        let config = json(docker["Config"].as_str().unwrap());
        let labels = &config["config"]["Labels"];
        assert_eq!(labels["org.opencontainers.image.version"], "1.2.3");
        assert_eq!(labels["org.opencontainers.image.title"], "Hello");
    }

    #[test]
    fn an_index_names_the_image_of_each_platform_by_the_digest_that_it_has_alone() {
        let folder = tempfile::tempdir().unwrap();
        let alone = Platform::ALL.map(|platform| {
            let place = folder.path().join(platform.architecture());
            pack(&image_for(platform), &place).unwrap()
        });
        let archives = alone.each_ref().map(|archive| archive.path.clone());
        let both = index(&archives, &folder.path().join("both.tar")).unwrap();
        let entries = entries(&both.path);
        let json =
            |name: &str| -> serde_json::Value { serde_json::from_slice(&entries[name]).unwrap() };
        assert_eq!(json("index.json")["manifests"][0]["digest"], *both.digest);
        let list = json(&format!(
            "blobs/sha256/{}",
            both.digest.trim_start_matches("sha256:")
        ));
        for (place, (platform, archive)) in Platform::ALL.iter().zip(&alone).enumerate() {
            let named = &list["manifests"][place];
            assert_eq!(named["digest"], *archive.digest);
            assert_eq!(named["platform"]["architecture"], platform.architecture());
            let at = archive.digest.trim_start_matches("sha256:");
            let manifest = json(&format!("blobs/sha256/{at}"));
            let config = manifest["config"]["digest"].as_str().unwrap();
            let config = json(&format!(
                "blobs/sha256/{}",
                config.trim_start_matches("sha256:")
            ));
            assert_eq!(config["architecture"], platform.architecture());
        }
        assert!(index(&[], &folder.path().join("none.tar")).is_err());
    }
}
