//! Texture and surface references: modules declare them and programs bind them to memory. CUDA has replaced them by
//! objects ([`crate::textures`]), but drivers still have the functions. A reference stores what it is given and returns
//! it.

use std::collections::HashMap;

use crate::array;
use crate::array_descriptor::ArrayDescriptor2D;
use crate::driver::tables;
use crate::error::{CudaError, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, Outcome, UNKNOWN};
use crate::export::exports;
use crate::functions;
use crate::modules;
use crate::number::ApiInteger;
use crate::pointer::{In, Out, Text};

/// The references of a process by handle, and those of each module by name.
#[derive(Debug, Default)]
pub(crate) struct TextureReferences {
    by_handle: HashMap<u64, TextureReference>,
    declared: HashMap<(u64, String), u64>,
}

#[derive(Debug, Clone, Copy)]
struct TextureReference {
    bound: TextureBinding,
    modes: [u32; 3],
    filter: u32,
    mipmap_filter: u32,
    format: u32,
    channels: i32,
    flags: u32,
    anisotropy: u32,
    bias: f32,
    clamp: [f32; 2],
    border: [f32; 4],
}

/// What a reference is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextureBinding {
    Nothing,
    Memory(u64),
    Array(u64),
    Mipmaps(u64),
}

/// `CU_AD_FORMAT_FLOAT`, which a new reference has.
const FLOAT: u32 = 0x20;
/// `CU_TRSA_OVERRIDE_FORMAT`, which binding an array requires.
const OVERRIDE: u32 = 1;
/// The alignment of bound memory.
const ALIGNMENT: u64 = 512;

