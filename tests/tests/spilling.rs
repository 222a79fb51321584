//! Local memory of kernels never exceeds the limit: it is charged before the first launch that needs more, and the
//! simulated driver records its maximum.

use apportion_tests::{CONTEXT, MIB, PATIENCE, TestHost, VictimProcess, eventually};

const LIMIT: u64 = 2000 * MIB;
const OPTIONS: &[&str] = &["--gpu-memory", "2000"];
/// The block that holds a kernel's image.
const CODE: u64 = 2 * MIB;

/// Every way to launch a kernel.
const WAYS: &[&str] = &[
    "spill",
    "spillex",
    "spillcooperative",
    "spillmany",
    "spillonce",
    "spillgrid",
    "spillgridasync",
    "spillkernel",
    "spillnode",
    "spillcaptured",
    "spillchanged",
    "spillupdated",
    "spillif",
    "spillifcopied",
];

/// A victim with a context, on a machine whose high-water mark counts only the victim.
fn started(host: &TestHost, door: &str) -> VictimProcess {
    let mut victim = host.victim_through(door, OPTIONS);
    victim.step("init").ok();
    eventually(PATIENCE, "nobody else holds memory", || host.used() == 0);
    let _ = host.high_water();
    victim.step("start").ok();
    victim
}

fn free(victim: &mut VictimProcess) -> u64 {
    victim.step("info").numbers[0]
}

/// The memory for this many bytes per thread, above what a context includes.
fn needed(host: &TestHost, bytes: u64) -> u64 {
    const INCLUDED: u64 = 1024;
    const SYSTEM: u64 = 512;
    const THREADS: u64 = 2048;
    let thread = (bytes + SYSTEM).next_multiple_of(256) - INCLUDED;
    let all = thread * THREADS * u64::from(host.card(0).multiprocessors);
    all.next_multiple_of(2 * MIB)
}

/// A refused launch changes nothing, smaller ones fit, and only the increase is charged.
fn at_the_limit(door: &str, way: &str) {
    let host = TestHost::new();
    let mut victim = started(&host, door);
    let (small, large) = (needed(&host, 1536), needed(&host, 3584));
    let room = LIMIT - CONTEXT - CODE - small;
    let filled = victim.step(&format!("alloc {room}")).value();
    victim.step(&format!("{way} 3584")).refused();
    assert_eq!(host.used(), CONTEXT + room, "{way}: nothing was taken");
    victim.step(&format!("{way} 512")).ok();
    assert_eq!(
        host.used(),
        CONTEXT + room,
        "{way}: what a context has is enough"
    );
    for _ in 0..2 {
        victim.step(&format!("{way} 1536")).ok();
        assert_eq!(
            host.used(),
            CONTEXT + room + small,
            "{way}: the driver took it"
        );
        assert_eq!(free(&mut victim), LIMIT - host.used(), "{way}: all agree");
    }
    victim.step(&format!("{way} 3584")).refused();
    victim.step(&format!("free {filled}")).ok();
    victim.step(&format!("{way} 3584")).ok();
    assert_eq!(host.used(), CONTEXT + large, "{way}: it never shrinks");
    assert_eq!(
        free(&mut victim),
        LIMIT - host.used(),
        "{way}: all agree again"
    );
    assert_eq!(host.high_water(), LIMIT, "{way}: never above the limit");
}

#[test]
fn threads_of_kernels_never_exceed_the_limit() {
    for way in WAYS {
        at_the_limit("dlsym", way);
    }
}

#[test]
fn threads_of_kernels_in_the_thread_s_own_stream_never_exceed_the_limit() {
    for way in ["spill", "spillex", "spillcooperative", "spillcaptured"] {
        at_the_limit("perthread", way);
    }
}

#[test]
fn threads_of_kernels_never_exceed_the_limit_through_any_door() {
    for door in ["linked", "getproc"] {
        at_the_limit(door, "spill");
    }
}

#[test]
fn stacks_and_what_kernels_need_are_in_one_place() {
    let host = TestHost::new();
    let mut victim = started(&host, "dlsym");
    let (small, large) = (needed(&host, 1536), needed(&host, 3584));
    victim.step("stack 2048").ok();
    victim.step("spill 1536").ok();
    assert_eq!(host.used(), CONTEXT + small);
    assert_eq!(free(&mut victim), LIMIT - host.used());
    victim.step("spill 3584").ok();
    assert_eq!(host.used(), CONTEXT + large);
    assert_eq!(free(&mut victim), LIMIT - host.used());
    victim.step("stack 1024").ok();
    assert_eq!(host.used(), CONTEXT + large);
    assert_eq!(free(&mut victim), LIMIT - host.used());
    victim.step("stack 8192").refused();
    victim.step("stack 5120").ok();
    assert_eq!(host.used(), CONTEXT + needed(&host, 4608));
    assert_eq!(free(&mut victim), LIMIT - host.used());
    assert!(host.high_water() <= LIMIT);
}

#[test]
fn a_launch_that_fails_is_given_back() {
    let host = TestHost::new();
    let mut victim = started(&host, "dlsym");
    victim.step("spillwrong 3584").ok();
    assert_eq!(free(&mut victim), LIMIT - CONTEXT);
    victim.step(&format!("alloc {}", LIMIT - CONTEXT)).ok();
}

#[test]
fn what_threads_need_ends_with_the_context() {
    let host = TestHost::new();
    let mut victim = started(&host, "dlsym");
    victim.step("spill 3584").ok();
    victim.step("reset").ok();
    assert_eq!(host.used(), 0);
    victim.step("start").ok();
    assert_eq!(free(&mut victim), LIMIT - CONTEXT);
    // The memory is needed and charged again.
    victim
        .step(&format!("alloc {}", LIMIT - CONTEXT - CODE))
        .ok();
    victim.step("spill 1536").refused();
    assert_eq!(host.high_water(), LIMIT);
}

#[test]
fn each_context_has_threads_of_its_own() {
    let host = TestHost::new();
    let mut victim = started(&host, "dlsym");
    victim.step("spill 3584").ok();
    victim.step("context").ok();
    let before = host.used();
    victim.step("spill 3584").ok();
    assert_eq!(host.used(), before + needed(&host, 3584));
    assert_eq!(free(&mut victim), LIMIT - host.used());
    assert!(host.high_water() <= LIMIT);
}

#[test]
fn threads_of_children_count_with_those_of_their_parents() {
    let host = TestHost::new();
    let mut victim = started(&host, "dlsym");
    let (small, large) = (needed(&host, 1536), needed(&host, 3584));
    victim.step("spill 3584").ok();
    let room = LIMIT - 2 * CONTEXT - large - small - CODE;
    let filled = victim.step(&format!("alloc {}", room + 2 * MIB)).value();
    victim.say("spawn spill 1536")[0].refused();
    victim.step("reap").ok();
    victim.step(&format!("free {filled}")).ok();
    victim.step(&format!("alloc {room}")).ok();
    victim.say("spawn spill 1536")[0].ok();
    assert_eq!(host.used(), LIMIT - CODE);
    victim.step("alloc 4M").refused();
    assert_eq!(host.high_water(), LIMIT);
}
