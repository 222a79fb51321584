//! Programs that allocate and free memory as fast as they can, in every way that a victim can, and a parent that kills
//! them at random points.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::children::end;
use crate::driver::Driver;
use crate::script::{ScriptWords, StepOutcome, VictimProgram};

/// How many programs run at a time while the parent kills.
const WORKERS: usize = 8;
/// The most objects that one worker holds at a time.
const HELD: usize = 12;
/// The longest time between two kills, in microseconds.
const BETWEEN_KILLS: u64 = 12_000;

/// A small random number generator (`splitmix64`).
struct SplitMix64(u64);

impl SplitMix64 {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

impl VictimProgram {
    /// Allocates and frees at random for this many rounds, or until killed if 0. Returns how often memory was granted
    /// and how often refused.
    pub(crate) fn churn(&mut self, seed: u64, rounds: u64) -> StepOutcome {
        let mut numbers = SplitMix64(seed);
        let mut held = VecDeque::new();
        let (mut given, mut refused) = (0, 0);
        let mut round = 0;
        while rounds == 0 || round < rounds {
            round += 1;
            if held.len() >= HELD || (!held.is_empty() && numbers.below(3) == 0) {
                let at = numbers.below(held.len() as u64) as usize;
                if let Some(thing) = held.remove(at) {
                    self.say(&format!("free {thing}"));
                }
                continue;
            }
            let got = self.say(&ask(&mut numbers));
            match (got.code, got.numbers.first()) {
                (0, Some(thing)) => {
                    given += 1;
                    held.push_back(*thing);
                    let mapped = self.say(&format!("map {thing}"));
                    held.extend(mapped.numbers.first().filter(|_| mapped.code == 0));
                }
                (2, _) => refused += 1,
                (code, _) => return StepOutcome::with(code, [given, refused]),
            }
        }
        for thing in held {
            self.say(&format!("free {thing}"));
        }
        StepOutcome::with(0, [given, refused])
    }

    fn say(&mut self, line: &str) -> StepOutcome {
        let mut words = ScriptWords::of(line);
        let verb = words.next().unwrap_or_default();
        self.memory_step(&verb, &mut words)
            .unwrap_or_else(|| StepOutcome::of(-1))
    }

    /// Keeps eight forked children churning and kills one at a time. Returns how many were killed.
    pub(crate) fn kills(&mut self, count: u64, seed: u64) -> StepOutcome {
        let mut numbers = SplitMix64(seed);
        let mut workers: Vec<i32> = (0..WORKERS).map(|_| self.worker(&mut numbers)).collect();
        for _ in 0..count {
            std::thread::sleep(Duration::from_micros(numbers.below(BETWEEN_KILLS)));
            let at = numbers.below(WORKERS as u64) as usize;
            let next = self.worker(&mut numbers);
            end(std::mem::replace(&mut workers[at], next));
        }
        workers.iter().for_each(|worker| end(*worker));
        StepOutcome::with(0, [count + WORKERS as u64])
    }

    /// Forks children while another thread allocates and frees memory. Each child calls the driver and ends. Returns
    /// how many did not end.
    pub(crate) fn storm(&mut self, count: u64) -> StepOutcome {
        let driver = match self.driver() {
            Ok(driver) => driver,
            Err(code) => return StepOutcome::of(code),
        };
        let is_over = AtomicBool::new(false);
        let hung = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let mut pointer = 0;
                    if driver.cuMemAllocManaged(Some(&mut pointer), 2 << 20, 1) == 0 {
                        driver.cuMemFree_v2(pointer);
                    }
                }
            });
            let hung = (0..count).filter(|_| !ends(call_in_child(driver))).count();
            is_over.store(true, Ordering::Relaxed);
            hung
        });
        StepOutcome::with(0, [hung as u64])
    }

    fn worker(&mut self, numbers: &mut SplitMix64) -> i32 {
        let seed = numbers.below(u64::MAX);
        // SAFETY: this process has one thread, so the child may do whatever the parent may.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            loop {
                self.churn(seed, 0);
            }
        }
        pid
    }
}

/// Forks a child that calls the driver and ends.
fn call_in_child(driver: &Driver) -> i32 {
    // SAFETY: the child only calls the driver and `_exit`, as a child of a process with threads may.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let (mut free, mut total, mut pointer) = (0, 0, 0);
        driver.cuMemGetInfo_v2(Some(&mut free), Some(&mut total));
        driver.cuMemAlloc_v2(Some(&mut pointer), 1);
        driver.cuMemFree_v2(1);
        // SAFETY: the call does not return.
        unsafe { libc::_exit(0) };
    }
    pid
}

/// Whether a child ends by itself in reasonable time. Kills it if not.
fn ends(child: i32) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        // SAFETY: a null status is allowed.
        if unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) } == child {
            return true;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    end(child);
    false
}

/// A random step that asks for memory.
fn ask(numbers: &mut SplitMix64) -> String {
    let verb = ["alloc", "pitch", "managed", "async", "create"][numbers.below(5) as usize];
    let bytes = match (verb, numbers.below(2)) {
        ("pitch", _) => return format!("pitch {} 1024", 1 + numbers.below(100 << 10)),
        ("create", _) => (1 + numbers.below(100)) * (2 << 20),
        (_, 0) => 1 + numbers.below(1 << 20),
        _ => 1 + numbers.below(200 << 20),
    };
    format!("{verb} {bytes}")
}
