//! Modules: code that is loaded into a context. A module takes device memory. A kernel is found under any name that a
//! program asks for.
//!
//! Under lazy loading, the default, a bundle takes the memory of its variables when it is loaded and that of its code
//! when its first function is launched. Real drivers load each function by itself. The lengths of functions are unknown
//! here, so all code of the module is loaded at once. Under eager loading everything is loaded at the start.

use std::collections::HashMap;
use std::sync::OnceLock;

use apportion_sim_machine::MachineRequest;

use crate::context::current;
use crate::driver::{ask, create, tables};
use crate::error::{CudaError, FILE_NOT_FOUND, INVALID_HANDLE, INVALID_IMAGE, NOT_FOUND, Outcome};
use crate::export::exports;
use crate::functions;
use crate::image::ImageContents;
use crate::mapping;
use crate::pointer::{In, Out, Text};

/// The modules of a process by handle.
pub(crate) type Modules = HashMap<u64, Module>;

/// A module that the program has loaded.
#[derive(Debug)]
pub(crate) struct Module {
    /// The machine's names of the context and of the module.
    context: u64,
    name: u64,
    image: ImageContents,
    /// The bytes of code that are not in device memory yet.
    unloaded: u64,
    /// The addresses of variables that a program has asked for.
    variables: HashMap<String, u64>,
}

exports! {
    cuModuleLoad(out: Out<u64>, path: Text) = load_file => "cuModuleLoad" @ 2000;
    cuModuleLoadData(out: Out<u64>, image: In<u8>) = load => "cuModuleLoadData" @ 2000;
    cuModuleLoadDataEx(out: Out<u64>, image: In<u8>, count: u32, options: In<u32>, values: In<u64>) = load_with_options => "cuModuleLoadDataEx" @ 2010;
    cuModuleLoadFatBinary(out: Out<u64>, image: In<u8>) = load => "cuModuleLoadFatBinary" @ 2000;
    cuModuleUnload(module: u64) = unload => "cuModuleUnload" @ 2000;
    cuModuleGetLoadingMode(mode: Out<u32>) = get_loading_mode => "cuModuleGetLoadingMode" @ 11070;
    cuModuleGetFunction(out: Out<u64>, module: u64, name: Text) = get_function => "cuModuleGetFunction" @ 2000;
    cuModuleGetFunctionCount(count: Out<u32>, module: u64) = get_function_count => "cuModuleGetFunctionCount" @ 12040;
    cuModuleEnumerateFunctions(functions: Out<u64>, room: u32, module: u64) = enumerate => "cuModuleEnumerateFunctions" @ 12040;
    cuModuleGetGlobal(address: Out<u32>, bytes: Out<u32>, module: u64, name: Text) = get_global_v1 => "cuModuleGetGlobal" @ 2000;
    cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: u64, name: Text) = get_global => "cuModuleGetGlobal" @ 3020;
}

/// `CU_MODULE_EAGER_LOADING` and `CU_MODULE_LAZY_LOADING`.
const EAGER: u32 = 1;
const LAZY: u32 = 2;

/// Whether modules take all their memory at load time. As with drivers since CUDA 12.2, `CUDA_MODULE_LOADING` can ask
/// for this.
fn is_eager() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(|| std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER"))
}

/// Loads an image into the current context.
pub(crate) fn load_image(image: ImageContents) -> Result<u64, CudaError> {
    let (_, context) = current()?;
    let unloaded = if is_eager() { 0 } else { image.code_of_bundle };
    let request = MachineRequest::ModuleLoad {
        context: context.name,
        bytes: image.device_bytes() - unloaded,
    };
    let name = create(request)?;
    let mut tables = tables();
    let handle = tables.fresh();
    let module = Module {
        context: context.name,
        name,
        image,
        unloaded,
        variables: HashMap::new(),
    };
    tables.modules.insert(handle, module);
    Ok(handle)
}

/// Reads an image from a file.
pub(crate) fn read_image(path: &str) -> Result<ImageContents, CudaError> {
    std::fs::read(path)
        .map(|content| ImageContents::of_file(&content))
        .map_err(|_| FILE_NOT_FOUND)
}

/// The names of a module's kernels, as far as they are known.
pub(crate) fn kernels(handle: u64) -> Result<Vec<String>, CudaError> {
    let tables = tables();
    Ok(tables
        .modules
        .get(&handle)
        .ok_or(INVALID_HANDLE)?
        .image
        .kernels
        .clone())
}

/// Whether a module declares a texture or surface reference of this name.
pub(crate) fn declares(handle: u64, name: &str) -> Result<bool, CudaError> {
    let tables = tables();
    let module = tables.modules.get(&handle).ok_or(INVALID_HANDLE)?;
    Ok(module.image.references.iter().any(|known| known == name))
}

