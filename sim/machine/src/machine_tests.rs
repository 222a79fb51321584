//! Properties that a machine keeps whatever it is asked.

use proptest::prelude::*;

use super::*;
use crate::{ContextLimit, PoolAttribute};

const MIB: u64 = 1 << 20;

fn machine(cards: usize) -> Machine {
    let mut machine = Machine::new(MachineConfig::uniform(
        cards,
        2048 * MIB,
        DriverGeneration::R580,
    ))
    .expect("valid");
    machine.process_came(1, PeerIdentity::default());
    machine.process_came(2, PeerIdentity::default());
    machine
}

fn created(machine: &mut Machine, pid: Pid, request: MachineRequest) -> u64 {
    match machine.apply(pid, request).reply {
        MachineReply::Created(id) | MachineReply::Allocated { allocation: id, .. } => id,
        other => panic!("expected an object, got {other:?}"),
    }
}

fn allocate(context: u64, bytes: u64) -> MachineRequest {
    MachineRequest::Allocate { context, bytes }
}

#[test]
fn a_context_costs_its_overhead_and_gives_it_back() {
    let mut machine = machine(1);
    let context = created(&mut machine, 1, MachineRequest::PrimaryRetain(0));
    assert_eq!(machine.cards[0].used(), 384 * MIB);
    assert_eq!(
        created(&mut machine, 1, MachineRequest::PrimaryRetain(0)),
        context
    );
    machine.apply(1, MachineRequest::PrimaryRelease(0));
    assert_eq!(machine.cards[0].used(), 384 * MIB);
    machine.apply(1, MachineRequest::PrimaryRelease(0));
    assert_eq!(machine.cards[0].used(), 0);
}

#[test]
fn refuses_what_the_card_does_not_have_and_changes_nothing() {
    let mut machine = machine(1);
    let context = created(&mut machine, 1, MachineRequest::PrimaryRetain(0));
    let before = machine.cards[0].used();
    let reply = machine
        .apply(1, allocate(context, machine.cards[0].free() + 1))
        .reply;
    assert_eq!(reply, MachineReply::Refused(CudaRefusal::OutOfMemory));
    assert_eq!(machine.cards[0].used(), before);
    let free = machine.cards[0].free();
    created(&mut machine, 1, allocate(context, free));
    assert_eq!(machine.cards[0].free(), 0);
}

#[test]
fn code_that_is_loaded_later_counts_with_its_module() {
    let mut machine = machine(1);
    let context = created(&mut machine, 1, MachineRequest::PrimaryRetain(0));
    let before = machine.cards[0].used();
    let module = created(
        &mut machine,
        1,
        MachineRequest::ModuleLoad { context, bytes: 0 },
    );
    let grow = |bytes| MachineRequest::ModuleGrow {
        context,
        module,
        bytes,
    };
    machine.apply(1, grow(5 * MIB));
    assert_eq!(machine.cards[0].used(), before + 6 * MIB);
    let too_much = machine.cards[0].free() + 8 * MIB;
    let reply = machine.apply(1, grow(too_much)).reply;
    assert_eq!(reply, MachineReply::Refused(CudaRefusal::OutOfMemory));
    assert_eq!(machine.cards[0].used(), before + 6 * MIB, "nothing changed");
    machine.apply(1, MachineRequest::ModuleUnload { context, module });
    assert_eq!(machine.cards[0].used(), before);
}

#[test]
fn a_freed_stream_ordered_allocation_stays_reserved_until_a_synchronisation() {
    let mut machine = machine(1);
    let pool = created(&mut machine, 1, MachineRequest::DefaultPool(0));
    let allocation = created(
        &mut machine,
        1,
        MachineRequest::PoolAllocate { pool, bytes: MIB },
    );
    machine.apply(1, MachineRequest::Free(allocation));
    assert_eq!(machine.cards[0].used(), 32 * MIB);
    assert_eq!(machine.apply(1, MachineRequest::Synchronize).gone.len(), 1);
    assert_eq!(machine.cards[0].used(), 0);
}

#[test]
fn a_release_threshold_keeps_memory_until_someone_needs_it() {
    let mut machine = machine(1);
    let pool = created(&mut machine, 1, MachineRequest::DefaultPool(0));
    machine.apply(
        1,
        MachineRequest::PoolSet(pool, PoolAttribute::ReleaseThreshold, u64::MAX),
    );
    let allocation = created(
        &mut machine,
        1,
        MachineRequest::PoolAllocate {
            pool,
            bytes: 64 * MIB,
        },
    );
    machine.apply(1, MachineRequest::Free(allocation));
    machine.apply(1, MachineRequest::Synchronize);
    assert_eq!(machine.cards[0].used(), 64 * MIB);
    let all = machine.cards[0].usable();
    created(
        &mut machine,
        1,
        MachineRequest::HandleCreate {
            location: MachineLocation::Card(0),
            bytes: all,
        },
    );
    assert_eq!(machine.cards[0].used(), all);
}

