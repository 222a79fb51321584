//! A Markdown page: its headings, links and code blocks, and their positions in the text.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// The folder of the book, and its table of contents.
pub(crate) const BOOK: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";

/// The contents of a page.
#[derive(Debug, Default)]
pub(crate) struct DocsPage {
    /// The anchors that a link can name.
    pub(crate) anchors: Vec<String>,
    pub(crate) links: Vec<PageLink>,
    pub(crate) blocks: Vec<FencedCode>,
}

/// A link or a picture.
#[derive(Debug)]
pub(crate) struct PageLink {
    /// The file and the anchor, as written.
    pub(crate) to: String,
    /// Its position; `None` if it is in HTML.
    pub(crate) range: Option<Range<usize>>,
}

/// A fenced code block.
#[derive(Debug)]
pub(crate) struct FencedCode {
    /// The first word after the fence.
    pub(crate) language: String,
    pub(crate) text: String,
    pub(crate) range: Range<usize>,
}

impl DocsPage {
    /// Parses the text of a page.
    pub(crate) fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut known = BTreeMap::new();
        let mut heading: Option<String> = None;
        let mut is_in_block = false;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = anchor(&heading.take().unwrap_or_default());
                    page.anchors.push(numbered(&mut known, anchor));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(PageLink {
                        to: dest_url.into_string(),
                        range: Some(range),
                    });
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    is_in_block = true;
                    let language = info.split_whitespace().next().unwrap_or_default();
                    page.blocks.push(FencedCode {
                        language: language.to_owned(),
                        text: String::new(),
                        range,
                    });
                }
                Event::End(TagEnd::CodeBlock) => is_in_block = false,
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    } else if let Some(block) = page.blocks.last_mut().filter(|_| is_in_block) {
                        block.text.push_str(&text);
                    }
                }
                Event::Html(html) | Event::InlineHtml(html) => page.enter(&html),
                _ => {}
            }
        }
        page
    }

    /// Records the links and the anchors of an HTML tag.
    fn enter(&mut self, html: &str) {
        for attribute in ["src", "href", "srcset"] {
            self.links
                .extend(values(html, attribute).map(|to| PageLink {
                    to: to.to_owned(),
                    range: None,
                }));
        }
        for attribute in ["id", "name"] {
            self.anchors
                .extend(values(html, attribute).map(str::to_owned));
        }
    }
}

/// The values of an attribute in HTML tags.
fn values<'a>(html: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {attribute}=\"");
    let starts: Vec<usize> = html
        .match_indices(&begin)
        .map(|(at, found)| at + found.len())
        .collect();
    starts
        .into_iter()
        .filter_map(|start| html[start..].split('"').next())
}

/// The anchor that GitHub and mdBook give a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        _ if letter.is_alphanumeric() || matches!(letter, '-' | '_') => Some(letter),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// Numbers the second and later headings of the same name.
fn numbered(known: &mut BTreeMap<String, usize>, anchor: String) -> String {
    let count = known.entry(anchor.clone()).or_default();
    *count += 1;
    match *count - 1 {
        0 => anchor,
        number => format!("{anchor}-{number}"),
    }
}

/// The pages of the book in order, relative to the repository's root.
pub(crate) fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let links = DocsPage::read(&text(root, Path::new(SUMMARY))?).links;
    Ok(links
        .iter()
        .map(|link| Path::new(BOOK).join(&link.to))
        .collect())
}

/// The text of a page.
pub(crate) fn text(root: &Path, page: &Path) -> Result<String> {
    fs::read_to_string(root.join(page))
        .with_context(|| format!("failed to read {}", page.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_are_called_as_github_calls_them() {
        let page = DocsPage::read("# `apportion run`\n## What's *new*, in 0.2?\n### A_b\n## A_b\n");
        let anchors = ["apportion-run", "whats-new-in-02", "a_b", "a_b-1"];
        assert_eq!(page.anchors, anchors);
    }

    #[test]
    fn links_are_found_in_text_and_tags_and_not_in_code() {
        let text = "[a](b.md#c) ![d](e.svg) `[x](y)`\n\n<img src=\"f.svg\" alt=\"\">\n\n```sh\n[x](y)\n```\n";
        let page = DocsPage::read(text);
        let found: Vec<_> = page.links.iter().map(|link| link.to.as_str()).collect();
        assert_eq!(found, ["b.md#c", "e.svg", "f.svg"]);
        assert_eq!(page.blocks[0].language, "sh");
        assert_eq!(page.blocks[0].text, "[x](y)\n");
    }
}
