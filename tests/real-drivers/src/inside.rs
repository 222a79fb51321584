//! The tasks of the inner program. It prints one line per result: a key, a tab and a value.

use std::ffi::{CString, OsString, c_void};
use std::io::Write;

use anyhow::{Context, Result, bail, ensure};

use crate::objects::{AddressNames, LoadedLibrary};

mod calls;
mod dlsym;
mod look_up;
mod runtime;

pub(crate) use look_up::VERSIONS;

/// The first argument of its command line.
pub(crate) const WORD: &str = "inside";
/// The file name of the preloaded library.
const HOOKS: &str = "libapportion_cuda.so";
/// The driver's libraries, by the names that programs load.
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

pub(crate) fn perform(task: &[OsString]) -> Result<()> {
    let words: Vec<&str> = task.iter().filter_map(|word| word.to_str()).collect();
    match words.as_slice() {
        ["look-up"] => look_up::perform(),
        ["doors"] => dlsym::perform(),
        ["calls", seed] => calls::perform(seed.parse().context("a seed is a number")?),
        ["runtime", path] => runtime::perform(path),
        _ => bail!("there is no task {words:?}"),
    }
}

/// Both libraries of the driver, loaded as programs do, and the names of their addresses.
struct LoadedDriver {
    handles: [usize; 2],
    loaded: [LoadedLibrary; 2],
    names: AddressNames,
}

impl LoadedDriver {
    fn load() -> Result<Self> {
        let [cuda, nvml] = LIBRARIES;
        let handles = [open(cuda)?, open(nvml)?];
        let find = |name: &str| {
            let start = name.trim_end_matches('1');
            LoadedLibrary::find(start)?.with_context(|| format!("{name} is not loaded"))
        };
        let loaded = [find(cuda)?, find(nvml)?];
        let hooks = LoadedLibrary::find(HOOKS)?;
        let names = AddressNames::of(&[&loaded[0], &loaded[1]], hooks.as_ref());
        Ok(Self {
            handles,
            loaded,
            names,
        })
    }

    /// The address that `dlsym` returns for a function of CUDA's library.
    fn cuda(&self, name: &str) -> Result<usize> {
        let found = symbol(self.handles[0], name)?;
        ensure!(found != 0, "the driver has no {name}");
        Ok(found)
    }
}

/// Opens a library with `RTLD_GLOBAL`, which `dlsym` with `RTLD_DEFAULT` needs.
fn open(path: &str) -> Result<usize> {
    let name = CString::new(path).context("a path has no zero")?;
    // SAFETY: the name is a C string; loading the driver's libraries runs nothing that affects this program.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    ensure!(!handle.is_null(), "failed to load {path}");
    Ok(handle as usize)
}

/// The result of `dlsym` on a handle.
fn symbol(handle: usize, name: &str) -> Result<usize> {
    let name = CString::new(name).context("a name has no zero")?;
    // SAFETY: the handle is from dlopen or is a pseudo-handle, and the name is a C string.
    Ok(unsafe { libc::dlsym(handle as *mut c_void, name.as_ptr()) } as usize)
}

/// Prints one line. A closed output is no error: the reader has stopped.
fn say(key: &str, value: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{key}\t{value}");
}
