//! Random histories, compared with very simple models.
#![expect(
    clippy::indexing_slicing,
    reason = "a test that panics has found something"
)]

use std::collections::{BTreeMap, BTreeSet};

use apportion_gate::{
    BLOCK, FreeTarget, GROWTH, PoolSettlement, ProcessAllocations, worst_case, worst_growth,
};
use proptest::prelude::*;

const CONTEXT: u64 = 0xc0;
const MIB: u64 = 1 << 20;

fn allocations() -> ProcessAllocations {
    let mut allocations = ProcessAllocations::default();
    allocations.open_context(CONTEXT, 0, 0, 0, true);
    allocations
}

/// A driver that packs small requests into blocks, and gives each large one its own blocks.
#[derive(Default)]
struct ModelDriver {
    live: BTreeMap<u64, u64>,
    next_large: u64,
}

impl ModelDriver {
    fn alloc(&mut self, bytes: u64) -> u64 {
        let address = if bytes > MIB {
            self.next_large += worst_case(bytes);
            (1 << 40) + self.next_large
        } else {
            let mut places = (0..).map(|place| BLOCK + place * 65_536).filter(|at| {
                let same_block = at / BLOCK == (at + bytes - 1) / BLOCK;
                same_block
                    && !self
                        .live
                        .iter()
                        .any(|(start, size)| *start < at + bytes && *at < start + size)
            });
            places.next().unwrap_or_default()
        };
        self.live.insert(address, bytes);
        address
    }

    fn holds(&self) -> u64 {
        let (small, large): (Vec<_>, Vec<_>) = self.live.iter().partition(|(_, b)| **b <= MIB);
        let blocks: BTreeSet<u64> = small.iter().map(|(address, _)| *address / BLOCK).collect();
        let large: u64 = large.iter().map(|(_, bytes)| worst_case(**bytes)).sum();
        blocks.len() as u64 * BLOCK + large
    }
}

fn apply(settled: PoolSettlement, charged: &mut u64) {
    match settled {
        PoolSettlement::Even => {}
        PoolSettlement::GiveBack(_, bytes) => *charged -= bytes,
        PoolSettlement::Take(_, bytes) => *charged += bytes,
    }
}

/// A pool in the driver: every allocation from it takes one growth step.
struct ModelPool {
    handle: u64,
    has_name: bool,
    live: Vec<u64>,
    reserved: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// After every step the charge equals what the driver holds, and nothing is left in the end.
    #[test]
    fn linear_memory_is_charged_as_the_driver_takes_it(
        steps in prop::collection::vec((any::<bool>(), 1..8 * MIB, any::<prop::sample::Index>()), 1..120),
    ) {
        let (mut allocations, mut driver, mut charged) = (allocations(), ModelDriver::default(), 0);
        let context = allocations.context(CONTEXT).map(|(id, _)| id);
        prop_assume!(context.is_some());
        for (frees, bytes, which) in steps {
            if frees && !driver.live.is_empty() {
                let addresses: Vec<u64> = driver.live.keys().copied().collect();
                let address = addresses[which.index(addresses.len())];
                driver.live.remove(&address);
                match allocations.take(address) {
                    Some(FreeTarget::Linear(taken)) => charged -= taken.cost,
                    Some(FreeTarget::Pooled(_)) | None => {}
                }
            } else if let Some(context) = context {
                let bytes = if bytes % 3 == 0 { bytes } else { bytes % MIB + 1 };
                let cost = allocations.enter(driver.alloc(bytes), bytes, 0, context);
                prop_assert!(cost <= worst_case(bytes));
                charged += cost;
            }
            prop_assert_eq!(charged, driver.holds());
        }
        let ended = allocations.end_context(CONTEXT);
        prop_assert_eq!(ended.map(|ended| allocations.context_ended(ended)), Some(charged));
    }

