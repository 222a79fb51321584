//! Tiles: physical memory that is mapped into sparse arrays, which have no memory of their own. The words that name a
//! tile's place identify it. A tile is mapped and unmapped as a whole.

use std::collections::HashMap;

use crate::array::takes_tiles;
use crate::context::current;
use crate::driver::tables;
use crate::error::{INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::pointer::In;
use crate::retained_memory::{hold, let_go};
use crate::stream::stream;

/// The handle that is mapped at each place of an array, and the array's context.
pub(crate) type Tiles = HashMap<(u64, [u64; 5]), (u64, u64)>;

/// `CUarrayMapInfo`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayMapInfo {
    kind: u32,
    array: u64,
    place: [u64; 5],
    operation: u32,
    handle_kind: u32,
    handle: u64,
    offset: u64,
    devices: u32,
    flags: u32,
    reserved: [u32; 2],
}

/// `CU_MEM_OPERATION_TYPE_MAP`, `CU_MEM_OPERATION_TYPE_UNMAP`.
const MAP: u32 = 1;
const UNMAP: u32 = 2;

exports! {
    cuMemMapArrayAsync(list: In<ArrayMapInfo>, count: u32, on: u64) = map => "cuMemMapArrayAsync" @ 11010 | cuMemMapArrayAsync_ptsz @ 11010;
}

fn map(list: In<ArrayMapInfo>, count: u32, on: u64) -> Outcome {
    stream(on)?;
    let (context, _) = current()?;
    for at in 0..count as usize {
        let tile = list.at(at)?;
        if tile.flags != 0 || !takes_tiles(tile.array)? {
            return Err(INVALID_VALUE);
        }
        if tile.operation == MAP {
            hold(tile.handle)?;
        }
        let key = (tile.array, tile.place);
        let before = match tile.operation {
            MAP => tables().tiles.insert(key, (tile.handle, context)),
            UNMAP => tables().tiles.remove(&key),
            _ => return Err(INVALID_VALUE),
        };
        before.map_or(Ok(()), |(handle, _)| let_go(handle))?;
    }
    Ok(())
}

/// Removes the tiles of an array that is gone.
pub(crate) fn end(array: u64) -> Outcome {
    end_where(|of, _| of == array)
}

/// Removes the tiles of all arrays of a context that is gone.
pub(crate) fn end_in(context: u64) -> Outcome {
    end_where(|_, inside| inside == context)
}

fn end_where(is_over: impl Fn(u64, u64) -> bool) -> Outcome {
    let gone: Vec<u64> = {
        let mut tables = tables();
        let over = tables
            .tiles
            .extract_if(|(array, _), (_, context)| is_over(*array, *context));
        over.map(|(_, (handle, _))| handle).collect()
    };
    gone.into_iter().try_for_each(let_go)
}
