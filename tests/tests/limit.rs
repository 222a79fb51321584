//! A limit is exact to the byte, over all processes and all kinds of allocation. A program under it sees what it would
//! see on a smaller card.

use apportion_tests::{CARD, CONTEXT, MIB, TestHost, VictimProcess, eventually};

/// The limit of most tests.
const LIMIT: u64 = 2000 * MIB;
const OPTIONS: &[&str] = &["--gpu-memory", "2000"];

/// The ways to find the driver.
const DOORS: [&str; 8] = [
    "dlsym",
    "getproc",
    "perthread",
    "linked",
    "deepbind",
    "namespace",
    "plugin",
    "plugin-apart",
];

/// The free memory under the limit for a program with one context.
const FREE: u64 = LIMIT - CONTEXT;

fn info(victim: &mut VictimProcess) -> (u64, u64) {
    let answer = victim.step("info");
    answer.ok();
    (answer.numbers[0], answer.numbers[1])
}

#[test]
fn the_last_byte_is_given_and_the_next_is_refused() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    victim.step(&format!("alloc {FREE}")).ok();
    assert_eq!(host.used(), LIMIT, "the driver's own count");
    victim.step("alloc 1").refused();
    assert_eq!(host.used(), LIMIT);
}

#[test]
fn one_byte_more_than_the_limit_in_one_piece_is_refused() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    victim.step(&format!("alloc {}", FREE + 1)).refused();
    victim.step(&format!("alloc {FREE}")).ok();
}

/// A card's memory comes in blocks of 2 MiB. A share that ended within a block could not be filled.
#[test]
fn all_that_is_free_can_be_had_at_once_whatever_was_asked() {
    let machine = apportion_tests::cards(1);
    for share in [
        ["--gpu-fraction", "0.7"],
        ["--gpu-fraction", "0.3333"],
        ["--gpu-fraction", "0.123456789"],
        ["--gpu-memory", "2001"],
    ] {
        let host = TestHost::with(&machine);
        let mut victim = host.victim(&share);
        let (free, total) = info(&mut victim);
        assert_eq!(total % (2 * MIB), 0, "{share:?}");
        assert_eq!(free, total - CONTEXT, "{share:?}");
        assert_eq!(victim.step("total").value(), total, "{share:?}");
        for verb in ["alloc", "create"] {
            let held = victim.step(&format!("{verb} {free}")).value();
            assert_eq!(info(&mut victim).0, 0, "{share:?}, {verb}");
            victim.step(&format!("free {held}")).ok();
        }
    }
}

#[test]
fn every_door_to_the_driver_is_held_to_the_limit() {
    for door in DOORS {
        let host = TestHost::new();
        let mut victim = host.victim_through(door, OPTIONS);
        assert_eq!(info(&mut victim), (FREE, LIMIT), "{door}");
        assert_eq!(victim.step("total").value(), LIMIT, "{door}");
        victim.step("alloc 1000M").ok();
        victim.step("alloc 1000M").refused();
        let last = victim.step("fill 2M");
        assert_eq!(
            (last.code, last.numbers[0]),
            (2, FREE - 1000 * MIB),
            "{door}"
        );
        assert_eq!(host.used(), LIMIT, "{door}");
    }
}

#[test]
fn every_kind_of_memory_counts_behind_every_door() {
    let kinds = ["alloc", "managed", "async", "create"];
    for (door, verb) in DOORS.iter().flat_map(|door| kinds.map(|verb| (door, verb))) {
        let host = TestHost::new();
        let mut victim = host.victim_through(door, OPTIONS);
        victim.step(&format!("{verb} 1600M")).ok();
        assert!(
            host.used() >= 1600 * MIB + CONTEXT,
            "{door} {verb}: the driver gave it"
        );
        for other in [
            "alloc 128M",
            "managed 128M",
            "pitch 1048576 128",
            "async 128M",
            "create 128M",
        ] {
            victim.step(other).refused();
        }
        assert!(host.used() <= LIMIT, "{door} {verb}");
        victim.step("free 0").ok();
        victim.step("sync").ok();
        victim.step("alloc 1600M").ok();
    }
}

