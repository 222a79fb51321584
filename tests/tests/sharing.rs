//! Several limits on one machine: shares that fit exist at the same time, others are refused with numbers, and limits
//! change while programs run.

use apportion_tests::{CARD, CONTEXT, MIB, TestHost, VictimProcess, cards};

fn total(victim: &mut VictimProcess) -> u64 {
    victim.step("total").value()
}

#[test]
fn two_limits_hold_at_once_a_third_is_refused_in_a_sentence_and_a_smaller_one_fits() {
    let host = TestHost::new();
    let mut train = host.victim(&["--gpu-fraction", "0.7", "--name", "train"]);
    assert_eq!(total(&mut train), CARD / 10 * 7);
    let mut serve = host.victim(&["--gpu-fraction", "0.2", "--name", "serve"]);
    assert_eq!(total(&mut serve), CARD / 10 * 2);

    let third = host.run(&["--gpu-fraction", "0.2"], &["true"]);
    let sentence = third.fails_in_one_line(1);
    for part in [
        "asked for 2000 MiB",
        "1000 MiB free",
        "train with 7000 MiB",
        "serve with 2000 MiB",
    ] {
        assert!(sentence.contains(part), "{part} is not in {sentence:?}");
    }

    let mut small = host.victim(&["--gpu-fraction", "0.1", "--name", "small"]);
    assert_eq!(total(&mut small), CARD / 10);
    for (victim, limit) in [(&mut train, 7000), (&mut serve, 2000), (&mut small, 1000)] {
        let filled = victim.step("fill 20M");
        assert_eq!((filled.code, filled.numbers[0]), (2, limit * MIB - CONTEXT));
    }
    assert_eq!(
        host.used(),
        CARD,
        "the card is full and nobody has more than its share"
    );
}

#[test]
fn what_ends_makes_room_for_the_next() {
    let host = TestHost::new();
    let mut first = host.victim(&["--gpu-fraction", "0.9", "--name", "first"]);
    assert_eq!(total(&mut first), CARD / 10 * 9);
    host.run(&["--gpu-fraction", "0.2"], &["true"])
        .fails_in_one_line(1);
    assert!(first.end().success());
    let second = host.run_victim(&["--gpu-fraction", "0.9"], "total").well();
    assert_eq!(second.out.trim(), format!("total 0 {}", CARD / 10 * 9));
}

#[test]
fn a_program_sees_its_own_cards_only_each_as_large_as_its_limit() {
    let host = TestHost::with(&cards(3));
    let mut pair = host.victim(&["--gpus", "2", "--gpu-memory", "3000"]);
    assert_eq!(pair.step("count").value(), 2);
    for card in 0..2 {
        pair.step(&format!("on {card}")).ok();
        assert_eq!(total(&mut pair), 3000 * MIB);
        pair.step("alloc 2700M").ok();
        pair.step("alloc 1").refused();
        assert_eq!(pair.step("nvml").numbers, [3000 * MIB, 0, 3000 * MIB]);
    }
    let mut used: Vec<u64> = host.snapshot().cards.iter().map(|card| card.used).collect();
    used.sort_unstable();
    assert_eq!(used, [0, 3000 * MIB, 3000 * MIB]);
    let refused = host.run(&["--gpus", "4", "--gpu-memory", "100"], &["true"]);
    refused.fails_in_one_line(1);
}

#[test]
fn cards_that_differ_are_told_apart() {
    let mut machine = cards(2);
    machine.cards[1].memory = machine.cards[1].reserved + 4000 * MIB;
    machine.cards[1].model = "NVIDIA Simulated L4".to_owned();
    let host = TestHost::with(&machine);
    let mut half = host.victim(&["--gpu-fraction", "0.5", "--gpu", &host.card(1).uuid]);
    assert_eq!(total(&mut half), 2000 * MIB, "half of the small one");
    let mut tight = host.victim(&["--gpu-memory", "2000"]);
    tight.step("alloc 1700M").ok();
    assert_eq!(host.card(1).used, 2000 * MIB, "the smallest hole that fits");
    let mut large = host.victim(&["--gpu-memory", "2000"]);
    large.step("alloc 1700M").ok();
    assert_eq!(host.card(0).used, 2000 * MIB);
    assert_eq!(total(&mut half), 2000 * MIB);
}

#[test]
fn the_whole_card_is_what_is_given_when_nothing_is_asked() {
    let host = TestHost::new();
    let mut victim = host.victim(&[]);
    assert_eq!(total(&mut victim), CARD);
    let filled = victim.step("fill 100M");
    assert_eq!(filled.numbers[0], CARD - CONTEXT);
    host.run(&["--gpu-memory", "2"], &["true"])
        .fails_in_one_line(1);
}

#[test]
fn a_limit_grows_and_shrinks_under_a_running_program() {
    let host = TestHost::new();
    let mut victim = host.victim(&["--gpu-memory", "2000", "--name", "elastic"]);
    victim.step("alloc 1700M").ok();
    victim.step("alloc 100M").refused();

    let resize = |memory: &str| {
        let mut command = host.simulated("resize");
        apportion_tests::CommandOutput::by(command.args(["elastic", "--gpu-memory", memory]))
    };
    let _ = resize("3000").well();
    assert_eq!(total(&mut victim), 3000 * MIB);
    victim.step("alloc 1000M").ok();
    victim.step("alloc 1").refused();

    let _ = resize("2500").well();
    assert_eq!(total(&mut victim), 2500 * MIB);
    assert_eq!(
        victim.step("info").numbers,
        [0, 2500 * MIB],
        "nothing free, nothing taken away"
    );
    victim.step("touch 1").ok();
    victim.step("alloc 1").refused();
    victim.step("free 1").ok();
    victim.step("alloc 500M").ok();
    victim.step("alloc 1").refused();

    let refused = resize("20000");
    assert!(refused.fails_in_one_line(1).contains("10000 MiB"));
    assert_eq!(total(&mut victim), 2500 * MIB);
}

#[test]
fn the_same_card_by_any_name_has_the_same_limit() {
    let host = TestHost::with(&cards(2));
    let second = host.card(1).uuid;
    let mut victim = host.victim(&["--gpu-memory", "1000", "--gpu", &second]);
    assert_eq!(victim.step("count").value(), 1);
    let uuid = victim.step("uuid").numbers;
    let text = format!("GPU-{:016x}{:016x}", uuid[0], uuid[1]);
    assert_eq!(text, format!("GPU-{}", second[4..].replace('-', "")));
    victim.step("alloc 700M").ok();
    victim.step("alloc 1").refused();
    assert_eq!(host.card(0).used, 0);
}
