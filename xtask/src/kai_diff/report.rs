//! The counts of a comparison, by theme, by kind and by cause.

use std::collections::BTreeMap;
use std::fmt;

use super::cause::DifferenceCause;
use super::pod_outcomes::DecisionDifference;
use super::scheduling_run::EndComparison;
use super::{ClusterComparison, FindingKind};

/// The counts of one theme.
#[derive(Clone, Debug, Default)]
struct ThemeCounts {
    clusters: usize,
    cycles: usize,
    undecided: usize,
    node: usize,
    fate: usize,
    /// The number of differences by known cause.
    known: BTreeMap<DifferenceCause, usize>,
    ends: BTreeMap<EndComparison, usize>,
    unserved: usize,
}

/// The counts of all themes.
#[derive(Debug, Default)]
pub(crate) struct KaiDiffReport {
    themes: BTreeMap<String, ThemeCounts>,
}

impl KaiDiffReport {
    /// Adds one cluster to the counts.
    pub(crate) fn enter(&mut self, theme: &str, found: &ClusterComparison) {
        self.themes.entry(theme.to_owned()).or_default().add(found);
    }

    /// Whether no entitled job is left waiting.
    pub(crate) fn is_good(&self) -> bool {
        self.themes.values().all(|counts| counts.unserved == 0)
    }
}

impl ThemeCounts {
    fn add(&mut self, found: &ClusterComparison) {
        self.clusters += 1;
        self.cycles += found.cycles;
        self.undecided += found.undecided;
        *self.ends.entry(found.end).or_default() += 1;
        for finding in &found.findings {
            match &finding.what {
                FindingKind::Cycle(_, difference, _, cause) => {
                    match difference {
                        DecisionDifference::Node => self.node += 1,
                        DecisionDifference::Fate => self.fate += 1,
                    }
                    if let Some(cause) = cause {
                        *self.known.entry(*cause).or_default() += 1;
                    }
                }
                FindingKind::End(_) => {}
                FindingKind::Unserved(_, mistake) => {
                    self.unserved += usize::from(mistake.is_none())
                }
            }
        }
    }

    fn same(&self) -> usize {
        self.cycles - self.undecided - self.node - self.fate
    }

    fn plus(mut self, other: &Self) -> Self {
        self.clusters += other.clusters;
        self.cycles += other.cycles;
        self.undecided += other.undecided;
        self.node += other.node;
        self.fate += other.fate;
        self.unserved += other.unserved;
        for (cause, count) in &other.known {
            *self.known.entry(*cause).or_default() += count;
        }
        for (end, count) in &other.ends {
            *self.ends.entry(*end).or_default() += count;
        }
        self
    }
}

impl fmt::Display for KaiDiffReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<14} {:>8} {:>7} {:>7} {:>5} {:>5} {:>10}",
            "theme", "clusters", "cycles", "same", "node", "fate", "KAI varies"
        )?;
        let all = self
            .themes
            .values()
            .fold(ThemeCounts::default(), ThemeCounts::plus);
        let rows = self
            .themes
            .iter()
            .map(|(theme, counts)| (theme.as_str(), counts));
        for (theme, counts) in rows.chain([("all", &all)]) {
            writeln!(
                f,
                "{theme:<14} {:>8} {:>7} {:>7} {:>5} {:>5} {:>10}",
                counts.clusters,
                counts.cycles,
                counts.same(),
                counts.node,
                counts.fate,
                counts.undecided
            )?;
        }
        let compared = (all.cycles - all.undecided).max(1);
        let percent = 100.0 * all.same() as f64 / compared as f64;
        writeln!(f, "{percent:.1} % of {compared} cycles as KAI decides")?;
        for (cause, count) in &all.known {
            writeln!(f, "{count} cycles: {}", cause.words())?;
        }
        let known: usize = all.known.values().sum();
        let explained = 100.0 * (all.same() + known) as f64 / compared as f64;
        writeln!(
            f,
            "{} cycles: not explained ({explained:.1} % are the same or explained)",
            all.node + all.fate - known
        )?;
        for (end, words) in EndComparison::ALL {
            let count = all.ends.get(&end).copied().unwrap_or(0);
            writeln!(f, "{count} ends: {words}")?;
        }
        writeln!(f, "{} clusters with a claim unserved", all.unserved)
    }
}
