//! The book, built by mdBook.
//!
//! mdBook gets a copy of the pages. In the copy, diagrams are pictures. Links to files that are not in the book are
//! plain text, because only the repository has those files.

use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::diagrams;
use super::page::{BOOK, DocsPage};
use crate::workspace::Workspace;

/// Builds it into `book` in the target folder. A warning is an error.
pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    let copy = workspace.target.join("book-source");
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    let docs = workspace.root.join(BOOK);
    copy_pages(&docs, Path::new(""), &copy)?;
    let book = workspace.target.join("book");
    let output = Command::new("mdbook")
        .arg("build")
        .arg(&copy)
        .arg("--dest-dir")
        .arg(&book)
        .output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("mdbook is missing; hint: cargo install --locked mdbook")
        }
        output => output.context("failed to start mdbook")?,
    };
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    let warnings: Vec<&str> = printed
        .lines()
        .filter(|line| line.contains("WARN"))
        .collect();
    if !output.status.success() || !warnings.is_empty() {
        bail!("mdbook complains:\n{printed}");
    }
    println!("{}", book.join("index.html").display());
    Ok(())
}

/// Copies everything below `folder` of the book.
fn copy_pages(docs: &Path, folder: &Path, copy: &Path) -> Result<()> {
    fs::create_dir_all(copy.join(folder))?;
    let shown = docs.join(folder);
    let entries =
        fs::read_dir(&shown).with_context(|| format!("failed to read {}", shown.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_pages(docs, &path, copy)?;
        } else if path.extension().is_some_and(|end| end == "md") {
            let text = fs::read_to_string(entry.path())?;
            fs::write(copy.join(&path), in_book(&path, &text))?;
        } else {
            fs::copy(entry.path(), copy.join(&path))?;
        }
    }
    Ok(())
}

/// A page as the book gets it. `path` is its path in the book.
fn in_book(path: &Path, text: &str) -> String {
    let page = DocsPage::read(text);
    let mut changes: Vec<(Range<usize>, String)> = Vec::new();
    let folder = path.parent().unwrap_or(Path::new(""));
    let up = "../".repeat(folder.components().count());
    for block in page
        .blocks
        .iter()
        .filter(|block| block.language == diagrams::LANGUAGE)
    {
        let picture = format!(
            "![Diagram]({up}{}/{})",
            diagrams::FOLDER,
            diagrams::name(&block.text)
        );
        changes.push((block.range.clone(), picture));
    }
    for link in &page.links {
        let Some(range) = link.range.clone().filter(|_| leads_out(folder, &link.to)) else {
            continue;
        };
        let words = text[range.clone()]
            .strip_prefix('[')
            .and_then(|link| link.rsplit_once("]("));
        if let Some((words, _)) = words {
            changes.push((range, words.to_owned()));
        }
    }
    changes.sort_by_key(|(range, _)| range.start);
    let mut new = text.to_owned();
    for (range, change) in changes.into_iter().rev() {
        new.replace_range(range, &change);
    }
    new
}

/// Whether a link on a page in this folder leads out of the book into the repository.
fn leads_out(folder: &Path, to: &str) -> bool {
    let file = to.split('#').next().unwrap_or_default();
    if file.contains(':') || file.is_empty() {
        return false;
    }
    within(&folder.join(file)).is_none()
}

/// The path without `..`; `None` if it leads out of its start.
pub(crate) fn within(path: &Path) -> Option<PathBuf> {
    let mut within = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => within.push(name),
            Component::ParentDir if within.pop() => {}
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_are_text_and_others_stay() {
        let text = "[a](../b.md#c), [d](../../examples/d.yaml), [e](https://e.org) and [f](#f)\n";
        let new = in_book(Path::new("kubernetes/install.md"), text);
        assert_eq!(new, "[a](../b.md#c), d, [e](https://e.org) and [f](#f)\n");
    }

    #[test]
    fn diagrams_are_pictures() {
        let text = "one\n\n```mermaid\nflowchart LR\n```\n\ntwo\n";
        let new = in_book(Path::new("a/b.md"), text);
        let name = diagrams::name("flowchart LR\n");
        assert_eq!(
            new,
            format!("one\n\n![Diagram](../images/diagrams/{name})\n\ntwo\n")
        );
    }
}
