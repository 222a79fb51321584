//! The pictures of the diagrams. A picture's name is a hash of the diagram's text.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail};

use crate::steps::typed;
use crate::workspace::Workspace;

use super::page::{BOOK, DocsPage, pages, text};

/// The language of a diagram.
pub(crate) const LANGUAGE: &str = "mermaid";
/// The folder of the pictures, below that of the book.
pub(crate) const FOLDER: &str = "images/diagrams";

/// Labels are text and not HTML, because some image viewers do not support HTML there.
const SETTINGS: &str = r#"{"theme": "neutral", "htmlLabels": false, "flowchart": {"htmlLabels": false}, "fontFamily": "sans-serif"}"#;
/// Only our own diagrams are drawn. Chromium has no sandbox as root.
const BROWSER: &str = r#"{"args": ["--no-sandbox"]}"#;

/// The file name of a diagram's picture. A changed diagram gets another name.
pub(crate) fn name(diagram: &str) -> String {
    // FNV-1a, because it never changes.
    let hash = diagram
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{hash:016x}.svg")
}

/// Every diagram of the book, by the name of its picture.
fn all(root: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for page in pages(root)? {
        let blocks = DocsPage::read(&text(root, &page)?).blocks.into_iter();
        let diagrams = blocks.filter(|block| block.language == LANGUAGE);
        found.extend(diagrams.map(|block| (name(&block.text), block.text)));
    }
    Ok(found)
}

fn pictures(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.join(BOOK).join(FOLDER));
    entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

/// Draws the diagrams that have no picture, and removes pictures without a diagram.
pub(crate) fn update(workspace: &Workspace) -> Result<()> {
    let root = &workspace.root;
    let wanted = all(root)?;
    for path in pictures(root) {
        let is_wanted = path
            .file_name()
            .is_some_and(|name| wanted.contains_key(&*name.to_string_lossy()));
        if !is_wanted {
            fs::remove_file(&path)
                .with_context(|| format!("failed to remove {}", path.display()))?;
        }
    }
    for (name, diagram) in wanted {
        let path = root.join(BOOK).join(FOLDER).join(name);
        if !path.exists() {
            fs::create_dir_all(path.parent().context("a picture has a folder")?)?;
            fs::write(&path, draw(&diagram, &workspace.target.join("diagram"))?)?;
        }
    }
    Ok(())
}

/// Draws a diagram with Mermaid's own program, which needs Node and a browser.
fn draw(diagram: &str, folder: &Path) -> Result<String> {
    let [input, output, settings, browser] =
        ["in.mmd", "out.svg", "settings.json", "browser.json"].map(|name| folder.join(name));
    fs::create_dir_all(folder)?;
    fs::write(&input, diagram)?;
    fs::write(&settings, SETTINGS)?;
    fs::write(&browser, BROWSER)?;
    let mut command = Command::new(env::var_os("MMDC").unwrap_or_else(|| "mmdc".into()));
    command
        .arg("--input")
        .arg(&input)
        .arg("--output")
        .arg(&output);
    command.arg("--configFile").arg(&settings);
    command.arg("--puppeteerConfigFile").arg(&browser);
    command.args(["--backgroundColor", "white", "--quiet"]);
    match command.status() {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "mmdc is missing, which draws diagrams; hint: npm install -g @mermaid-js/mermaid-cli, \
             or name it in MMDC, and a browser in PUPPETEER_EXECUTABLE_PATH"
        ),
        status if !status.as_ref().is_ok_and(ExitStatus::success) => {
            bail!("{} ended with {status:?}", typed(&command))
        }
        _ => {}
    }
    let drawn = fs::read_to_string(&output)?;
    Ok(drawn.trim_end().to_owned() + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_diagram_has_its_picture() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let wanted = all(&root).unwrap();
        let there: Vec<String> = pictures(&root)
            .iter()
            .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect();
        let missing: Vec<_> = wanted
            .iter()
            .filter(|(name, _)| !there.contains(name))
            .collect();
        assert!(
            missing.is_empty(),
            "run cargo xtask docs --update; no picture of {missing:?}"
        );
        let unused: Vec<_> = there
            .iter()
            .filter(|name| !wanted.contains_key(*name))
            .collect();
        assert!(
            unused.is_empty(),
            "run cargo xtask docs --update; of no diagram: {unused:?}"
        );
    }
}
