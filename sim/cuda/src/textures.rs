//! Texture and surface objects: how kernels read arrays and memory. No kernel runs here, so an object is checked as the
//! Driver API documents it (section "Texture Object Management") and returns what it was made of. It takes no device
//! memory and keeps none alive.

use std::collections::HashMap;

use crate::array;
use crate::array_descriptor::channel_bytes;
use crate::context::current;
use crate::driver::tables;
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::pointer::{In, Out};

/// The texture and surface objects of a process by handle.
pub(crate) type Textures = HashMap<u64, TextureObject>;

/// `CUDA_RESOURCE_DESC`: an array, a mipmapped array, or memory with its format.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ResourceDesc {
    kind: u32,
    handle: u64,
    format: u32,
    channels: u32,
    sizes: [usize; 3],
    reserved: [u64; 11],
    flags: u32,
}

/// `CUDA_TEXTURE_DESC`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct TextureDesc {
    modes: [u32; 3],
    filter: u32,
    flags: u32,
    rest: [u32; 21],
}

/// `CUDA_RESOURCE_VIEW_DESC`.
type View = [u64; 14];

const _: () = assert!(size_of::<ResourceDesc>() == 144 && size_of::<TextureDesc>() == 104);

/// An object, which ends with its context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextureObject {
    context: u64,
    resource: ResourceDesc,
    /// How it is sampled. Surfaces have none.
    sampling: Option<TextureDesc>,
    view: Option<View>,
}

/// `CUresourcetype`.
const ARRAY: u32 = 0;
const MIPMAPS: u32 = 1;
const LINEAR: u32 = 2;
const PITCHED: u32 = 3;
/// The alignment of textures and of their rows, as in the attributes of [`crate::device_attributes`].
const ALIGNMENT: u64 = 512;
const PITCH_ALIGNMENT: usize = 32;
/// The last values of `CUaddress_mode` and `CUfilter_mode`.
const LAST_MODE: u32 = 3;
const LAST_FILTER: u32 = 1;
/// All of `CU_TRSF_*`.
const FLAGS: u32 = 0x73;

exports! {
    cuTexObjectCreate(out: Out<u64>, resource: In<ResourceDesc>, sampling: In<TextureDesc>, view: In<View>) = create => "cuTexObjectCreate" @ 5000;
    cuTexObjectDestroy(texture: u64) = destroy_texture => "cuTexObjectDestroy" @ 5000;
    cuTexObjectGetResourceDesc(resource: Out<ResourceDesc>, texture: u64) = get_resource => "cuTexObjectGetResourceDesc" @ 5000;
    cuTexObjectGetTextureDesc(sampling: Out<TextureDesc>, texture: u64) = get_sampling => "cuTexObjectGetTextureDesc" @ 5000;
    cuTexObjectGetResourceViewDesc(view: Out<View>, texture: u64) = get_view => "cuTexObjectGetResourceViewDesc" @ 5000;
    cuSurfObjectCreate(out: Out<u64>, resource: In<ResourceDesc>) = create_surface => "cuSurfObjectCreate" @ 5000;
    cuSurfObjectDestroy(surface: u64) = destroy_surface => "cuSurfObjectDestroy" @ 5000;
    cuSurfObjectGetResourceDesc(resource: Out<ResourceDesc>, surface: u64) = get_surface_resource => "cuSurfObjectGetResourceDesc" @ 5000;
}

fn allow(is_valid: bool) -> Outcome {
    if is_valid { Ok(()) } else { Err(INVALID_VALUE) }
}

