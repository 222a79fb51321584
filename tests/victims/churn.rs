//! Programs that take and give back memory as fast as they can, in every way that a victim knows, and
//! a parent that kills them at random points.

use std::collections::VecDeque;
use std::time::Duration;

use crate::children::end;
use crate::script::{Outcome, Victim, Words};

/// How many programs work at a time while the parent kills.
const WORKERS: usize = 8;
/// The most that one worker holds at a time, in things.
const HELD: usize = 12;
/// The longest time between two kills, in microseconds.
const BETWEEN_KILLS: u64 = 12_000;

/// A small generator of numbers that differ (`splitmix64`).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

impl Victim {
    /// Takes and gives back at random, so many times or, for 0, until killed: how often memory was
    /// given, and how often refused.
    pub(crate) fn churn(&mut self, seed: u64, rounds: u64) -> Outcome {
        let mut numbers = Numbers(seed);
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
                (code, _) => return Outcome::with(code, [given, refused]),
            }
        }
        for thing in held {
            self.say(&format!("free {thing}"));
        }
        Outcome::with(0, [given, refused])
    }

    fn say(&mut self, line: &str) -> Outcome {
        let mut words = Words::of(line);
        let verb = words.next().unwrap_or_default();
        self.memory_step(&verb, &mut words)
            .unwrap_or_else(|| Outcome::of(-1))
    }

    /// Keeps eight forked children churning and kills one of them at a time: how many were killed.
    pub(crate) fn kills(&mut self, count: u64, seed: u64) -> Outcome {
        let mut numbers = Numbers(seed);
        let mut workers: Vec<i32> = (0..WORKERS).map(|_| self.worker(&mut numbers)).collect();
        for _ in 0..count {
            std::thread::sleep(Duration::from_micros(numbers.below(BETWEEN_KILLS)));
            let at = numbers.below(WORKERS as u64) as usize;
            let next = self.worker(&mut numbers);
            end(std::mem::replace(&mut workers[at], next));
        }
        workers.iter().for_each(|worker| end(*worker));
        Outcome::with(0, [count + WORKERS as u64])
    }

    fn worker(&mut self, numbers: &mut Numbers) -> i32 {
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

/// One way of asking for memory.
fn ask(numbers: &mut Numbers) -> String {
    let verb = ["alloc", "pitch", "managed", "async", "create"][numbers.below(5) as usize];
    let bytes = match (verb, numbers.below(2)) {
        ("pitch", _) => return format!("pitch {} 1024", 1 + numbers.below(100 << 10)),
        ("create", _) => (1 + numbers.below(100)) * (2 << 20),
        (_, 0) => 1 + numbers.below(1 << 20),
        _ => 1 + numbers.below(200 << 20),
    };
    format!("{verb} {bytes}")
}
