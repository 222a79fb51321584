//! Which cards a program sees and by what name: limits go by the card itself, whatever the program calls it.

use apportion_tests::{CONTEXT, Host, MIB, PATIENCE, Victim, built, cards, eventually};

/// A victim under `options` with its own idea of `CUDA_VISIBLE_DEVICES`; `None` removes the variable.
fn seeing(host: &Host, options: &[&str], visible: Option<&str>) -> Victim {
    let mut command = host.limited(options, "env");
    match visible {
        Some(list) => command.arg(format!("CUDA_VISIBLE_DEVICES={list}")),
        None => command.args(["-u", "CUDA_VISIBLE_DEVICES"]),
    };
    host.start(command.arg(built("victim")).arg("-"))
}

#[test]
fn a_limit_follows_the_card_and_not_its_number() {
    let host = Host::with(&cards(2));
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
    let host = Host::with(&cards(2));
    let _agent = host.agent(&["--tick", "50"]);
    let granted = host.card(0).uuid;
    let mut victim = seeing(&host, &["--gpu-memory", "1000", "--gpu", &granted], None);
    assert_eq!(victim.step("count").value(), 2);
    victim.step("alloc 700M").ok();
    victim.step("alloc 1").refused();
    victim.step("on 1").ok();
    victim.step("alloc 100M").ok();
    let offences = || host.metric("apportion_offences_total", &["kind=\"ungranted\""]);
    eventually(PATIENCE, "it is seen", || offences() == Some(1.0));
    victim.step("on 0").ok();
    victim.step("alloc 1").refused();
}

#[test]
fn under_the_policy_that_kills_a_card_that_was_not_granted_costs_the_process() {
    let host = Host::with(&cards(2));
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
    let host = Host::with(&cards(2));
    let one =
        |index: usize| host.victim(&["--gpu-memory", "9000", "--gpu", &host.card(index).uuid]);
    let (mut first, mut second) = (one(0), one(1));
    first.step("fill 100M");
    second.step("alloc 8000M").ok();
    assert_eq!(host.card(0).used, 9000 * MIB);
    assert_eq!(host.card(1).used, 8000 * MIB + CONTEXT);
}
