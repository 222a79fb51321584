//! Memory that several processes of a program share counts once, and as long as one of them holds it. The driver never
//! exceeds the limit, and nothing stays charged after its end.
//!
//! PyTorch's workers share tensors in this way. Whichever process is killed, the others keep what they hold, and memory
//! that no process holds is free again.

use apportion_tests::{CONTEXT, MIB, PATIENCE, TestHost, VictimProcess, eventually};

const LIMIT: u64 = 2000 * MIB;
const OPTIONS: &[&str] = &["--gpu-memory", "2000"];
const SHARED: u64 = 1000 * MIB;

/// A victim with a context, on a machine whose high-water mark counts only the victim.
fn started(host: &TestHost) -> VictimProcess {
    let mut victim = host.victim(OPTIONS);
    victim.step("init").ok();
    eventually(PATIENCE, "nobody else holds memory", || host.used() == 0);
    let _ = host.high_water();
    victim.step("start").ok();
    victim
}

fn free(victim: &mut VictimProcess) -> u64 {
    victim.step("info").numbers[0]
}

/// Allocates shareable memory and exports a descriptor.
fn make(victim: &mut VictimProcess) -> (u64, u64) {
    let made = victim.step("shareable 1000M").value();
    (made, victim.step(&format!("export {made}")).value())
}

fn all_is_over(host: &TestHost, victim: &mut VictimProcess) {
    eventually(PATIENCE, "the driver has all back", || {
        host.used() == CONTEXT
    });
    // Queries do not look for dead processes. The agent does, and so does every charge that would be refused.
    eventually(PATIENCE, "nothing is charged for the dead", || {
        free(victim) == LIMIT - CONTEXT
    });
    let all = victim.step(&format!("alloc {}", LIMIT - CONTEXT)).value();
    victim.step(&format!("free {all}")).ok();
    assert!(host.high_water() <= LIMIT);
}

#[test]
fn memory_that_its_maker_gave_up_counts_while_another_holds_it() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let (made, descriptor) = make(&mut victim);
    victim
        .step(&format!("spawn init start import {descriptor} map 0"))
        .ok();
    let left = LIMIT - 2 * CONTEXT - SHARED;
    assert_eq!(free(&mut victim), left, "both hold it, once");
    let rest = victim.step(&format!("alloc {left}")).value();
    victim.step(&format!("free {rest}")).ok();
    victim.step(&format!("free {made}")).ok();
    victim.step(&format!("close {descriptor}")).ok();
    assert_eq!(host.used(), 2 * CONTEXT + SHARED, "the other holds it");
    assert_eq!(free(&mut victim), left);
    victim.step("alloc 500M").refused();
    let rest = victim.step(&format!("alloc {left}")).value();
    victim.step(&format!("free {rest}")).ok();
    victim.step("reap").ok();
    all_is_over(&host, &mut victim);
}

#[test]
fn memory_of_a_maker_that_was_killed_counts_while_another_holds_it() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let said = victim.say("spawn init start shareable 1000M export 0");
    let number = |verb: &str| {
        let answer = said.iter().find(|answer| answer.verb == verb);
        answer.map_or(0, apportion_tests::VictimAnswer::value)
    };
    let (child, descriptor) = (number("spawn"), number("export"));
    let fetched = victim.step(&format!("fetch {child} {descriptor}")).value();
    let held = victim.step(&format!("import {fetched}")).value();
    victim.step("reap").ok();
    eventually(PATIENCE, "the driver saw the maker die", || {
        host.used() == CONTEXT + SHARED
    });
    victim.step("alloc 800M").refused();
    let left = LIMIT - CONTEXT - SHARED;
    let rest = victim.step(&format!("alloc {left}")).value();
    assert_eq!((host.used(), free(&mut victim)), (LIMIT, 0));
    victim.step(&format!("free {held}")).ok();
    victim.step(&format!("free {rest}")).ok();
    all_is_over(&host, &mut victim);
}

