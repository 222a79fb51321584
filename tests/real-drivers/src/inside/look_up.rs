//! `cuGetProcAddress` over names, versions and flags.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char};
use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use apportion_intercept::unhooked::family;

use super::{LoadedDriver, say};

/// The names in CUDA's headers, each with the header versions that have it.
const HEADERS: &str = include_str!("../../../../cuda-intercept/tests/functions.txt");

/// The versions in which entry points appeared, some versions in between, and invalid ones.
pub(crate) const VERSIONS: [i32; 48] = [
    -1, 0, 1000, 2000, 2010, 2020, 3000, 3010, 3020, 4000, 4010, 4020, 5000, 5050, 6000, 6050,
    7000, 7050, 8000, 9000, 9010, 9020, 10000, 10010, 10020, 11000, 11010, 11020, 11030, 11040,
    11050, 11060, 11070, 11080, 12000, 12010, 12020, 12030, 12040, 12050, 12060, 12080, 12090,
    13000, 13010, 13020, 13030, 99990,
];
/// All valid flags, 3 for both bits, and one invalid value.
const FLAGS: [u64; 5] = [0, 1, 2, 3, 4];

type First = unsafe extern "C" fn(*const c_char, *mut usize, i32, u64) -> i32;
type Second = unsafe extern "C" fn(*const c_char, *mut usize, i32, u64, *mut i32) -> i32;

/// The value of outputs that were not written.
const UNTOUCHED: usize = 0x5afe;

pub(super) fn perform() -> Result<()> {
    let driver = LoadedDriver::load()?;
    // SAFETY: the symbol has had this signature since CUDA 11.3.
    let first: First = unsafe { std::mem::transmute(driver.cuda("cuGetProcAddress")?) };
    // Driver 470 does not have the second version.
    let second = driver.cuda("cuGetProcAddress_v2").ok();
    // SAFETY: the symbol has had this signature since CUDA 12.0.
    let second = second.map(|at| unsafe { std::mem::transmute::<usize, Second>(at) });
    let mut asked = 0;
    for name in names(&driver) {
        let symbol = CString::new(name.as_str()).context("a name has no zero")?;
        for flags in FLAGS {
            asked += answers(&format!("{name}, flags {flags}, first"), |version| {
                let mut found = UNTOUCHED;
                // SAFETY: name and output live for the call.
                let code = unsafe { first(symbol.as_ptr(), &raw mut found, version, flags) };
                format!("{code} {}", pointer(&driver, found))
            });
            let Some(second) = second else { continue };
            asked += answers(&format!("{name}, flags {flags}"), |version| {
                let (mut found, mut status) = (UNTOUCHED, -7);
                // SAFETY: name and outputs live for the call.
                let code = unsafe {
                    second(
                        symbol.as_ptr(),
                        &raw mut found,
                        version,
                        flags,
                        &raw mut status,
                    )
                };
                format!("{code} {status} {}", pointer(&driver, found))
            });
        }
    }
    say("asked", &asked.to_string());
    say("version", &version(&driver)?.to_string());
    Ok(())
}

/// The CUDA version that the driver reports.
fn version(driver: &LoadedDriver) -> Result<i32> {
    // SAFETY: the symbol has this signature in all versions.
    let get: unsafe extern "C" fn(*mut i32) -> i32 =
        unsafe { std::mem::transmute(driver.cuda("cuDriverGetVersion")?) };
    let mut version = 0;
    // SAFETY: the output lives for the call.
    let code = unsafe { get(&raw mut version) };
    ensure!(code == 0, "cuDriverGetVersion returned {code}");
    Ok(version)
}

fn pointer(driver: &LoadedDriver, found: usize) -> &str {
    match found {
        UNTOUCHED => "untouched",
        found => driver.names.name(found),
    }
}

/// Looks up every version, and prints each answer with the first version that has it.
fn answers(key: &str, ask: impl Fn(i32) -> String) -> usize {
    let (mut line, mut last) = (String::new(), String::new());
    for version in VERSIONS {
        let answer = ask(version);
        if answer != last {
            let _ = write!(line, "{version}: {answer}; ");
            last = answer;
        }
    }
    say(key, &line);
    VERSIONS.len()
}

/// The names of all exports and of the headers, with and without version suffixes.
fn names(driver: &LoadedDriver) -> BTreeSet<String> {
    let exported = driver.loaded[0].exports.keys().map(String::as_str);
    let declared = HEADERS.lines().filter_map(|line| line.split(' ').next());
    let declared = declared.filter(|name| name.starts_with("cu"));
    let all = exported.chain(declared);
    let mut names: BTreeSet<String> = all
        .flat_map(|name| [name.to_owned(), family(name).to_owned()])
        .collect();
    names.extend(["", "cuNoSuchFunction", "dlsym", "malloc"].map(str::to_owned));
    names
}
