//! Texture and surface objects: they return what they were made of, and take no memory.

use crate::code::ResultCode;
use crate::layout::{ArrayDescriptor, FLOATS, TextureResource, TextureSampling};
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, must};

const IMAGE: ArrayDescriptor = ArrayDescriptor {
    width: 256,
    height: 256,
    format: FLOATS,
    channels: 1,
};

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let cuda = &session.cuda;
    let mut array = 0;
    let code = cuda.array_create(Some(&mut array), Some(&IMAGE));
    must("cuArrayCreate_v2", code)?;
    let before = session.usage()?;
    let resource = TextureResource::of_array(array);
    let mut texture = 0;
    let sampling = Some(&TextureSampling::CLAMPED);
    let code = cuda.texture_create(
        Some(&mut texture),
        Some(&resource),
        sampling,
        std::ptr::null(),
    );
    report.equals("a texture of an array", ResultCode::SUCCESS, code);
    let mut seen = TextureResource::of_memory(1, 1);
    let code = cuda.texture_resource(Some(&mut seen), texture);
    must("cuTexObjectGetResourceDesc", code)?;
    let is_same = (seen.kind, seen.handle) == (resource.kind, resource.handle);
    report.equals("it says of what it is", true, is_same);
    let mut seen = TextureSampling::CLAMPED;
    seen.modes = [77; 3];
    let code = cuda.texture_sampling(Some(&mut seen), texture);
    must("cuTexObjectGetTextureDesc", code)?;
    report.equals(
        "and how it is read",
        TextureSampling::CLAMPED.modes,
        seen.modes,
    );
    let code = cuda.texture_view(Some(&mut [0; 14]), texture);
    let fact = "it has no view that it was not given";
    report.equals(fact, ResultCode::INVALID_VALUE, code);
    let growth = session.usage()? - before;
    report.observed("a texture takes", growth);
    must("cuTexObjectDestroy", cuda.texture_destroy(texture))?;
    let code = cuda.texture_resource(Some(&mut TextureResource::of_memory(1, 1)), texture);
    report.observed("one that is gone is asked", code);
    refusals(report, &session)?;

    let mut surface = 0;
    let code = cuda.surface_create(Some(&mut surface), Some(&resource));
    report.observed("a surface of an array that is for textures", code);
    if code.succeeded() {
        let mut seen = TextureResource::of_memory(1, 1);
        let code = cuda.surface_resource(Some(&mut seen), surface);
        must("cuSurfObjectGetResourceDesc", code)?;
        report.equals("a surface says of what it is", resource.handle, seen.handle);
        must("cuSurfObjectDestroy", cuda.surface_destroy(surface))?;
    }
    must("cuArrayDestroy", cuda.array_destroy(array))
}

fn refusals(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let cuda = &session.cuda;
    let memory = session.alloc(MIB)?;
    let create = |resource: TextureResource, sampling| {
        let mut texture = 0;
        let view = std::ptr::null();
        let code = cuda.texture_create(Some(&mut texture), Some(&resource), sampling, view);
        (code, texture)
    };
    let clamped = Some(&TextureSampling::CLAMPED);
    let (code, texture) = create(TextureResource::of_memory(memory, MIB), clamped);
    report.equals("a texture of memory", ResultCode::SUCCESS, code);
    must("cuTexObjectDestroy", cuda.texture_destroy(texture))?;
    let (code, _) = create(TextureResource::of_memory(memory + 4, MIB / 2), clamped);
    let fact = "memory that is not aligned";
    report.holds(fact, !code.succeeded(), code);
    let mut unknown = TextureResource::of_memory(memory, MIB);
    unknown.kind = 77;
    let (code, _) = create(unknown, clamped);
    report.equals("a kind that there is not", ResultCode::INVALID_VALUE, code);
    let (code, _) = create(TextureResource::of_memory(memory, MIB), None);
    report.equals("no way to read it", ResultCode::INVALID_VALUE, code);
    let mut surface = 0;
    let of_memory = TextureResource::of_memory(memory, MIB);
    let code = cuda.surface_create(Some(&mut surface), Some(&of_memory));
    let fact = "a surface of memory that is no array";
    report.holds(fact, !code.succeeded(), code);
    must("cuMemFree_v2", cuda.free(memory))
}
