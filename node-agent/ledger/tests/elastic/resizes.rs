//! Another guarantee or limit while programs run: the rules are those of a new allocation, and nobody loses what it uses
//! or was promised.

use super::*;

/// The guarantee and the limit of an allocation, in units.
fn range(node: &Node, id: &AllocationId) -> (u64, u64) {
    let allocation = node.ledger.allocation(id).expect("it is there");
    let grant = &allocation.grants[0];
    let units = |bytes: Bytes| bytes.0 / SHARE_UNIT;
    (units(grant.guaranteed()), units(grant.ceiling()))
}

impl Node {
    fn try_resize(
        &mut self,
        id: &AllocationId,
        guaranteed: u64,
        limit: Option<u64>,
    ) -> Result<Vec<LedgerEffect>, AllocationRefusal> {
        let grant = self.ledger.allocation(id).and_then(|of| of.grant(CARD));
        let held = grant.map_or(Bytes::ZERO, |grant| grant.held);
        self.make_room_beside(units(guaranteed).minus(held), Some(id));
        let effects = self.apply(LedgerEvent::Resize {
            id: id.clone(),
            asks: vec![request(guaranteed)],
            ceilings: limit.map(request).into_iter().collect(),
        });
        if self.used.get(id).copied().unwrap_or_default() > self.limit(id) {
            self.above_its_limit.insert(id.clone());
        }
        let mut answers = effects.iter().filter_map(|effect| match effect {
            LedgerEffect::Answer(Err(refusal)) => Some(refusal.clone()),
            _ => None,
        });
        match answers.next() {
            Some(refusal) => Err(refusal),
            None => Ok(effects),
        }
    }

    fn resize(&mut self, id: &AllocationId, guaranteed: u64, limit: u64) {
        let done = self.try_resize(id, guaranteed, Some(limit));
        assert!(done.is_ok(), "{done:?}");
    }

    fn refused(&mut self, id: &AllocationId, guaranteed: u64, limit: u64) -> String {
        let refusal = self
            .try_resize(id, guaranteed, Some(limit))
            .expect_err("it is refused");
        refusal.to_string()
    }

    /// What others have or use of the card, whichever is more.
    fn others(&self, id: &AllocationId) -> u64 {
        let live = self.used.iter().filter(|(other, _)| *other != id);
        live.map(|(other, used)| (*used).max(range(self, other).0))
            .sum()
    }

    /// Whether the rules allow a resize now, after a sample.
    fn may_resize(&self, id: &AllocationId, guaranteed: u64, limit: Option<u64>) -> bool {
        let before = range(self, id).0;
        let limit = self.limit_asked(id, guaranteed, limit);
        guaranteed > 0
            && limit >= guaranteed
            && (self.is_elastic(id) || limit == guaranteed)
            && limit <= UNITS
            && (guaranteed <= before || self.others(id) + guaranteed <= UNITS)
    }

    fn is_elastic(&self, id: &AllocationId) -> bool {
        self.ledger.allocation(id).is_some_and(|of| of.is_elastic())
    }

    /// The limit that a resize asks for: one above the guarantee stays.
    fn limit_asked(&self, id: &AllocationId, guaranteed: u64, limit: Option<u64>) -> u64 {
        let (before, ceiling) = range(self, id);
        let kept = if ceiling > before {
            ceiling
        } else {
            guaranteed
        };
        limit.unwrap_or(kept)
    }
}

#[derive(Clone, Debug)]
enum ResizeStep {
    Elastic(ElasticStep),
    Resize {
        which: usize,
        guaranteed: u64,
        limit: Option<u64>,
    },
}

fn resize_step() -> impl Strategy<Value = ResizeStep> {
    let limit = proptest::option::of(1..1100_u64);
    prop_oneof![
        3 => step().prop_map(ResizeStep::Elastic),
        2 => (0..8_usize, 0..700_u64, limit).prop_map(|(which, guaranteed, limit)| {
            ResizeStep::Resize { which, guaranteed, limit }
        }),
    ]
}

/// Resizes one of the programs, and checks the answer, what changed and what must not.
fn check_resize(
    node: &mut Node,
    id: &AllocationId,
    guaranteed: u64,
    limit: Option<u64>,
) -> Result<(), TestCaseError> {
    // Without a sample the ledger holds what NVML last reported.
    node.sample();
    let (may, before) = (node.may_resize(id, guaranteed, limit), range(node, id));
    let others = node.others(id);
    let done = node.try_resize(id, guaranteed, limit);
    prop_assert_eq!(done.is_ok(), may, "{:?}: {} of others", done, others);
    let now = range(node, id);
    let Ok(effects) = done else {
        prop_assert_eq!(now, before);
        return Ok(());
    };
    prop_assert_eq!(now, (guaranteed, node.limit_asked(id, guaranteed, limit)));
    if now == before {
        prop_assert_eq!(effects.len(), 1, "nothing changes: {:?}", effects);
    }
    let again = node.try_resize(id, guaranteed, limit);
    prop_assert_eq!(again.map(|effects| effects.len()), Ok(1));
    Ok(())
}

