//! A program that takes system calls, descriptors or memory from itself keeps its limit: what cannot be charged is
//! refused. Where the program gets back what it lacked, it goes on.

use apportion_tests::{Host, MIB, Victim};

const OPTIONS: &[&str] = &["--gpu-memory", "2000", "--name", "sly"];
const LIMIT: u64 = 2000 * MIB;
/// Less than the simulated driver gives a program that may lock no more.
const SMALL_LIMIT: u64 = 600 * MIB;

/// A program that has nothing of the library's yet when it begins, and less than others.
fn deprived(host: &Host, denial: &str) -> Victim {
    let mut victim = host.victim(OPTIONS);
    victim.step(&format!("{denial} exec -")).ok();
    victim
}

/// A program in which the library has not been called yet.
fn untouched(host: &Host) -> Victim {
    host.victim_through("linked", OPTIONS)
}

/// Takes all that it is given, in pieces.
fn fill(victim: &mut Victim) -> u64 {
    let answers = (0..20).map(|_| victim.step("alloc 400M").code);
    answers.filter(|code| *code == 0).count() as u64
}

/// `errno`s that the kernel itself gives for the calls, and one that it never gives.
const ERRORS: [i32; 5] = [
    libc::ENOENT,
    libc::ENOMEM,
    libc::EAGAIN,
    libc::EPERM,
    libc::ENOSYS,
];

#[test]
fn a_filter_of_system_calls_sheds_no_limit() {
    let kinds = [
        "page",
        "shared-maps",
        "open-for-writing",
        "advice",
        "locks",
        "pid",
    ];
    let mut shed = Vec::new();
    for kind in kinds {
        for errno in ERRORS {
            let host = Host::new();
            let mut victim = deprived(&host, &format!("deny {kind} {errno}"));
            let pieces = fill(&mut victim);
            let most = host.high_water();
            if most > LIMIT {
                shed.push(format!(
                    "{kind} with {errno}: {pieces} pieces, {most} bytes of {LIMIT}"
                ));
            }
        }
    }
    assert!(shed.is_empty(), "{shed:#?}");
}

#[test]
fn a_filter_that_comes_while_memory_is_held_sheds_no_limit() {
    for kind in ["page", "shared-maps", "open", "advice", "locks", "pid"] {
        let host = Host::new();
        let mut victim = host.victim(OPTIONS);
        victim.step("alloc 400M").ok();
        victim.step(&format!("deny {kind} {}", libc::ENOMEM)).ok();
        fill(&mut victim);
        victim.step("fork alloc 400M alloc 400M alloc 400M alloc 400M");
        assert!(host.high_water() <= LIMIT, "{kind}: {}", host.high_water());
    }
}

/// A child has a state of its own, also where the kernel does not wipe the parent's.
#[test]
fn a_child_is_charged_where_its_page_is_not_wiped() {
    let host = Host::new();
    let mut victim = deprived(&host, &format!("deny advice {}", libc::EINVAL));
    victim.step("alloc 400M").ok();
    victim.step("spawn alloc 800M").ok();
    victim.step("alloc 400M").refused();
    assert!(host.high_water() <= LIMIT);
}

#[test]
fn a_program_without_descriptors_is_refused_and_goes_on_when_it_has_some() {
    for left in 0..8 {
        let host = Host::new();
        let mut victim = untouched(&host);
        victim.step(&format!("starve {left}")).ok();
        fill(&mut victim);
        let most = host.high_water();
        assert!(most <= LIMIT, "{left} descriptors: {most} bytes");
        victim.step("feed").ok();
        let pieces = fill(&mut victim);
        assert!(
            pieces > 0 || most > 0,
            "{left} descriptors: nothing is given afterwards"
        );
        assert!(host.high_water() <= LIMIT, "{left} descriptors, afterwards");
    }
}

#[test]
fn a_program_that_may_map_or_lock_no_more_keeps_its_limit() {
    for denial in ["lock 1K", "lock 64K", "lock 1M", "space 512M", "space 4G"] {
        let host = Host::new();
        let mut victim = host.victim_through("linked", &["--gpu-memory", "600"]);
        victim.step(denial).ok();
        fill(&mut victim);
        let most = host.high_water();
        assert!(most <= SMALL_LIMIT, "{denial}: {most} bytes");
    }
}
