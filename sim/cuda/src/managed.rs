//! Advice and prefetches for managed memory. The machine counts managed memory as resident from its allocation on, so
//! both are checked and have no effect.

use crate::driver::{driver, tables};
use crate::error::{INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::location::MemLocation;
use crate::pointer::{In, Out};
use crate::stream::stream;
use crate::tables::MemoryKind;

/// `CU_DEVICE_CPU`.
const HOST: i32 = -1;
/// `CU_DEVICE_INVALID`.
const NOWHERE: i32 = -2;
/// The last `CUmem_advise`.
const LAST_ADVICE: u32 = 6;

exports! {
    cuMemAdvise(address: u64, bytes: usize, advice: u32, device: i32) = advise_v1 => "cuMemAdvise" @ 8000;
    cuMemAdvise_v2(address: u64, bytes: usize, advice: u32, place: MemLocation) = advise => "cuMemAdvise" @ 12020;
    cuMemPrefetchAsync(address: u64, bytes: usize, device: i32, stream: u64) = prefetch_v1 => "cuMemPrefetchAsync" @ 8000 | cuMemPrefetchAsync_ptsz @ 8000;
    cuMemPrefetchAsync_v2(address: u64, bytes: usize, place: MemLocation, flags: u32, stream: u64) = prefetch => "cuMemPrefetchAsync" @ 12020 | cuMemPrefetchAsync_v2_ptsz @ 12020;
    cuMemRangeGetAttribute(data: Out<i32>, room: usize, attribute: u32, address: u64, bytes: usize) = get_attribute => "cuMemRangeGetAttribute" @ 8000;
    cuMemRangeGetAttributes(data: In<Out<i32>>, rooms: In<usize>, attributes: In<u32>, count: usize, address: u64, bytes: usize) = get_attributes => "cuMemRangeGetAttributes" @ 8000;
}

/// Fails unless the whole range is managed memory.
pub(crate) fn check(address: u64, bytes: usize) -> Outcome {
    let tables = tables();
    let (_, range) = tables.range_of(address)?;
    let is_managed = matches!(range.kind, MemoryKind::Managed { .. });
    let is_inside = bytes > 0 && tables.covers(address, bytes as u64);
    if is_managed && is_inside {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

fn advise_v1(address: u64, bytes: usize, advice: u32, device: i32) -> Outcome {
    if device != HOST {
        driver()?.card(device)?;
    }
    check(address, bytes)?;
    if (1..=LAST_ADVICE).contains(&advice) {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

fn advise(address: u64, bytes: usize, advice: u32, place: MemLocation) -> Outcome {
    advise_v1(address, bytes, advice, place.device())
}

fn prefetch_v1(address: u64, bytes: usize, device: i32, on: u64) -> Outcome {
    if device != HOST {
        driver()?.card(device)?;
    }
    stream(on)?;
    check(address, bytes)
}

pub(crate) fn prefetch(
    address: u64,
    bytes: usize,
    place: MemLocation,
    flags: u32,
    on: u64,
) -> Outcome {
    place.location()?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    prefetch_v1(address, bytes, place.device(), on)
}

/// No preferred location and no last prefetch: devices are invalid, all else is zero.
fn get_attribute(
    data: Out<i32>,
    room: usize,
    attribute: u32,
    address: u64,
    bytes: usize,
) -> Outcome {
    check(address, bytes)?;
    let words = room / size_of::<i32>();
    let value = match attribute {
        2..=4 => NOWHERE,
        1 | 5..=8 => 0,
        _ => return Err(INVALID_VALUE),
    };
    if words == 0 {
        return Err(INVALID_VALUE);
    }
    (0..words).try_for_each(|word| data.put_at(word, value))
}

fn get_attributes(
    data: In<Out<i32>>,
    rooms: In<usize>,
    attributes: In<u32>,
    count: usize,
    address: u64,
    bytes: usize,
) -> Outcome {
    (0..count).try_for_each(|at| {
        get_attribute(
            data.at(at)?,
            rooms.at(at)?,
            attributes.at(at)?,
            address,
            bytes,
        )
    })
}