/// Whether all code of a module is in device memory.
pub(crate) fn is_loaded(handle: u64) -> Result<bool, CudaError> {
    let tables = tables();
    let module = tables.modules.get(&handle).ok_or(INVALID_HANDLE)?;
    Ok(module.unloaded == 0)
}

/// Loads a module's code into device memory, if it is not there yet.
pub(crate) fn load_code(handle: u64) -> Outcome {
    let (unloaded, request) = {
        let mut tables = tables();
        let module = tables.modules.get_mut(&handle).ok_or(INVALID_HANDLE)?;
        let request = MachineRequest::ModuleGrow {
            context: module.context,
            module: module.name,
            bytes: module.image.device_bytes(),
        };
        (std::mem::take(&mut module.unloaded), request)
    };
    if unloaded == 0 {
        return Ok(());
    }
    let grown = ask(request);
    if grown.is_err()
        && let Some(module) = tables().modules.get_mut(&handle)
    {
        module.unloaded = unloaded;
    }
    grown.map(drop)
}

/// Unloads a module and its functions. It is no error if its context is already gone.
pub(crate) fn unload(handle: u64) -> Outcome {
    let (context, module) = match tables().modules.get(&handle) {
        Some(module) => (module.context, module.name),
        None => return Err(INVALID_HANDLE),
    };
    match ask(MachineRequest::ModuleUnload { context, module }) {
        Ok(_) | Err(crate::error::INVALID_CONTEXT) => {}
        Err(other) => return Err(other),
    }
    let mut tables = tables();
    tables
        .functions
        .retain(|_, function| function.module() != handle);
    if let Some(module) = tables.modules.remove(&handle) {
        for (name, address) in module.variables {
            let bytes = module.image.variables.iter().find(|known| known.0 == name);
            mapping::unmap(address, bytes.map_or(1, |known| known.1.max(1)));
            tables.ranges.remove(&address);
        }
    }
    Ok(())
}

/// A variable's address and size. Its memory is part of the module's memory in the machine.
pub(crate) fn variable(handle: u64, name: &str) -> Result<(u64, u64), CudaError> {
    let mut tables = tables();
    let module = tables.modules.get_mut(&handle).ok_or(INVALID_HANDLE)?;
    let known = module.image.variables.iter().find(|known| known.0 == name);
    let bytes = known.ok_or(NOT_FOUND)?.1;
    if let Some(address) = module.variables.get(name) {
        return Ok((*address, bytes));
    }
    let address = mapping::lazy(bytes.max(1))?;
    module.variables.insert(name.to_owned(), address);
    let context = module.context;
    tables.enter_variable(address, bytes, context);
    Ok((address, bytes))
}

fn load(out: Out<u64>, image: In<u8>) -> Outcome {
    out.check()?;
    if image.is_null() {
        return Err(crate::error::INVALID_VALUE);
    }
    out.put(load_image(ImageContents::at(image).ok_or(INVALID_IMAGE)?)?)
}

fn load_with_options(
    out: Out<u64>,
    image: In<u8>,
    _count: u32,
    _options: In<u32>,
    _values: In<u64>,
) -> Outcome {
    load(out, image)
}

fn load_file(out: Out<u64>, path: Text) -> Outcome {
    out.check()?;
    out.put(load_image(read_image(path.get()?)?)?)
}

fn get_loading_mode(mode: Out<u32>) -> Outcome {
    mode.put(if is_eager() { EAGER } else { LAZY })
}

fn get_function(out: Out<u64>, module: u64, name: Text) -> Outcome {
    out.check()?;
    let name = name.get()?;
    kernels(module)?;
    out.put(functions::function(module, name)?)
}

fn get_function_count(count: Out<u32>, module: u64) -> Outcome {
    count.put(u32::try_from(kernels(module)?.len()).unwrap_or(u32::MAX))
}

fn enumerate(functions: Out<u64>, room: u32, module: u64) -> Outcome {
    for (at, name) in kernels(module)?.iter().take(room as usize).enumerate() {
        functions.put_at(at, functions::function(module, name)?)?;
    }
    Ok(())
}

fn get_global(address: Out<u64>, bytes: Out<usize>, module: u64, name: Text) -> Outcome {
    let (start, size) = variable(module, name.get()?)?;
    address.offer(start);
    bytes.offer(size as usize);
    Ok(())
}

/// Variables lie above the first 32 bits of address space.
fn get_global_v1(_: Out<u32>, bytes: Out<u32>, module: u64, name: Text) -> Outcome {
    let (_, size) = variable(module, name.get()?)?;
    bytes.offer(u32::try_from(size).unwrap_or(u32::MAX));
    Err(crate::error::NOT_SUPPORTED)
}
