//! The driver never gives a program more than its limit, not even for a moment. The simulated driver records its
//! maximum, so nothing is missed between samples.
//!
//! Each kind of memory is allocated up to the limit, refused above it, and freed.

use apportion_sim_machine::{FaultEffect, FaultRule, MachineRequest};
use apportion_tests::{CONTEXT, MIB, PATIENCE, TestHost, VictimProcess, eventually};

const LIMIT: u64 = 2000 * MIB;
const OPTIONS: &[&str] = &["--gpu-memory", "2000"];
const FREE: u64 = LIMIT - CONTEXT;

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

/// Fills the card except for `room`, is refused one `more`, allocates and frees `fits`, and fills the room.
fn at_the_limit(host: &TestHost, victim: &mut VictimProcess, verb: &str) {
    let filled = victim.step(&format!("alloc {}", FREE - 600 * MIB)).value();
    victim.step(&format!("{verb} 640M")).refused();
    assert_eq!(host.used(), LIMIT - 600 * MIB, "{verb}: nothing was taken");
    let given = victim.step(&format!("{verb} 512M"));
    given.ok();
    assert!(
        host.used() >= LIMIT - 96 * MIB,
        "{verb}: the driver took it"
    );
    assert_eq!(free(victim), LIMIT - host.used(), "{verb}: all agree");
    victim.step("alloc 100M").refused();
    match given.numbers.first() {
        Some(number) => victim.step(&format!("free {number}")).ok(),
        None => victim.step(&format!("{verb} 1M")).ok(),
    }
    victim.step("sync").ok();
    let rest = victim.step("alloc 600M").value();
    assert_eq!(host.used(), LIMIT, "{verb}: what was given back is there");
    for number in [filled, rest] {
        victim.step(&format!("free {number}")).ok();
    }
    assert_eq!(host.used(), CONTEXT, "{verb}");
    assert_eq!(host.high_water(), LIMIT, "{verb}: never above the limit");
}

#[test]
fn memory_with_an_address_never_exceeds_the_limit() {
    let host = TestHost::new();
    let mut victim = started(&host);
    for verb in ["alloc", "managed", "rows", "create", "async", "array"] {
        at_the_limit(&host, &mut victim, verb);
    }
    let pool = victim.step("pool 0").value();
    at_the_limit(&host, &mut victim, &format!("poolalloc {pool}"));
}

#[test]
fn arrays_with_mipmaps_never_exceed_the_limit() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let filled = victim.step(&format!("alloc {}", FREE - 600 * MIB)).value();
    // The second level adds a quarter to the size.
    victim.step("mipmaps 512M").refused();
    assert_eq!(host.used(), LIMIT - 600 * MIB);
    let made = victim.step("mipmaps 256M").value();
    assert_eq!(free(&mut victim), LIMIT - host.used());
    victim.step("alloc 300M").refused();
    for number in [filled, made] {
        victim.step(&format!("free {number}")).ok();
    }
    assert_eq!(host.used(), CONTEXT);
    assert!(host.high_water() <= LIMIT);
}

#[test]
fn further_contexts_never_exceed_the_limit() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let full = victim.step(&format!("alloc {FREE}")).value();
    assert_eq!(victim.step("context").code, 2);
    victim.step(&format!("free {full}")).ok();
    victim.step("context").ok();
    assert_eq!(free(&mut victim), LIMIT - host.used());
    let left = free(&mut victim);
    victim.step(&format!("alloc {left}")).ok();
    assert_eq!(victim.step("context").code, 2);
    assert_eq!(host.high_water(), LIMIT);
}

#[test]
fn code_never_exceeds_the_limit() {
    let host = TestHost::new();
    let mut victim = started(&host);
    for verb in [
        "ptx",
        "cubin",
        "fatbin",
        "packed",
        "with",
        "linked",
        "file",
        "library",
        "libraryfile",
    ] {
        at_the_limit(&host, &mut victim, verb);
    }
}

/// A bundle's code is loaded when its first kernel is launched. No call announces that: the driver takes the memory,
/// and the agent counts it.
#[test]
fn code_that_is_loaded_late_counts_when_it_is_used() {
    const CODE: u64 = 64 * MIB;
    let host = TestHost::new();
    let mut victim = started(&host);
    let module = victim.step(&format!("code {CODE}")).value();
    assert!(host.used() <= CONTEXT + 2 * MIB, "nothing was used yet");
    for _ in 0..2 {
        victim.step(&format!("use {module}")).ok();
        assert_eq!(host.used(), CONTEXT + CODE, "it is loaded once");
    }
    eventually(PATIENCE, "the agent counts it", || {
        free(&mut victim) == FREE - CODE
    });
    victim.step(&format!("free {module}")).ok();
    assert_eq!(host.used(), CONTEXT);
}