/// Allocates linear memory. Returns also the handle, as words, with which other processes open it.
fn make_plain(victim: &mut VictimProcess) -> (u64, String) {
    let made = victim.step("alloc 1000M").value();
    let handle = victim.step(&format!("handle {made}")).numbers;
    let words: Vec<_> = handle.iter().map(u64::to_string).collect();
    (made, words.join(" "))
}

#[test]
fn plain_memory_that_another_process_opened_counts_once_and_while_it_is_open() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let (made, handle) = make_plain(&mut victim);
    let said = victim.say(&format!("spawn init start open {handle} touch 0"));
    assert!(said.iter().all(|answer| answer.code == 0), "{said:?}");
    victim.step(&format!("touch {made}")).ok();
    let left = LIMIT - 2 * CONTEXT - SHARED;
    assert_eq!(free(&mut victim), left, "both hold it, once");
    victim.step(&format!("free {made}")).ok();
    assert_eq!(host.used(), 2 * CONTEXT + SHARED, "the other holds it");
    victim.step("alloc 500M").refused();
    let rest = victim.step(&format!("alloc {left}")).value();
    victim.step(&format!("free {rest}")).ok();
    victim.step("reap").ok();
    all_is_over(&host, &mut victim);
}

#[test]
fn plain_memory_that_was_closed_and_freed_is_there_at_once() {
    let host = TestHost::new();
    let mut victim = started(&host);
    for _ in 0..3 {
        let (made, handle) = make_plain(&mut victim);
        let said = victim.say(&format!("spawn init start open {handle} touch 0 free 0"));
        assert!(said.iter().all(|answer| answer.code == 0), "{said:?}");
        victim.step(&format!("free {made}")).ok();
        let rest = LIMIT - 2 * CONTEXT;
        let rest = victim.step(&format!("alloc {rest}")).value();
        victim.step(&format!("free {rest}")).ok();
        victim.step("reap").ok();
        eventually(PATIENCE, "the child is gone", || host.used() == CONTEXT);
    }
    all_is_over(&host, &mut victim);
}

#[test]
fn what_was_shared_ends_with_its_context() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let (_, handle) = make_plain(&mut victim);
    victim.step(&format!("spawn init start open {handle}")).ok();
    victim.step("reset").ok();
    assert_eq!(host.used(), CONTEXT + SHARED, "the other holds it");
    victim.step("start").ok();
    assert_eq!(free(&mut victim), LIMIT - 2 * CONTEXT - SHARED);
    victim.step("alloc 500M").refused();
    victim.step("reap").ok();
    all_is_over(&host, &mut victim);
}

#[test]
fn workers_that_share_and_let_go_in_turn_never_lose_room() {
    let host = TestHost::new();
    let mut victim = started(&host);
    for _ in 0..5 {
        let (made, descriptor) = make(&mut victim);
        let child = format!("import {descriptor} map 0 free 1 free 0 close {descriptor}");
        victim.step(&format!("spawn init start {child}")).ok();
        victim.step(&format!("free {made}")).ok();
        victim.step(&format!("close {descriptor}")).ok();
        eventually(PATIENCE, "nobody holds it", || {
            free(&mut victim) == LIMIT - 2 * CONTEXT
        });
        victim.step("reap").ok();
        eventually(PATIENCE, "the child is gone", || host.used() == CONTEXT);
    }
    all_is_over(&host, &mut victim);
}

#[test]
fn a_process_that_imports_what_it_made_holds_it_once() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let (made, descriptor) = make(&mut victim);
    let again = victim.step(&format!("import {descriptor}")).value();
    victim.step(&format!("free {made}")).ok();
    assert_eq!(free(&mut victim), LIMIT - CONTEXT - SHARED);
    victim.step("alloc 800M").refused();
    victim.step(&format!("free {again}")).ok();
    victim.step(&format!("close {descriptor}")).ok();
    all_is_over(&host, &mut victim);
}
