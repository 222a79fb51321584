//! `apportion demo`: two programs share a card, and a person sees that each stays within its limit.
//!
//! It shows nothing that it does not check: what the programs were told about their card, where they were
//! refused and what the agent's books and metrics say must agree, or the demonstration fails. It is the
//! only command that chooses simulated cards by itself, and it says so.

use apportion_abi::Bytes;
use apportion_proto::v1::{Card, ListReply};

use crate::agent::connect_or_start;
use crate::failure::Failure;
use crate::instance::Instance;
use crate::options::Address;
use crate::probe::{self, Answer};
use crate::{block_on, metrics, output};

mod claims;
mod program;

use program::Program;

/// The names and limits of the two programs, where the card is large enough.
const PROGRAMS: [(&str, u64); 2] = [("demo-first", 2000), ("demo-second", 1200)];
/// What a third of the card has to be, that the limits above are taken.
const ROOM_MIB: u64 = 4000;

/// Shows it, on the real card if there is one.
pub(crate) fn demo(address: Address) -> Result<(), Failure> {
    let instance = choose(address)?;
    let list = block_on(async { connect_or_start(&instance).await?.list().await })?;
    let card = roomiest(&list)?;
    say(&format!(
        "Card: {} {} with {}\n",
        card.model,
        card.uuid,
        Bytes(card.total_bytes)
    ))?;

    let mut programs = Vec::new();
    for (name, limit) in limits(card) {
        say(&format!(
            "$ apportion run{} --gpu-memory {limit} --name {name} -- PROGRAM",
            flag(&instance)
        ))?;
        programs.push(Program::start(
            &instance,
            name,
            Bytes::from_mib(limit),
            &card.uuid,
        )?);
    }
    say("\nEach PROGRAM asks how large its card is, then takes memory until it is refused:")?;
    for program in &mut programs {
        let line = program.read_report()?;
        say(&line)?;
    }
    let list = claims::settled(&instance, &programs)?;
    say(&format!("\n{}", crate::view::whole(&list)))?;
    refuse_a_third(&instance, &list, &card.uuid)?;
    show_metrics(&list)?;
    let broken = claims::broken(&list, &programs);
    for program in programs {
        program.end()?;
    }
    claims::all_given_back(&instance)?;
    if broken.is_empty() {
        return say("\nBoth were stopped at their own limit, and all memory is given back.");
    }
    Err(Failure::new(format!(
        "the limits did not hold: {}",
        broken.join("; ")
    )))
}

/// The real card where there is one that answers; the simulated one otherwise.
fn choose(address: Address) -> Result<Instance, Failure> {
    if !address.sim {
        let instance = Instance::new(address)?;
        let report = probe::ask(&instance)?;
        let why = match (report.nvml, report.cuda) {
            (Answer::Found(nvml), Answer::Found(_)) if !nvml.cards.is_empty() => {
                return Ok(instance);
            }
            (Answer::Error(error), _) | (_, Answer::Error(error)) => error,
            (Answer::Found(_), Answer::Found(_)) => "it has no cards".to_owned(),
        };
        say(&format!(
            "No NVIDIA driver to use here ({why}): this is a simulated card."
        ))?;
    }
    Instance::new(Address {
        sim: true,
        ..address
    })
}

fn roomiest(list: &ListReply) -> Result<&Card, Failure> {
    let card = list
        .cards
        .iter()
        .max_by_key(|card| (card.free_bytes, std::cmp::Reverse(card.index)));
    card.ok_or_else(|| {
        Failure::new("the machine has no cards").hint("--sim shows it on simulated ones")
    })
}

/// The limits in MiB: as above, or parts of what is free on a small card.
fn limits(card: &Card) -> [(&'static str, u64); 2] {
    let free = Bytes(card.free_bytes).as_mib();
    let [(first, large), (second, small)] = PROGRAMS;
    if free >= ROOM_MIB {
        PROGRAMS
    } else {
        [(first, free / 2), (second, free * small / large / 2)]
    }
}

fn flag(instance: &Instance) -> &'static str {
    if instance.is_simulated { " --sim" } else { "" }
}

/// A third program asks for more than is left, though not for more than the card has.
fn refuse_a_third(instance: &Instance, list: &ListReply, card: &str) -> Result<(), Failure> {
    let found = list.cards.iter().find(|found| found.uuid == card);
    let (free, most) = found.map_or((0, 0), |found| (found.free_bytes, found.allocatable_bytes));
    let asked = Bytes(free.saturating_mul(5) / 4).min(Bytes(most)).as_mib();
    say(&format!(
        "$ apportion run{} --gpu-memory {asked} -- PROGRAM",
        flag(instance)
    ))?;
    let said = Program::refused(instance, asked, card)?;
    say(&said)
}

fn show_metrics(list: &ListReply) -> Result<(), Failure> {
    let address = list
        .node
        .as_ref()
        .map_or("", |node| node.metrics_address.as_str());
    if address.is_empty() {
        return say("\nThe agent serves no metrics.");
    }
    say(&format!("\n$ curl http://{address}/metrics"))?;
    let text = metrics::get(address, "/metrics")?;
    let is_shown = |line: &&str| {
        let names_one = PROGRAMS.iter().any(|(name, _)| line.contains(name));
        let kinds = ["limit_bytes", "used_bytes", "denied_total"];
        names_one && kinds.iter().any(|kind| line.contains(kind))
    };
    let mut lines: Vec<_> = text.lines().filter(is_shown).collect();
    lines.sort_unstable();
    if lines.is_empty() {
        return Err(Failure::new("the metrics do not show the programs"));
    }
    say(&lines.join("\n"))
}

fn say(text: &str) -> Result<(), Failure> {
    output::line(text)
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
