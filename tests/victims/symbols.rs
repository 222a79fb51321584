//! Finds the functions of a loaded library in its symbol table, like a program that avoids the loader because something
//! may intercept it.

use std::collections::HashMap;
use std::{fs, ptr};

use crate::driver::Driver;

/// `SHT_DYNSYM`.
const DYNAMIC_SYMBOLS: usize = 11;

/// The loaded driver with this name, without any interception.
pub(crate) fn driver(name: &str) -> Option<Driver> {
    let symbols = of_loaded(name)?;
    Some(Driver::new(|name, _, _| {
        symbols.get(name).map_or(ptr::null_mut(), |at| *at as _)
    }))
}

/// Every function of the library that was loaded under this name, with its address.
fn of_loaded(name: &str) -> Option<HashMap<String, usize>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let first = maps
        .lines()
        .find(|line| line.ends_with(name) && line.split(' ').nth(2) == Some("00000000"))?;
    let base = usize::from_str_radix(first.split('-').next()?, 16).ok()?;
    let path = first.split_whitespace().nth(5)?;
    symbols(&fs::read(path).ok()?, base)
}

/// The defined symbols of a 64-bit ELF file that is loaded at `base`.
fn symbols(file: &[u8], base: usize) -> Option<HashMap<String, usize>> {
    let sections = number(file, 0x28, 8)?;
    let (size, count) = (number(file, 0x3a, 2)?, number(file, 0x3c, 2)?);
    let mut headers = (0..count).map(|index| sections + index * size);
    let table = headers.find(|at| number(file, at + 4, 4) == Some(DYNAMIC_SYMBOLS))?;
    let strings = number(
        file,
        sections + number(file, table + 0x28, 4)? * size + 0x18,
        8,
    )?;
    let (start, length) = (
        number(file, table + 0x18, 8)?,
        number(file, table + 0x20, 8)?,
    );
    let defined = (start..start + length).step_by(24).filter_map(|at| {
        let name = file
            .get(strings + number(file, at, 4)?..)?
            .split(|byte| *byte == 0)
            .next()?;
        let value = number(file, at + 8, 8).filter(|value| *value != 0)?;
        Some((String::from_utf8_lossy(name).into_owned(), base + value))
    });
    Some(defined.collect())
}

/// A little-endian number of `bytes` bytes.
fn number(file: &[u8], at: usize, bytes: usize) -> Option<usize> {
    let field = file.get(at..at + bytes)?;
    Some(
        field
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
    )
}
