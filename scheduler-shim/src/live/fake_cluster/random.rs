//! Random steps in random order.

use std::time::Duration;

use proptest::prelude::*;

use super::{ASKS, FakeCluster, NODES};

#[derive(Clone, Debug)]
pub(super) enum RandomStep {
    Create(usize, bool),
    Delete(usize),
    Decide,
    Event,
    AgentEffect(bool, bool),
    ApiEffect(usize, bool),
    Wait(u64),
    Edit(usize, usize),
    EditLimit(usize, Option<usize>),
    CrashScheduler,
    CrashAgent(bool),
    CrashApi,
}

fn step() -> impl Strategy<Value = RandomStep> {
    prop_oneof![
        4 => (0..ASKS.len(), any::<bool>()).prop_map(|(ask, is_gang)| RandomStep::Create(ask, is_gang)),
        2 => (0..20_usize).prop_map(RandomStep::Delete),
        6 => Just(RandomStep::Decide),
        16 => Just(RandomStep::Event),
        10 => (any::<bool>(), prop::bool::weighted(0.05)).prop_map(|(node, fails)| RandomStep::AgentEffect(node, fails)),
        10 => (0..8_usize, prop::bool::weighted(0.1)).prop_map(|(which, fails)| RandomStep::ApiEffect(which, fails)),
        2 => (0..90_u64).prop_map(RandomStep::Wait),
        1 => Just(RandomStep::CrashScheduler),
        1 => any::<bool>().prop_map(RandomStep::CrashAgent),
        1 => Just(RandomStep::CrashApi),
        2 => (0..20_usize, 0..ASKS.len()).prop_map(|(which, ask)| RandomStep::Edit(which, ask)),
        2 => (0..20_usize, prop::option::of(0..ASKS.len()))
            .prop_map(|(which, limit)| RandomStep::EditLimit(which, limit)),
    ]
}

impl FakeCluster {
    pub(super) fn take(&mut self, step: &RandomStep) {
        match step {
            RandomStep::Create(ask, is_gang) => self.create(ASKS[*ask], *is_gang),
            RandomStep::Delete(which) => self.delete(*which),
            RandomStep::Decide => {
                let effects = self.model.decide(self.now);
                self.queue(effects);
            }
            RandomStep::Event => {
                if let Some(event) = self.events.pop_front() {
                    self.deliver(event);
                }
            }
            RandomStep::AgentEffect(first, fails) => {
                self.agent_effect(NODES[usize::from(*first)], *fails)
            }
            RandomStep::ApiEffect(which, fails) => {
                if !self.api.is_empty() {
                    let effect = self.api.remove(which % self.api.len());
                    self.answer(effect, *fails);
                }
            }
            RandomStep::Wait(seconds) => self.wait(Duration::from_secs(*seconds)),
            RandomStep::CrashScheduler => self.start_scheduler(),
            RandomStep::Edit(which, ask) => self.edit(*which, ASKS[*ask]),
            RandomStep::EditLimit(which, limit) => {
                self.edit_limit(*which, limit.map(|limit| ASKS[limit]));
            }
            RandomStep::CrashAgent(first) => self.crash_agent(NODES[usize::from(*first)]),
            RandomStep::CrashApi => self.crash_api(),
        }
    }
}

/// How many cases to run. `APPORTION_STEPS` sets the number of steps in all.
pub(super) fn cases() -> u32 {
    let steps = std::env::var("APPORTION_STEPS")
        .ok()
        .and_then(|text| text.parse().ok());
    let steps: u32 = steps.unwrap_or(6_000);
    steps.div_ceil(120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_cards_hold_and_nothing_is_left_behind(steps in prop::collection::vec(step(), 60..180)) {
        let mut world = FakeCluster::new();
        for step in &steps {
            world.take(step);
            prop_assert!(world.is_within_cards());
        }
        world.settle();
        prop_assert!(world.is_within_cards());
        world.check();
        world.check_resizes();
    }
}