exports! {
    cuModuleGetTexRef(out: Out<u64>, module: u64, name: Text) = declared => "cuModuleGetTexRef" @ 2000;
    cuModuleGetSurfRef(out: Out<u64>, module: u64, name: Text) = declared => "cuModuleGetSurfRef" @ 3000;
    cuTexRefCreate(out: Out<u64>) = create => "cuTexRefCreate" @ 2000;
    cuTexRefDestroy(reference: u64) = destroy => "cuTexRefDestroy" @ 2000;
    cuParamSetTexRef(function: u64, unit: i32, reference: u64) = set_parameter => "cuParamSetTexRef" @ 2000;
    cuTexRefSetArray(reference: u64, array: u64, flags: u32) = set_array => "cuTexRefSetArray" @ 2000;
    cuTexRefSetMipmappedArray(reference: u64, mipmaps: u64, flags: u32) = set_mipmaps => "cuTexRefSetMipmappedArray" @ 5000;
    cuTexRefSetAddress(offset: Out<u32>, reference: u64, address: u32, bytes: u32) = set_address_v1 => "cuTexRefSetAddress" @ 2000;
    cuTexRefSetAddress_v2(offset: Out<usize>, reference: u64, address: u64, bytes: usize) = set_address => "cuTexRefSetAddress" @ 3020;
    cuTexRefSetAddress2D(reference: u64, shape: In<ArrayDescriptor2D<u32>>, address: u32, pitch: u32) = set_rows => "cuTexRefSetAddress2D" @ 2020;
    cuTexRefSetAddress2D_v2(reference: u64, shape: In<ArrayDescriptor2D<usize>>, address: u64, pitch: usize) = set_rows => "cuTexRefSetAddress2D" @ 3020;
    cuTexRefSetAddress2D_v3(reference: u64, shape: In<ArrayDescriptor2D<usize>>, address: u64, pitch: usize) = set_rows => "cuTexRefSetAddress2D" @ 4010;
    cuTexRefSetFormat(reference: u64, format: u32, channels: i32) = set_format => "cuTexRefSetFormat" @ 2000;
    cuTexRefSetAddressMode(reference: u64, dimension: i32, mode: u32) = set_mode => "cuTexRefSetAddressMode" @ 2000;
    cuTexRefSetFilterMode(reference: u64, mode: u32) = set_filter => "cuTexRefSetFilterMode" @ 2000;
    cuTexRefSetMipmapFilterMode(reference: u64, mode: u32) = set_mipmap_filter => "cuTexRefSetMipmapFilterMode" @ 5000;
    cuTexRefSetMipmapLevelBias(reference: u64, bias: f32) = set_bias => "cuTexRefSetMipmapLevelBias" @ 5000;
    cuTexRefSetMipmapLevelClamp(reference: u64, low: f32, high: f32) = set_clamp => "cuTexRefSetMipmapLevelClamp" @ 5000;
    cuTexRefSetMaxAnisotropy(reference: u64, most: u32) = set_anisotropy => "cuTexRefSetMaxAnisotropy" @ 5000;
    cuTexRefSetBorderColor(reference: u64, color: In<[f32; 4]>) = set_border => "cuTexRefSetBorderColor" @ 8000;
    cuTexRefSetFlags(reference: u64, flags: u32) = set_flags => "cuTexRefSetFlags" @ 2000;
    cuTexRefGetAddress(address: Out<u32>, reference: u64) = get_address_v1 => "cuTexRefGetAddress" @ 2000;
    cuTexRefGetAddress_v2(address: Out<u64>, reference: u64) = get_address => "cuTexRefGetAddress" @ 3020;
    cuTexRefGetArray(array: Out<u64>, reference: u64) = get_array => "cuTexRefGetArray" @ 2000;
    cuTexRefGetMipmappedArray(mipmaps: Out<u64>, reference: u64) = get_mipmaps => "cuTexRefGetMipmappedArray" @ 5000;
    cuTexRefGetAddressMode(mode: Out<u32>, reference: u64, dimension: i32) = get_mode => "cuTexRefGetAddressMode" @ 2000;
    cuTexRefGetFilterMode(mode: Out<u32>, reference: u64) = get_filter => "cuTexRefGetFilterMode" @ 2000;
    cuTexRefGetFormat(format: Out<u32>, channels: Out<i32>, reference: u64) = get_format => "cuTexRefGetFormat" @ 2000;
    cuTexRefGetMipmapFilterMode(mode: Out<u32>, reference: u64) = get_mipmap_filter => "cuTexRefGetMipmapFilterMode" @ 5000;
    cuTexRefGetMipmapLevelBias(bias: Out<f32>, reference: u64) = get_bias => "cuTexRefGetMipmapLevelBias" @ 5000;
    cuTexRefGetMipmapLevelClamp(low: Out<f32>, high: Out<f32>, reference: u64) = get_clamp => "cuTexRefGetMipmapLevelClamp" @ 5000;
    cuTexRefGetMaxAnisotropy(most: Out<u32>, reference: u64) = get_anisotropy => "cuTexRefGetMaxAnisotropy" @ 5000;
    cuTexRefGetBorderColor(color: Out<[f32; 4]>, reference: u64) = get_border => "cuTexRefGetBorderColor" @ 8000;
    cuTexRefGetFlags(flags: Out<u32>, reference: u64) = get_flags => "cuTexRefGetFlags" @ 2000;
    cuSurfRefSetArray(reference: u64, array: u64, flags: u32) = set_surface => "cuSurfRefSetArray" @ 3000;
    cuSurfRefGetArray(array: Out<u64>, reference: u64) = get_array => "cuSurfRefGetArray" @ 3000;
}

impl TextureReference {
    const NEW: Self = Self {
        bound: TextureBinding::Nothing,
        modes: [0; 3],
        filter: 0,
        mipmap_filter: 0,
        format: FLOAT,
        channels: 1,
        flags: 0,
        anisotropy: 0,
        bias: 0.0,
        clamp: [0.0; 2],
        border: [0.0; 4],
    };
}

fn reference(handle: u64) -> Result<TextureReference, CudaError> {
    let tables = tables();
    let known = tables.references.by_handle.get(&handle);
    known.copied().ok_or(INVALID_HANDLE)
}

fn change(handle: u64, change: impl FnOnce(&mut TextureReference)) -> Outcome {
    let mut tables = tables();
    let known = tables.references.by_handle.get_mut(&handle);
    change(known.ok_or(INVALID_HANDLE)?);
    Ok(())
}

