//! A program that denies system calls, descriptors or memory to itself keeps its limit: what cannot be charged is
//! refused. If it gets back what it lacked, it continues.

use apportion_tests::{MIB, TestHost, VictimProcess};

const OPTIONS: &[&str] = &["--gpu-memory", "2000", "--name", "sly"];
const LIMIT: u64 = 2000 * MIB;
/// Less than the simulated driver itself grants a program that can lock no more memory.
const SMALL_LIMIT: u64 = 600 * MIB;

/// A program that executes itself under the denial, before the library is loaded.
fn deprived(host: &TestHost, denial: &str) -> VictimProcess {
    let mut victim = host.victim(OPTIONS);
    victim.step(&format!("{denial} exec -")).ok();
    victim
}

/// A program in which the library was not called yet.
fn untouched(host: &TestHost) -> VictimProcess {
    host.victim_through("linked", OPTIONS)
}

/// Allocates pieces until the count is reached. Returns how many were granted.
fn fill(victim: &mut VictimProcess) -> u64 {
    let answers = (0..20).map(|_| victim.step("alloc 400M").code);
    answers.filter(|code| *code == 0).count() as u64
}

/// Error codes that the kernel itself returns for these calls, and one that it never returns.
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
            let host = TestHost::new();
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
        let host = TestHost::new();
        let mut victim = host.victim(OPTIONS);
        victim.step("alloc 400M").ok();
        victim.step(&format!("deny {kind} {}", libc::ENOMEM)).ok();
        fill(&mut victim);
        victim.step("fork alloc 400M alloc 400M alloc 400M alloc 400M");
        assert!(host.high_water() <= LIMIT, "{kind}: {}", host.high_water());
    }
}

/// A forked child has a state of its own, even if the kernel does not wipe the parent's page.
#[test]
fn a_child_is_charged_where_its_page_is_not_wiped() {
    let host = TestHost::new();
    let mut victim = deprived(&host, &format!("deny advice {}", libc::EINVAL));
    victim.step("alloc 400M").ok();
    victim.step("spawn alloc 800M").ok();
    victim.step("alloc 400M").refused();
    assert!(host.high_water() <= LIMIT);
}

#[test]
fn a_program_without_descriptors_is_refused_and_goes_on_when_it_has_some() {
    for left in 0..8 {
        let host = TestHost::new();
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
        let host = TestHost::new();
        let mut victim = host.victim_through("linked", &["--gpu-memory", "600"]);
        victim.step(denial).ok();
        fill(&mut victim);
        let most = host.high_water();
        assert!(most <= SMALL_LIMIT, "{denial}: {most} bytes");
    }
}

/// Allocates pieces as long as the program lives. Returns how many were granted.
fn fill_while_it_lives(victim: &mut VictimProcess) -> usize {
    let answers = victim.try_say("alloc 400M ".repeat(20).trim());
    answers.iter().filter(|answer| answer.code == 0).count()
}

/// Applies a denial to a new program and to one that holds memory. Either may end because of it. Returns how many
/// pieces the first one got.
fn keeps_its_limit_through(denial: &str) -> usize {
    let host = TestHost::new();
    let mut new = host.victim(OPTIONS);
    new.try_say(&format!("{denial} exec -"));
    let pieces = fill_while_it_lives(&mut new);
    drop(new);
    let most = host.high_water();
    assert!(most <= LIMIT, "{denial}, before: {most} bytes");

    let host = TestHost::new();
    let mut holder = host.victim(OPTIONS);
    holder.step("alloc 400M").ok();
    holder.try_say(denial);
    fill_while_it_lives(&mut holder);
    holder.try_say("fork alloc 400M alloc 400M alloc 400M alloc 400M");
    let most = host.high_water();
    assert!(most <= LIMIT, "{denial}, while it holds: {most} bytes");
    pieces
}

/// The calls that a filter can match.
const KINDS: [&str; 7] = [
    "page",
    "shared-maps",
    "open-for-writing",
    "open",
    "advice",
    "locks",
    "pid",
];

#[test]
fn a_filter_that_ends_the_program_sheds_no_limit() {
    for kind in KINDS {
        keeps_its_limit_through(&format!("deny {kind} 0"));
    }
}

/// The worst case: calls seem to succeed, but do nothing. Opening a file returns a descriptor that is not open.
#[test]
fn a_filter_whose_calls_another_process_answers_sheds_no_limit() {
    for kind in KINDS {
        let answer = if kind.starts_with("open") { 900 } else { 0 };
        keeps_its_limit_through(&format!("notify {kind} {answer}"));
    }
}

/// The `prctl` options that a program may set on itself. Some of them end the program sooner or later.
#[test]
fn a_program_that_changes_itself_by_prctl_keeps_its_limit() {
    let harmless = [
        (libc::PR_SET_DUMPABLE, 0),
        (libc::PR_SET_NAME, 0),
        (libc::PR_SET_CHILD_SUBREAPER, 1),
        (libc::PR_SET_NO_NEW_PRIVS, 1),
        (libc::PR_SET_THP_DISABLE, 1),
    ];
    for (option, value) in harmless {
        let pieces = keeps_its_limit_through(&format!("prctl {option} {value}"));
        assert_eq!(pieces, 4, "prctl {option} {value}");
    }
    let harmful = [
        (libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV),
        (libc::PR_SET_SECCOMP, 1),
    ];
    for (option, value) in harmful {
        keeps_its_limit_through(&format!("prctl {option} {value}"));
    }
}

#[test]
fn a_program_of_another_personality_keeps_its_limit() {
    let personalities = [
        ("ADDR_NO_RANDOMIZE", 0x4_0000),
        ("ADDR_COMPAT_LAYOUT", 0x20_0000),
        ("ADDR_LIMIT_3GB", 0x800_0000),
        ("READ_IMPLIES_EXEC", 0x40_0000),
        ("MMAP_PAGE_ZERO", 0x10_0000),
        ("UNAME26", 0x2_0000),
    ];
    for (name, bits) in personalities {
        let pieces = keeps_its_limit_through(&format!("personality {bits}"));
        assert_eq!(pieces, 4, "{name}");
    }
}
