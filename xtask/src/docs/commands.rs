//! The commands that readers are told to type. CI runs them in this order.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use super::page::{DocsPage, pages, text};

/// The language of blocks with commands.
const LANGUAGE: &str = "console";

/// The commands of README.md and of the pages in order, each once.
pub(crate) fn all(root: &Path) -> Result<Vec<String>> {
    let mut known = BTreeSet::new();
    let mut commands = Vec::new();
    for page in [Path::new("README.md").to_owned()]
        .into_iter()
        .chain(pages(root)?)
    {
        let found = of(&DocsPage::read(&text(root, &page)?));
        commands.extend(
            found
                .into_iter()
                .filter(|command| known.insert(command.clone())),
        );
    }
    Ok(commands)
}

/// The lines with a prompt. A line that ends with a backslash continues on the next.
fn of(page: &DocsPage) -> Vec<String> {
    let mut commands = Vec::new();
    let blocks = page
        .blocks
        .iter()
        .filter(|block| block.language == LANGUAGE);
    for block in blocks {
        let mut goes_on = false;
        for line in block.text.lines() {
            let (part, begins) = match line.strip_prefix("$ ") {
                Some(command) => (command, true),
                None if goes_on => (line.trim_start(), false),
                None => continue,
            };
            goes_on = part.ends_with('\\');
            let part = part.trim_end_matches('\\');
            match commands.last_mut() {
                Some(last) if !begins => *last = format!("{last}{part}"),
                _ => commands.push(part.to_owned()),
            }
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn commands_have_a_prompt_and_their_output_has_none() {
        let text = "```console\n$ one\nits output\n$ two \\\n    --long\noutput\n```\n```sh\n$ three\n```\n\
                    - item\n\n  ```console\n  $ four\n  ```\n";
        assert_eq!(of(&DocsPage::read(text)), ["one", "two --long", "four"]);
    }

    #[test]
    fn a_command_is_listed_where_it_is_first() {
        let root = std::env::temp_dir().join(format!("commands-{}", std::process::id()));
        fs::create_dir_all(root.join("docs")).unwrap();
        let write = |path: &str, text: &str| fs::write(root.join(path), text).unwrap();
        write("README.md", "```console\n$ a\n$ b\n```\n");
        write("docs/SUMMARY.md", "# Summary\n\n- [Y](y.md)\n- [X](x.md)\n");
        write("docs/x.md", "```console\n$ c\n```\n");
        write("docs/y.md", "```console\n$ b\n$ d\n```\n");
        let commands = all(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(commands, ["a", "b", "d", "c"]);
    }
}