#[test]
fn heaps_and_buffers_never_exceed_the_limit() {
    let host = TestHost::new();
    let mut victim = started(&host);
    for verb in ["heap", "printf"] {
        at_the_limit(&host, &mut victim, verb);
    }
}

#[test]
fn memory_of_graphs_never_exceeds_the_limit() {
    let host = TestHost::new();
    let mut victim = started(&host);
    for verb in ["graph", "graphauto", "captureauto"] {
        at_the_limit(&host, &mut victim, verb);
    }
}

/// A launch frees what the previous launch left and takes that memory again, even if the driver has given back all
/// other unused memory.
#[test]
fn a_graph_that_frees_at_its_launches_needs_its_memory_once() {
    let host = TestHost::new();
    let mut victim = started(&host);
    for verb in ["graphauto", "captureauto"] {
        let kept = victim.step(&format!("{verb} 1024M")).value();
        for _ in 0..3 {
            victim.step(&format!("relaunch {kept}")).ok();
            assert_eq!(free(&mut victim), FREE - 1024 * MIB, "{verb}");
        }
        let filled = victim.step("alloc 512M").value();
        // A failing allocation makes the driver give back unused memory.
        victim.step("alloc 512M").refused();
        victim.step(&format!("relaunch {kept}")).ok();
        assert_eq!(free(&mut victim), FREE - 1536 * MIB, "{verb}");
        victim.step(&format!("freekept {kept}")).ok();
        victim.step("alloc 1000M").ok();
        victim.step(&format!("relaunch {kept}")).refused();
        assert_eq!(host.used(), CONTEXT + 1512 * MIB, "{verb}");
        victim.step("reset").ok();
        victim.step("start").ok();
        let _ = filled;
    }
    assert!(host.high_water() <= LIMIT);
}

#[test]
fn what_graphs_freed_is_used_again() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let kept = victim.step("capture 1024M").value();
    assert_eq!(free(&mut victim), FREE - 1024 * MIB);
    // There is no room for a second allocation of this size, but the freed one can be used again.
    victim.step(&format!("relaunch {kept}")).ok();
    victim.step("alloc 400M").ok();
    victim.step(&format!("relaunch {kept}")).ok();
    let other = victim.step("upload 1024M").value();
    victim.step(&format!("relaunch {other}")).ok();
    victim.step("uploaded 1536M").refused();
    let other = victim.step("uploaded 1024M").value();
    victim.step(&format!("relaunch {other}")).ok();
    victim.step("capture 1536M").refused();
    victim.step("alloc 1200M").ok();
    victim.step(&format!("relaunch {kept}")).refused();
    assert_eq!(host.used(), CONTEXT + 1600 * MIB);
    assert!(host.high_water() <= LIMIT);
}

#[test]
fn a_graph_that_runs_again_counts_beside_what_another_kept() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let first = victim.step("graph 512M").value();
    victim.step(&format!("freekept {first}")).ok();
    // The second graph uses the memory that the first one has freed.
    let second = victim.step("graph 512M").value();
    assert_eq!(host.used(), CONTEXT + 512 * MIB);
    let room = FREE - 512 * MIB - 256 * MIB;
    let filled = victim.step(&format!("alloc {room}")).value();
    victim.step(&format!("relaunch {first}")).refused();
    victim.step(&format!("free {filled}")).ok();
    victim.step(&format!("relaunch {first}")).ok();
    assert_eq!(free(&mut victim), FREE - 1024 * MIB);
    victim.step(&format!("free {second}")).ok();
    assert!(host.high_water() <= LIMIT);
}

#[test]
fn a_graph_that_runs_again_counts_beside_those_that_may_run() {
    let host = TestHost::new();
    // Pretend that the graphs are still running and that their memory cannot be trimmed.
    for (function, code) in [("cuEventQuery", 600), ("cuDeviceGraphMemTrim", 1)] {
        host.ask(MachineRequest::AddRule(FaultRule {
            function: function.into(),
            nth: None,
            effect: FaultEffect::Error(code),
        }));
    }
    let mut victim = started(&host);
    let [first, second] = [(); 2].map(|()| victim.step("capture 512M").value());
    assert_eq!(host.used(), CONTEXT + 512 * MIB, "one after the other");
    let room = FREE - 512 * MIB - 256 * MIB;
    victim.step(&format!("alloc {room}")).ok();
    victim.step(&format!("relaunch {first}")).ok();
    victim.step(&format!("relaunch {second}")).ok();
    victim.step(&format!("relaunchaside {first}")).refused();
    host.ask(MachineRequest::ClearRules);
    victim.step(&format!("relaunchaside {first}")).ok();
    assert_eq!(free(&mut victim), 256 * MIB);
    assert!(host.high_water() <= LIMIT);
}

