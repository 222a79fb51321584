//! The scheduler's pages show what the program prints: each command in a `console` block, and the `text` block that
//! follows it.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The pages, and the number of commands on each.
const PAGES: &[(&str, usize)] = &[("fair-share.md", 2), ("simulate.md", 4)];

/// If this is set, the output is written to the pages and not compared (`cargo xtask docs --update`).
const UPDATE: &str = "APPORTION_UPDATE_REFERENCE";

/// The commands of one block, and the output that is shown below them.
#[derive(Debug, Default)]
struct PageExample {
    commands: Vec<String>,
    /// `None` if the page shows no output.
    output: Option<String>,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The examples of a page. A `text` block belongs to the `console` block before it if there are only empty lines
/// between.
fn examples(page: &str) -> Vec<PageExample> {
    let mut examples: Vec<PageExample> = Vec::new();
    let mut fence = None;
    let mut is_next = false;
    for line in page.lines() {
        match (fence, line.strip_prefix("```")) {
            (None, Some("console")) => {
                examples.push(PageExample::default());
                (fence, is_next) = (Some("console"), true);
            }
            (None, Some("text")) if is_next => {
                examples.last_mut().unwrap().output = Some(String::new());
                (fence, is_next) = (Some("text"), false);
            }
            (None, Some(_)) => (fence, is_next) = (Some("other"), false),
            (None, None) => is_next &= line.is_empty(),
            (Some(_), Some(_)) => fence = None,
            (Some("console"), None) => {
                let command = line.strip_prefix("$ ").unwrap().to_owned();
                examples.last_mut().unwrap().commands.push(command);
            }
            (Some("text"), None) => {
                let output = examples.last_mut().unwrap().output.as_mut().unwrap();
                output.push_str(line);
                output.push('\n');
            }
            (Some(_), None) => {}
        }
    }
    examples
}

/// Output in the form that pages have.
fn block(output: &str) -> String {
    format!("```text\n{output}```\n")
}

fn printed(command: &str) -> String {
    let mut words = command.split_whitespace();
    assert_eq!(words.next(), Some("apportion-scheduler"), "{command}");
    let output = Command::new(env!("CARGO_BIN_EXE_apportion-scheduler"))
        .args(words)
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(output.status.success(), "{command}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_pages_show_what_the_program_prints() {
    let is_update = std::env::var_os(UPDATE).is_some();
    for (page, count) in PAGES {
        let path = repository().join("docs/scheduler").join(page);
        let text = std::fs::read_to_string(&path).unwrap();
        let mut new = text.clone();
        let mut commands = 0;
        for example in examples(&text) {
            commands += example.commands.len();
            let all: String = example.commands.iter().map(|one| printed(one)).collect();
            if let Some(output) = example.output {
                if is_update {
                    new = new.replacen(&block(&output), &block(&all), 1);
                    continue;
                }
                assert_eq!(all, output, "{page}: {:?}", example.commands);
            }
        }
        assert_eq!(commands, *count, "{page}");
        if new != text {
            std::fs::write(path, new).unwrap();
        }
    }
}
