//! Freed memory stays charged as long as something else keeps it: a sparse array, a multicast object, a descriptor.
//!
//! The simulated driver records its maximum, and memory that nothing keeps is free again at once.

use apportion_tests::{CONTEXT, MIB, PATIENCE, TestHost, VictimProcess, eventually};

const LIMIT: u64 = 2000 * MIB;
const HELD: u64 = 1000 * MIB;
const FREE: u64 = LIMIT - CONTEXT;

/// A victim with a context, on a machine whose high-water mark counts only the victim.
fn started(host: &TestHost) -> VictimProcess {
    let mut victim = host.victim(&["--gpu-memory", "2000"]);
    victim.step("init").ok();
    eventually(PATIENCE, "nobody else holds memory", || host.used() == 0);
    let _ = host.high_water();
    victim.step("start").ok();
    victim
}

fn free(victim: &mut VictimProcess) -> u64 {
    victim.step("info").numbers[0]
}

/// The freed memory is still kept: it counts, and there is no room for more.
fn is_kept(host: &TestHost, victim: &mut VictimProcess) {
    assert_eq!(host.used(), CONTEXT + HELD, "the driver keeps it");
    assert_eq!(free(victim), FREE - HELD, "and so it counts");
    victim.step("alloc 800M").refused();
}

/// Nothing keeps the memory any more.
fn is_gone(host: &TestHost, victim: &mut VictimProcess) {
    assert_eq!(host.used(), CONTEXT, "the driver has it back");
    let all = victim.step(&format!("alloc {FREE}")).value();
    victim.step(&format!("free {all}")).ok();
    assert!(host.high_water() <= LIMIT, "never above the limit");
}

#[test]
fn a_sparse_array_keeps_what_is_mapped_into_it() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let array = victim.step("sparse 1000M").value();
    assert_eq!(free(&mut victim), FREE, "it has no memory of its own");
    for ends_by in ["untile", "free"] {
        let made = victim.step("create 1000M").value();
        victim.step(&format!("tile {array} {made}")).ok();
        victim.step(&format!("free {made}")).ok();
        is_kept(&host, &mut victim);
        victim.step(&format!("{ends_by} {array}")).ok();
        is_gone(&host, &mut victim);
    }
}

#[test]
fn a_tile_takes_the_place_of_the_one_before() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let array = victim.step("sparse 1000M").value();
    for _ in 0..3 {
        let small = victim.step("create 500M").value();
        victim.step(&format!("tile {array} {small}")).ok();
        victim.step(&format!("free {small}")).ok();
        assert_eq!(host.used(), CONTEXT + 500 * MIB);
    }
    victim.step(&format!("alloc {}", FREE - 500 * MIB)).ok();
    assert_eq!(host.high_water(), LIMIT);
}

#[test]
fn arrays_let_go_of_what_they_keep_with_their_context() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let array = victim.step("sparse 1000M").value();
    let made = victim.step("create 1000M").value();
    victim.step(&format!("tile {array} {made}")).ok();
    victim.step(&format!("free {made}")).ok();
    victim.step("reset").ok();
    assert_eq!(host.used(), 0);
    victim.step("start").ok();
    is_gone(&host, &mut victim);
}

#[test]
fn a_multicast_object_keeps_what_is_bound_to_it() {
    let host = TestHost::new();
    let mut victim = started(&host);
    for (by_address, ends_by) in [(false, "unbind"), (true, "unbind"), (false, "free")] {
        let object = victim.step("multicast 1000M").value();
        assert_eq!(free(&mut victim), FREE, "it has no memory of its own");
        let made = victim.step("create 1000M").value();
        let mapped = by_address.then(|| victim.step(&format!("map {made}")).value());
        let bound = mapped.unwrap_or(made);
        victim.step(&format!("bind {object} {bound}")).ok();
        for number in mapped.into_iter().chain([made]) {
            victim.step(&format!("free {number}")).ok();
        }
        is_kept(&host, &mut victim);
        victim.step(&format!("{ends_by} {object}")).ok();
        is_gone(&host, &mut victim);
    }
}

#[test]
fn a_descriptor_that_nobody_imported_keeps_its_memory() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let made = victim.step("shareable 1000M").value();
    let [first, second] = [(); 2].map(|()| victim.step(&format!("export {made}")).value());
    victim.step(&format!("free {made}")).ok();
    is_kept(&host, &mut victim);
    victim.step(&format!("close {first}")).ok();
    is_kept(&host, &mut victim);
    victim.step(&format!("close {second}")).ok();
    is_gone(&host, &mut victim);
}

#[test]
fn a_descriptor_that_another_process_has_keeps_its_memory() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let made = victim.step("shareable 1000M").value();
    let descriptor = victim.step(&format!("export {made}")).value();
    victim.step("spawn pid").ok();
    for step in ["free", "close"] {
        let number = if step == "free" { made } else { descriptor };
        victim.step(&format!("{step} {number}")).ok();
        is_kept(&host, &mut victim);
    }
    victim.step("reap").ok();
    is_gone(&host, &mut victim);
}

#[test]
fn a_buffer_for_other_devices_keeps_its_memory() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let plain = victim.step("alloc 1000M").value();
    let buffer = victim.step(&format!("buffer {plain} 1000M")).value();
    victim.step(&format!("free {plain}")).ok();
    is_kept(&host, &mut victim);
    victim.step(&format!("close {buffer}")).ok();
    is_gone(&host, &mut victim);
    let made = victim.step("create 1000M").value();
    let mapped = victim.step(&format!("map {made}")).value();
    let buffer = victim.step(&format!("buffer {mapped} 1000M")).value();
    for number in [mapped, made] {
        victim.step(&format!("free {number}")).ok();
    }
    is_kept(&host, &mut victim);
    victim.step(&format!("close {buffer}")).ok();
    is_gone(&host, &mut victim);
}
