//! `apportion hooks`: the table of hooked driver functions, as the library itself uses it, and on request the
//! unhooked functions, with the reasons.

use apportion_exit::CommandFailure;
use apportion_intercept::table::{DriverLibrary, HookedFunction, ROWS};
use apportion_intercept::unhooked::{UNHOOKED_FUNCTIONS, UnhookedFunctions};
use serde::Serialize;

use crate::options::HooksOptions;
use crate::output;
use crate::table::{CellAlignment, TableColumn, lay_out};

const COLUMNS: &[TableColumn<HookEntry>] = &[
    TableColumn {
        title: "SYMBOL",
        cell: |hook| hook.symbol.clone(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "NAME",
        cell: |hook| hook.name.to_owned(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "SINCE",
        cell: |hook| hook.since.clone(),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "LIBRARY",
        cell: |hook| hook.library.clone(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "WHAT IT DOES",
        cell: |hook| hook.what.to_owned(),
        side: CellAlignment::Left,
    },
];

#[derive(Debug, Serialize)]
struct HookEntry {
    /// The symbol that programs link or look up.
    symbol: String,
    /// The name for `cuGetProcAddress`.
    name: &'static str,
    /// The version that introduced the signature: of CUDA, or of the NVML function.
    since: String,
    library: String,
    what: &'static str,
}

const UNHOOKED_COLUMNS: &[TableColumn<UnhookedEntry>] = &[
    TableColumn {
        title: "NAME",
        cell: |function| function.name.to_owned(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "LIBRARY",
        cell: |function| function.library.clone(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "LIMIT",
        cell: |function| function.effect.to_owned(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "WHY IT IS NOT HOOKED",
        cell: |function| function.reason.to_owned(),
        side: CellAlignment::Left,
    },
];

/// One unhooked function, in all its versions.
#[derive(Debug, Serialize)]
struct UnhookedEntry {
    name: &'static str,
    library: String,
    /// What that means for the limit.
    effect: &'static str,
    reason: &'static str,
}

/// Hooked and unhooked functions.
#[derive(Debug, Serialize)]
struct HookListing {
    hooked: Vec<HookEntry>,
    unhooked_functions: Vec<UnhookedEntry>,
}

pub(crate) fn hooks(which: &HooksOptions) -> Result<(), CommandFailure> {
    let hooked: Vec<HookEntry> = ROWS.iter().map(hook).collect();
    let unhooked_functions: Vec<UnhookedEntry> =
        UNHOOKED_FUNCTIONS.iter().flat_map(unhooked).collect();
    match (which.all, which.json) {
        (false, false) => output::all(&lay_out(COLUMNS, &hooked)),
        (false, true) => output::json(&hooked),
        (true, false) => {
            let hooked = lay_out(COLUMNS, &hooked);
            output::all(&format!(
                "{hooked}\n{}",
                lay_out(UNHOOKED_COLUMNS, &unhooked_functions)
            ))
        }
        (true, true) => output::json(&HookListing {
            hooked,
            unhooked_functions,
        }),
    }
}

fn hook(row: &HookedFunction) -> HookEntry {
    HookEntry {
        symbol: row.symbol.to_string_lossy().into_owned(),
        name: row.name,
        since: since(row.version),
        library: name(row.library),
        what: row.what,
    }
}

fn unhooked(group: &UnhookedFunctions) -> impl Iterator<Item = UnhookedEntry> + use<> {
    let group = *group;
    group.names().map(move |function| UnhookedEntry {
        name: function,
        library: name(group.library),
        effect: group.effect.as_str(),
        reason: group.reason,
    })
}

fn name(library: DriverLibrary) -> String {
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
