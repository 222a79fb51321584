//! Which NUMA zones of a node a pod would get from the kubelet's Topology Manager.
//!
//! CPU and memory are aligned for guaranteed pods only, and CPU only in whole processors; cards for all. What a
//! terminating pod holds in its zones counts as free: the kubelet decides when the next pod starts, and then it is
//! gone.

use std::borrow::Cow;

use crate::cluster::{NumaPolicy, NumaScope, NumaZone, ZoneAmounts};

/// What a pod takes of each zone, by the index of the zone.
pub(crate) type ZoneAssignment = Vec<(usize, ZoneAmounts)>;

/// The zones of a node as they are now.
#[derive(Clone, Debug, Default)]
pub(crate) struct NumaZones {
    pub(crate) policy: NumaPolicy,
    pub(crate) scope: NumaScope,
    zones: Vec<NumaZone>,
}

/// What a pod asks of the zones of a node: each part is aligned by itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct ZoneRequest<'t> {
    /// Parts that are held at the same time.
    pub(crate) together: Cow<'t, [ZoneAmounts]>,
    /// Parts that are held one after the other, before all others.
    pub(crate) before: Cow<'t, [ZoneAmounts]>,
}

impl ZoneRequest<'_> {
    /// A pod that is aligned as a whole.
    pub(crate) fn whole(amounts: ZoneAmounts) -> Self {
        Self {
            together: Cow::Owned(vec![amounts]),
            before: Cow::Borrowed(&[]),
        }
    }
}

impl NumaZones {
    pub(crate) fn new(policy: NumaPolicy, scope: NumaScope, zones: Vec<NumaZone>) -> Self {
        Self {
            policy,
            scope,
            zones,
        }
    }

    /// Whether the node admits only what can be aligned.
    pub(crate) fn is_strict(&self) -> bool {
        matches!(self.policy, NumaPolicy::SingleNode | NumaPolicy::Restricted)
    }

