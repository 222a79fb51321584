//! The last screen of the demonstration, to be read in ten seconds.
//!
//! On simulated GPUs nothing on it differs from run to run: no process id, no UUID, no time.

use std::env;
use std::path::Path;

use apportion_abi::Bytes;
use apportion_proto::v1::{Grant, ListReply};

use super::color::{ColorMode, TextRole};
use super::flag;
use super::program::DemoProgram;
use crate::instance::TargetInstance;
use crate::table::{CellAlignment, TableColumn, lay_out};

/// The maximum line width.
const COLUMNS: usize = 100;
/// How many cells represent all memory of the GPU.
const CELLS: u64 = 72;
/// The characters for each program's memory and for free memory.
const KEYS: [(&str, TextRole); 2] = [("█", TextRole::First), ("▓", TextRole::Second)];
const FREE: &str = "░";

/// The content of the screen.
#[derive(Debug, Default)]
pub(super) struct DemoScreen {
    gpu: String,
    total: Bytes,
    free: Bytes,
    rows: Vec<DemoProgramRow>,
    refusal: String,
}

#[derive(Debug)]
struct DemoProgramRow {
    key: &'static str,
    name: &'static str,
    limit: Bytes,
    reported: Bytes,
    used: Bytes,
    refused: Bytes,
    error: String,
}

const TABLE: &[TableColumn<DemoProgramRow>] = &[
    TableColumn {
        title: " ",
        cell: |row| row.key.to_owned(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "PROGRAM",
        cell: |row| row.name.to_owned(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "LIMIT",
        cell: |row| row.limit.to_string(),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "SEES A GPU OF",
        cell: |row| row.reported.to_string(),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "USED",
        cell: |row| row.used.to_string(),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "REFUSED",
        cell: |row| row.refused.to_string(),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "WITH",
        cell: |row| row.error.clone(),
        side: CellAlignment::Left,
    },
];

impl DemoScreen {
    /// Collects what the agent and the programs report.
    pub(super) fn of(
        list: &ListReply,
        uuid: &str,
        programs: &[DemoProgram],
        refusal: &str,
    ) -> Self {
        let card = list
            .cards
            .iter()
            .find(|card| card.uuid == uuid)
            .cloned()
            .unwrap_or_default();
        let node = list.node.clone().unwrap_or_default();
        let kind = if node.simulated { ", simulated" } else { "" };
        Self {
            gpu: format!("{} (driver {}{kind})", card.model, node.driver_version),
            total: Bytes(card.allocatable_bytes),
            free: Bytes(card.free_bytes),
            rows: programs
                .iter()
                .zip(KEYS)
                .map(|(program, (key, _))| {
                    let grant = grant(list, program.name).cloned().unwrap_or_default();
                    let report = program.report.as_ref();
                    DemoProgramRow {
                        key,
                        name: program.name,
                        limit: program.limit,
                        reported: Bytes(report.map_or(0, |report| report.cuda_total_bytes)),
                        used: Bytes(grant.used_bytes),
                        refused: Bytes(grant.last_denied_bytes),
                        error: report
                            .map_or_else(String::new, |report| report.refused_with.clone()),
                    }
                })
                .collect(),
            refusal: sentence(refusal, uuid),
        }
    }

    /// The text, with or without colours.
    pub(super) fn drawn(&self, paint: ColorMode) -> String {
        let title = paint.text(TextRole::Title, &self.gpu);
        let amounts = format!("{} to share, {} still free", self.total, self.free);
        let mut text = format!("{title}\n{}\n{amounts}\n\n", self.bar(paint));
        let table = lay_out(TABLE, &self.rows);
        for (number, line) in table.lines().enumerate() {
            text.push_str(
                &match number.checked_sub(1).and_then(|row| self.rows.get(row)) {
                    Some(row) => painted(line, row, paint),
                    None => paint.text(TextRole::Aside, line),
                },
            );
            text.push('\n');
        }
        text.push_str("\nA third program is refused before it starts:\n");
        for line in wrapped(&self.refusal) {
            text.push_str(&format!("  {}\n", paint.text(TextRole::Refused, &line)));
        }
        text
    }

    /// The GPU's memory as one line.
    fn bar(&self, paint: ColorMode) -> String {
        let mut bar = String::new();
        let mut left = usize::try_from(CELLS).unwrap_or_default();
        for (row, (key, role)) in self.rows.iter().zip(KEYS) {
            let total = u128::from(self.total.0.max(1));
            let cells = u128::from(row.used.0) * u128::from(CELLS) / total;
            let cells = usize::try_from(cells).unwrap_or_default().max(1);
            let taken = cells.min(left);
            left -= taken;
            bar.push_str(&paint.text(role, &key.repeat(taken)));
        }
        bar + &paint.text(TextRole::Aside, &FREE.repeat(left))
    }
}

/// The last lines: the success, and what to try next.
pub(super) fn ending(instance: &TargetInstance, is_unasked: bool, is_verbose: bool) -> String {
    let paint = ColorMode::of_output();
    let good = "Both programs were stopped at their own limit, and all memory is given back.";
    let mut text = format!("\n{}\n", paint.text(TextRole::Good, good));
    if is_unasked {
        text.push_str("No NVIDIA driver answers here, so the GPU is simulated.\n");
    }
    let flag = flag(instance);
    let own = typed();
    let next = format!("{own} run{flag} --gpu-memory 2000 -- bash");
    text.push_str(&format!(
        "\nNext:  {}\n",
        paint.text(TextRole::Title, &next)
    ));
    text.push_str("       a shell whose programs have 2000 MiB together\n");
    if !is_verbose {
        let more = format!("{own} demo{flag} --verbose");
        text.push_str(&format!("More:  {}\n", paint.text(TextRole::Title, &more)));
    }
    text
}

fn grant<'a>(list: &'a ListReply, name: &str) -> Option<&'a Grant> {
    let allocation = list.allocations.iter().find(|found| found.name == name)?;
    allocation.grants.first()
}

