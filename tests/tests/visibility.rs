//! Which cards a program sees and by which names: limits belong to the card itself, however the program names it.

use apportion_sim_machine::{MachineRequest, NvmlControl, NvmlRequest};
use apportion_tests::{
    CONTEXT, CommandOutput, MIB, PATIENCE, TestHost, VictimProcess, built, cards, eventually,
};

/// A victim under `options` with its own `CUDA_VISIBLE_DEVICES`. `None` removes the variable.
fn seeing(host: &TestHost, options: &[&str], visible: Option<&str>) -> VictimProcess {
    let mut command = host.limited(options, "env");
    match visible {
        Some(list) => command.arg(format!("CUDA_VISIBLE_DEVICES={list}")),
        None => command.args(["-u", "CUDA_VISIBLE_DEVICES"]),
    };
    host.start(command.arg(built("victim")).arg("-"))
}

#[test]
fn a_limit_follows_the_card_and_not_its_number() {
    let host = TestHost::with(&cards(2));
    let options = ["--gpus", "2", "--gpu-memory", "1000"];
    let uuid = host.card(1).uuid;
    for (visible, first) in [
        ("1,0", 1),
        ("0,1", 0),
        ("1", 1),
        (uuid.as_str(), 1),
        (&uuid[..12], 1),
    ] {
        let mut victim = seeing(&host, &options, Some(visible));
        victim.step("alloc 700M").ok();
        assert_eq!(host.card(first).used, 1000 * MIB, "{visible}");
        victim.step("alloc 1").refused();
        assert_eq!(
            victim.step("nvml").numbers,
            [1000 * MIB, 0, 1000 * MIB],
            "{visible}"
        );
        assert!(victim.end().success());
        eventually(PATIENCE, "it is released", || {
            host.used() + host.card(1).used == 0
        });
    }
}

#[test]
fn a_card_that_was_not_granted_can_be_used_and_is_reported() {
    let host = TestHost::with(&cards(2));
    let _agent = host.agent(&["--tick", "50"]);
    let granted = host.card(0).uuid;
    let mut victim = seeing(&host, &["--gpu-memory", "1000", "--gpu", &granted], None);
    assert_eq!(victim.step("count").value(), 2);
    victim.step("alloc 700M").ok();
    victim.step("alloc 1").refused();
    victim.step("on 1").ok();
    victim.step("alloc 100M").ok();
    eventually(PATIENCE, "it is seen", || {
        host.metric("apportion_offences_total", &["kind=\"ungranted\""]) == Some(1.0)
    });
    victim.step("on 0").ok();
    victim.step("alloc 1").refused();
}

#[test]
fn under_the_policy_that_kills_a_card_that_was_not_granted_costs_the_process() {
    let host = TestHost::with(&cards(2));
    let _agent = host.agent(&["--tick", "50", "--policy", "kill"]);
    let granted = host.card(0).uuid;
    let mut victim = seeing(&host, &["--gpu-memory", "1000", "--gpu", &granted], None);
    victim.step("alloc 100M").ok();
    victim.begin("on 1 alloc 100M");
    assert!(!victim.wait().success());
    eventually(PATIENCE, "all is given back", || {
        host.used() + host.card(1).used == 0
    });
}

#[test]
fn two_programs_on_different_cards_do_not_meet() {
    let host = TestHost::with(&cards(2));
    let one =
        |index: usize| host.victim(&["--gpu-memory", "9000", "--gpu", &host.card(index).uuid]);
    let (mut first, mut second) = (one(0), one(1));
    first.step("fill 100M");
    second.step("alloc 8000M").ok();
    assert_eq!(host.card(0).used, 9000 * MIB);
    assert_eq!(host.card(1).used, 8000 * MIB + CONTEXT);
}

/// Three cards in different orders: by position in the machine, by PCI bus, and by speed.
fn mixed() -> TestHost {
    let mut machine = cards(3);
    let places = [(0x40, 100), (0x20, 80), (0x30, 132)];
    for (card, (pci_bus, multiprocessors)) in machine.cards.iter_mut().zip(places) {
        (card.pci_bus, card.multiprocessors) = (pci_bus, multiprocessors);
    }
    TestHost::with(&machine)
}

/// The variables of a program under `options`, whatever they were before.
fn variables(host: &TestHost, options: &[&str], before: &[(&str, &str)]) -> (String, Vec<u32>) {
    let mut command = host.limited(options, "printenv");
    command.args(["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"]);
    let said = CommandOutput::by(command.envs(before.iter().copied())).well();
    let lines = said.out.trim().split_once('\n');
    let (order, visible) = lines.expect("both are set");
    (
        order.to_owned(),
        visible
            .split(',')
            .map(|number| number.parse().expect("a number, as vLLM reads it"))
            .collect(),
    )
}

/// vLLM reads each entry of `CUDA_VISIBLE_DEVICES` as a number.
#[test]
fn a_program_finds_numbers_that_mean_its_cards() {
    let host = mixed();
    let uuids: Vec<String> = (0..3).map(|card| host.card(card).uuid).collect();
    let on_bus = [2, 0, 1];
    let elsewhere = [
        ("CUDA_DEVICE_ORDER", "FASTEST_FIRST"),
        ("CUDA_VISIBLE_DEVICES", "1"),
    ];
    for wanted in [&[0][..], &[1], &[2], &[0, 2], &[1, 2], &[0, 1, 2]] {
        let count = wanted.len().to_string();
        let mut options = vec!["--gpu-memory", "1000", "--gpus", &count];
        for card in wanted {
            options.extend(["--gpu", &uuids[*card]]);
        }
        for before in [&[][..], &elsewhere] {
            let (order, mut numbers) = variables(&host, &options, before);
            let mut expected: Vec<u32> = wanted.iter().map(|card| on_bus[*card]).collect();
            numbers.sort_unstable();
            expected.sort_unstable();
            assert_eq!(
                (order.as_str(), numbers),
                ("PCI_BUS_ID", expected),
                "{wanted:?}"
            );
        }
        let mut victim = host.victim(&options);
        assert_eq!(victim.step("count").value(), wanted.len() as u64);
        for number in 0..wanted.len() {
            victim.step(&format!("on {number}")).ok();
            victim.step("alloc 500M").ok();
            victim.step("alloc 700M").refused();
        }
        for card in 0..3 {
            let used = if wanted.contains(&card) {
                500 * MIB + CONTEXT
            } else {
                0
            };
            assert_eq!(host.card(card).used, used, "{wanted:?}, card {card}");
        }
        assert!(victim.end().success());
        eventually(PATIENCE, "it is released", || {
            (0..3).all(|card| host.card(card).used == 0)
        });
    }
}

/// CUDA skips a lost card, so the numbers of the other cards are ambiguous.
#[test]
fn beside_a_lost_card_a_program_finds_the_names_of_its_cards() {
    let host = mixed();
    let _agent = host.agent(&["--tick", "50"]);
    let uuid = host.card(0).uuid;
    let options = ["--gpu-memory", "1000", "--gpu", &uuid];
    assert_eq!(variables(&host, &options, &[]).1, [2]);
    let lost = NvmlRequest::Control(NvmlControl::Lost {
        card: 1,
        lost: true,
    });
    host.ask(MachineRequest::Nvml(lost));
    eventually(PATIENCE, "it is named", || {
        let mut command = host.limited(&options, "printenv");
        let visible = CommandOutput::by(command.arg("CUDA_VISIBLE_DEVICES"));
        visible.well().out.trim() == uuid
    });
}
