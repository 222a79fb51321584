//! Random traces of events. `APPORTION_CALL_TRACES` is their number (default 10000).

use std::env;

use crate::*;

#[derive(Clone, Debug)]
enum CallEvent {
    Arrive {
        guaranteed: u64,
        more: u64,
        terms: BurstTerms,
    },
    Use {
        which: usize,
        count: u64,
    },
    Stick {
        which: usize,
    },
    End {
        which: usize,
    },
    GiveUp {
        which: usize,
    },
    Act,
    Wait {
        seconds: u64,
    },
}

fn terms() -> impl Strategy<Value = BurstTerms> {
    let weight = prop::sample::select(vec![0, 500, 1000, 1000, 3000]);
    (weight, -1..2_i32).prop_map(|(thousandths, priority)| BurstTerms {
        weight: BurstWeight::from_thousandths(thousandths).expect("a weight"),
        priority,
    })
}

fn event() -> impl Strategy<Value = CallEvent> {
    let which = 0..8_usize;
    prop_oneof![
        4 => (1..400_u64, 0..900_u64, terms())
            .prop_map(|(guaranteed, more, terms)| CallEvent::Arrive { guaranteed, more, terms }),
        5 => (which.clone(), 0..1000_u64).prop_map(|(which, count)| CallEvent::Use { which, count }),
        1 => which.clone().prop_map(|which| CallEvent::Stick { which }),
        1 => which.clone().prop_map(|which| CallEvent::End { which }),
        1 => which.prop_map(|which| CallEvent::GiveUp { which }),
        6 => Just(CallEvent::Act),
        2 => (1..60_u64).prop_map(|seconds| CallEvent::Wait { seconds }),
    ]
}

fn traces() -> u32 {
    let text = env::var("APPORTION_CALL_TRACES").ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(10_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: traces(), ..ProptestConfig::default() })]

    #[test]
    fn whoever_was_promised_memory_gets_it_and_every_sleeper_wakes(
        events in proptest::collection::vec(event(), 0..40),
    ) {
        let mut node = CallingNode::new();
        for event in events {
            let live: Vec<_> = node.programs.keys().cloned().collect();
            match event {
                CallEvent::Arrive { guaranteed, more, terms } => {
                    node.arrive_with(guaranteed, (guaranteed + more).min(UNITS), terms);
                }
                CallEvent::Use { which, count } => {
                    if let Some(id) = live.get(which) {
                        node.use_up_to(id, count);
                    }
                }
                CallEvent::Stick { which } => {
                    if let Some(program) = live.get(which).and_then(|id| node.programs.get_mut(id)) {
                        program.is_stuck = true;
                    }
                }
                CallEvent::End { which } => live.get(which).into_iter().for_each(|id| node.end(id)),
                CallEvent::GiveUp { which } => {
                    if which < node.waiting.len() {
                        let key = node.waiting.remove(which).proposal.key;
                        node.apply(LedgerEvent::CallClosed(CallClaimant::Newcomer(key)));
                    }
                }
                CallEvent::Act => node.act()?,
                CallEvent::Wait { seconds } => {
                    node.now = node.now.after(Duration::from_secs(seconds));
                }
            }
            node.holds()?;
        }
        node.run_out()?;
    }
}
