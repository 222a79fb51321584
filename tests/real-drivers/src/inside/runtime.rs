//! The first calls of a program that is linked with the CUDA runtime: in the program, in threads, and in a forked
//! child.

use std::ffi::c_int;
use std::mem::transmute;
use std::ptr::null_mut;
use std::thread;

use anyhow::{Result, ensure};

use super::{LIBRARIES, open, say, symbol};

/// Larger than any structure that the runtime writes in these calls.
type Space = [u64; 1024];

/// A call of the runtime, which returns the text to print.
type Call = fn(usize) -> String;

/// One call each. All arguments are pointers to `Space`, except the named ones.
const CALLS: &[(&str, Call)] = &[
    ("cudaRuntimeGetVersion", one_number),
    ("cudaDriverGetVersion", one_number),
    ("cudaGetDeviceCount", one_number),
    ("cudaGetDevice", one_number),
    ("cudaPeekAtLastError", nothing),
    ("cudaGetLastError", nothing),
    ("cudaSetDevice", nothing),
    ("cudaFree", nothing),
    ("cudaMalloc", some_memory),
    ("cudaMallocAsync", some_memory),
    ("cudaMallocManaged", some_memory),
    ("cudaMallocHost", some_memory),
    ("cudaMemGetInfo", one_number),
    ("cudaStreamCreate", one_number),
    ("cudaEventCreate", one_number),
    ("cudaDeviceGetDefaultMemPool", some_memory),
    ("cudaGetDeviceProperties", one_number),
    ("cudaDeviceSynchronize", nothing),
    ("cudaDeviceReset", nothing),
];

/// Calls a function with four words. It ignores surplus ones.
fn call(address: usize, arguments: [u64; 4]) -> c_int {
    // SAFETY: the address is that of a function of the runtime with at most four arguments of at most 64 bits.
    let function: unsafe extern "C" fn(u64, u64, u64, u64) -> c_int = unsafe { transmute(address) };
    let [a, b, c, d] = arguments;
    // SAFETY: the callers pass memory that is large enough, or valid numbers.
    unsafe { function(a, b, c, d) }
}

fn nothing(address: usize) -> String {
    call(address, [0; 4]).to_string()
}

/// A function that writes through its first arguments.
fn one_number(address: usize) -> String {
    let mut spaces: [Space; 2] = [[0; 1024]; 2];
    let [first, second] = &mut spaces;
    let arguments = [first.as_mut_ptr() as u64, second.as_mut_ptr() as u64, 0, 0];
    let code = call(address, arguments);
    format!("{code} {:x} {:x}", first[0], second[0])
}

/// A function that writes a pointer. It is asked for a megabyte.
fn some_memory(address: usize) -> String {
    let mut space: Space = [0; 1024];
    let code = call(address, [space.as_mut_ptr() as u64, 1 << 20, 1, 0]);
    format!("{code} {}", if space[0] == 0 { "none" } else { "some" })
}

pub(super) fn perform(path: &str) -> Result<()> {
    // The driver stays loaded. Without a card the runtime unloads it after each call, and the thread that driver 555 has
    // just started then runs code that is gone. With the preloaded library this cannot happen: it keeps the driver.
    open(LIBRARIES[0])?;
    let runtime = open(path)?;
    all(runtime, "the program")?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|number| scope.spawn(move || all(runtime, &format!("thread {number}"))))
            .collect();
        for thread in threads {
            let joined = thread.join();
            ensure!(joined.is_ok_and(|done| done.is_ok()), "a thread failed");
        }
        Ok(())
    })?;
    // SAFETY: no other thread is left.
    let child = unsafe { libc::fork() };
    ensure!(child >= 0, "failed to start a process");
    if child == 0 {
        let code = i32::from(all(runtime, "a child").is_err());
        // SAFETY: all output of this process is already printed.
        unsafe { libc::_exit(code) };
    }
    // SAFETY: the child is our own, and a null status is allowed.
    let ended = unsafe { libc::waitpid(child, null_mut(), 0) };
    ensure!(ended == child, "failed to wait for a process");
    Ok(())
}

/// Makes all calls in order.
fn all(runtime: usize, who: &str) -> Result<()> {
    for (name, make) in CALLS {
        let address = symbol(runtime, name)?;
        let seen = match address {
            0 => "no such function".to_owned(),
            address => make(address),
        };
        say(&format!("{name} in {who}"), &seen);
    }
    Ok(())
}