impl ResourceDesc {
    fn check(&self) -> Outcome {
        allow(self.flags == 0)?;
        match self.kind {
            ARRAY => array::descriptor(self.handle)
                .map(drop)
                .map_err(|_| INVALID_VALUE),
            MIPMAPS => allow(tables().mipmaps.contains_key(&self.handle)),
            LINEAR => self.check_memory(self.sizes[0]),
            PITCHED => {
                let [width, height, pitch] = self.sizes;
                let row = width.checked_mul(self.element()?).ok_or(INVALID_VALUE)?;
                allow(pitch.is_multiple_of(PITCH_ALIGNMENT) && row <= pitch)?;
                self.check_memory(pitch.checked_mul(height).ok_or(INVALID_VALUE)?)
            }
            _ => Err(INVALID_VALUE),
        }
    }

    fn element(&self) -> Result<usize, CudaError> {
        allow([1, 2, 4].contains(&self.channels))?;
        let bytes = channel_bytes(self.format)? * u64::from(self.channels);
        Ok(bytes as usize)
    }

    fn check_memory(&self, bytes: usize) -> Outcome {
        self.element()?;
        allow(bytes > 0 && self.handle.is_multiple_of(ALIGNMENT))?;
        allow(tables().covers(self.handle, bytes as u64))
    }

    fn is_array(&self) -> bool {
        [ARRAY, MIPMAPS].contains(&self.kind)
    }
}

impl TextureDesc {
    fn check(&self) -> Outcome {
        let is_known = self.modes.iter().all(|mode| *mode <= LAST_MODE);
        allow(is_known && self.filter <= LAST_FILTER && self.flags & !FLAGS == 0)
    }
}

fn enter(out: Out<u64>, object: TextureObject) -> Outcome {
    let mut tables = tables();
    let handle = tables.fresh();
    tables.textures.insert(handle, object);
    out.put(handle)
}

/// Creates an object. Only arrays may have a view, and it is optional.
fn create(
    out: Out<u64>,
    resource: In<ResourceDesc>,
    sampling: In<TextureDesc>,
    view: In<View>,
) -> Outcome {
    out.check()?;
    let (context, _) = current()?;
    let (resource, sampling) = (resource.get()?, sampling.get()?);
    resource.check()?;
    sampling.check()?;
    allow(view.is_null() || resource.is_array())?;
    let object = TextureObject {
        context,
        resource,
        sampling: Some(sampling),
        view: view.get().ok(),
    };
    enter(out, object)
}

fn create_surface(out: Out<u64>, resource: In<ResourceDesc>) -> Outcome {
    out.check()?;
    let (context, _) = current()?;
    let resource = resource.get()?;
    allow(resource.kind == ARRAY)?;
    resource.check()?;
    let object = TextureObject {
        context,
        resource,
        sampling: None,
        view: None,
    };
    enter(out, object)
}

/// The object, if it is of the wanted kind.
fn object(handle: u64, is_texture: bool) -> Result<TextureObject, CudaError> {
    let tables = tables();
    let object = tables.textures.get(&handle).copied();
    let object = object.filter(|object| object.sampling.is_some() == is_texture);
    let object = object.ok_or(INVALID_VALUE)?;
    tables.context(object.context)?;
    Ok(object)
}

fn destroy(handle: u64, is_texture: bool) -> Outcome {
    object(handle, is_texture)?;
    tables().textures.remove(&handle);
    Ok(())
}

fn destroy_texture(handle: u64) -> Outcome {
    destroy(handle, true)
}

fn destroy_surface(handle: u64) -> Outcome {
    destroy(handle, false)
}

fn get_resource(out: Out<ResourceDesc>, handle: u64) -> Outcome {
    out.put(object(handle, true)?.resource)
}

fn get_surface_resource(out: Out<ResourceDesc>, handle: u64) -> Outcome {
    out.put(object(handle, false)?.resource)
}

fn get_sampling(out: Out<TextureDesc>, handle: u64) -> Outcome {
    out.put(object(handle, true)?.sampling.ok_or(INVALID_VALUE)?)
}

/// Fails if the object was created without a view.
fn get_view(out: Out<View>, handle: u64) -> Outcome {
    out.put(object(handle, true)?.view.ok_or(INVALID_VALUE)?)
}
