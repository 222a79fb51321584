//! `cuGetProcAddress`: the entry point for a name, a version and a kind of default stream. The answer is always the
//! address of the exported symbol itself.
//!
//! Undocumented cases are answered as drivers 470 to 555 do, which `cargo xtask drivers` asks. A version newer than the
//! driver's, or below 0, is the newest. If a function has variants for per-thread streams, a program that asks for them
//! gets nothing else. Where those drivers crash on NULL, this one returns `CUDA_ERROR_INVALID_VALUE`.

use std::ffi::c_void;

use crate::error::{CudaError, INVALID_VALUE, NOT_FOUND, Outcome};
use crate::export::{EntryPoint, exports};
use crate::pointer::{In, Out, Text};
use crate::{driver, tables_of_rows};

/// `CUdriverProcAddressQueryResult`.
const FOUND: u32 = 0;
const SYMBOL_NOT_FOUND: u32 = 1;
const VERSION_NOT_SUFFICIENT: u32 = 2;

/// The flag that asks for the variants with per-thread default streams, alone or with the other flag.
const PER_THREAD: u64 = 2;
const FLAGS: u64 = 3;

exports! {
    cuGetProcAddress(name: Text, out: Out<*const ()>, version: i32, flags: u64) = get_v1 => "cuGetProcAddress" @ 11030, anytime;
    cuGetProcAddress_v2(name: Text, out: Out<*const ()>, version: i32, flags: u64, status: Out<u32>) = get => "cuGetProcAddress" @ 12000, anytime;
    cuGetExportTable(table: Out<*const c_void>, id: In<[u8; 16]>) = get_export_table => "cuGetExportTable" @ 3000, anytime;
}

/// The entry point, or the status that says why there is none.
fn find(name: &str, version: i32, flags: u64) -> Result<&'static EntryPoint, u32> {
    let named = || tables_of_rows().flatten().filter(|row| row.base == name);
    if named().next().is_none() {
        return Err(SYMBOL_NOT_FOUND);
    }
    let per_thread = flags & PER_THREAD != 0 && named().any(|row| row.per_thread);
    named()
        .filter(|row| row.version <= version && row.per_thread == per_thread)
        .max_by_key(|row| row.version)
        .ok_or(VERSION_NOT_SUFFICIENT)
}

/// A requested version as a driver of version `newest` understands it.
fn known(version: i32, newest: i32) -> i32 {
    match version {
        ..0 => newest,
        0.. => version.min(newest),
    }
}

fn checked(
    name: &Text,
    version: i32,
    flags: u64,
) -> Result<Result<&'static EntryPoint, u32>, CudaError> {
    let name = name.get()?;
    if flags & !FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let version = known(version, driver::cuda_version());
    Ok(find(name, version, flags))
}

/// The first version has no status. If it finds nothing, it fails and writes nothing.
fn get_v1(name: Text, out: Out<*const ()>, version: i32, flags: u64) -> Outcome {
    out.check()?;
    match checked(&name, version, flags)? {
        Ok(row) => out.put(row.address.0),
        Err(_) => Err(NOT_FOUND),
    }
}

fn get(name: Text, out: Out<*const ()>, version: i32, flags: u64, status: Out<u32>) -> Outcome {
    out.check()?;
    match checked(&name, version, flags)? {
        Ok(row) => {
            status.offer(FOUND);
            out.put(row.address.0)
        }
        Err(reason) => {
            status.offer(reason);
            out.put(std::ptr::null())
        }
    }
}

/// The driver's private tables are not simulated.
fn get_export_table(table: Out<*const c_void>, _id: In<[u8; 16]>) -> Outcome {
    table.check()?;
    table.put(std::ptr::null())?;
    Err(NOT_FOUND)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn address(name: &str, version: i32, flags: u64) -> Result<*const (), u32> {
        find(name, version, flags).map(|row| row.address.0)
    }

    #[test]
    fn the_newest_entry_point_that_the_program_can_know_is_found() {
        let versions: Vec<_> = [2000, 3020, 11040, 12050, 13000]
            .map(|version| address("cuCtxCreate", version, 0).expect("it is there since 2.0"))
            .into();
        assert_eq!(versions[3], versions[4]);
        assert_eq!(versions.iter().collect::<HashSet<_>>().len(), 4);
        assert_eq!(address("cuCtxCreate", 1000, 0), Err(VERSION_NOT_SUFFICIENT));
        assert_eq!(address("cuNothing", 13000, 0), Err(SYMBOL_NOT_FOUND));
    }

    #[test]
    fn per_thread_streams_are_for_those_who_ask() {
        let find = |flags| address("cuMemcpyHtoD", 12000, flags).expect("it is there");
        assert_eq!(find(0), find(1));
        assert_ne!(find(1), find(PER_THREAD));
        assert_eq!(find(3), find(PER_THREAD));
        let old = address("cuMemcpyHtoD", 6050, PER_THREAD);
        assert_eq!(old, Err(VERSION_NOT_SUFFICIENT), "they came with 7.0");
        let (plain, asked) = (
            address("cuMemAlloc", 6050, 0),
            address("cuMemAlloc", 6050, PER_THREAD),
        );
        assert!(plain.is_ok() && plain == asked, "it has no such variants");
    }

    #[test]
    fn a_version_that_the_driver_does_not_know_is_its_newest() {
        let known = [0, 12000, 13000, 13010, i32::MAX, -1].map(|version| known(version, 13000));
        assert_eq!(known, [0, 12000, 13000, 13000, 13000, 13000]);
    }

    /// The hooks identify a function by its address, so no two symbols may share one.
    #[test]
    fn every_symbol_has_an_address_of_its_own() {
        let addresses: Vec<_> = tables_of_rows()
            .flatten()
            .map(|row| row.address.0.addr())
            .collect();
        let distinct: HashSet<_> = addresses.iter().collect();
        assert_eq!(distinct.len(), addresses.len());
    }

    #[test]
    fn a_name_has_one_entry_point_a_version_and_kind() {
        let mut seen = HashSet::new();
        for row in tables_of_rows().flatten() {
            assert!(
                seen.insert((row.base, row.version, row.per_thread)),
                "{}",
                row.base
            );
        }
    }
}
