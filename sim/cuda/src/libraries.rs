//! Libraries: code that belongs to no context. Here it is loaded into the current context when the library is loaded,
//! and once more in each context that uses it.

use std::collections::HashMap;

use crate::context::current;
use crate::driver::tables;
use crate::error::{CudaError, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::functions;
use crate::image::ImageContents;
use crate::modules;
use crate::pointer::{In, Out, Text};

/// The libraries of a process by handle.
pub(crate) type Libraries = HashMap<u64, Library>;

/// A library that the program has loaded.
#[derive(Debug)]
pub(crate) struct Library {
    image: ImageContents,
    /// The module in each context that has loaded the library.
    modules: HashMap<u64, u64>,
}

exports! {
    cuLibraryLoadData(out: Out<u64>, code: In<u8>, options: In<u32>, values: In<u64>, count: u32, own_options: In<u32>, own_values: In<u64>, own_count: u32) = load => "cuLibraryLoadData" @ 12000;
    cuLibraryLoadFromFile(out: Out<u64>, path: Text, options: In<u32>, values: In<u64>, count: u32, own_options: In<u32>, own_values: In<u64>, own_count: u32) = load_file => "cuLibraryLoadFromFile" @ 12000;
    cuLibraryUnload(library: u64) = unload => "cuLibraryUnload" @ 12000;
    cuLibraryGetKernel(out: Out<u64>, library: u64, name: Text) = get_kernel => "cuLibraryGetKernel" @ 12000;
    cuLibraryGetKernelCount(count: Out<u32>, library: u64) = get_kernel_count => "cuLibraryGetKernelCount" @ 12040;
    cuLibraryEnumerateKernels(kernels: Out<u64>, room: u32, library: u64) = enumerate => "cuLibraryEnumerateKernels" @ 12040;
    cuLibraryGetModule(out: Out<u64>, library: u64) = get_module => "cuLibraryGetModule" @ 12000;
    cuLibraryGetGlobal(address: Out<u64>, bytes: Out<usize>, library: u64, name: Text) = get_global => "cuLibraryGetGlobal" @ 12000;
    cuLibraryGetManaged(address: Out<u64>, bytes: Out<usize>, library: u64, name: Text) = get_global => "cuLibraryGetManaged" @ 12000;
    cuKernelGetFunction(out: Out<u64>, kernel: u64) = get_function => "cuKernelGetFunction" @ 12000;
    cuKernelGetLibrary(out: Out<u64>, kernel: u64) = get_library => "cuKernelGetLibrary" @ 12050;
}

fn enter(image: ImageContents) -> u64 {
    let mut tables = tables();
    let handle = tables.fresh();
    tables.libraries.insert(
        handle,
        Library {
            image,
            modules: HashMap::new(),
        },
    );
    handle
}

/// The module of a library in the current context.
fn module(library: u64) -> Result<u64, CudaError> {
    let (context, _) = current()?;
    let image = {
        let tables = tables();
        let library = tables.libraries.get(&library).ok_or(INVALID_HANDLE)?;
        match library.modules.get(&context) {
            Some(module) => return Ok(*module),
            None => library.image.clone(),
        }
    };
    let module = modules::load_image(image)?;
    if let Some(library) = tables().libraries.get_mut(&library) {
        library.modules.insert(context, module);
    }
    Ok(module)
}

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
fn load(
    out: Out<u64>,
    code: In<u8>,
    _: In<u32>,
    _: In<u64>,
    _: u32,
    _: In<u32>,
    _: In<u64>,
    _: u32,
) -> Outcome {
    out.check()?;
    if code.is_null() {
        return Err(INVALID_VALUE);
    }
    finish_load(out, ImageContents::at(code).ok_or(INVALID_IMAGE)?)
}

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
fn load_file(
    out: Out<u64>,
    path: Text,
    _: In<u32>,
    _: In<u64>,
    _: u32,
    _: In<u32>,
    _: In<u64>,
    _: u32,
) -> Outcome {
    out.check()?;
    finish_load(out, modules::read_image(path.get()?)?)
}

fn finish_load(out: Out<u64>, image: ImageContents) -> Outcome {
    let library = enter(image);
    if current().is_ok()
        && let Err(error) = module(library)
    {
        tables().libraries.remove(&library);
        return Err(error);
    }
    out.put(library)
}

fn unload(handle: u64) -> Outcome {
    let library = tables().libraries.remove(&handle).ok_or(INVALID_HANDLE)?;
    library.modules.into_values().try_for_each(modules::unload)
}

/// A kernel is a function of the library's module here.
fn get_kernel(out: Out<u64>, library: u64, name: Text) -> Outcome {
    out.check()?;
    let name = name.get()?;
    out.put(functions::function(module(library)?, name)?)
}

fn get_kernel_count(count: Out<u32>, library: u64) -> Outcome {
    let kernels = modules::kernels(module(library)?)?;
    count.put(u32::try_from(kernels.len()).unwrap_or(u32::MAX))
}

fn enumerate(kernels: Out<u64>, room: u32, library: u64) -> Outcome {
    let module = module(library)?;
    for (at, name) in modules::kernels(module)?
        .iter()
        .take(room as usize)
        .enumerate()
    {
        kernels.put_at(at, functions::function(module, name)?)?;
    }
    Ok(())
}

fn get_module(out: Out<u64>, library: u64) -> Outcome {
    out.check()?;
    out.put(module(library)?)
}

fn get_global(address: Out<u64>, bytes: Out<usize>, library: u64, name: Text) -> Outcome {
    let (start, size) = modules::variable(module(library)?, name.get()?)?;
    address.offer(start);
    bytes.offer(size as usize);
    Ok(())
}

fn get_function(out: Out<u64>, kernel: u64) -> Outcome {
    functions::name(kernel)?;
    out.put(kernel)
}

fn get_library(out: Out<u64>, kernel: u64) -> Outcome {
    let tables = tables();
    let module = tables
        .functions
        .get(&kernel)
        .ok_or(INVALID_HANDLE)?
        .module();
    let mut libraries = tables.libraries.iter();
    let owner = libraries.find(|(_, library)| library.modules.values().any(|own| *own == module));
    out.put(*owner.ok_or(INVALID_HANDLE)?.0)
}
