//! `dlsym` for all exports of the libraries, on every kind of handle.

use std::fs;

use anyhow::{Context, Result};

use super::{LIBRARIES, LoadedDriver, open, say, symbol};

pub(super) fn perform() -> Result<()> {
    let driver = LoadedDriver::load()?;
    let (default, next) = (libc::RTLD_DEFAULT as usize, libc::RTLD_NEXT as usize);
    let itself = own_handle()?;
    for (index, library) in LIBRARIES.iter().enumerate() {
        let handles = [
            (*library, driver.handles[index]),
            (
                "its name without a version",
                open(library.trim_end_matches(".1"))?,
            ),
            ("its path", open(&path_of(library)?)?),
            ("the default scope", default),
            ("the next object", next),
            ("the program", itself),
        ];
        for (way, handle) in handles {
            for name in driver.loaded[index].exports.keys() {
                let found = symbol(handle, name)?;
                say(&format!("{name} by {way}"), driver.names.name(found));
            }
            let found = symbol(handle, "cuNoSuchFunction")?;
            say(&format!("no function by {way}"), driver.names.name(found));
        }
    }
    Ok(())
}

/// The handle of the program and everything in its global scope.
fn own_handle() -> Result<usize> {
    // SAFETY: a null name is allowed, and means the program.
    let handle = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_NOW) };
    (!handle.is_null())
        .then_some(handle as usize)
        .context("dlopen of nothing failed")
}

/// The path of the file that was loaded under this name.
fn path_of(library: &str) -> Result<String> {
    let maps = fs::read_to_string("/proc/self/maps").context("failed to read /proc/self/maps")?;
    let start = format!("/{}", library.trim_end_matches('1'));
    let paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let mut own = paths.filter(|path| path.contains(&start));
    Ok(own.next().context("it is not loaded")?.to_owned())
}
