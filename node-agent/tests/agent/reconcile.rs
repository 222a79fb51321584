//! Overhead beyond the claims, and unmanaged memory.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use apportion_abi::Bytes;
use apportion_abi::account::{ApiFamily, LimitsMap, ProcessRegistration, SlotOwner, UsageMap};
use apportion_proto::v1::EnforcementState;

use crate::host::{Host, KillOnDrop, MIB, allocate, card, commit, eventually, find};

/// Enters a process into its account with a claim on the first card, as the preloaded library would.
pub(crate) fn claim(account: &str, program: &KillOnDrop, bytes: u64) -> (UsageMap, SlotOwner) {
    let path = Path::new(account).join("usage");
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path has no zero");
    let usage = UsageMap::open(&path).expect("the agent made the account");
    let who = ProcessRegistration {
        pid: program.pid(),
        start_time: start_time(program),
        pid_namespace: 0,
    };
    let owner = usage.usage().register(who).expect("there is a slot");
    assert!(usage.usage().claim_anyway(owner, 0, Bytes(bytes)));
    (usage, owner)
}

fn start_time(program: &KillOnDrop) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.pid()));
    let stat = stat.expect("it runs");
    let fields = stat.rsplit_once(')').expect("a name in parentheses").1;
    fields
        .split_whitespace()
        .nth(19)
        .and_then(|field| field.parse().ok())
        .expect("a start time")
}

/// The cost of a context of the simulated driver, as the agent measured it.
pub(crate) async fn context_cost(client: &mut apportion_proto::AgentClient) -> u64 {
    card(client, 0).await.context_reserve_bytes
}

/// The charge for a further context in an account.
fn further_reserve(account: &str) -> u64 {
    let path = Path::new(account).join("limits");
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path has no zero");
    let limits = LimitsMap::open(&path).expect("the agent made the account");
    let card = limits.cards().first().expect("it has a card");
    card.limits().further_reserve.0
}

#[tokio::test]
async fn the_cost_of_a_context_is_measured_once_and_kept() {
    let host = Host::new(1);
    let (mut agent, mut client) = host.agent(&[]).await;
    let first = allocate(&mut client, "first", 1000).await.unwrap();
    let cost = context_cost(&mut client).await;
    assert!(cost > 0 && cost != 512 * MIB, "{cost}");
    assert_eq!(
        host.metric("apportion_gpu_context_reserve_bytes", ""),
        Some(cost as f64)
    );
    assert_eq!(
        card(&mut client, 0).await.unmanaged_bytes,
        0,
        "a probe is nobody's memory"
    );
    let mut program = host.context(None, "0");
    eventually("the driver agrees", async || {
        (card(&mut client, 0).await.used_bytes == cost).then_some(())
    })
    .await;
    let further = further_reserve(&first.account_dir);
    assert!(further > 0 && further < cost, "{further}");
    program.one_more_context();
    eventually("the driver agrees on a second", async || {
        (card(&mut client, 0).await.used_bytes == cost + further).then_some(())
    })
    .await;
    drop(program);
    agent.kill();
    let (_agent, mut client) = host.agent(&[]).await;
    assert_eq!(context_cost(&mut client).await, cost);
    let second = allocate(&mut client, "second", 1000).await.unwrap();
    assert_eq!(further_reserve(&second.account_dir), further);
    assert_eq!(host.log().matches("Measuring context cost").count(), 1);
}

#[tokio::test]
async fn a_context_that_was_not_claimed_becomes_overhead_and_vanishes_with_its_process() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "train", 4000).await.unwrap();
    let cost = context_cost(&mut client).await;
    let mut program = host.context(Some(Path::new(&allocation.account_dir)), "0");
    let (_usage, _slot) = claim(&allocation.account_dir, &program, 100 * MIB);
    // A second process keeps the allocation alive after the first one.
    let other = host.context(Some(Path::new(&allocation.account_dir)), "0");
    let (_usage, _slot) = claim(&allocation.account_dir, &other, cost);
    commit(&mut client, &allocation.id, other.pid()).await;
    let grant = eventually("the overhead shows", async || {
        let found = find(&mut client, &allocation.id)
            .await?
            .grants
            .swap_remove(0);
        let both_are_seen = found.nvml_bytes == 2 * cost;
        (both_are_seen && found.overhead_bytes == cost - 100 * MIB).then_some(found)
    })
    .await;
    assert_eq!(grant.claimed_bytes, cost + 100 * MIB);
    assert_eq!(grant.used_bytes, 2 * cost);
    assert_eq!(grant.enforcement(), EnforcementState::Attached);
    let train = "\"train/";
    let overhead = host.metric("apportion_container_memory_overhead_bytes", train);
    assert_eq!(overhead, Some((cost - 100 * MIB) as f64));
    assert_eq!(
        host.metric("apportion_container_processes", train),
        Some(2.0)
    );
    for source in ["source=\"account\"", "source=\"nvml\""] {
        let used = host.metric("apportion_container_memory_used_bytes", source);
        assert_eq!(used, Some((2 * cost) as f64), "{source}");
    }
    assert!(host.metric("apportion_container_memory_peak_bytes", train) >= Some((2 * cost) as f64));

    program.kill();
    eventually("the overhead and the claim are gone", async || {
        let found = find(&mut client, &allocation.id)
            .await?
            .grants
            .swap_remove(0);
        (found.overhead_bytes == 0 && found.claimed_bytes == cost).then_some(())
    })
    .await;
}

