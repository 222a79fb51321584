//! Threads that may be on their way into the driver.
//!
//! A program looks whether its share is asleep, and then goes into the driver. There is no system call between the two. So
//! a thread that was stopped in between does not sleep in the kernel: it is runnable, stopped or traced, and has not run
//! since. Before an idle share is put to sleep, every thread of it must have been seen elsewhere: asleep in the kernel, or
//! running on. Threads run in microseconds from one to the other, so this is hardly ever waited for.

use std::collections::BTreeMap;
use std::fs;

/// Threads that were not asleep, with the processor time that they had used by then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WakefulThreads(BTreeMap<(u32, u32), u64>);

impl WakefulThreads {
    /// The threads of these processes that are not asleep in the kernel.
    pub(crate) fn of(processes: impl IntoIterator<Item = u32>) -> Self {
        let threads = processes.into_iter().flat_map(|process| {
            let all = threads(process).into_iter();
            all.filter_map(move |thread| Some(((process, thread), wakeful(process, thread)?)))
        });
        Self(threads.collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that have neither run since nor fallen asleep nor ended.
    pub(crate) fn still(self) -> Self {
        let same = |(process, thread): (u32, u32), used| wakeful(process, thread) == Some(used);
        let still = self
            .0
            .into_iter()
            .filter(|(thread, used)| same(*thread, *used));
        Self(still.collect())
    }
}

fn threads(process: u32) -> Vec<u32> {
    let folder = fs::read_dir(format!("/proc/{process}/task"));
    let entries = folder.into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The processor time of a thread that is not asleep, in the kernel's ticks.
fn wakeful(process: u32, thread: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).ok()?;
    parse(&stat)
}

fn parse(stat: &str) -> Option<u64> {
    // The name is in parentheses and may itself contain some.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let is_asleep = matches!(fields.next()?, "S" | "I" | "Z" | "X");
    let mut times = fields.skip(10).flat_map(str::parse::<u64>);
    let used = times.next()?.saturating_add(times.next()?);
    (!is_asleep).then_some(used)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;
    use crate::processes::procfs;

    #[test]
    fn a_sleeping_thread_is_elsewhere_whatever_its_name() {
        let line = |state: &str| format!("7 (a) S 1 (b) {state} 1 2 3 4 5 6 7 8 9 10 30 12 0");
        assert_eq!(parse(&line("R")), Some(42));
        assert_eq!(parse(&line("t")), Some(42));
        assert_eq!(parse(&line("S")), None);
    }

    #[test]
    fn a_stopped_process_is_not_elsewhere_until_it_sleeps() {
        let mut program = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_raw(program.id().cast_signed()).unwrap();
        let asleep = |program: u32| WakefulThreads::of([program]).is_empty();
        while !asleep(program.id()) {
            std::thread::yield_now();
        }
        kill_process(pid, Signal::STOP).unwrap();
        while asleep(program.id()) {
            assert!(procfs::live(program.id()).is_some());
            std::thread::yield_now();
        }
        let stopped = WakefulThreads::of([program.id()]);
        assert_eq!(stopped.clone().still(), stopped);
        kill_process(pid, Signal::CONT).unwrap();
        while !stopped.clone().still().is_empty() {
            std::thread::yield_now();
        }
        program.kill().unwrap();
        program.wait().unwrap();
        assert!(WakefulThreads::of([program.id()]).is_empty());
    }
}
