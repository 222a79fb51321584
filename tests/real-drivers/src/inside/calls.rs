//! Calls every function that the libraries export with null and garbage arguments, before and after the initialisation.
//! Each call has a process of its own, because some of them end it.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::objects::ProcessPointers;

use super::{LoadedDriver, say, symbol};

/// A call with enough arguments for every function. In this calling convention a function ignores the surplus.
type Any = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u64;

const ARGUMENTS: usize = 12;
/// The address that arguments point to. It is the same in all runs, whatever else the process has mapped.
const PLACE: usize = 0x2000_0000_0000;
/// The words that each argument points to, and the words after the last one.
const WORDS: usize = 512;
const ALL_WORDS: usize = (ARGUMENTS + 2) * WORDS;
/// How long a call may take before its process is ended.
const PATIENCE: Duration = Duration::from_secs(30);
/// A function that waits for a debugger, without one forever, and its time limit.
const WAITS: (&str, Duration) = ("cudbgMain", Duration::from_millis(100));

/// The memory that the calling process shares with its parent.
#[repr(C)]
struct SharedCallState {
    memory: [u64; ALL_WORDS],
    returned: u64,
}

/// The kinds of arguments.
#[derive(Clone, Copy)]
enum CallArguments {
    Nothing,
    Garbage,
}

pub(super) fn perform(seed: u64) -> Result<()> {
    let driver = LoadedDriver::load()?;
    let garbage = garbage(seed);
    let shared = share()?;
    quietly();
    for (start, phase) in [(false, "before"), (true, "after")] {
        if start {
            start_both(&driver)?;
        }
        let pointers = ProcessPointers::now()?;
        for (handle, library) in driver.handles.iter().zip(&driver.loaded) {
            for (name, _) in library.functions() {
                let address = symbol(*handle, name)?;
                for (arguments, what) in [
                    (CallArguments::Nothing, "nothing"),
                    (CallArguments::Garbage, "garbage"),
                ] {
                    let patience = if name == WAITS.0 { WAITS.1 } else { PATIENCE };
                    let call = IsolatedCall {
                        address,
                        arguments,
                        patience,
                    };
                    let outcome = call.make(&garbage, shared, &pointers)?;
                    say(&format!("{name} with {what}, {phase} the start"), &outcome);
                }
            }
        }
    }
    Ok(())
}

/// Initialises both libraries and prints the results.
fn start_both(driver: &LoadedDriver) -> Result<()> {
    for (handle, name) in driver.handles.iter().zip(["cuInit", "nvmlInit_v2"]) {
        let address = symbol(*handle, name)?;
        ensure!(address != 0, "the driver has no {name}");
        // SAFETY: cuInit takes flags, nvmlInit_v2 takes nothing.
        let start: unsafe extern "C" fn(u32) -> c_int = unsafe { std::mem::transmute(address) };
        // SAFETY: as above.
        let code = unsafe { start(0) };
        say(name, &code.to_string());
    }
    Ok(())
}

/// Words that are no pointers, determined by the seed (SplitMix64).
fn garbage(seed: u64) -> Vec<u64> {
    let mut state = seed;
    (0..ALL_WORDS)
        .map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = state;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        })
        .collect()
}

/// Maps the memory that both processes see.
fn share() -> Result<*mut SharedCallState> {
    // SAFETY: a new mapping at an address where nothing is mapped.
    let place = unsafe {
        libc::mmap(
            PLACE as *mut c_void,
            size_of::<SharedCallState>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    ensure!(place as usize == PLACE, "failed to map memory");
    Ok(place.cast())
}

/// Disables core dumps.
fn quietly() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure lives for the call.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
}

/// One call.
#[derive(Clone, Copy)]
struct IsolatedCall {
    address: usize,
    arguments: CallArguments,
    patience: Duration,
}

impl IsolatedCall {
    /// Makes the call in a process of its own and describes the result. What a process wrote before a fatal signal is
    /// ignored.
    fn make(
        self,
        garbage: &[u64],
        shared: *mut SharedCallState,
        pointers: &ProcessPointers,
    ) -> Result<String> {
        // SAFETY: the mapping is large enough, and no other process uses it now.
        unsafe { ptr::copy_nonoverlapping(garbage.as_ptr(), shared.cast(), garbage.len()) };
        // SAFETY: this process has one thread, and the child leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            self.make_here(shared);
        }
        ensure!(child > 0, "failed to start a process");
        let mut status = 0;
        // SAFETY: the child is our own.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        ensure!(ended == child, "failed to wait for a process");
        if libc::WIFSIGNALED(status) {
            return Ok(format!("signal {}", libc::WTERMSIG(status)));
        }
        // SAFETY: the child is gone, so no other process writes.
        let after = unsafe { &*shared };
        let wrote = written(&after.memory, garbage, pointers);
        Ok(match libc::WEXITSTATUS(status) {
            0 => format!("{}{wrote}", returned(after.returned, pointers)),
            other => format!("exit {other}{wrote}"),
        })
    }

    /// Makes the call in this process, and ends it.
    fn make_here(self, shared: *mut SharedCallState) -> ! {
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            // SAFETY: SIG_DFL is allowed for each of these signals.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: the path is a C string.
        let nowhere = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        for stream in [1, 2] {
            // SAFETY: both are this process's own descriptors.
            unsafe { libc::dup2(nowhere, stream) };
        }
        // SAFETY: all zeroes is a valid value for a structure of numbers.
        let mut timer: libc::itimerval = unsafe { std::mem::zeroed() };
        timer.it_value.tv_sec = self.patience.as_secs().cast_signed();
        timer.it_value.tv_usec = i64::from(self.patience.subsec_micros());
        // SAFETY: the structure lives for the call. No handler is set, so the signal ends the process.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
        let at = |index: usize| match self.arguments {
            CallArguments::Nothing => 0,
            CallArguments::Garbage => (PLACE + index * WORDS * size_of::<u64>()) as u64,
        };
        // SAFETY: the address is that of an exported function with at most twelve arguments of at most 64 bits. Its
        // reaction to them is what is tested, and this process exists only for this call.
        let function: Any = unsafe { std::mem::transmute(self.address) };
        // SAFETY: as above.
        let returned = unsafe {
            function(
                at(0),
                at(1),
                at(2),
                at(3),
                at(4),
                at(5),
                at(6),
                at(7),
                at(8),
                at(9),
                at(10),
                at(11),
            )
        };
        // SAFETY: the mapping is shared with this process.
        unsafe { (*shared).returned = returned };
        // SAFETY: this process needs no cleanup.
        unsafe { libc::_exit(0) }
    }
}

/// A function's return value: usually a code, sometimes an address.
fn returned(word: u64, pointers: &ProcessPointers) -> String {
    let named = pointers.word(word);
    if named == format!("{word:x}") {
        (word as u32).cast_signed().to_string()
    } else {
        named
    }
}

/// The words that have changed, the first of them in full.
fn written(memory: &[u64], garbage: &[u64], pointers: &ProcessPointers) -> String {
    let changed = memory.iter().zip(garbage).enumerate();
    let changed: Vec<String> = changed
        .filter(|(_, (now, before))| now != before)
        .map(|(place, (now, _))| {
            let (argument, word) = (place / WORDS, place % WORDS);
            format!("{argument}[{word}]={}", pointers.word(*now))
        })
        .collect();
    if changed.is_empty() {
        String::new()
    } else {
        format!(", wrote {} words: {}", changed.len(), changed.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_garbage() {
        assert_eq!(garbage(7), garbage(7));
        assert_ne!(garbage(7), garbage(8));
    }
}
