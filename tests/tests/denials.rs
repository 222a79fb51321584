//! A program that takes system calls, descriptors or memory from itself keeps its limit: what cannot be charged is
//! refused. Where the program gets back what it lacked, it goes on.

use apportion_tests::{MIB, TestHost, VictimProcess};

const OPTIONS: &[&str] = &["--gpu-memory", "2000", "--name", "sly"];
const LIMIT: u64 = 2000 * MIB;
/// Less than the simulated driver gives a program that may lock no more.
const SMALL_LIMIT: u64 = 600 * MIB;

/// A program that has nothing of the library's yet when it begins, and less than others.
fn deprived(host: &TestHost, denial: &str) -> VictimProcess {
    let mut victim = host.victim(OPTIONS);
    victim.step(&format!("{denial} exec -")).ok();
    victim
}

/// A program in which the library has not been called yet.
fn untouched(host: &TestHost) -> VictimProcess {
    host.victim_through("linked", OPTIONS)
}

/// Takes all that it is given, in pieces.
fn fill(victim: &mut VictimProcess) -> u64 {
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

/// A child has a state of its own, also where the kernel does not wipe the parent's.
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

/// Takes all that it is given, in pieces, as long as it lives.
fn fill_while_it_lives(victim: &mut VictimProcess) -> usize {
    let answers = victim.try_say("alloc 400M ".repeat(20).trim());
    answers.iter().filter(|answer| answer.code == 0).count()
}

/// Does what is said to a program before it begins and to one that holds memory; either may end it. Returns how many
/// pieces of memory the first one got.
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

/// What a filter can look for.
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

/// The worst answers: the call is said to be done, and is not. Who opens a file gets a descriptor that is not open.
#[test]
fn a_filter_whose_calls_another_process_answers_sheds_no_limit() {
    for kind in KINDS {
        let answer = if kind.starts_with("open") { 900 } else { 0 };
        keeps_its_limit_through(&format!("notify {kind} {answer}"));
    }
}

/// What a program may ask the kernel about itself. Some of it ends the program sooner or later.
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