fn allow(is_valid: bool) -> Outcome {
    if is_valid { Ok(()) } else { Err(INVALID_VALUE) }
}

fn make() -> u64 {
    let mut tables = tables();
    let handle = tables.fresh();
    tables
        .references
        .by_handle
        .insert(handle, TextureReference::NEW);
    handle
}

/// Returns the same reference for the same name.
fn declared(out: Out<u64>, module: u64, name: Text) -> Outcome {
    out.check()?;
    let name = name.get()?;
    if !modules::declares(module, name)? {
        return Err(NOT_FOUND);
    }
    let key = (module, name.to_owned());
    let known = tables().references.declared.get(&key).copied();
    let handle = known.unwrap_or_else(make);
    tables().references.declared.insert(key, handle);
    out.put(handle)
}

fn create(out: Out<u64>) -> Outcome {
    out.check()?;
    out.put(make())
}

fn destroy(handle: u64) -> Outcome {
    let gone = tables().references.by_handle.remove(&handle);
    gone.map(drop).ok_or(INVALID_HANDLE)
}

fn set_parameter(function: u64, _unit: i32, handle: u64) -> Outcome {
    functions::name(function)?;
    reference(handle).map(drop)
}

/// Binds an array. The reference takes the array's format.
fn set_array(handle: u64, array: u64, flags: u32) -> Outcome {
    allow(flags == OVERRIDE)?;
    let shape = array::descriptor(array)?;
    change(handle, |known| {
        known.bound = TextureBinding::Array(array);
        known.format = shape.format;
        known.channels = shape.channels.cast_signed();
    })
}

fn set_mipmaps(handle: u64, mipmaps: u64, flags: u32) -> Outcome {
    allow(flags == OVERRIDE)?;
    if !tables().mipmaps.contains_key(&mipmaps) {
        return Err(INVALID_HANDLE);
    }
    change(handle, |known| {
        known.bound = TextureBinding::Mipmaps(mipmaps)
    })
}

fn set_surface(handle: u64, array: u64, flags: u32) -> Outcome {
    allow(flags == 0)?;
    array::descriptor(array)?;
    change(handle, |known| known.bound = TextureBinding::Array(array))
}

/// Binds memory. An address that is not aligned is accepted only if the program takes the offset.
fn bind(offset: Out<usize>, handle: u64, address: u64, bytes: u64) -> Outcome {
    let beyond = address % ALIGNMENT;
    allow(beyond == 0 || offset.check().is_ok())?;
    allow(tables().covers(address, bytes))?;
    offset.offer(beyond as usize);
    change(handle, |known| {
        known.bound = TextureBinding::Memory(address)
    })
}

fn set_address(offset: Out<usize>, handle: u64, address: u64, bytes: usize) -> Outcome {
    bind(offset, handle, address, bytes as u64)
}

fn set_address_v1(offset: Out<u32>, handle: u64, address: u32, bytes: u32) -> Outcome {
    let mut wide = 0;
    let place = match offset.check() {
        Ok(()) => Out::to(&mut wide),
        Err(_) => Out::null(),
    };
    bind(place, handle, u64::from(address), u64::from(bytes))?;
    offset.offer(u32::try_from(wide).map_err(|_| UNKNOWN)?);
    Ok(())
}

fn set_rows<Size: ApiInteger>(
    handle: u64,
    shape: In<ArrayDescriptor2D<Size>>,
    address: impl ApiInteger,
    pitch: impl ApiInteger,
) -> Outcome {
    let shape = shape.get()?;
    let bytes = pitch.number().checked_mul(shape.height.number());
    allow(address.number().is_multiple_of(ALIGNMENT))?;
    let bytes = bytes.ok_or(INVALID_VALUE)?;
    bind(Out::null(), handle, address.number(), bytes)?;
    set_format(handle, shape.format, shape.channels.cast_signed())
}

fn set_format(handle: u64, format: u32, channels: i32) -> Outcome {
    crate::array_descriptor::channel_bytes(format)?;
    allow([1, 2, 4].contains(&channels))?;
    change(handle, |known| {
        known.format = format;
        known.channels = channels;
    })
}

