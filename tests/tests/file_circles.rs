//! No file of these crates imports itself by way of others.
//!
//! A type that two files need lies in a third one that both import. Imports are read as text: `use` and paths that begin
//! with `crate`, `super` or `self`, outside of test modules. Methods do not count, so an `impl` of a type may lie in any
//! file that imports the type.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates, by the folders of their sources.
const CRATES: &[&str] = &[
    "apportion/probe/src",
    "benches/api/src",
    "cuda-intercept/gate/src",
    "cuda-intercept/src",
    "node-agent/cgroup/src",
    "node-agent/ledger/src",
    "node-agent/nri/src",
    "node-agent/src",
    "proto/bounded/src",
    "proto/crds/src",
    "proto/kubernetes/src",
    "proto/src",
    "runtime-class/src",
    "scheduler-shim/explain/src",
    "scheduler-shim/model/src",
    "scheduler-shim/policy/src",
    "sim/daemon/src",
    "sim/nvml/src",
    "tests/conformance/src",
];

/// A module's path below the crate, such as `["kubelet", "poll"]`; the crate's root is empty.
type ModulePath = Vec<String>;

/// Which modules each module imports.
type Imports = BTreeMap<ModulePath, BTreeSet<ModulePath>>;

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the crate is there").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

fn module_of(root: &Path, file: &Path) -> ModulePath {
    let below = file
        .strip_prefix(root)
        .expect("it lies below")
        .with_extension("");
    let parts = below.iter().map(|part| part.to_string_lossy().into_owned());
    let parts: ModulePath = parts.collect();
    match parts.last().map(String::as_str) {
        Some("lib" | "main") => Vec::new(),
        _ => parts,
    }
}

/// Without comments, and without what follows the first test module.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = text.lines();
    let lines = lines.filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The paths that begin here, with lists of names spread out: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths(text: &str) -> Vec<ModulePath> {
    let end = text.find(|of: char| !of.is_alphanumeric() && of != '_');
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    let Some(rest) = rest.strip_prefix("::") else {
        return vec![vec![name.to_owned()]];
    };
    let below = match rest.strip_prefix('{') {
        Some(list) => entries(list).into_iter().flat_map(paths).collect(),
        None => paths(rest),
    };
    let below = below.into_iter();
    below
        .map(|path: ModulePath| [vec![name.to_owned()], path].concat())
        .collect()
}

/// The entries of a list, up to its closing brace.
fn entries(list: &str) -> Vec<&str> {
    let (mut depth, mut begun, mut found) = (0, 0, Vec::new());
    for (at, of) in list.char_indices() {
        match of {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.push(list[begun..at].trim());
                return found;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(list[begun..at].trim());
                begun = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// The module that a path in `module` leads to: the deepest one that has a file.
fn target(
    module: &ModulePath,
    path: &[String],
    known: &BTreeSet<ModulePath>,
) -> Option<ModulePath> {
    let mut at = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => module.clone(),
        "super" => module.split_last()?.1.to_vec(),
        child => [module.clone(), vec![child.to_owned()]].concat(),
    };
    if !known.contains(&at) {
        return None;
    }
    for part in &path[1..] {
        let next = match part.as_str() {
            "super" => at.split_last()?.1.to_vec(),
            _ => [at.clone(), vec![part.clone()]].concat(),
        };
        if !known.contains(&next) {
            break;
        }
        at = next;
    }
    Some(at)
}

fn imports(root: &Path) -> Imports {
    let mut found = Vec::new();
    files(root, &mut found);
    let known: BTreeSet<ModulePath> = found.iter().map(|file| module_of(root, file)).collect();
    let mut all = Imports::new();
    for file in &found {
        let module = module_of(root, file);
        let text = code(&fs::read_to_string(file).expect("it was just listed"));
        let mut starts: Vec<usize> = Vec::new();
        for word in ["crate::", "super::", "self::"] {
            let at = text.match_indices(word).map(|(at, _)| at);
            // Not the middle of a longer path or name.
            starts.extend(at.filter(|at| {
                let before = text[..*at].chars().next_back();
                before.is_none_or(|of| !of.is_alphanumeric() && of != '_' && of != ':')
            }));
        }
        let by_name = text
            .match_indices("\nuse ")
            .map(|(at, word)| at + word.len());
        starts.extend(by_name);
        let to = starts
            .iter()
            .flat_map(|&at| paths(&text[at..]))
            .filter_map(|path| target(&module, &path, &known));
        // A module's own children are declared in it, and `main.rs` and `lib.rs` are above all.
        let to: BTreeSet<_> = to.filter(|to| *to != module && !to.is_empty()).collect();
        all.insert(module, to);
    }
    all
}

/// Modules from which a path leads back to them.
fn in_circles(imports: &Imports) -> Vec<String> {
    let found = imports
        .keys()
        .filter(|start| reaches_itself(imports, start));
    found.map(|module| module.join("/")).collect()
}

fn reaches_itself(imports: &Imports, start: &ModulePath) -> bool {
    let mut seen = BTreeSet::new();
    let mut next: Vec<&ModulePath> = imports[start].iter().collect();
    while let Some(module) = next.pop() {
        if module == start {
            return true;
        }
        if seen.insert(module) {
            next.extend(imports.get(module).into_iter().flatten());
        }
    }
    false
}

#[test]
fn no_file_imports_itself_by_way_of_others() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut arrows = 0;
    for name in CRATES {
        let imports = imports(&root.join(name));
        arrows += imports.values().map(BTreeSet::len).sum::<usize>();
        assert_eq!(in_circles(&imports), [""; 0], "{name}");
    }
    assert!(arrows > 500, "{arrows} imports were read");
}

#[test]
fn a_circle_is_found() {
    let path = |text: &str| -> ModulePath { text.split('/').map(str::to_owned).collect() };
    let imports: Imports = [("a", "b"), ("b", "c/d"), ("c/d", "a"), ("e", "a")]
        .map(|(from, to)| (path(from), [path(to)].into()))
        .into();
    assert_eq!(in_circles(&imports), ["a", "b", "c/d"]);
    let spread = paths("crate::a::{b, c::{d, e}};");
    let spread: Vec<_> = spread.iter().map(|path| path.join("/")).collect();
    assert_eq!(spread, ["crate/a/b", "crate/a/c/d", "crate/a/c/e"]);
}
