//! Checks the demonstration's claims against the agent's ledger.

use std::time::{Duration, Instant};

use apportion_abi::Bytes;
use apportion_exit::CommandFailure;
use apportion_proto::v1::{Grant, ListReply};

use super::program::DemoProgram;
use crate::agent::connect_to_running;
use crate::block_on;
use crate::instance::TargetInstance;

/// How long the agent may take to see what happened.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
/// The block size in which drivers allocate. Less than a block may be left below a limit.
const GRANULE: u64 = 2 << 20;
/// The part of a limit that a driver may take itself after the last allocation (page tables). The agent counts it as
/// overhead, and no further allocation succeeds. The simulated driver takes none.
const DRIVERS_OWN: u64 = 64;
/// The driver's error at the limit.
const OUT_OF_MEMORY: &str = "CUDA_ERROR_OUT_OF_MEMORY";

/// The agent's list, once it shows what every program took. An NVML reading from before a program's last allocation
/// is too old.
pub(super) fn settled(
    instance: &TargetInstance,
    programs: &[DemoProgram],
) -> Result<ListReply, CommandFailure> {
    eventually(instance, "see the programs' memory", |list| {
        programs.iter().all(|program| is_reported(list, program))
    })
}

fn is_reported(list: &ListReply, program: &DemoProgram) -> bool {
    let allocated_bytes = program.report.as_ref().map(|report| report.taken_bytes);
    let reported_bytes = grant(list, program).map(|grant| grant.nvml_bytes.min(grant.used_bytes));
    reported_bytes
        .zip(allocated_bytes)
        .is_some_and(|(reported_bytes, allocated_bytes)| reported_bytes >= allocated_bytes)
}

/// Waits until none of our programs has an allocation.
pub(super) fn all_given_back(instance: &TargetInstance) -> Result<(), CommandFailure> {
    eventually(instance, "see the programs end", |list: &ListReply| {
        list.allocations
            .iter()
            .all(|found| !super::PROGRAMS.iter().any(|(ours, _)| *ours == found.name))
    })
    .map(drop)
}

fn eventually(
    instance: &TargetInstance,
    what: &str,
    is_so: impl Fn(&ListReply) -> bool,
) -> Result<ListReply, CommandFailure> {
    let deadline = Instant::now() + PATIENCE;
    block_on(async {
        let mut agent = connect_to_running(instance).await?;
        loop {
            let list = agent.list().await?;
            if is_so(&list) {
                return Ok(list);
            }
            if Instant::now() > deadline {
                return Err(CommandFailure::new(format!(
                    "the agent did not {what} in time"
                )));
            }
            tokio::time::sleep(PAUSE).await;
        }
    })
}

fn grant<'a>(list: &'a ListReply, program: &DemoProgram) -> Option<&'a Grant> {
    let allocation = list
        .allocations
        .iter()
        .find(|found| found.name == program.name)?;
    allocation.grants.first()
}

/// The claims that do not hold, each as a sentence.
pub(super) fn broken(list: &ListReply, programs: &[DemoProgram]) -> Vec<String> {
    programs
        .iter()
        .flat_map(|program| broken_by(list, program))
        .collect()
}

fn broken_by(list: &ListReply, program: &DemoProgram) -> Vec<String> {
    let (Some(report), Some(grant)) = (&program.report, grant(list, program)) else {
        return vec![format!("{} is not in the ledger", program.name)];
    };
    let limit = program.limit.0;
    let reported_bytes = [
        report.cuda_total_bytes,
        report.cuda_info_total_bytes,
        report.nvml_total_bytes,
    ];
    let claims = [
        (
            reported_bytes.iter().all(|total| *total == limit),
            "saw a card of another size",
        ),
        (
            report.refused_with == OUT_OF_MEMORY,
            "was refused with another error",
        ),
        (
            grant.claimed_bytes <= limit,
            "was given more than its limit",
        ),
        (
            grant.nvml_bytes <= limit.saturating_add(limit / DRIVERS_OWN),
            "took more of the card than its limit",
        ),
        (
            limit.saturating_sub(grant.used_bytes) < GRANULE,
            "was refused below its limit",
        ),
        (grant.denied_count > 0, "shows no denied charge"),
    ];
    let name = format!(
        "{} (limit {}, used {})",
        program.name,
        program.limit,
        Bytes(grant.used_bytes)
    );
    claims
        .iter()
        .filter(|(holds, _)| !holds)
        .map(|(_, what)| format!("{name} {what}"))
        .collect()
}