fn set_mode(handle: u64, dimension: i32, mode: u32) -> Outcome {
    let at = usize::try_from(dimension).map_err(|_| INVALID_VALUE)?;
    allow(at < 3 && mode <= 3)?;
    change(handle, |known| known.modes[at] = mode)
}

fn set_filter(handle: u64, mode: u32) -> Outcome {
    allow(mode <= 1)?;
    change(handle, |known| known.filter = mode)
}

fn set_mipmap_filter(handle: u64, mode: u32) -> Outcome {
    allow(mode <= 1)?;
    change(handle, |known| known.mipmap_filter = mode)
}

fn set_bias(handle: u64, bias: f32) -> Outcome {
    change(handle, |known| known.bias = bias)
}

fn set_clamp(handle: u64, low: f32, high: f32) -> Outcome {
    change(handle, |known| known.clamp = [low, high])
}

fn set_anisotropy(handle: u64, most: u32) -> Outcome {
    change(handle, |known| known.anisotropy = most)
}

fn set_border(handle: u64, color: In<[f32; 4]>) -> Outcome {
    let color = color.get()?;
    change(handle, |known| known.border = color)
}

fn set_flags(handle: u64, flags: u32) -> Outcome {
    change(handle, |known| known.flags = flags)
}

fn get_address(address: Out<u64>, handle: u64) -> Outcome {
    match reference(handle)?.bound {
        TextureBinding::Memory(known) => address.put(known),
        TextureBinding::Nothing | TextureBinding::Array(_) | TextureBinding::Mipmaps(_) => {
            Err(INVALID_VALUE)
        }
    }
}

fn get_address_v1(address: Out<u32>, handle: u64) -> Outcome {
    let mut wide = 0;
    get_address(Out::to(&mut wide), handle)?;
    address.put(u32::try_from(wide).map_err(|_| UNKNOWN)?)
}

fn get_array(array: Out<u64>, handle: u64) -> Outcome {
    match reference(handle)?.bound {
        TextureBinding::Array(known) => array.put(known),
        TextureBinding::Nothing | TextureBinding::Memory(_) | TextureBinding::Mipmaps(_) => {
            Err(INVALID_VALUE)
        }
    }
}

fn get_mipmaps(mipmaps: Out<u64>, handle: u64) -> Outcome {
    match reference(handle)?.bound {
        TextureBinding::Mipmaps(known) => mipmaps.put(known),
        TextureBinding::Nothing | TextureBinding::Memory(_) | TextureBinding::Array(_) => {
            Err(INVALID_VALUE)
        }
    }
}

fn get_mode(mode: Out<u32>, handle: u64, dimension: i32) -> Outcome {
    let known = reference(handle)?;
    let at = usize::try_from(dimension).map_err(|_| INVALID_VALUE)?;
    mode.put(*known.modes.get(at).ok_or(INVALID_VALUE)?)
}

fn get_filter(mode: Out<u32>, handle: u64) -> Outcome {
    mode.put(reference(handle)?.filter)
}

fn get_format(format: Out<u32>, channels: Out<i32>, handle: u64) -> Outcome {
    let known = reference(handle)?;
    format.put(known.format)?;
    channels.offer(known.channels);
    Ok(())
}

fn get_mipmap_filter(mode: Out<u32>, handle: u64) -> Outcome {
    mode.put(reference(handle)?.mipmap_filter)
}

fn get_bias(bias: Out<f32>, handle: u64) -> Outcome {
    bias.put(reference(handle)?.bias)
}

fn get_clamp(low: Out<f32>, high: Out<f32>, handle: u64) -> Outcome {
    let known = reference(handle)?;
    low.put(known.clamp[0])?;
    high.put(known.clamp[1])
}

fn get_anisotropy(most: Out<u32>, handle: u64) -> Outcome {
    most.put(reference(handle)?.anisotropy)
}

fn get_border(color: Out<[f32; 4]>, handle: u64) -> Outcome {
    color.put(reference(handle)?.border)
}

fn get_flags(flags: Out<u32>, handle: u64) -> Outcome {
    flags.put(reference(handle)?.flags)
}
