//! The picture of the demonstration: its output as a terminal shows it.
//!
//! A test of the command line compares the text in the picture with the demonstration's output.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anstyle::{Color, RgbColor};
use anstyle_svg::{Palette, Term};
use anyhow::{Context, Result, bail};

use crate::stage;
use crate::workspace::Workspace;

const PICTURE: &str = "docs/images/demo.svg";
/// The lines above the output.
const TYPED: &str = "\x1b[1m$ apportion demo --sim\x1b[0m\n\n";
/// The height of the bar above the text.
const BAR: usize = 32;
/// Colours of text and background, readable on light and dark pages.
const FOREGROUND: RgbColor = RgbColor(0xd6, 0xdb, 0xe1);
const BACKGROUND: RgbColor = RgbColor(0x16, 0x1b, 0x22);
/// The colours that the demonstration uses, by number.
const COLOURS: [(usize, RgbColor); 4] = [
    (8, RgbColor(0x8b, 0x94, 0x9e)),
    (10, RgbColor(0x3f, 0xb9, 0x50)),
    (11, RgbColor(0xe3, 0xb3, 0x41)),
    (12, RgbColor(0x58, 0xa6, 0xff)),
];

/// Runs the demonstration on simulated cards and draws its output.
pub(crate) fn update(workspace: &Workspace) -> Result<()> {
    let staged = stage::build(workspace, false)?;
    let printed = demonstrate(&staged, &workspace.target.join("demo"))?;
    let picture = workspace.root.join(PICTURE);
    let folder = picture.parent().context("a picture has a folder")?;
    fs::create_dir_all(folder)?;
    fs::write(&picture, framed(&drawn(&printed))?)
        .with_context(|| format!("failed to write {PICTURE}"))
}

fn drawn(text: &str) -> String {
    let mut palette = [FOREGROUND; 16];
    for (number, colour) in COLOURS {
        palette[number] = colour;
    }
    let term = Term::new().palette(Palette(palette));
    // The frame draws the background.
    let term = term.fg_color(Color::Rgb(FOREGROUND)).background(false);
    term.render_svg(text)
}

/// What a person sees who types the command.
fn demonstrate(staged: &Path, folder: &Path) -> Result<String> {
    let programs = staged.join("bin");
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(
        [programs.clone()]
            .into_iter()
            .chain(env::split_paths(&path)),
    )?;
    let output = Command::new(programs.join("apportion"))
        .args(["demo", "--sim"])
        .env("PATH", path)
        // Its own agent and cards, whatever else runs here.
        .env("APPORTION_DIR", folder)
        .env("CLICOLOR_FORCE", "1")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("failed to start the demo")?;
    if !output.status.success() {
        bail!("the demo ended with {}", output.status);
    }
    Ok(format!("{TYPED}{}", String::from_utf8(output.stdout)?))
}

/// Puts a bar with three buttons above the text.
fn framed(text: &str) -> Result<String> {
    let size = |name: &str| -> Result<usize> {
        let begin = format!(" {name}=\"");
        let value = text
            .split_once(&begin)
            .and_then(|(_, rest)| rest.split("px\"").next());
        let value = value.and_then(|value| value.parse().ok());
        value.with_context(|| format!("the drawing has no {name}"))
    };
    let (width, height) = (size("width")?, size("height")? + BAR);
    let inner = text.replacen("<svg ", &format!("<svg y=\"{BAR}\" "), 1);
    let buttons = [("#ff5f57", 20), ("#febc2e", 40), ("#28c840", 60)];
    let buttons = buttons
        .map(|(color, x)| format!("  <circle cx=\"{x}\" cy=\"18\" r=\"6\" fill=\"{color}\"/>\n"));
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}px\" height=\"{height}px\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"The demo in a terminal\">\n  \
         <rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\" fill=\"#{:02x}{:02x}{:02x}\" \
         stroke=\"#484f58\"/>\n{}{}</svg>\n",
        width - 1,
        height - 1,
        BACKGROUND.r(),
        BACKGROUND.g(),
        BACKGROUND.b(),
        buttons.concat(),
        inner.trim_start(),
    ))
}