#[test]
fn pitched_memory_counts_with_its_padding() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    // A row of one byte is as wide as the pitch that the driver chooses.
    let pitch = victim.step("pitch 1 1024").numbers[1];
    let rows = FREE / pitch;
    victim.step(&format!("pitch 1 {rows}")).refused();
    victim.step(&format!("pitch 1 {}", rows - 8192)).ok();
    assert!(host.used() <= LIMIT);
}

#[test]
fn freeing_makes_room_again() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    for round in 0..20 {
        let held = victim.step("alloc 1600M").value();
        victim.step("alloc 200M").refused();
        victim.step(&format!("free {held}")).ok();
        assert_eq!(info(&mut victim), (FREE, LIMIT), "round {round}");
    }
    assert_eq!(host.used(), CONTEXT);
}

#[test]
fn a_program_that_takes_nine_tenths_of_what_is_free_gets_it() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    let taken = victim.step("take 90").value();
    assert_eq!(taken, FREE * 90 / 100);
    victim.step("touch 0").ok();
    assert!(host.used() <= LIMIT);
    victim.step("take 90").ok();
}

#[test]
fn children_count_with_their_parents() {
    for way in ["fork", "spawn"] {
        let host = TestHost::new();
        let mut victim = host.victim(OPTIONS);
        assert_eq!(victim.say(&format!("{way} alloc 700M"))[0].code, 0, "{way}");
        assert_eq!(victim.say(&format!("{way} alloc 500M"))[0].code, 0, "{way}");
        assert_eq!(host.used(), 1200 * MIB + 2 * CONTEXT, "{way}");
        assert_eq!(
            victim.step("start").code,
            2,
            "{way}: not even a context fits"
        );
        assert_eq!(host.used(), 1200 * MIB + 2 * CONTEXT, "{way}");
        victim.step("reap").ok();
        victim.step(&format!("alloc {FREE}")).ok();
        assert_eq!(host.used(), LIMIT, "{way}");
    }
}

#[test]
fn a_grandchild_that_lost_its_parents_still_counts() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    let middle = victim.step("spawn fork alloc 900M").value();
    let middle = nix::unistd::Pid::from_raw(i32::try_from(middle).expect("a pid"));
    nix::sys::signal::kill(middle, nix::sys::signal::Signal::SIGKILL).expect("it runs");
    victim.step("alloc 900M").refused();
    victim.step("alloc 500M").ok();
    assert!(host.used() <= LIMIT);
}

#[test]
fn a_program_that_becomes_another_keeps_its_limit_and_loses_its_memory() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    victim.step("alloc 1600M").ok();
    victim.step("exec -").ok();
    victim.step("alloc 1600M").ok();
    victim.step("alloc 200M").refused();
    assert_eq!(host.used(), 1600 * MIB + CONTEXT);
}

#[test]
fn contexts_count_and_are_given_back() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    victim.step("init").ok();
    assert_eq!(host.used(), 0);
    victim.step("start").ok();
    assert_eq!(info(&mut victim), (FREE, LIMIT));
    victim.step("alloc 1000M").ok();
    victim.step("reset").ok();
    assert_eq!(host.used(), 0, "a reset context takes its memory with it");
    victim.step("start").ok();
    assert_eq!(info(&mut victim), (FREE, LIMIT));
}

#[test]
fn a_context_that_does_not_fit_is_refused() {
    let host = TestHost::new();
    let mut victim = host.victim(&["--gpu-memory", "200"]);
    assert_eq!(victim.step("start").code, 2);
    assert_eq!(host.used(), 0);
    assert_eq!(victim.step("context").code, 2);
    assert_eq!(host.used(), 0);
}

#[test]
fn many_threads_together_get_no_more_than_the_limit() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    victim.step("start").ok();
    let given = victim.step("threads 64 100M").value();
    assert_eq!(given, FREE / (100 * MIB));
    assert!(host.used() <= LIMIT);
}

#[test]
fn after_much_coming_and_going_the_books_are_what_they_were() {
    for seed in 1..=4 {
        let host = TestHost::new();
        let mut victim = host.victim(&["--gpu-memory", "1000"]);
        let before = victim.step("info").numbers;
        let churned = victim.step(&format!("churn {seed} 5000"));
        assert!(
            churned.code == 0 && churned.numbers.iter().all(|count| *count > 0),
            "{churned:?}"
        );
        victim.step("sync").ok();
        assert_eq!(host.used(), CONTEXT, "seed {seed}: the driver has all back");
        assert_eq!(victim.step("info").numbers, before, "seed {seed}");
        victim.step(&format!("alloc {}", 1000 * MIB - CONTEXT)).ok();
    }
}

