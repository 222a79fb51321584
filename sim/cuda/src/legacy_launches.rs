//! Launches as before CUDA 4: a program sets the block shape and the parameters on the function, one by one, and then
//! launches a grid. No parameters of a function are known, so they are checked and forgotten.

use std::collections::HashMap;

use crate::driver::tables;
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::functions::{self, LaunchShape};
use crate::pointer::In;

/// The block shapes of functions by handle: the sides, and the shared bytes of each block.
pub(crate) type Blocks = HashMap<u64, ([u32; 3], u32)>;

exports! {
    cuFuncSetBlockShape(function: u64, x: i32, y: i32, z: i32) = set_shape => "cuFuncSetBlockShape" @ 2000;
    cuFuncSetSharedSize(function: u64, bytes: u32) = set_shared => "cuFuncSetSharedSize" @ 2000;
    cuParamSetSize(function: u64, bytes: u32) = set_size => "cuParamSetSize" @ 2000;
    cuParamSeti(function: u64, offset: i32, value: u32) = set_number => "cuParamSeti" @ 2000;
    cuParamSetf(function: u64, offset: i32, value: f32) = set_float => "cuParamSetf" @ 2000;
    cuParamSetv(function: u64, offset: i32, value: In<u8>, bytes: u32) = set_bytes => "cuParamSetv" @ 2000;
    cuLaunch(function: u64) = launch => "cuLaunch" @ 2000;
    cuLaunchGrid(function: u64, width: i32, height: i32) = launch_grid => "cuLaunchGrid" @ 2000;
    cuLaunchGridAsync(function: u64, width: i32, height: i32, stream: u64) = launch_grid_async => "cuLaunchGridAsync" @ 2000;
}

fn change(function: u64, change: impl FnOnce(&mut ([u32; 3], u32))) -> Outcome {
    functions::name(function)?;
    change(tables().blocks_of.entry(function).or_default());
    Ok(())
}

fn side(side: i32) -> Result<u32, CudaError> {
    let side = u32::try_from(side).map_err(|_| INVALID_VALUE)?;
    if side == 0 {
        Err(INVALID_VALUE)
    } else {
        Ok(side)
    }
}

fn set_shape(function: u64, x: i32, y: i32, z: i32) -> Outcome {
    let sides = [side(x)?, side(y)?, side(z)?];
    change(function, |block| block.0 = sides)
}

fn set_shared(function: u64, bytes: u32) -> Outcome {
    change(function, |block| block.1 = bytes)
}

fn set_size(function: u64, _bytes: u32) -> Outcome {
    functions::name(function).map(drop)
}

fn set_at(function: u64, offset: i32) -> Outcome {
    functions::name(function)?;
    u32::try_from(offset).map(drop).map_err(|_| INVALID_VALUE)
}

fn set_number(function: u64, offset: i32, _value: u32) -> Outcome {
    set_at(function, offset)
}

fn set_float(function: u64, offset: i32, _value: f32) -> Outcome {
    set_at(function, offset)
}

fn set_bytes(function: u64, offset: i32, value: In<u8>, bytes: u32) -> Outcome {
    if value.is_null() && bytes > 0 {
        return Err(INVALID_VALUE);
    }
    set_at(function, offset)
}

fn launch(function: u64) -> Outcome {
    launch_grid(function, 1, 1)
}

fn launch_grid(function: u64, width: i32, height: i32) -> Outcome {
    launch_grid_async(function, width, height, 0)
}

/// A function without a block shape cannot be launched.
fn launch_grid_async(function: u64, width: i32, height: i32, on: u64) -> Outcome {
    functions::name(function)?;
    let block = tables().blocks_of.get(&function).copied();
    let (block, shared) = block.ok_or(INVALID_VALUE)?;
    let grid = [side(width)?, side(height)?, 1];
    functions::run(function, LaunchShape::new(grid, block, shared), on)
}
