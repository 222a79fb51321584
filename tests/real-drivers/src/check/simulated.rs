//! Whether the simulated driver selects the same entry points as this driver. The hooks rely on this selection, so
//! tests on the simulated driver are only valid if both agree.

use anyhow::{Context, Result};

use super::{CheckOutcome, answers, library};
use crate::inside::VERSIONS;
use crate::run_mode::{RunMode, RunSetup, UnpackedDriver};

pub(super) fn run(setup: &RunSetup, driver: &UnpackedDriver) -> Result<CheckOutcome> {
    let simulated = UnpackedDriver::at(&setup.simulated)?;
    let symbols = library(&simulated, "libcuda.so.1")?;
    let ask = |driver| {
        anyhow::Ok(answers(&setup.inside(
            driver,
            RunMode::Plain,
            &["look-up"],
        )?))
    };
    let (real, ours) = (ask(driver)?, ask(&simulated)?);
    let newest = real.get("version").context("the driver has no version")?;
    let newest: i32 = newest.parse().context("a version is a number")?;
    let mut outcome = CheckOutcome::default();
    for (key, real) in &real {
        // Skip functions that only one of the two has.
        let is_had = |answer: &str| answer.contains("driver:");
        let Some(ours) = ours.get(key).filter(|ours| is_had(ours) && is_had(real)) else {
            continue;
        };
        for version in VERSIONS
            .iter()
            .filter(|version| (0..=newest).contains(*version))
        {
            let (real, ours) = (at(real, *version), at(ours, *version));
            let symbol = real.and_then(|answer| answer.split_once("driver:"));
            // Skip entry points that are not simulated.
            if symbol.is_some_and(|(_, symbol)| !symbols.contains_key(symbol)) {
                continue;
            }
            outcome.compared += 1;
            if real != ours {
                let (real, ours) = (real.unwrap_or("nothing"), ours.unwrap_or("nothing"));
                let sentence = format!("{key}, version {version}: {real}, but simulated {ours}");
                outcome.differences.push(sentence);
            }
        }
    }
    Ok(outcome)
}

/// The answer for a version, from answers that each apply from their version on.
fn at(answers: &str, version: i32) -> Option<&str> {
    let from = answers.split("; ").filter_map(|one| one.split_once(": "));
    let before = from.filter(|(from, _)| from.parse().is_ok_and(|from: i32| from <= version));
    before.last().map(|(_, answer)| answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_holds_until_the_next() {
        let answers = "-1: b; 0: none; 2000: a; 3020: b; ";
        let seen = [0, 2000, 3010, 3020, 12000].map(|version| at(answers, version));
        assert_eq!(
            seen,
            [Some("none"), Some("a"), Some("a"), Some("b"), Some("b")]
        );
    }
}