#[test]
fn a_destroyed_pool_keeps_what_it_has_until_its_last_allocation_is_freed() {
    let mut machine = machine(1);
    let request = MachineRequest::PoolCreate {
        location: MachineLocation::Card(0),
        max_bytes: 0,
    };
    let pool = created(&mut machine, 1, request);
    let bytes = 64 * MIB;
    let first = created(
        &mut machine,
        1,
        MachineRequest::PoolAllocate { pool, bytes },
    );
    let last = created(
        &mut machine,
        1,
        MachineRequest::PoolAllocate { pool, bytes },
    );
    machine.apply(1, MachineRequest::PoolDestroy(pool));
    machine.apply(1, MachineRequest::Free(first));
    machine.apply(1, MachineRequest::Synchronize);
    assert_eq!(machine.cards[0].used(), 128 * MIB);
    let attribute = PoolAttribute::Reserved;
    for request in [
        MachineRequest::PoolGet(pool, attribute),
        MachineRequest::PoolAllocate { pool, bytes },
        MachineRequest::PoolDestroy(pool),
    ] {
        let reply = machine.apply(1, request).reply;
        assert_eq!(reply, MachineReply::Refused(CudaRefusal::InvalidValue));
    }
    assert_eq!(machine.apply(1, MachineRequest::Free(last)).gone.len(), 2);
    assert_eq!(machine.cards[0].used(), 0);
}

#[test]
fn a_released_handle_lives_while_it_is_mapped() {
    let mut machine = machine(1);
    let request = MachineRequest::HandleCreate {
        location: MachineLocation::Card(0),
        bytes: 4 * MIB,
    };
    let handle = created(&mut machine, 1, request);
    machine.apply(1, MachineRequest::Map(handle));
    machine.apply(1, MachineRequest::HandleRelease(handle));
    assert_eq!(machine.cards[0].used(), 4 * MIB);
    machine.apply(1, MachineRequest::Unmap(handle));
    assert_eq!(machine.cards[0].used(), 0);
}

#[test]
fn shared_memory_outlives_its_creator_and_is_counted_for_the_importer() {
    let mut machine = machine(1);
    let request = MachineRequest::HandleCreate {
        location: MachineLocation::Card(0),
        bytes: 4 * MIB,
    };
    let handle = created(&mut machine, 1, request);
    machine.apply(2, MachineRequest::HandleImport(handle));
    assert_eq!(
        (machine.cards[0].held_by(1), machine.cards[0].held_by(2)),
        (4 * MIB, 0)
    );
    machine.process_gone(1);
    assert_eq!(
        (machine.cards[0].held_by(1), machine.cards[0].held_by(2)),
        (0, 4 * MIB)
    );
    machine.process_gone(2);
    assert_eq!(machine.cards[0].used(), 0);
}

#[test]
fn a_shared_block_outlives_its_context_and_is_counted_for_who_opened_it() {
    let mut machine = machine(1);
    let context = created(&mut machine, 1, MachineRequest::ContextCreate(0));
    let bytes = 4 * MIB;
    let reply = machine
        .apply(1, MachineRequest::Allocate { context, bytes })
        .reply;
    let MachineReply::Allocated { allocation, .. } = reply else {
        unreachable!("there is room");
    };
    let handle = created(&mut machine, 1, MachineRequest::BlockShare(allocation));
    assert_eq!(
        created(&mut machine, 1, MachineRequest::BlockShare(allocation)),
        handle
    );
    let before = machine.cards[0].used();
    machine.apply(2, MachineRequest::HandleImport(handle));
    assert_eq!(machine.cards[0].used(), before, "it is the same memory");
    machine.apply(1, MachineRequest::ContextDestroy(context));
    assert_eq!(
        (machine.cards[0].held_by(1), machine.cards[0].held_by(2)),
        (0, bytes)
    );
    machine.apply(2, MachineRequest::HandleRelease(handle));
    assert_eq!(machine.cards[0].used(), 0);
}

#[test]
fn host_memory_costs_no_card_anything() {
    let mut machine = machine(1);
    created(
        &mut machine,
        1,
        MachineRequest::HandleCreate {
            location: MachineLocation::Host,
            bytes: 4 * MIB,
        },
    );
    let request = MachineRequest::PoolCreate {
        location: MachineLocation::Host,
        max_bytes: 0,
    };
    let pool = created(&mut machine, 1, request);
    created(
        &mut machine,
        1,
        MachineRequest::PoolAllocate { pool, bytes: MIB },
    );
    assert_eq!(machine.cards[0].used(), 0);
}

