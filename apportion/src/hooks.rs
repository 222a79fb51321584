//! `apportion hooks`: the table of hooked driver functions, as the library itself reads it, and on request
//! the functions that are left alone, with the reasons.

use apportion_intercept::left_alone::{LEFT_ALONE, LeftAlone};
use apportion_intercept::table::{Library, ROWS, Row};
use serde::Serialize;

use crate::failure::Failure;
use crate::options::Hooks;
use crate::output;
use crate::table::{Column, Side, lay_out};

const COLUMNS: &[Column<Hook>] = &[
    Column {
        title: "SYMBOL",
        cell: |hook| hook.symbol.clone(),
        side: Side::Left,
    },
    Column {
        title: "NAME",
        cell: |hook| hook.name.to_owned(),
        side: Side::Left,
    },
    Column {
        title: "SINCE",
        cell: |hook| hook.since.clone(),
        side: Side::Right,
    },
    Column {
        title: "LIBRARY",
        cell: |hook| hook.library.clone(),
        side: Side::Left,
    },
    Column {
        title: "WHAT IT DOES",
        cell: |hook| hook.what.to_owned(),
        side: Side::Left,
    },
];

/// One hooked function.
#[derive(Debug, Serialize)]
struct Hook {
    /// The symbol that programs link or look up.
    symbol: String,
    /// The name that `cuGetProcAddress` is asked for.
    name: &'static str,
    /// The version that brought the signature: of CUDA, or of the NVML function.
    since: String,
    library: String,
    what: &'static str,
}

const UNHOOKED: &[Column<Unhooked>] = &[
    Column {
        title: "NAME",
        cell: |function| function.name.to_owned(),
        side: Side::Left,
    },
    Column {
        title: "LIBRARY",
        cell: |function| function.library.clone(),
        side: Side::Left,
    },
    Column {
        title: "LIMIT",
        cell: |function| function.standing.to_owned(),
        side: Side::Left,
    },
    Column {
        title: "WHY IT IS NOT HOOKED",
        cell: |function| function.reason.to_owned(),
        side: Side::Left,
    },
];

/// One function that is left alone, in all its versions.
#[derive(Debug, Serialize)]
struct Unhooked {
    name: &'static str,
    library: String,
    /// What that means for the limit.
    standing: &'static str,
    reason: &'static str,
}

/// Both halves of the table.
#[derive(Debug, Serialize)]
struct Everything {
    hooked: Vec<Hook>,
    left_alone: Vec<Unhooked>,
}

/// Prints the table.
pub(crate) fn hooks(which: &Hooks) -> Result<(), Failure> {
    let hooked: Vec<Hook> = ROWS.iter().map(hook).collect();
    let left_alone: Vec<Unhooked> = LEFT_ALONE.iter().flat_map(unhooked).collect();
    match (which.all, which.json) {
        (false, false) => output::all(&lay_out(COLUMNS, &hooked)),
        (false, true) => output::json(&hooked),
        (true, false) => {
            let hooked = lay_out(COLUMNS, &hooked);
            output::all(&format!("{hooked}\n{}", lay_out(UNHOOKED, &left_alone)))
        }
        (true, true) => output::json(&Everything { hooked, left_alone }),
    }
}

fn hook(row: &Row) -> Hook {
    Hook {
        symbol: row.symbol.to_string_lossy().into_owned(),
        name: row.name,
        since: since(row.version),
        library: name(row.library),
        what: row.what,
    }
}

fn unhooked(group: &LeftAlone) -> impl Iterator<Item = Unhooked> + use<> {
    let group = *group;
    group.names().map(move |function| Unhooked {
        name: function,
        library: name(group.library),
        standing: group.standing.as_str(),
        reason: group.reason,
    })
}

fn name(library: Library) -> String {
    library.soname().to_string_lossy().into_owned()
}

/// CUDA counts `major * 1000 + minor * 10`; NVML counts the versions of each function from one.
fn since(version: u32) -> String {
    match version {
        0..1000 => format!("v{version}"),
        cuda => format!("{}.{}", cuda / 1000, cuda % 1000 / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_their_makers_write_them() {
        assert_eq!(since(3020), "3.2");
        assert_eq!(since(13000), "13.0");
        assert_eq!(since(2), "v2");
    }

    #[test]
    fn every_row_says_what_it_does() {
        assert!(!ROWS.is_empty());
        assert!(
            ROWS.iter()
                .map(hook)
                .all(|hook| !hook.what.is_empty() && !hook.symbol.is_empty())
        );
    }
}