    /// Physical memory is charged exactly while a handle or a mapping refers to it.
    #[test]
    fn virtual_memory_is_charged_while_anything_refers_to_it(
        steps in prop::collection::vec((0..6_u8, any::<prop::sample::Index>(), any::<bool>()), 1..150),
    ) {
        let mut allocations = allocations();
        // The model: each physical memory with its handles (value, count) and mapped addresses.
        let mut model: Vec<(u64, u32, BTreeSet<u64>)> = Vec::new();
        let (mut charged, mut address) = (0, 0x10_0000_u64);
        for (step, which, fails) in steps {
            let holders: Vec<usize> = (0..model.len()).filter(|m| model[*m].1 > 0).collect();
            let mapped: Vec<usize> = (0..model.len()).filter(|m| !model[*m].2.is_empty()).collect();
            match step {
                0 => {
                    // The lowest free handle value, like a driver that reuses values.
                    let free = (1..).find(|value| !model.iter().any(|m| m.0 == *value && m.1 > 0));
                    let handle = free.unwrap_or_default();
                    allocations.create_handle(handle, Some((0, BLOCK)));
                    model.push((handle, 1, BTreeSet::new()));
                    charged += BLOCK;
                }
                1 if !holders.is_empty() => {
                    let memory = &mut model[holders[which.index(holders.len())]];
                    let released = allocations.release_handle(memory.0);
                    prop_assert!(released.is_some());
                    match released {
                        Some(released) if fails => allocations.handle_lives(released),
                        Some(released) => {
                            memory.1 -= 1;
                            charged -= allocations.handle_released(released).charge.map_or(0, |c| c.1);
                        }
                        None => {}
                    }
                }
                2 | 3 if !holders.is_empty() => {
                    let memory = &mut model[holders[which.index(holders.len())]];
                    address += BLOCK;
                    allocations.map(address, BLOCK, memory.0);
                    memory.2.insert(address);
                }
                4 if !mapped.is_empty() => {
                    let memory = &mut model[mapped[which.index(mapped.len())]];
                    let at = memory.2.first().copied().unwrap_or_default();
                    let unmapped = allocations.unmap(at, BLOCK);
                    prop_assert!(unmapped.is_some());
                    match unmapped {
                        Some(unmapped) if fails => allocations.mapping_lives(unmapped),
                        Some(unmapped) => {
                            memory.2.remove(&at);
                            charged -= allocations.unmapped(unmapped).charge.map_or(0, |c| c.1);
                        }
                        None => {}
                    }
                }
                5 if !mapped.is_empty() => {
                    let place = mapped[which.index(mapped.len())];
                    let at = model[place].2.first().copied().unwrap_or_default();
                    let value = model[place].0;
                    let taken = model[place].1 == 0 && model.iter().any(|m| m.0 == value && m.1 > 0);
                    let value = if taken { 1000 + place as u64 } else { value };
                    if taken {
                        model[place].0 = value;
                    }
                    allocations.retain_handle(value, at + 7);
                    model[place].1 += 1;
                }
                _ => {}
            }
            let live = model.iter().filter(|(_, handles, maps)| *handles > 0 || !maps.is_empty());
            prop_assert_eq!(charged, live.count() as u64 * BLOCK);
        }
    }

    /// However allocations overlap, a pool is never charged less than it reserves, and exactly as much when all are
    /// done.
    #[test]
    fn a_pool_is_never_charged_less_than_it_reserves(
        steps in prop::collection::vec((0..5_u8, 1..100 * MIB, any::<prop::sample::Index>()), 1..100),
    ) {
        let mut allocations = allocations();
        let (mut charged, mut reserved) = (0_u64, 0_u64);
        // Growth that is charged but not requested; requested; read but not settled.
        let (mut begun, mut grown, mut read) = (Vec::new(), Vec::new(), Vec::new());
        allocations.pools.enter(1, Some(0));
        for (step, bytes, which) in steps {
            match step {
                0 => {
                    let growth = worst_growth(bytes);
                    charged += growth;
                    begun.push((bytes, allocations.pools.begin(1, growth)));
                }
                1 if !begun.is_empty() => {
                    let (bytes, growth) = begun.swap_remove(which.index(begun.len()));
                    reserved += if bytes % 2 == 0 { worst_growth(bytes) } else { 0 };
                    grown.push(growth);
                }
                2 if !grown.is_empty() => {
                    let growth = grown.swap_remove(which.index(grown.len()));
                    let epoch = allocations.pools.begin_settling(1).unwrap_or_default();
                    read.push((epoch, reserved, growth));
                }
                3 if !read.is_empty() => {
                    let (epoch, seen, growth) = read.swap_remove(which.index(read.len()));
                    apply(allocations.pools.settle(1, epoch, seen, growth), &mut charged);
                }
                // A trim by the driver, while no growth is between request and settlement.
                4 if grown.is_empty() && read.is_empty() => reserved = 0,
                _ => {}
            }
            prop_assert!(charged >= reserved, "{charged} charged, {reserved} reserved");
        }
        for growth in begun.into_iter().map(|(_, growth)| growth).chain(grown) {
            let epoch = allocations.pools.begin_settling(1).unwrap_or_default();
            apply(allocations.pools.settle(1, epoch, reserved, growth), &mut charged);
        }
        for (epoch, seen, growth) in read {
            apply(allocations.pools.settle(1, epoch, seen, growth), &mut charged);
        }
        let epoch = allocations.pools.begin_settling(1).unwrap_or_default();
        apply(allocations.pools.settle(1, epoch, reserved, None), &mut charged);
        prop_assert_eq!(charged, reserved);
    }