proptest! {
    #[test]
    fn a_resize_is_judged_as_a_new_allocation_and_breaks_nobodys_guarantee(
        steps in proptest::collection::vec(resize_step(), 0..60),
    ) {
        let mut node = Node::new("100");
        for step in steps {
            let live: Vec<_> = node.used.keys().cloned().collect();
            match step {
                ResizeStep::Elastic(step) => node.take(step)?,
                ResizeStep::Resize { which, guaranteed, limit } => {
                    if let Some(id) = live.get(which) {
                        check_resize(&mut node, id, guaranteed, limit)?;
                    }
                }
            }
            node.holds()?;
        }
        // Whatever happened, all can have what they are guaranteed, at the same time.
        node.sample();
        let live: Vec<_> = node.used.keys().cloned().collect();
        for id in &live {
            let guaranteed = range(&node, id).0;
            prop_assert!(node.use_up_to(id, guaranteed), "{} of {}", guaranteed, id);
        }
        node.sample();
        node.holds()?;
        for id in live {
            node.end(&id);
        }
        prop_assert_eq!(node.ledger.free(CARD), units(UNITS));
    }
}

#[test]
fn what_is_used_above_a_lower_guarantee_is_a_burst() {
    let mut node = Node::new("4");
    let id = node.allocate(600, 800).unwrap();
    assert!(node.use_up_to(&id, 600));
    node.resize(&id, 200, 800);
    assert_eq!((range(&node, &id), node.limit(&id)), ((200, 800), 600));
    node.sample();
    let refusal = node.allocate(500, 0).unwrap_err().to_string();
    let who = "800 MiB of it used above guarantees, by share-1 with 800 MiB";
    assert!(refusal.contains(who), "{refusal}");
    // What it gives back is free for guarantees of others.
    assert!(node.use_up_to(&id, 300));
    node.sample();
    assert!(node.allocate(500, 0).is_ok());
}

