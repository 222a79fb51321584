//! `apportion demo`: two programs share a GPU, and the user sees that each stays within its limit.
//!
//! It ends with one screen. Everything on the screen is checked: what the programs saw of their GPU, where they were
//! refused, and what the agent's ledger and metrics say must agree, or the demonstration fails. `--verbose` also
//! prints the steps. It is the only command that chooses simulated GPUs by itself, and it says so.

use apportion_abi::Bytes;
use apportion_exit::CommandFailure;
use apportion_proto::v1::{Card, ListReply};

use crate::agent::connect_or_start;
use crate::instance::TargetInstance;
use crate::options::ConnectionOptions;
use crate::probe::{self, ProbeAnswer};
use crate::{block_on, metrics, output};

mod assertions;
mod color;
mod program;
mod screen;

use color::ColorMode;
use program::DemoProgram;
use screen::DemoScreen;

/// The names and limits of the two programs, if the GPU is large enough.
const PROGRAMS: [(&str, u64); 2] = [("demo-first", 2000), ("demo-second", 1200)];
/// How much must be free on a GPU to use the limits above.
const ROOM_MIB: u64 = 4000;

/// Runs the demonstration, on a real GPU if there is one.
pub(crate) fn demo(address: ConnectionOptions, is_verbose: bool) -> Result<(), CommandFailure> {
    let steps = ProgressPrinter { is_verbose };
    let (instance, why) = choose(address)?;
    let list = block_on(async { connect_or_start(&instance).await?.list().await })?;
    let card = roomiest(&list)?.clone();
    steps.print(&format!(
        "GPU: {} {} with {}\n",
        card.model,
        card.uuid,
        Bytes(card.total_bytes)
    ))?;

    let mut programs = start(&steps, &instance, &card)?;
    steps.print(
        "\nEach PROGRAM asks how large its GPU is, then takes memory until it is refused:",
    )?;
    for program in &mut programs {
        let line = program.read_report()?;
        steps.print(&line)?;
    }
    let list = assertions::settled(&instance, &programs)?;
    steps.print(&format!("\n{}", crate::view::whole(&list)))?;
    let refusal = refuse_a_third(&steps, &instance, &list, &card.uuid)?;
    show_metrics(&steps, &list)?;
    let broken = assertions::broken(&list, &programs);
    let screen = DemoScreen::of(&list, &card.uuid, &programs, &refusal);
    for program in programs {
        program.end()?;
    }
    assertions::all_given_back(&instance)?;

    steps.print("")?;
    output::all(&screen.drawn(ColorMode::of_output()))?;
    if !broken.is_empty() {
        return Err(CommandFailure::new(format!(
            "the limits did not hold: {}",
            broken.join("; ")
        )));
    }
    output::all(&screen::ending(&instance, why.is_some(), is_verbose))
}

/// Prints the steps, if the user asked for them.
struct ProgressPrinter {
    is_verbose: bool,
}

impl ProgressPrinter {
    fn print(&self, text: &str) -> Result<(), CommandFailure> {
        if self.is_verbose {
            output::line(text)
        } else {
            Ok(())
        }
    }
}

/// The real GPUs if they answer, else the simulated ones, with the reason if the user did not ask for them.
fn choose(address: ConnectionOptions) -> Result<(TargetInstance, Option<String>), CommandFailure> {
    let mut reason = None;
    if !address.sim {
        let instance = TargetInstance::new(address)?;
        let report = probe::ask(&instance)?;
        reason = Some(match (report.nvml, report.cuda) {
            (ProbeAnswer::Found(nvml), ProbeAnswer::Found(_)) if !nvml.cards.is_empty() => {
                return Ok((instance, None));
            }
            (ProbeAnswer::Error(error), _) | (_, ProbeAnswer::Error(error)) => error,
            (ProbeAnswer::Found(_), ProbeAnswer::Found(_)) => "it has no GPUs".to_owned(),
        });
    }
    let simulated = ConnectionOptions {
        sim: true,
        ..address
    };
    Ok((TargetInstance::new(simulated)?, reason))
}

fn roomiest(list: &ListReply) -> Result<&Card, CommandFailure> {
    let card = list
        .cards
        .iter()
        .max_by_key(|card| (card.free_bytes, std::cmp::Reverse(card.index)));
    card.ok_or_else(|| {
        CommandFailure::new("the machine has no GPUs").hint("--sim shows it on simulated ones")
    })
}

/// The limits in MiB: as above, or parts of the free memory of a small GPU.
fn limits(card: &Card) -> [(&'static str, u64); 2] {
    let free = Bytes(card.free_bytes).as_mib();
    let [(first, large), (second, small)] = PROGRAMS;
    if free >= ROOM_MIB {
        PROGRAMS
    } else {
        [(first, free / 2), (second, free * small / large / 2)]
    }
}

fn start(
    steps: &ProgressPrinter,
    instance: &TargetInstance,
    card: &Card,
) -> Result<Vec<DemoProgram>, CommandFailure> {
    let mut programs = Vec::new();
    for (name, limit) in limits(card) {
        steps.print(&format!(
            "$ apportion run{} --gpu-memory {limit} --name {name} -- PROGRAM",
            flag(instance)
        ))?;
        let limit = Bytes::from_mib(limit);
        programs.push(DemoProgram::start(instance, name, limit, &card.uuid)?);
    }
    Ok(programs)
}

fn flag(instance: &TargetInstance) -> &'static str {
    if instance.is_simulated { " --sim" } else { "" }
}

/// A third program asks for more than is left, though not for more than the GPU has.
fn refuse_a_third(
    steps: &ProgressPrinter,
    instance: &TargetInstance,
    list: &ListReply,
    card: &str,
) -> Result<String, CommandFailure> {
    let found = list.cards.iter().find(|found| found.uuid == card);
    let (free, most) = found.map_or((0, 0), |found| (found.free_bytes, found.allocatable_bytes));
    let asked = Bytes(free.saturating_mul(5) / 4).min(Bytes(most)).as_mib();
    steps.print(&format!(
        "$ apportion run{} --gpu-memory {asked} -- PROGRAM",
        flag(instance)
    ))?;
    let refusal = DemoProgram::refused(instance, asked, card)?;
    steps.print(&refusal)?;
    Ok(refusal)
}

fn show_metrics(steps: &ProgressPrinter, list: &ListReply) -> Result<(), CommandFailure> {
    let address = list
        .node
        .as_ref()
        .map_or("", |node| node.metrics_address.as_str());
    if address.is_empty() {
        return steps.print("\nThe agent serves no metrics.");
    }
    steps.print(&format!("\n$ curl http://{address}/metrics"))?;
    let text = metrics::get(address, "/metrics")?;
    let mut lines: Vec<_> = text
        .lines()
        .filter(|line| {
            let names_one = PROGRAMS.iter().any(|(name, _)| line.contains(name));
            let kinds = ["limit_bytes", "used_bytes", "denied_total"];
            names_one && kinds.iter().any(|kind| line.contains(kind))
        })
        .collect();
    lines.sort_unstable();
    if lines.is_empty() {
        return Err(CommandFailure::new("the metrics do not show the programs"));
    }
    steps.print(&lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_programs_fit_a_small_card() {
        for mib in [1000, 2400, 3999, 4000, 80_000] {
            let card = Card {
                free_bytes: mib << 20,
                ..Card::default()
            };
            let sum: u64 = limits(&card).iter().map(|(_, limit)| limit).sum();
            assert!(sum <= mib, "{mib}");
        }
    }
}
