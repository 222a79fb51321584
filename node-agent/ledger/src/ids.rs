//! How allocations and processes are told apart.

use std::fmt;

/// The id of an allocation inside the agent. It also names the account's directory.
///
/// An id is never reused, not even after the checkpoint was lost: a process that outlives its allocation still has
/// the id in its environment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId(pub String);

impl AllocationId {
    /// Parses an id from a file or a folder name: the ledger's two numbers. Anything else is refused, so no id can
    /// lead out of the accounts folder.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (epoch, serial) = text.split_once('-')?;
        let is_number = |part: &str, digits: usize, is_digit: fn(&u8) -> bool| {
            (1..=digits).contains(&part.len()) && part.as_bytes().iter().all(is_digit)
        };
        let is_id = is_number(epoch, 16, u8::is_ascii_hexdigit)
            && is_number(serial, 20, u8::is_ascii_digit);
        is_id.then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for AllocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A process. The start time distinguishes it from a later process with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// The pid in the agent's pid namespace.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start: u64,
}