    /// The zone of that name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.zones.iter().position(|zone| zone.name == name)
    }

    /// What is available in each zone.
    pub(crate) fn available(&self) -> Vec<ZoneAmounts> {
        self.zones.iter().map(|zone| zone.available).collect()
    }

    /// Takes from zones (`count` 1) or gives back (-1).
    pub(crate) fn update_used(&mut self, assigned: &ZoneAssignment, count: i64) {
        for (zone, amounts) in assigned {
            if let Some(zone) = self.zones.get_mut(*zone) {
                zone.available = zone.available.plus(*amounts, -count);
            }
        }
    }

    /// The zones that the request would take, with amounts; `None` if it can't be aligned as the policy demands.
    pub(crate) fn assign(&self, request: &ZoneRequest<'_>) -> Option<ZoneAssignment> {
        if let ([whole], []) = (&*request.together, &*request.before) {
            return self.assign_part(*whole);
        }
        // Init containers give back what they had before the others get theirs.
        if !request
            .before
            .iter()
            .all(|part| self.assign_part(*part).is_some())
        {
            return None;
        }
        let mut left = self.clone();
        let mut assigned = ZoneAssignment::new();
        for part in &*request.together {
            let zones = left.assign_part(*part)?;
            left.update_used(&zones, 1);
            for (zone, amounts) in zones {
                match assigned.iter_mut().find(|(known, _)| *known == zone) {
                    Some((_, sum)) => *sum = sum.plus(amounts, 1),
                    None => assigned.push((zone, amounts)),
                }
            }
        }
        assigned.sort_unstable_by_key(|(zone, _)| *zone);
        Some(assigned)
    }

    /// The name of a zone.
    pub(crate) fn name(&self, zone: usize) -> Option<&str> {
        self.zones.get(zone).map(|zone| zone.name.as_str())
    }

    fn assign_part(&self, request: ZoneAmounts) -> Option<ZoneAssignment> {
        let request = self.known(request);
        if request == ZoneAmounts::default() || self.policy == NumaPolicy::None {
            return Some(ZoneAssignment::new());
        }
        let mask = match self.policy {
            NumaPolicy::None => return Some(ZoneAssignment::new()),
            NumaPolicy::SingleNode => self.lowest(request, 1)?,
            NumaPolicy::Restricted => self.lowest(request, self.width(request)?)?,
            NumaPolicy::BestEffort => self.greedy(request).unwrap_or_default(),
        };
        Some(self.draw(request, &mask))
    }

    /// The resources of a request that the zones report.
    fn known(&self, request: ZoneAmounts) -> ZoneAmounts {
        let known =
            |of: fn(&ZoneAmounts) -> i64| self.zones.iter().any(|zone| of(&zone.allocatable) > 0);
        request.only(
            known(|amounts| amounts.cpu),
            known(|amounts| amounts.memory),
            known(|amounts| amounts.cards),
        )
    }

    /// The fewest zones that could ever hold the request, if all its resources agree on the number.
    fn width(&self, request: ZoneAmounts) -> Option<usize> {
        let parts: [fn(&ZoneAmounts) -> i64; 3] = [
            |amounts| amounts.cpu,
            |amounts| amounts.memory,
            |amounts| amounts.cards,
        ];
        let mut agreed = None;
        for part in parts.into_iter().filter(|part| part(&request) > 0) {
            let mut sizes: Vec<i64> = self
                .zones
                .iter()
                .map(|zone| part(&zone.allocatable))
                .collect();
            sizes.sort_unstable_by(|left, right| right.cmp(left));
            let mut sum = 0;
            let enough = sizes.iter().position(|size| {
                sum += size;
                sum >= part(&request)
            });
            let width = enough? + 1;
            if agreed.is_some_and(|agreed| agreed != width) {
                return None;
            }
            agreed = Some(width);
        }
        agreed
    }

    /// The first set of `width` zones that covers the request.
    fn lowest(&self, request: ZoneAmounts, width: usize) -> Option<Vec<usize>> {
        let mut mask: Vec<usize> = (0..width).collect();
        if width == 0 || width > self.zones.len() {
            return None;
        }
        loop {
            let zones = mask.iter().map(|&zone| self.zones[zone].available);
            let sum = zones.fold(ZoneAmounts::default(), |sum, one| sum.plus(one, 1));
            if sum.covers(request) {
                return Some(mask);
            }
            let count = self.zones.len();
            let movable = (0..width)
                .rev()
                .find(|&at| mask[at] != at + count - width)?;
            mask[movable] += 1;
            for at in movable + 1..width {
                mask[at] = mask[at - 1] + 1;
            }
        }
    }

    /// Zones that together cover the request, chosen greedily by how much of the rest they cover.
    fn greedy(&self, request: ZoneAmounts) -> Option<Vec<usize>> {
        let mut left = request;
        let mut mask = Vec::new();
        while left != ZoneAmounts::default() {
            let covers = |zone: usize| left.least(self.zones[zone].available).sum();
            let unused = (0..self.zones.len()).filter(|zone| !mask.contains(zone));
            let best = unused
                .map(|zone| (covers(zone), zone))
                .max_by(|one, other| one.0.cmp(&other.0).then(other.1.cmp(&one.1)));
            let (_, zone) = best.filter(|(covers, _)| *covers > 0)?;
            left = left.plus(left.least(self.zones[zone].available), -1);
            mask.push(zone);
        }
        Some(mask)
    }

    /// How many zones the node has.
    pub(crate) fn count(&self) -> usize {
        self.zones.len()
    }

    /// Whether its zones align cards.
    pub(crate) fn aligns_cards(&self) -> bool {
        self.policy != NumaPolicy::None && self.zones.iter().any(|zone| zone.allocatable.cards > 0)
    }

    fn draw(&self, request: ZoneAmounts, mask: &[usize]) -> ZoneAssignment {
        let mut left = request;
        let mut assigned = ZoneAssignment::new();
        for &zone in mask {
            let take = left.least(self.zones[zone].available);
            left = left.plus(take, -1);
            if take != ZoneAmounts::default() {
                assigned.push((zone, take));
            }
        }
        assigned
    }
}