#[test]
fn a_higher_guarantee_needs_room_beside_what_others_use_above_theirs() {
    let mut node = Node::new("4");
    let (small, other) = (
        node.allocate(100, 1000).unwrap(),
        node.allocate(100, 1000).unwrap(),
    );
    assert!(node.use_up_to(&other, 700));
    node.sample();
    let text = node.refused(&small, 400, 1000);
    for part in [
        "asked for 800 MiB",
        "600 MiB free (of 2000 MiB; held by share-3 with 1400 MiB)",
        "1200 MiB of it used above guarantees, by share-3 with 1200 MiB",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    node.resize(&small, 300, 1000);
    assert_eq!(node.limit(&small), 300, "its program need not ask for it");
    assert!(node.use_up_to(&small, 300) && !node.use_up_to(&small, 301));
    assert!(!node.use_up_to(&other, 701));
}

#[test]
fn what_a_share_has_above_its_guarantee_counts_for_its_new_one() {
    let mut node = Node::new("4");
    let (id, other) = (
        node.allocate(100, 1000).unwrap(),
        node.allocate(100, 1000).unwrap(),
    );
    // Both have more than they use.
    for (id, most) in [(&id, 500), (&other, 300)] {
        assert!(node.use_up_to(id, most) && node.use_up_to(id, 50));
    }
    node.sample();
    node.resize(&id, 900, 1000);
    assert!(node.use_up_to(&id, 900) && !node.use_up_to(&id, 901));
    assert!(node.use_up_to(&other, 100));
}

#[test]
fn a_limit_below_what_is_used_takes_nothing_and_gives_nothing_more() {
    let mut node = Node::new("4");
    let id = node.allocate(100, 800).unwrap();
    assert!(node.use_up_to(&id, 700));
    node.sample();
    node.resize(&id, 100, 400);
    assert_eq!(node.limit(&id), 400);
    node.sample();
    assert!(
        node.allocate(500, 0).is_err(),
        "what is used is nobody else's"
    );
    assert!(!node.use_up_to(&id, 701));
    assert!(node.use_up_to(&id, 350), "it frees some");
    assert!(
        node.allocate(500, 0).is_err(),
        "no sample has shown that it is free"
    );
    node.sample();
    assert!(node.allocate(500, 0).is_ok());
    assert!(node.use_up_to(&id, 400) && !node.use_up_to(&id, 401));
}

#[test]
fn a_sample_that_began_before_a_resize_does_not_show_what_was_used_since() {
    let mut node = Node::new("4");
    let id = node.allocate(100, 800).unwrap();
    assert!(node.use_up_to(&id, 700) && node.use_up_to(&id, 50));
    let early = node.seen();
    assert!(node.use_up_to(&id, 700), "it has the allowance still");
    node.resize(&id, 100, 400);
    let _ = node.apply(early);
    assert!(node.allocate(500, 0).is_err());
}

#[test]
fn a_share_whose_limit_is_its_guarantee_can_burst_again() {
    let mut node = Node::new("4");
    let id = node.allocate(100, 800).unwrap();
    node.resize(&id, 300, 300);
    assert!(node.use_up_to(&id, 300) && !node.use_up_to(&id, 301));
    assert!(node.try_resize(&id, 310, None).is_ok(), "it is one number");
    assert_eq!(range(&node, &id), (310, 310));
    node.resize(&id, 200, 500);
    assert!(node.use_up_to(&id, 500) && !node.use_up_to(&id, 501));
    let fixed = node.allocate(100, 0).unwrap();
    let text = node.refused(&fixed, 100, 200);
    assert!(
        text.ends_with("was made without a limit above its request, so its programs cannot ask for more than that; start it anew with a limit"),
        "{text}"
    );
    node.resize(&fixed, 200, 200);
}

#[test]
fn a_higher_limit_is_bounded_as_that_of_a_new_share_and_a_lower_one_is_not() {
    let mut node = Node::new("1.5");
    let (one, other) = (
        node.allocate(100, 700).unwrap(),
        node.allocate(100, 800).unwrap(),
    );
    let text = node.refused(&one, 100, 1001);
    assert!(text.contains("above the 2000 MiB"), "{text}");
    let text = node.refused(&one, 100, 701);
    assert!(text.contains("would add up to 3002 MiB"), "{text}");
    let text = node.refused(&one, 200, 199);
    assert!(text.contains("below the 400 MiB"), "{text}");
    let text = node.try_resize(&one, 701, None).unwrap_err().to_string();
    assert!(text.contains("the limit of 1400 MiB"), "{text}");
    assert_eq!(range(&node, &one), (100, 700));
    // The factor was lowered since.
    node.ledger.set_overcommit("1".parse().expect("a factor"));
    node.resize(&other, 150, 799);
    assert!(node.try_resize(&one, 120, None).is_ok());
    assert!(node.try_resize(&one, 120, Some(701)).is_err());
}

#[test]
fn a_share_that_sleeps_keeps_its_numbers() {
    let mut node = Node::new("4");
    let id = node.allocate(100, 800).unwrap();
    for (event, part) in [
        (
            LedgerEvent::Suspend { id: id.clone() },
            "is suspended; resume it first",
        ),
        (LedgerEvent::Resumed { id: id.clone() }, ""),
        (
            LedgerEvent::CallIn { id: id.clone() },
            "others need what it used above its guarantee; wait until it runs again",
        ),
    ] {
        let _ = node.apply(event);
        let said = node.try_resize(&id, 50, None);
        let said = said.map_or_else(|refusal| refusal.to_string(), |_| String::new());
        assert!(
            said.ends_with(part) && part.is_empty() == said.is_empty(),
            "{said}"
        );
    }
}

#[test]
fn the_account_is_told_what_changed_after_it_was_saved() {
    let mut node = Node::new("4");
    let id = node.allocate(100, 800).unwrap();
    let effects = node.try_resize(&id, 300, Some(700)).unwrap();
    let (of, card) = (id.clone(), CARD);
    let range = apportion_ledger::BurstRange {
        guaranteed: units(300),
        ceiling: units(700),
    };
    let limit = units(300);
    assert_eq!(
        effects[..3],
        [
            LedgerEffect::Save,
            LedgerEffect::SetRange {
                id: of.clone(),
                card,
                range
            },
            LedgerEffect::SetLimit {
                id: of,
                card,
                limit
            },
        ]
    );
    // The allowance is between the new numbers already.
    let effects = node.try_resize(&id, 200, Some(600)).unwrap();
    let set = |effect: &&LedgerEffect| matches!(effect, LedgerEffect::SetLimit { .. });
    assert_eq!(effects.iter().filter(set).count(), 0, "{effects:?}");
}