#[test]
fn a_fork_in_the_middle_of_anothers_call_hangs_nobody() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    victim.step("start").ok();
    assert_eq!(victim.step("storm 400").value(), 0, "children that hung");
    assert_eq!(info(&mut victim), (FREE, LIMIT));
    assert_eq!(host.used(), CONTEXT);
}

#[test]
fn all_questions_agree_inside_and_show_the_card_outside() {
    let host = TestHost::new();
    let mut inside = host.victim(OPTIONS);
    inside.step("alloc 500M").ok();
    let free = FREE - 500 * MIB;
    assert_eq!(info(&mut inside), (free, LIMIT));
    assert_eq!(inside.step("total").value(), LIMIT);
    assert_eq!(inside.step("nvml").numbers, [LIMIT, free, LIMIT - free]);
    let second = inside.step("nvml2").numbers;
    assert_eq!((second[0], second[2]), (LIMIT, free), "{second:?}");
    assert_eq!(second[1] + second[2] + second[3], LIMIT, "{second:?}");

    let mut outside = host.free_victim();
    let total = host.card(0).total;
    assert_eq!(outside.step("nvml").numbers[0], total);
    assert_eq!(outside.step("nvml2").numbers[0], total);
    assert_eq!(outside.step("total").value(), CARD);
}

#[test]
fn a_program_may_ask_with_null_and_free_what_it_never_had() {
    let host = TestHost::new();
    let mut inside = host.victim(OPTIONS);
    let mut outside = host.free_victim();
    for step in [
        "allocnull",
        "infonull",
        "freeunknown",
        "errorname",
        "alloc 1M freetwice 0",
        "alloc 0",
    ] {
        assert_eq!(inside.step(step), outside.step(step), "{step}");
    }
    assert_eq!(info(&mut inside), (FREE, LIMIT));
    assert_eq!(inside.errors(), "", "a hook says nothing");
}

#[test]
fn physical_memory_counts_until_its_last_reference_is_gone() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    victim.step("create 1600M").ok();
    victim.step("map 0").ok();
    victim.step("touch 1").ok();
    victim.step("retainhandle 1").ok();
    for number in ["0", "2"] {
        victim.step(&format!("free {number}")).ok();
        victim.step("alloc 200M").refused();
    }
    assert_eq!(host.used(), 1600 * MIB + CONTEXT);
    victim.step("free 1").ok();
    assert_eq!(host.used(), CONTEXT);
    victim.step("alloc 1600M").ok();
}

#[test]
fn memory_of_the_host_is_nobodys_limit() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    victim.step("hostcreate 4G").ok();
    assert_eq!(info(&mut victim), (FREE, LIMIT));
}

#[test]
fn a_pool_counts_what_it_keeps_and_gives_it_up_when_the_limit_needs_it() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    victim.step("pool 4G").ok();
    victim.step("poolalloc 0 1024M").ok();
    victim.step("touch 1").ok();
    victim.step("alloc 1024M").refused();
    victim.step("free 1").ok();
    victim.step("sync").ok();
    assert!(host.used() >= 1024 * MIB, "the pool keeps its memory");
    victim.step("alloc 1024M").ok();
    assert!(host.used() <= LIMIT);
    victim.step("poolalloc 0 1024M").refused();
}

#[test]
fn memory_that_no_call_announces_counts_within_a_second() {
    let host = TestHost::new();
    let mut victim = host.victim(OPTIONS);
    victim.step("launch 16M").ok();
    let hidden = 16 * MIB;
    let charged = host.used() - hidden;
    let second = std::time::Duration::from_secs(1);
    eventually(second * 3, "the overhead counts", || {
        info(&mut victim).0 == LIMIT - charged - hidden
    });
    assert_eq!(
        host.top()["allocations"][0]["grants"][0]["overhead_bytes"].as_u64(),
        Some(hidden)
    );
    victim.step(&format!("alloc {}", LIMIT - charged)).refused();
    victim
        .step(&format!("alloc {}", LIMIT - charged - hidden))
        .ok();
    assert!(host.used() <= LIMIT);
}
