//! Planes and tiles of arrays: the planes of an array with several of them, and the tile size of a sparse array.

use crate::array;
use crate::array_descriptor::Wide3D;
use crate::driver::tables;
use crate::error::{CudaError, INVALID_HANDLE, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::pointer::Out;

/// `CUDA_ARRAY_SPARSE_PROPERTIES`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ArraySparseProperties {
    tile: [u32; 3],
    first_of_tail: u32,
    tail_bytes: u64,
    flags: u32,
    reserved: [u32; 4],
}

exports! {
    cuArrayGetPlane(out: Out<u64>, array: u64, plane: u32) = get_plane => "cuArrayGetPlane" @ 11020;
    cuArrayGetSparseProperties(properties: Out<ArraySparseProperties>, array: u64) = of_array => "cuArrayGetSparseProperties" @ 11010;
    cuMipmappedArrayGetSparseProperties(properties: Out<ArraySparseProperties>, mipmap: u64) = of_mipmap => "cuMipmappedArrayGetSparseProperties" @ 11010;
}

/// Formats with several planes, such as video formats, are not simulated.
fn get_plane(out: Out<u64>, array: u64, _plane: u32) -> Outcome {
    out.check()?;
    array::descriptor(array)?;
    Err(INVALID_VALUE)
}

/// A tile has 64 KiB, in the standard shape of graphics APIs.
fn tile(shape: Wide3D) -> Result<[u32; 3], CudaError> {
    let sides = if shape.depth > 0 {
        [
            [64, 32, 32],
            [32, 32, 32],
            [32, 32, 16],
            [32, 16, 16],
            [16, 16, 16],
        ]
    } else {
        [
            [256, 256, 1],
            [256, 128, 1],
            [128, 128, 1],
            [128, 64, 1],
            [64, 64, 1],
        ]
    };
    let size = shape.element_bytes()?.ilog2() as usize;
    sides.get(size).copied().ok_or(INVALID_VALUE)
}

/// There is no mip tail: no level is so small that it shares a tile with others.
fn give(out: Out<ArraySparseProperties>, shape: Wide3D, levels: u32) -> Outcome {
    if !shape.is_sparse() {
        return Err(INVALID_VALUE);
    }
    out.put(ArraySparseProperties {
        tile: tile(shape)?,
        first_of_tail: levels,
        tail_bytes: 0,
        flags: 0,
        reserved: [0; 4],
    })
}

fn of_array(out: Out<ArraySparseProperties>, array: u64) -> Outcome {
    out.check()?;
    give(out, array::descriptor(array)?, 1)
}

fn of_mipmap(out: Out<ArraySparseProperties>, mipmap: u64) -> Outcome {
    out.check()?;
    let levels = tables()
        .mipmaps
        .get(&mipmap)
        .map(|mipmap| mipmap.levels().to_vec());
    let levels = levels.ok_or(INVALID_HANDLE)?;
    let first = *levels.first().ok_or(INVALID_VALUE)?;
    let count = u32::try_from(levels.len()).map_err(|_| INVALID_VALUE)?;
    give(out, array::descriptor(first)?, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_is_64_kib() {
        const FORMATS: [(u32, u32); 5] = [(1, 1), (2, 1), (3, 1), (3, 2), (3, 4)];
        for (format, channels) in FORMATS {
            for depth in [0, 1] {
                let shape = Wide3D {
                    width: 1,
                    height: 1,
                    depth,
                    format,
                    channels,
                    flags: 0x40,
                };
                let sides = tile(shape).expect("there is such an element");
                let elements: u64 = sides.iter().map(|side| u64::from(*side)).product();
                let bytes = elements * shape.element_bytes().expect("it has a size");
                assert_eq!(bytes, 64 << 10);
            }
        }
    }
}