fn painted(line: &str, row: &DemoProgramRow, paint: ColorMode) -> String {
    let role = KEYS
        .iter()
        .find(|(key, _)| *key == row.key)
        .map(|(_, role)| *role);
    let key = paint.text(role.unwrap_or(TextRole::Aside), row.key);
    let error = paint.text(TextRole::Refused, &row.error);
    let line = line.replacen(row.key, &key, 1);
    if row.error.is_empty() {
        line
    } else {
        line.replacen(&row.error, &error, 1)
    }
}

/// The refusal without the program's name, the hint and the UUID.
fn sentence(message: &str, uuid: &str) -> String {
    let message = message
        .strip_prefix("apportion: ")
        .unwrap_or(message)
        .split("; hint: ")
        .next()
        .unwrap_or_default();
    message.replace(uuid, "this GPU")
}

/// Wraps the text at words.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= COLUMNS - 12 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The command to type for this program: its name if the shell finds it, else its path.
fn typed() -> String {
    let Ok(own) = env::current_exe() else {
        return "apportion".to_owned();
    };
    let path = env::var_os("PATH").unwrap_or_default();
    let mut found = env::split_paths(&path).map(|folder| folder.join("apportion"));
    if found
        .find(|file| file.is_file())
        .is_some_and(|file| is_same(&file, &own))
    {
        return "apportion".to_owned();
    }
    let here = env::current_dir().unwrap_or_default();
    own.strip_prefix(here).unwrap_or(&own).display().to_string()
}

fn is_same(one: &Path, other: &Path) -> bool {
    one.canonicalize()
        .is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen() -> DemoScreen {
        let row = |(key, _): (&'static str, TextRole), name, limit| DemoProgramRow {
            key,
            name,
            limit: Bytes::from_mib(limit),
            reported: Bytes::from_mib(limit),
            used: Bytes::from_mib(limit),
            refused: Bytes::from_mib(2),
            error: "CUDA_ERROR_OUT_OF_MEMORY".to_owned(),
        };
        let message = "apportion: asked 16000 MiB on GPU-1; 12928 MiB free (of 16128 MiB; held by demo-first with \
                    2000 MiB, demo-second with 1200 MiB); hint: ask for less";
        DemoScreen {
            gpu: "NVIDIA A100-SXM4-40GB (driver 580.65.06, simulated)".to_owned(),
            total: Bytes::from_mib(16128),
            free: Bytes::from_mib(12928),
            rows: vec![
                row(KEYS[0], "demo-first", 2000),
                row(KEYS[1], "demo-second", 1200),
            ],
            refusal: sentence(message, "GPU-1"),
        }
    }

    #[test]
    fn the_screen_is_narrow_and_short() {
        let text = screen().drawn(ColorMode(false));
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(COLUMNS), "{widest:?}\n{text}");
        assert!(text.lines().count() <= 12, "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }

    #[test]
    fn colours_change_nothing_but_the_colours() {
        let mut painted = screen().drawn(ColorMode(true));
        while let Some(start) = painted.find('\x1b') {
            let end = start + painted[start..].find('m').expect("a colour ends");
            painted.replace_range(start..=end, "");
        }
        assert_eq!(painted, screen().drawn(ColorMode(false)));
    }

    #[test]
    fn a_refusal_is_one_sentence_without_a_uuid() {
        let refusal = screen().refusal;
        assert!(
            refusal.starts_with("asked 16000 MiB on this GPU; 12928 MiB free"),
            "{refusal}"
        );
        assert!(
            !refusal.contains("hint") && !refusal.contains("GPU-1"),
            "{refusal}"
        );
    }
}
