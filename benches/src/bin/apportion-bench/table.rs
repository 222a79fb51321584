//! One line for each pair: without, with, ratio, difference, spread, budget.

use crate::quantiles::SampleQuantiles;

/// The same operation measured without and with the library, in each round.
#[derive(Debug, Default)]
pub(crate) struct PairedSamples {
    /// Nanoseconds a call, without the library.
    pub(crate) without: Vec<f64>,
    /// Nanoseconds a call, with the library.
    pub(crate) with: Vec<f64>,
}

/// Prints the title and the columns of a section.
pub(crate) fn heading(title: &str) {
    heading_of(title, ["without", "with"]);
}

/// The same where the sides have other names.
pub(crate) fn heading_of(title: &str, [before, after]: [&str; 2]) {
    println!("\n{title}");
    println!(
        "{:<44} {:>10} {:>10} {:>7} {:>10}  {:<21} {:>9}",
        "", before, after, "ratio", "difference", "spread (10-90 %)", "budget"
    );
}

impl PairedSamples {
    /// Prints the pair as one line.
    pub(crate) fn print(&self, what: &str, budget: Option<f64>) {
        let (without, with) = (
            SampleQuantiles::of(self.without.clone()),
            SampleQuantiles::of(self.with.clone()),
        );
        let rounds = self.without.iter().zip(&self.with);
        let difference =
            SampleQuantiles::of(rounds.map(|(without, with)| with - without).collect());
        let verdict = match budget {
            None => String::new(),
            Some(budget) if difference.middle <= budget => format!("{} kept", time(budget)),
            Some(budget) => format!("{} MISSED", time(budget)),
        };
        println!(
            "{what:<44} {:>10} {:>10} {:>6.2}x {:>10}  {:<21} {verdict:>9}",
            time(without.middle),
            time(with.middle),
            with.middle / without.middle.max(f64::MIN_POSITIVE),
            time(difference.middle),
            format!("{} .. {}", time(difference.low), time(difference.high)),
        );
    }
}

/// Nanoseconds in a readable unit.
pub(crate) fn time(nanoseconds: f64) -> String {
    match nanoseconds.abs() {
        size if size < 1e3 => format!("{nanoseconds:.1} ns"),
        size if size < 1e6 => format!("{:.2} us", nanoseconds / 1e3),
        _ => format!("{:.2} ms", nanoseconds / 1e6),
    }
}
