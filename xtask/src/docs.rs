//! `cargo xtask docs`: the book in `docs`, the parts of it that are generated from the code, and the commands on its
//! pages.
//!
//! The pages are plain Markdown, as GitHub shows it. mdBook builds the book; people and CI install it.
//!
//! # Decision: diagrams are Mermaid in the pages and pictures in the book
//! GitHub draws Mermaid and mdBook does not. A Mermaid preprocessor is one more program that everybody has to build,
//! and it gives each reader three megabytes of JavaScript. So `--update` draws a diagram when it changes, with
//! Mermaid's own program, and the picture is committed. The book shows the picture in place of the block. Node and a
//! browser are only needed to change a diagram.

use anyhow::Result;
use clap::Args;

use crate::workspace::Workspace;

mod book;
mod commands;
mod diagrams;
#[cfg(test)]
mod links;
mod page;
mod picture;
mod reference;
#[cfg(test)]
mod symptoms;

/// What to do with the book.
#[derive(Args)]
pub(crate) struct DocsOptions {
    /// Write the generated parts again: the reference, the picture of the demo and the diagrams.
    #[arg(long, conflicts_with = "commands")]
    update: bool,
    /// Print the commands of README.md and of the pages in order, each once.
    #[arg(long)]
    commands: bool,
}

/// Builds the book, or does what the options say instead.
pub(crate) fn perform(workspace: &Workspace, options: &DocsOptions) -> Result<()> {
    if options.commands {
        for command in commands::all(&workspace.root)? {
            println!("{command}");
        }
        return Ok(());
    }
    if options.update {
        reference::update(workspace)?;
        picture::update(workspace)?;
        return diagrams::update(workspace);
    }
    book::build(workspace)
}