    /// In any order of frees and destroys, and with reused handles and addresses, a pool is charged exactly while it
    /// has a handle or an allocation.
    #[test]
    fn a_pool_is_charged_until_its_last_allocation_is_freed(
        steps in prop::collection::vec((0..4_u8, any::<prop::sample::Index>(), any::<bool>()), 1..150),
    ) {
        let mut allocations = allocations();
        let (mut pools, mut charged): (Vec<ModelPool>, u64) = (Vec::new(), 0);
        for (step, which, fails) in steps {
            let named: Vec<usize> = (0..pools.len()).filter(|p| pools[*p].has_name).collect();
            let live: Vec<(usize, u64)> = (0..pools.len())
                .flat_map(|p| pools[p].live.iter().map(move |address| (p, *address)))
                .collect();
            match step {
                0 => {
                    let free = (1..).find(|handle| !pools.iter().any(|p| p.has_name && p.handle == *handle));
                    let handle = free.unwrap_or_default();
                    allocations.pools.enter(handle, Some(0));
                    pools.push(ModelPool { handle, has_name: true, live: Vec::new(), reserved: 0 });
                }
                1 if !named.is_empty() => {
                    let free = (1..).find(|address| !live.iter().any(|(_, taken)| taken == address));
                    let address = free.unwrap_or_default();
                    let pool = &mut pools[named[which.index(named.len())]];
                    charged += GROWTH;
                    let growth = allocations.pools.begin(pool.handle, GROWTH);
                    pool.reserved += if fails { 0 } else { GROWTH };
                    let epoch = allocations.pools.begin_settling(pool.handle).unwrap_or_default();
                    let settled = allocations.pools.settle(pool.handle, epoch, pool.reserved, growth);
                    allocations.pools.end_settling(pool.handle);
                    apply(settled, &mut charged);
                    pool.live.extend((!fails).then_some(address));
                    let made = growth.map(|growth| allocations.pools.made(growth, (!fails).then_some(address)));
                    prop_assert_eq!(made, Some(PoolSettlement::Even));
                }
                2 if !live.is_empty() => {
                    let (pool, address) = live[which.index(live.len())];
                    match allocations.take(address) {
                        Some(FreeTarget::Pooled(pooled)) if fails => allocations.pools.lives(pooled),
                        Some(FreeTarget::Pooled(pooled)) => {
                            pools[pool].live.retain(|live| *live != address);
                            apply(allocations.pools.freed(pooled), &mut charged);
                        }
                        Some(FreeTarget::Linear(_)) | None => prop_assert!(false, "it was entered"),
                    }
                }
                3 if !named.is_empty() => {
                    let pool = &mut pools[named[which.index(named.len())]];
                    let doomed = allocations.pools.begin_destroy(pool.handle);
                    prop_assert!(doomed.is_some());
                    match doomed {
                        Some(doomed) if fails => allocations.pools.survives(doomed),
                        Some(doomed) => {
                            pool.has_name = false;
                            apply(allocations.pools.destroyed(doomed), &mut charged);
                        }
                        None => {}
                    }
                }
                _ => {}
            }
            pools.retain(|pool| pool.has_name || !pool.live.is_empty());
            let reserved: u64 = pools.iter().map(|pool| pool.reserved).sum();
            prop_assert_eq!(charged, reserved);
        }
    }
}

/// A bundle of one entry that claims to be compressed.
fn packed(kind: u16, whole: u32, content: &[u8]) -> Vec<u8> {
    let mut head = [0; 64];
    head[..2].copy_from_slice(&kind.to_le_bytes());
    head[4] = 64;
    let length = u32::try_from(content.len()).unwrap_or(0).to_le_bytes();
    head[8..12].copy_from_slice(&length);
    head[16..20].copy_from_slice(&length);
    head[41] = 0x20;
    head[56..60].copy_from_slice(&whole.to_le_bytes());
    let mut bundle = vec![0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
    bundle.extend((64 + content.len() as u64).to_le_bytes());
    bundle.extend(head);
    bundle.extend(content);
    bundle
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Content that only claims to be compressed is read without harm.
    #[test]
    fn nonsense_that_says_that_it_is_packed_is_read_without_harm(
        kind in 1_u16..=2,
        whole in 0_u32..4096,
        content in proptest::collection::vec(prop_oneof![any::<u8>(), 0xf0_u8..], 0..200),
    ) {
        let bundle = packed(kind, whole, &content);
        let found = apportion_gate::image::bundle(&|at, into| {
            let start = usize::try_from(at).unwrap_or(usize::MAX);
            let part = bundle.get(start..start.saturating_add(into.len()));
            part.map(|part| into.copy_from_slice(part)).is_some()
        });
        prop_assert!(found.is_some());
    }
}
