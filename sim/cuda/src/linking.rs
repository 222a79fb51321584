//! Linking: several code images become one, in host memory. Nothing is compiled. The result defines what its parts
//! define and has their total length, so loading it needs as much memory as loading the parts.

use std::collections::HashMap;

use crate::context::current;
use crate::driver::tables;
use crate::error::{CudaError, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::image::ImageContents;
use crate::modules;
use crate::pointer::{In, Out, Text};

/// The links of a process that are not destroyed, by handle.
pub(crate) type Links = HashMap<u64, LinkState>;

/// The image of all inputs so far, and the cubin that it became.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    parts: ImageContents,
    cubin: Option<Vec<u8>>,
}

/// `CUjitInputType`.
const CUBIN: u32 = 0;
const PTX: u32 = 1;
const BUNDLE: u32 = 2;
const LAST_INPUT: u32 = 5;
/// `CU_JIT_INFO_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER`. Each is followed by the option for its size.
const LOGS: [u32; 2] = [3, 5];
/// `CUDA_ERROR_INVALID_PTX`.
const INVALID_PTX: CudaError = CudaError(218);

exports! {
    cuLinkCreate(count: u32, options: In<u32>, values: Out<u64>, out: Out<u64>) = create => "cuLinkCreate" @ 5050;
    cuLinkCreate_v2(count: u32, options: In<u32>, values: Out<u64>, out: Out<u64>) = create => "cuLinkCreate" @ 6050;
    cuLinkAddData(link: u64, kind: u32, data: In<u8>, bytes: usize, name: In<u8>, count: u32, options: In<u32>, values: Out<u64>) = add => "cuLinkAddData" @ 5050;
    cuLinkAddData_v2(link: u64, kind: u32, data: In<u8>, bytes: usize, name: In<u8>, count: u32, options: In<u32>, values: Out<u64>) = add => "cuLinkAddData" @ 6050;
    cuLinkAddFile(link: u64, kind: u32, path: Text, count: u32, options: In<u32>, values: Out<u64>) = add_file => "cuLinkAddFile" @ 5050;
    cuLinkAddFile_v2(link: u64, kind: u32, path: Text, count: u32, options: In<u32>, values: Out<u64>) = add_file => "cuLinkAddFile" @ 6050;
    cuLinkComplete(link: u64, cubin: Out<u64>, bytes: Out<usize>) = complete => "cuLinkComplete" @ 5050;
    cuLinkDestroy(link: u64) = destroy => "cuLinkDestroy" @ 5050;
}

/// Returns empty logs, with a size of zero.
fn empty_logs(count: u32, options: In<u32>, values: Out<u64>) -> Outcome {
    let all = (0..count as usize).map(|at| Ok((options.at(at)?, at)));
    let all: Vec<(u32, usize)> = all.collect::<Result<_, CudaError>>()?;
    let value = |wanted| all.iter().find(|(option, _)| *option == wanted);
    for log in LOGS {
        let (Some((_, buffer)), Some((_, size))) = (value(log), value(log + 1)) else {
            continue;
        };
        let given = In::from_address(values.address());
        if given.at(*size)? > 0 {
            Out::<u8>::at(given.at(*buffer)?).offer(0);
        }
        values.put_at(*size, 0)?;
    }
    Ok(())
}

fn create(count: u32, options: In<u32>, values: Out<u64>, out: Out<u64>) -> Outcome {
    out.check()?;
    current()?;
    empty_logs(count, options, values)?;
    let mut tables = tables();
    let handle = tables.fresh();
    tables.links.insert(handle, LinkState::default());
    out.put(handle)
}

/// Reads an input of the given type.
fn part(kind: u32, data: In<u8>, bytes: usize) -> Result<ImageContents, CudaError> {
    match kind {
        _ if kind > LAST_INPUT || data.is_null() || bytes == 0 => Err(INVALID_VALUE),
        CUBIN | BUNDLE => ImageContents::at(data).ok_or(INVALID_IMAGE),
        PTX => match data.text()?.to_string_lossy() {
            text if text.contains(".version") => Ok(ImageContents::of_text(&text)),
            _ => Err(INVALID_PTX),
        },
        // Objects, libraries and NVVM code.
        _ => Ok(ImageContents::of_bytes(bytes as u64)),
    }
}

fn join(link: u64, part: ImageContents) -> Outcome {
    let mut tables = tables();
    let link = tables.links.get_mut(&link).ok_or(INVALID_HANDLE)?;
    if link.cubin.is_some() {
        return Err(INVALID_VALUE);
    }
    link.parts = std::mem::take(&mut link.parts).joined(part);
    Ok(())
}

fn check(link: u64) -> Outcome {
    if tables().links.contains_key(&link) {
        Ok(())
    } else {
        Err(INVALID_HANDLE)
    }
}

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
fn add(
    link: u64,
    kind: u32,
    data: In<u8>,
    bytes: usize,
    _name: In<u8>,
    _count: u32,
    _options: In<u32>,
    _values: Out<u64>,
) -> Outcome {
    check(link)?;
    join(link, part(kind, data, bytes)?)
}

fn add_file(
    link: u64,
    kind: u32,
    path: Text,
    _count: u32,
    _options: In<u32>,
    _values: Out<u64>,
) -> Outcome {
    check(link)?;
    if kind > LAST_INPUT {
        return Err(INVALID_VALUE);
    }
    join(link, modules::read_image(path.get()?)?)
}

/// The cubin lives until the link is destroyed.
fn complete(handle: u64, cubin: Out<u64>, bytes: Out<usize>) -> Outcome {
    cubin.check()?;
    let mut tables = tables();
    let link = tables.links.get_mut(&handle).ok_or(INVALID_HANDLE)?;
    let parts = &link.parts;
    let made = link.cubin.get_or_insert_with(|| parts.to_cubin());
    bytes.offer(made.len());
    cubin.put(made.as_ptr().expose_provenance() as u64)
}

fn destroy(handle: u64) -> Outcome {
    let gone = tables().links.remove(&handle);
    gone.map(drop).ok_or(INVALID_HANDLE)
}
