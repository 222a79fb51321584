//! Checks that the messages on the page of symptoms are real messages of the programs, so that a search finds them.

use std::fs;
use std::path::{Path, PathBuf};

use super::page::{BOOK, text};

/// Messages of Kubernetes and of container runtimes.
const FOREIGN: [&str; 5] = [
    "connection refused",
    "no such file",
    "violates PodSecurity",
    "unresolvable CDI devices apportion.dev/grant=…",
    "pods \"NAME\" not found",
];
/// The start of a message of kube-scheduler.
const KUBE_SCHEDULER: &str = "0/N nodes are available";

/// Collects the words of all program sources and of the chart, in order and without placeholders.
fn collect_texts(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_source = ["rs", "yaml", "tpl", "txt"]
            .iter()
            .any(|end| path.extension().is_some_and(|is| is == *end));
        if entry.file_type().unwrap().is_dir() {
            if !name.starts_with('.') && !["target", "tests", "node_modules"].contains(&&*name) {
                collect_texts(&path, all);
            }
        } else if is_source && name != "symptoms.rs" {
            all.push_str(&words(&fs::read_to_string(&path).unwrap()));
            all.push('\n');
        }
    }
}

/// The words of a source. A string that continues on the next line is one string, and a placeholder (`{name}`)
/// separates words.
fn words(source: &str) -> String {
    let mut words = String::new();
    let mut rest = source.chars().peekable();
    while let Some(char) = rest.next() {
        match char {
            '\\' if rest.peek() == Some(&'\n') => {
                while rest.next_if(|next| next.is_whitespace()).is_some() {}
            }
            '{' => {
                words.push('\0');
                let mut inner = String::new();
                while let Some(next) = rest.next_if(|next| !"{}\n\" ".contains(*next)) {
                    inner.push(next);
                }
                if rest.next_if_eq(&'}').is_none() {
                    words.push_str(&inner);
                }
            }
            _ => words.push(char),
        }
    }
    words
}

/// Whether a word of a quotation is a placeholder: `NAME`, `N`, `GPU-…`, a number, a file, an address.
fn is_placeholder(word: &str) -> bool {
    let letters: Vec<char> = word.chars().filter(|char| char.is_alphabetic()).collect();
    let is_name = !letters.is_empty() && letters.iter().all(|char| char.is_uppercase());
    is_name && !["GPU", "GPUs", "CDI", "NUMA", "NVIDIA", "CPU", "API", "MiB"].contains(&word)
        || word.contains('…')
        || word.contains(['/', '.'])
        || word == "hint"
        || word.starts_with(|char: char| char.is_ascii_digit())
}

/// The parts of a quotation between its placeholders that have at least two words.
fn parts(quotation: &str) -> Vec<String> {
    let mut parts = vec![Vec::new()];
    for word in quotation.split_whitespace() {
        let bare = word.trim_matches(|char| "(),;:'\"".contains(char));
        if is_placeholder(bare) {
            parts.push(Vec::new());
        } else {
            parts.last_mut().unwrap().push(word);
        }
        // A message may be composed of several.
        if word.ends_with([':', ';']) {
            parts.push(Vec::new());
        }
    }
    let long = parts.into_iter().filter(|part| part.len() > 1);
    long.map(|part| part.join(" ")).collect()
}

/// The quotations in the first column of a page's tables, with their line numbers.
fn quotations(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in page.lines().enumerate() {
        let Some(row) = line.strip_prefix("| ") else {
            continue;
        };
        let first = row.split(" | ").next().unwrap();
        for quotation in first.split('`').skip(1).step_by(2) {
            found.push((index + 1, quotation.to_owned()));
        }
    }
    found
}

/// The quotations of a page that no program prints.
fn unknown(page: &str, collect_texts: &str) -> Vec<String> {
    let found = quotations(page).into_iter();
    found
        .filter(|(_, quotation)| {
            !FOREIGN.contains(&quotation.as_str()) && !quotation.starts_with(KUBE_SCHEDULER)
        })
        .filter_map(|(line, quotation)| {
            let part = parts(&quotation).into_iter().find(|part| {
                !collect_texts.contains(part.trim_matches(|char| ",;:'\"".contains(char)))
            })?;
            Some(format!(
                "line {line}: no program says {part:?} (`{quotation}`)"
            ))
        })
        .collect()
}

#[test]
fn the_symptoms_are_what_the_programs_say() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut all = String::new();
    collect_texts(&root, &mut all);
    let page = text(&root, &Path::new(BOOK).join("troubleshooting.md")).unwrap();
    let unknown = unknown(&page, &all);
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}

#[test]
fn a_message_that_was_reworded_is_found() {
    let collect_texts = words("\"pod {name} has no \\\n    share of {count} GPUs\" { \"a\" }");
    let page =
        "| `pod X has no share of 3 GPUs` | why |\n| `pod X holds a slot` | why |\n| `field` |\n";
    assert_eq!(
        unknown(page, &collect_texts),
        ["line 2: no program says \"holds a slot\" (`pod X holds a slot`)"]
    );
}