#[test]
fn a_process_that_never_came_gets_nothing() {
    let mut machine = machine(1);
    let reply = machine.apply(3, MachineRequest::ContextCreate(0)).reply;
    assert_eq!(reply, MachineReply::Refused(CudaRefusal::InvalidContext));
    assert_eq!(machine.cards[0].used(), 0);
}

/// The memory of a process's objects on a card, counted one by one.
fn counted(machine: &Machine, pid: Pid, card: usize) -> u64 {
    let Some(process) = machine.processes.get(&pid) else {
        return 0;
    };
    let contexts = process
        .contexts
        .values()
        .filter(|context| context.card == card);
    let pools = process
        .pools
        .values()
        .filter(|pool| pool.card() == Some(card));
    contexts.map(|context| context.bytes()).sum::<u64>()
        + pools.map(|pool| pool.arena.reserved()).sum::<u64>()
        + machine.handle_bytes(pid, card)
}

/// Requests whose names often, but not always, belong to existing objects.
fn requests() -> impl Strategy<Value = MachineRequest> {
    let id = || 1..60_u64;
    let card = || 0..3_usize;
    let bytes = || prop_oneof![0..3 * MIB, 0..900 * MIB];
    let handles = (1..400_u64).prop_map(|granules| granules * 2 * MIB);
    let place = || {
        prop_oneof![
            card().prop_map(MachineLocation::Card),
            Just(MachineLocation::Host)
        ]
    };
    let limit = prop_oneof![Just(ContextLimit::MallocHeap), Just(ContextLimit::Stack)];
    prop_oneof![
        card().prop_map(MachineRequest::PrimaryRetain),
        card().prop_map(MachineRequest::PrimaryRelease),
        card().prop_map(MachineRequest::PrimaryReset),
        card().prop_map(MachineRequest::ContextCreate),
        id().prop_map(MachineRequest::ContextDestroy),
        (id(), limit, bytes()).prop_map(|(context, limit, bytes)| MachineRequest::ContextLimit {
            context,
            limit,
            bytes
        }),
        (id(), bytes()).prop_map(|(context, bytes)| MachineRequest::ModuleLoad { context, bytes }),
        (id(), id(), bytes()).prop_map(|(context, module, bytes)| MachineRequest::ModuleGrow {
            context,
            module,
            bytes
        }),
        (id(), id()).prop_map(|(context, module)| MachineRequest::ModuleUnload { context, module }),
        (id(), bytes()).prop_map(|(context, bytes)| allocate(context, bytes)),
        id().prop_map(MachineRequest::Free),
        (place(), handles)
            .prop_map(|(location, bytes)| MachineRequest::HandleCreate { location, bytes }),
        id().prop_map(MachineRequest::HandleRetain),
        id().prop_map(MachineRequest::HandleRelease),
        id().prop_map(MachineRequest::HandleImport),
        id().prop_map(|handle| MachineRequest::HandleExport {
            handle,
            descriptor: 3
        }),
        id().prop_map(MachineRequest::Map),
        id().prop_map(MachineRequest::Unmap),
        card().prop_map(MachineRequest::DefaultPool),
        (place(), bytes()).prop_map(|(location, max_bytes)| MachineRequest::PoolCreate {
            location,
            max_bytes
        }),
        id().prop_map(MachineRequest::PoolDestroy),
        (id(), bytes()).prop_map(|(pool, bytes)| MachineRequest::PoolAllocate { pool, bytes }),
        (id(), bytes()).prop_map(|(pool, keep)| MachineRequest::PoolTrim { pool, keep }),
        (id(), bytes()).prop_map(|(pool, value)| {
            MachineRequest::PoolSet(pool, PoolAttribute::ReleaseThreshold, value)
        }),
        Just(MachineRequest::Synchronize),
    ]
}

proptest! {
    #[test]
    fn memory_is_neither_lost_nor_made(steps in proptest::collection::vec((1..3_i32, requests()), 1..120)) {
        let mut machine = machine(2);
        for (pid, request) in steps {
            let before: Vec<u64> = machine.cards.iter().map(SimulatedCard::used).collect();
            let grows = matches!(request, MachineRequest::Allocate { .. } | MachineRequest::HandleCreate { .. });
            let answer = machine.apply(pid, request);
            for (card, before) in before.iter().enumerate() {
                prop_assert!(machine.cards[card].used() <= machine.cards[card].usable());
                for pid in [1, 2] {
                    prop_assert_eq!(machine.cards[card].held_by(pid), counted(&machine, pid, card));
                }
                if grows && matches!(answer.reply, MachineReply::Refused(_)) {
                    prop_assert!(machine.cards[card].used() <= *before);
                }
            }
        }
        machine.process_gone(1);
        for card in 0..2 {
            prop_assert_eq!(machine.cards[card].used(), counted(&machine, 2, card));
        }
        machine.process_gone(2);
        prop_assert!(machine.cards.iter().all(|card| card.used() == 0));
        prop_assert!(machine.physical.is_empty());
    }
}
