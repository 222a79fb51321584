//! Virtual memory is charged until its last handle and its last mapping are gone.

use crate::cuda::{LoadedCuda, OUT_OF_MEMORY, PinnedProperties, Pointer};
use crate::stage::{CONTEXT, MIB, held, limited};

fn create(cuda: &LoadedCuda, bytes: u64, properties: &PinnedProperties) -> Result<u64, i32> {
    let mut handle = 0;
    match cuda.mem_create(&raw mut handle, bytes as usize, properties, 0) {
        0 => Ok(handle),
        status => Err(status),
    }
}

fn reserve(cuda: &LoadedCuda, bytes: u64) -> u64 {
    let mut address = 0;
    assert_eq!(
        cuda.address_reserve(&raw mut address, bytes as usize, 0, 0, 0),
        0
    );
    address
}

#[test]
fn a_mapping_keeps_released_memory_charged() {
    limited(&[1000], |cuda, account| {
        let bytes = 100 * MIB;
        let handle = create(cuda, bytes, &PinnedProperties::device(0)).expect("it fits");
        let address = reserve(cuda, bytes);
        assert_eq!(cuda.mem_map(address, bytes as usize, 0, handle, 0), 0);
        assert_eq!(cuda.mem_release(handle), 0);
        assert_eq!(account.claimed(0), CONTEXT + bytes);
        assert_eq!(cuda.mem_unmap(address, bytes as usize), 0);
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}

#[test]
fn creating_mapping_and_releasing_does_not_escape_the_limit() {
    limited(&[1000], |cuda, _| {
        let bytes = 100 * MIB;
        let outcome = (0..20).try_for_each(|_| {
            let handle = create(cuda, bytes, &PinnedProperties::device(0))?;
            let address = reserve(cuda, bytes);
            assert_eq!(cuda.mem_map(address, bytes as usize, 0, handle, 0), 0);
            assert_eq!(cuda.mem_release(handle), 0);
            Ok(())
        });
        assert_eq!(outcome, Err(OUT_OF_MEMORY));
        assert!(held(0) <= 1000 * MIB);
    });
}

#[test]
fn a_retained_handle_keeps_unmapped_memory_charged() {
    limited(&[1000], |cuda, account| {
        let bytes = 2 * MIB;
        let handle = create(cuda, bytes, &PinnedProperties::device(0)).expect("it fits");
        let address = reserve(cuda, bytes);
        assert_eq!(cuda.mem_map(address, bytes as usize, 0, handle, 0), 0);
        let mut again = 0;
        assert_eq!(cuda.retain_handle(&raw mut again, address as Pointer), 0);
        assert_eq!(cuda.mem_release(handle), 0);
        assert_eq!(cuda.mem_unmap(address, bytes as usize), 0);
        assert_eq!(account.claimed(0), CONTEXT + bytes);
        assert_eq!(cuda.mem_release(again), 0);
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}

#[test]
fn memory_is_charged_to_the_card_of_its_location() {
    limited(&[1000, 1000], |cuda, account| {
        let handle = create(cuda, 600 * MIB, &PinnedProperties::device(1)).expect("it fits");
        assert_eq!(account.claimed(1), 600 * MIB);
        assert_eq!(
            create(cuda, 600 * MIB, &PinnedProperties::device(1)),
            Err(OUT_OF_MEMORY)
        );
        assert_eq!(cuda.mem_release(handle), 0);
        assert_eq!(account.claimed(1), 0);
    });
}

#[test]
fn memory_in_the_host_and_reserved_addresses_cost_nothing() {
    limited(&[1000], |cuda, account| {
        create(cuda, 2000 * MIB, &PinnedProperties::host()).expect("the host has room");
        reserve(cuda, 4000 * MIB);
        assert_eq!(account.claimed(0), CONTEXT);
    });
}
