//! Checks the reference pages of the book, `docs/reference`, against the code.
//!
//! A page is prose with parts that tests generate from the code: a command line, a list of metrics, a schema. A part is
//! between two comments that are invisible in the rendered page:
//!
//! ```text
//! <!-- begin generated: metrics of the agent -->
//! <!-- end generated -->
//! ```
//!
//! Each test generates one part and [compares](hold) it with the page. `cargo xtask docs --update` runs the same tests
//! and rewrites the parts. Only tests use this crate: no program contains it.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};

mod command;
mod metrics;
mod privileges;
mod table;

pub use command::{HeadingDepth, commands, options};
pub use metrics::{DocumentedMetric, metrics, served};
pub use privileges::ProcessPrivileges;
pub use table::{cell, code, table};

/// If this is set, parts are written instead of compared.
const UPDATE: &str = "APPORTION_UPDATE_REFERENCE";
/// The end marker of every part.
const END: &str = "<!-- end generated -->";

/// Compares a part of a page with its generated text, or updates it.
///
/// # Panics
/// If the page has another text, or no such part.
pub fn hold(page: &str, part: &str, fresh: &str) {
    let path = folder().join(format!("{page}.md"));
    let shown = path.display();
    // Tests of one page run in parallel, and each rewrites the whole page.
    let lock = File::open(&path).unwrap_or_else(|error| panic!("failed to open {shown}: {error}"));
    lock.lock().expect("a file can be locked");
    let text = fs::read_to_string(&path).expect("the page is UTF-8");
    let new =
        with_part(&text, part, fresh).unwrap_or_else(|| panic!("{shown} has no part \"{part}\""));
    if std::env::var_os(UPDATE).is_some() {
        if new != text {
            fs::write(&path, new).expect("the page can be written");
        }
        return;
    }
    assert!(
        new == text,
        "{shown} is stale in \"{part}\"; run cargo xtask docs --update"
    );
}

/// The folder of the pages.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference")
}

/// The current text of a part.
#[must_use]
pub fn part<'a>(text: &'a str, part: &str) -> Option<&'a str> {
    let begin = begin(part);
    let from = text.find(&begin)? + begin.len();
    let to = from + text[from..].find(END)?;
    Some(text[from..to].trim())
}

fn begin(part: &str) -> String {
    format!("<!-- begin generated: {part} -->")
}

fn with_part(text: &str, part: &str, fresh: &str) -> Option<String> {
    let begin = begin(part);
    let from = text.find(&begin)? + begin.len();
    let to = from + text[from..].find(END)?;
    let fresh = fresh.trim();
    Some(format!("{}\n\n{fresh}\n\n{}", &text[..from], &text[to..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_replaced_and_the_rest_is_left_alone() {
        let page = "# P\n<!-- begin generated: a -->\nold\n<!-- end generated -->\n\
                    <!-- begin generated: b -->\nmine\n<!-- end generated -->\n";
        let new = with_part(page, "a", "new\n").unwrap();
        assert_eq!(part(&new, "a"), Some("new"));
        assert_eq!(part(&new, "b"), Some("mine"));
        assert!(new.starts_with("# P\n") && new.ends_with("<!-- end generated -->\n"));
        assert_eq!(with_part(&new, "a", "new").as_ref(), Some(&new));
        assert_eq!(with_part(page, "c", "new"), None);
    }
}
