//! Checks every Markdown page in the repository: its links work, and the book contains all of its pages.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::book::within;
use super::page::{BOOK, DocsPage, pages, text};

/// The maximum size of README.md, in bytes.
const README: u64 = 8192;
/// Folders that are generated or belong to somebody else.
const LEFT_OUT: [&str; 3] = ["target", "node_modules", "__pycache__"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The pages below a folder, by their paths from the root.
fn markdown(root: &Path, folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(folder)).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = folder.join(&name);
        let is_hidden = name.starts_with('.') && name != ".github";
        if entry.file_type().unwrap().is_dir() && !is_hidden && !LEFT_OUT.contains(&&*name) {
            found.extend(markdown(root, &path));
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The broken links of these pages, one sentence each.
fn broken(root: &Path, paths: &[PathBuf]) -> Vec<String> {
    let all: BTreeMap<PathBuf, DocsPage> = paths
        .iter()
        .map(|path| (path.clone(), DocsPage::read(&text(root, path).unwrap())))
        .collect();
    let mut broken = Vec::new();
    for (path, page) in &all {
        for link in &page.links {
            if let Some(why) = wrong(root, &all, path, &link.to) {
                broken.push(format!("{}: {} {why}", path.display(), link.to));
            }
        }
    }
    broken
}

/// Why a link of a page is broken, if it is.
fn wrong(
    root: &Path,
    all: &BTreeMap<PathBuf, DocsPage>,
    from: &Path,
    to: &str,
) -> Option<&'static str> {
    let (file, anchor) = to.split_once('#').unwrap_or((to, ""));
    if file.contains(':') || file.starts_with("//") {
        return None;
    }
    let folder = from.parent().unwrap_or(Path::new(""));
    let target = match file {
        "" => from.to_owned(),
        file => match within(&folder.join(file.replace("%20", " "))) {
            Some(target) => target,
            None => return Some("leads out of the repository"),
        },
    };
    if !root.join(&target).exists() {
        return Some("leads to no file");
    }
    match all.get(&target) {
        Some(page) if !anchor.is_empty() && !page.anchors.iter().any(|known| known == anchor) => {
            Some("leads to no heading")
        }
        _ => None,
    }
}

#[test]
fn every_link_leads_somewhere() {
    let root = root();
    let broken = broken(&root, &markdown(&root, Path::new("")));
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_book_has_every_page() {
    let root = root();
    let listed = pages(&root).unwrap();
    let there = markdown(&root, Path::new(BOOK));
    let missing: Vec<_> = there
        .iter()
        .filter(|path| !path.ends_with("SUMMARY.md"))
        .filter(|path| !listed.contains(path))
        .collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

#[test]
fn the_readme_is_a_front_page() {
    let length = fs::metadata(root().join("README.md")).unwrap().len();
    assert!(
        length <= README,
        "README.md has {length} bytes of at most {README}; the rest belongs into docs/"
    );
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let root = std::env::temp_dir().join(format!("links-{}", std::process::id()));
    fs::create_dir_all(root.join("docs")).unwrap();
    fs::write(
        root.join("README.md"),
        "# One\n[a](docs/a.md#two) [b](docs/b.md) [c](#one) [d](#two)\n",
    )
    .unwrap();
    fs::write(
        root.join("docs/a.md"),
        "# A\n## Two\n[r](../README.md#one) [x](../../x) [h](https://x.org#y)\n",
    )
    .unwrap();
    let found = broken(&root, &markdown(&root, Path::new("")));
    fs::remove_dir_all(&root).unwrap();
    assert_eq!(
        found,
        [
            "README.md: docs/b.md leads to no file",
            "README.md: #two leads to no heading",
            "docs/a.md: ../../x leads out of the repository",
        ]
    );
}
