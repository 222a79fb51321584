//! Reference parts that several programs share or that come from files: names, variables, exit codes, kinds and the
//! chart's values. The tests of each program check the rest.

use apportion_abi::{exit, paths};
use apportion_reference::{cell, code, hold, table};

mod kinds;
mod names;
mod values;

#[test]
fn the_reference_has_every_variable_that_people_set() {
    let rows = paths::VARIABLES
        .iter()
        .map(|(name, meaning, default)| [code(name), cell(default), cell(meaning)]);
    hold(
        "cli",
        "variables",
        &table(["variable", "default", "meaning"], rows),
    );
}

#[test]
fn the_reference_has_every_exit_code() {
    let rows = exit::CODES.map(|(number, meaning)| [number.to_string(), cell(meaning)]);
    hold("exit-codes", "codes", &table(["code", "meaning"], rows));
}
