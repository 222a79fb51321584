//! `cargo xtask docs`: the book in `docs`, the parts of it that are made from the code, and the commands that it
//! promises.
//!
//! The pages are plain Markdown that GitHub shows as it is. mdBook, which people and CI install, makes the book.
//!
//! # Decision: diagrams are Mermaid in the pages and pictures in the book
//! GitHub draws Mermaid and mdBook does not. The preprocessor for that is one more program that everybody has to build,
//! and it gives each reader three megabytes of JavaScript. So `--update` draws a diagram when it changes, with Mermaid's
//! own program, and the picture is committed. The book gets the picture in place of the block. Only who changes a
//! diagram needs Node and a browser.

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
    /// Write what is made from the code anew: the reference, the picture of the demo and the diagrams.
    #[arg(long, conflicts_with = "commands")]
    update: bool,
    /// Print the commands of README.md and of the pages, in their order, each once.
    #[arg(long)]
    commands: bool,
}

/// Builds the book, or does what is asked in its place.
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
