//! Tests of the repository's cases, and of the page about them.
//!
//! docs/development/kai-cases.md says how many cases there are, how many pass, and why the others do not. The tests
//! compare it with the results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::files::json_files;
use super::{CaseCount, CaseFile, CaseName, CaseRun, CaseSuite, CaseVerdict, read, totals};
use crate::deviations::KnownDeviations;
use crate::{DEVIATIONS, oracles, scenarios};

const PAGE: &str = "docs/development/kai-cases.md";
const SUITES: [CaseSuite; 2] = [scenarios::SUITE, oracles::SUITE];
/// The folders with the cases made from KAI's tests.
const KAI: [&str; 2] = [scenarios::KAI, oracles::KAI];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn runs() -> Vec<Vec<CaseRun>> {
    let runs = SUITES.iter().map(|suite| suite.repository(&root(), ""));
    runs.collect::<Result<_, _>>().unwrap()
}

fn deviations() -> KnownDeviations {
    KnownDeviations::parse(&text(DEVIATIONS)).unwrap()
}

#[test]
fn every_case_passes_but_those_listed_and_no_other_is_listed() {
    let deviations = deviations();
    let mut unused: BTreeSet<&str> = deviations.listed().map(|(name, _)| name).collect();
    let runs = runs();
    let verdicts = runs.iter().flatten().flat_map(|run| &run.verdicts);
    for CaseVerdict { name, wrong, .. } in verdicts.filter(|one| !one.passed()) {
        assert!(deviations.reason(name).is_some(), "{name}: {wrong:?}");
        unused.remove(name.id.as_str());
        unused.remove(name.position.as_deref().unwrap_or_default());
    }
    assert!(unused.is_empty(), "these pass or do not exist: {unused:?}");
}

#[test]
fn the_page_says_what_comes_out() {
    let page = text(PAGE);
    let mut lines = Vec::new();
    for (runs, kai) in runs().iter().zip(KAI) {
        lines.extend(totals(runs));
        let run = runs.iter().find(|run| run.folder_name == kai).unwrap();
        let mut files: BTreeMap<&str, Vec<&CaseVerdict>> = BTreeMap::new();
        for one in &run.verdicts {
            let (file, _) = one.name.id.rsplit_once('-').unwrap();
            files.entry(file).or_default().push(one);
        }
        for (file, verdicts) in files {
            let count = CaseCount::of(verdicts);
            lines.push(format!("| `{file}` | {} | {} |", count.all(), count.passed));
        }
        let count = CaseCount::of(&run.verdicts);
        lines.push(format!("| all | {} | {} |", count.all(), count.passed));
    }
    let deviations = deviations();
    let listed = deviations.listed();
    lines.extend(listed.map(|(name, reason)| format!("| `{name}` | {reason} |")));
    let missing = lines
        .iter()
        .filter(|line| !page.lines().any(|said| said == *line));
    let missing: Vec<&String> = missing.collect();
    assert!(missing.is_empty(), "{PAGE} lacks {missing:#?}");
}

#[test]
fn each_case_of_kai_has_a_position_and_an_id_that_begins_with_its_file() {
    let mut ids = BTreeSet::new();
    for folder in KAI {
        for CaseFile { name: file, cases } in read(&root().join(folder)).unwrap() {
            for name in cases.iter().map(CaseName::of) {
                assert!(ids.insert(name.id.clone()), "{name} is there twice");
                let number = name.id.strip_prefix(&format!("{file}-"));
                assert!(
                    number.is_some_and(|number| number.parse::<u32>().is_ok()),
                    "{name}"
                );
                assert!(name.position.is_some(), "{name}");
            }
        }
    }
}

#[test]
fn each_file_of_kai_names_its_source_as_the_notice_and_the_page_do() {
    let (page, notice) = (text(PAGE), text("NOTICE"));
    for path in KAI
        .iter()
        .flat_map(|folder| json_files(&root().join(folder)).unwrap())
    {
        let file: Value = fs::read_to_string(&path).unwrap().parse().unwrap();
        for field in ["repository", "commit", "license"] {
            let said = file["source"][field].as_str().unwrap_or("nothing");
            let is_there = page.contains(said) && notice.contains(said);
            assert!(is_there, "{}: {field} {said}", path.display());
        }
    }
}