#[tokio::test]
async fn refusals_and_context_reserves_are_shown() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "tight", 1000).await.unwrap();
    let program = host.context(Some(Path::new(&allocation.account_dir)), "0");
    let (usage, slot) = claim(&allocation.account_dir, &program, 400 * MIB);
    usage.usage().set_reserve(slot, 0, Bytes(300 * MIB));
    usage.usage().deny(0, ApiFamily::Alloc, Bytes(700 * MIB));
    usage.usage().deny(0, ApiFamily::Pool, Bytes(50 * MIB));
    commit(&mut client, &allocation.id, program.pid()).await;
    let grant = eventually("the refusal shows", async || {
        let grant = find(&mut client, &allocation.id)
            .await?
            .grants
            .swap_remove(0);
        (grant.denied_count == 2).then_some(grant)
    })
    .await;
    assert_eq!(
        (
            grant.denied_bytes,
            grant.context_bytes,
            grant.last_denied_bytes
        ),
        (750 * MIB, 300 * MIB, 50 * MIB)
    );
    let metric = |name: &str| host.metric(&format!("apportion_container_memory_{name}"), "tight");
    let text = host.http("/metrics");
    for (api, count) in [("alloc", "1.0"), ("pool", "1.0"), ("other", "0.0")] {
        let mut lines = text.lines().filter(|line| {
            line.starts_with("apportion_container_memory_denied_total") && line.contains("tight")
        });
        let of_it = lines.find(|line| line.contains(&format!("api=\"{api}\"")));
        assert!(
            of_it.is_some_and(|line| line.ends_with(count)),
            "{api}: {of_it:?}"
        );
    }
    assert_eq!(metric("denied_bytes_total"), Some((750 * MIB) as f64));
    assert_eq!(metric("last_denied_bytes"), Some((50 * MIB) as f64));
    assert_eq!(metric("context_bytes"), Some((300 * MIB) as f64));
}

#[tokio::test]
async fn memory_of_a_process_without_an_allocation_cannot_be_given() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&["--context-reserve", "300"]).await;
    let before = card(&mut client, 0).await;
    let mut stranger = host.context(None, "0");
    let taken = eventually("the stranger shows", async || {
        let taken = card(&mut client, 0).await.unmanaged_bytes;
        (taken > 0).then_some(taken)
    })
    .await;
    assert_eq!(
        card(&mut client, 0).await.free_bytes,
        before.allocatable_bytes - taken
    );
    assert_eq!(
        host.metric("apportion_gpu_memory_unmanaged_bytes", ""),
        Some(taken as f64)
    );
    assert_eq!(
        host.metric("apportion_gpu_memory_used_bytes", ""),
        Some(taken as f64)
    );
    let all = before.allocatable_bytes / MIB;
    let shortfall = allocate(&mut client, "all", all).await.unwrap_err();
    assert_eq!(shortfall.unmanaged_bytes, taken);
    stranger.kill();
    eventually("all can be given again", async || {
        allocate(&mut client, "all", all).await.ok()
    })
    .await;
}

#[tokio::test]
async fn a_lost_card_gives_nothing_and_comes_back() {
    let host = Host::new(2);
    let (_agent, mut client) = host.agent(&["--context-reserve", "300"]).await;
    let lost =
        |lost| format!("{{\"Nvml\":{{\"Control\":{{\"Lost\":{{\"card\":0,\"lost\":{lost}}}}}}}}}");
    host.play(&lost(true));
    eventually("the loss shows", async || {
        let card = card(&mut client, 0).await;
        (card.health() == apportion_proto::v1::CardHealth::Lost && card.free_bytes == 0)
            .then_some(())
    })
    .await;
    let request = crate::host::wish(&mut client, "a", 10).await;
    let refused = client.allocate(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    host.play(&lost(false));
    eventually("it can be given again", async || {
        let request = crate::host::wish(&mut client, "a", 10).await;
        client.allocate(request).await.ok()
    })
    .await;
}

#[tokio::test]
async fn utilisation_is_shown() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "busy", 1000).await.unwrap();
    let program = host.context(Some(Path::new(&allocation.account_dir)), "0");
    let _stranger = host.context(None, "0");
    commit(&mut client, &allocation.id, program.pid()).await;
    host.play(
        "{\"Nvml\":{\"Control\":{\"Utilisation\":{\"card\":0,\"utilisation\":{\"gpu\":40,\"memory\":1,\"encoder\":0,\"decoder\":0}}}}}",
    );
    eventually("the load shows", async || {
        (card(&mut client, 0).await.utilisation_percent == Some(40)).then_some(())
    })
    .await;
    assert_eq!(
        host.metric("apportion_gpu_utilisation_ratio", ""),
        Some(0.4)
    );
    // The simulated card divides its time equally among its processes.
    eventually("the container's part shows", async || {
        let part = host.metric("apportion_container_utilisation_ratio", "busy");
        (part == Some(0.2)).then_some(())
    })
    .await;
    drop(program);
    eventually("nobody's part is no series", async || {
        let part = host.metric("apportion_container_utilisation_ratio", "busy");
        part.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_driver_that_was_replaced_is_found_again() {
    let mut host = Host::new(1);
    let (_agent, mut client) = host.agent(&["--context-reserve", "300"]).await;
    host.replace_driver(3);
    eventually("the new cards show", async || {
        (crate::host::list(&mut client).await.cards.len() >= 3).then_some(())
    })
    .await;
    let last = crate::host::list(&mut client).await.cards.len() - 1;
    let mut request = crate::host::wish(&mut client, "a", 10).await;
    request.shares[0].card = card(&mut client, last).await.uuid;
    assert!(client.allocate(request).await.is_ok());
}
