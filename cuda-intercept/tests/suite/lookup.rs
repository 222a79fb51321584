//! `cuGetProcAddress`, through the hooks and past them.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;

use apportion_intercept::ROWS;

use crate::cuda::{LoadedCuda, Pointer};
use crate::stage::limited;

const VERSIONS: &[c_int] = &[
    0, 2000, 3020, 4000, 6000, 7000, 10020, 11000, 11020, 11030, 11040, 12000, 12050, 13000, 13040,
    99990,
];
const FLAGS: &[u64] = &[0, 1, 2, 3, 8];

type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut Pointer, c_int, u64, *mut c_int) -> c_int;

/// The address of a library's symbol, found without our `dlsym`.
pub(crate) fn past_us(symbol: &CStr) -> usize {
    // `dlsym` and `dlvsym` are ours, so the library's table is read instead.
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
    let line = maps
        .lines()
        .find(|line| line.ends_with("/libcuda.so.1"))
        .expect("it is loaded");
    let (base, path) = (
        usize::from_str_radix(line.split('-').next().expect("a range"), 16).expect("a number"),
        line.split_whitespace().last().expect("a path"),
    );
    let output = std::process::Command::new("nm")
        .args(["-D", "--defined-only", path])
        .env_remove("LD_PRELOAD")
        .output()
        .expect("nm comes with the linker");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let wanted = symbol.to_str().expect("plain name");
    let row = text
        .lines()
        .find(|row| row.split_whitespace().nth(2) == Some(wanted));
    let offset = row
        .and_then(|row| row.split_whitespace().next())
        .unwrap_or("0");
    match usize::from_str_radix(offset, 16).expect("an address") {
        0 => 0,
        offset => base + offset,
    }
}

/// For every name, version and flag, the caller gets the hook of exactly the function that the driver chose. Status
/// and errors are the driver's.
#[test]
fn every_answer_is_the_driver_s_own_choice() {
    limited(&[1000], |cuda, _| {
        let real = past_us(c"cuGetProcAddress_v2");
        // SAFETY: the address is that of the driver's function.
        let real: GetProcAddress = unsafe { std::mem::transmute(real) };
        let hooks: BTreeMap<usize, usize> = ROWS
            .iter()
            .map(|row| (past_us(row.symbol), cuda.address(row.symbol)))
            .filter(|(real, _)| *real != 0)
            .collect();
        let mut substituted = 0;
        for name in names() {
            for (version, flags) in VERSIONS
                .iter()
                .flat_map(|v| FLAGS.iter().map(move |f| (*v, *f)))
            {
                let (mut ours, mut theirs, mut our_status, mut status) =
                    (null_mut(), null_mut(), -7, -7);
                // SAFETY: the arguments are what the function takes.
                let expected = unsafe {
                    real(
                        name.as_ptr(),
                        &raw mut theirs,
                        version,
                        flags,
                        &raw mut status,
                    )
                };
                let got = cuda.get_proc_address_v2(
                    name.as_ptr(),
                    &raw mut ours,
                    version,
                    flags,
                    &raw mut our_status,
                );
                assert_eq!(
                    (got, our_status),
                    (expected, status),
                    "{name:?} {version} {flags}"
                );
                let theirs = theirs as usize;
                // A driver that was not linked with `-Bsymbolic` finds our exports instead of its own functions.
                let interposed = hooks.values().any(|hook| *hook == theirs);
                let hook = hooks.get(&theirs).copied().or(interposed.then_some(theirs));
                substituted += usize::from(hook.is_some());
                assert_eq!(
                    ours as usize,
                    hook.unwrap_or(theirs),
                    "{name:?} {version} {flags}"
                );
            }
        }
        assert!(substituted > 500, "only {substituted} answers were hooks");
    });
}

fn names() -> Vec<CString> {
    let mut names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
    names.dedup();
    names.extend([
        "cuInit",
        "cuDeviceGet",
        "cuCtxGetCurrent",
        "cuNoSuchFunction",
        "",
        "dlsym",
        "cuLaunchKernel",
    ]);
    names.extend(["cuMemAlloc_v2", "cuMemAllocAsync_ptsz"]);
    names
        .into_iter()
        .map(|name| CString::new(name).expect("plain name"))
        .collect()
}

#[test]
fn the_first_version_of_the_lookup_hands_out_hooks_too() {
    limited(&[1000], |cuda: &LoadedCuda, _| {
        let mut found = null_mut();
        let status = cuda.get_proc_address(c"cuMemAlloc".as_ptr(), &raw mut found, 3020, 0);
        assert_eq!(
            (status, found as usize),
            (0, cuda.address(c"cuMemAlloc_v2"))
        );
        let status = cuda.get_proc_address(c"cuMemAlloc".as_ptr(), &raw mut found, 2000, 0);
        assert_eq!((status, found as usize), (0, cuda.address(c"cuMemAlloc")));
    });
}
