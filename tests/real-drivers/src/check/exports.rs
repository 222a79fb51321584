//! A driver's exports: every relevant function is hooked or left unhooked for a reason, and is on a list, so that tests
//! without a driver know it too.

use std::collections::BTreeSet;

use anyhow::Result;
use apportion_intercept::unhooked::{is_classified, is_of_interest};

use super::{CheckOutcome, library};
use crate::run_mode::{RunSetup, UnpackedDriver};

/// The names in the headers, and those that only drivers export.
const LISTS: [&str; 2] = [
    include_str!("../../../../cuda-intercept/tests/functions.txt"),
    include_str!("../../../../cuda-intercept/tests/exports.txt"),
];

pub(super) fn run(_: &RunSetup, driver: &UnpackedDriver) -> Result<CheckOutcome> {
    let lines = LISTS.iter().flat_map(|list| list.lines());
    let listed: BTreeSet<&str> = lines.filter_map(|line| line.split(' ').next()).collect();
    let mut outcome = CheckOutcome::default();
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        for symbol in library(driver, name)?.keys() {
            outcome.compared += 1;
            if !is_of_interest(symbol) {
                continue;
            }
            if !is_classified(symbol) {
                let sentence = format!("{symbol} is neither hooked nor left alone");
                outcome.differences.push(sentence);
            }
            if !listed.contains(symbol.as_str()) {
                let sentence = format!("{symbol} is in neither functions.txt nor exports.txt");
                outcome.differences.push(sentence);
            }
        }
    }
    Ok(outcome)
}