#[test]
fn a_captured_allocation_takes_nothing_until_it_is_launched() {
    let host = TestHost::new();
    let mut victim = started(&host);
    victim.step("alloc 1600M").ok();
    victim.step("capture 128M").refused();
    victim.step("capture 32M").ok();
    victim.step("reset").ok();
    assert_eq!(host.used(), 0);
    victim.step("start").ok();
    assert_eq!(free(&mut victim), FREE);
    assert!(host.high_water() <= LIMIT);
}

#[test]
fn green_contexts_never_exceed_the_limit() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let full = victim.step(&format!("alloc {FREE}")).value();
    victim.step("green").refused();
    victim.step(&format!("free {full}")).ok();
    let green = victim.step("green").value();
    assert!(host.used() > CONTEXT);
    let left = free(&mut victim);
    assert_eq!(left, LIMIT - host.used());
    victim.step(&format!("alloc {left}")).ok();
    victim.step("green").refused();
    assert_eq!(host.used(), LIMIT);
    // The green context keeps the primary context alive.
    victim.step("release").ok();
    assert_eq!(host.used(), LIMIT);
    victim.step(&format!("free {green}")).ok();
    assert_eq!(host.used(), 0);
    victim.step("start").ok();
    assert_eq!(free(&mut victim), FREE);
    assert_eq!(host.high_water(), LIMIT);
}

#[test]
fn a_green_context_is_charged_for_the_primary_one_that_it_brings() {
    let host = TestHost::new();
    let mut victim = host.victim(&["--gpu-memory", "350"]);
    victim.step("green").refused();
    assert_eq!(host.used(), 0);
    let mut victim = host.victim(&["--gpu-memory", "500"]);
    let green = victim.step("green").value();
    assert!(host.used() > CONTEXT);
    victim.step("start").ok();
    victim.step(&format!("free {green}")).ok();
    assert_eq!(host.used(), CONTEXT);
    victim.step("release").ok();
    assert_eq!(host.used(), 0);
    victim.step("start").ok();
    let left = 500 * MIB - CONTEXT;
    assert_eq!(free(&mut victim), left);
    victim.step(&format!("alloc {left}")).ok();
}

#[test]
fn what_a_stream_has_yet_to_free_stays_charged() {
    let host = TestHost::new();
    let is_busy = FaultRule {
        function: "cuEventQuery".into(),
        nth: None,
        effect: FaultEffect::Error(600),
    };
    host.ask(MachineRequest::AddRule(is_busy));
    let mut victim = started(&host);
    let pool = victim.step("pool 4G").value();
    let held = victim.step(&format!("poolalloc {pool} 1024M")).value();
    victim.step(&format!("free {pool}")).ok();
    victim.step(&format!("free {held}")).ok();
    assert_eq!(free(&mut victim), FREE - 1024 * MIB);
    victim.step("alloc 1024M").refused();
    host.ask(MachineRequest::ClearRules);
    victim.step("alloc 1600M").ok();
    assert_eq!(free(&mut victim), FREE - 1600 * MIB);
}

#[test]
fn a_library_counts_in_every_context() {
    let host = TestHost::new();
    let mut victim = started(&host);
    let library = victim.step("library 500M").value();
    victim.step("context").ok();
    let left = free(&mut victim);
    assert!(left < FREE - 1000 * MIB, "once in each of two: {left}");
    victim.step(&format!("alloc {left}")).ok();
    victim.step("context").refused();
    victim.step(&format!("free {library}")).ok();
    victim.step("alloc 1000M").ok();
    assert!(host.high_water() <= LIMIT);
}

#[test]
fn what_is_in_a_context_ends_with_it() {
    let host = TestHost::new();
    let mut victim = started(&host);
    for step in ["cubin 300M", "heap 300M", "ptx 1M"] {
        victim.step(step).ok();
    }
    victim.step("reset").ok();
    assert_eq!(host.used(), 0);
    victim.step("start").ok();
    assert_eq!(free(&mut victim), FREE);
    victim.step(&format!("alloc {FREE}")).ok();
    assert_eq!(host.high_water(), LIMIT);
}
