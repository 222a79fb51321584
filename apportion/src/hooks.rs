//! `apportion hooks`: the table of hooked driver functions, as the library itself reads it.

use apportion_intercept::table::{ROWS, Row};
use serde::Serialize;

use crate::failure::Failure;
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

/// Prints the table.
pub(crate) fn hooks(json: bool) -> Result<(), Failure> {
    let hooks: Vec<Hook> = ROWS.iter().map(hook).collect();
    if json {
        output::json(&hooks)
    } else {
        output::all(&lay_out(COLUMNS, &hooks))
    }
}

fn hook(row: &Row) -> Hook {
    Hook {
        symbol: row.symbol.to_string_lossy().into_owned(),
        name: row.name,
        since: since(row.version),
        library: row.library.soname().to_string_lossy().into_owned(),
        what: row.what,
    }
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
