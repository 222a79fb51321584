//! The device memory that a kernel needs, by its name. The context grows at the launch and keeps the memory.
//!
//! As far as is known, the real driver holds local memory for all threads that a card can run at once, however many a
//! launch has. It grows in steps and includes room for system calls.

use apportion_sim_machine::{ContextLimit, MachineRequest};

use crate::context::current;
use crate::driver::ask;
use crate::error::Outcome;

/// What a launch needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelFootprint {
    /// The local memory of each thread.
    local: u64,
    /// Memory that no call announces.
    hidden: u64,
}

impl KernelFootprint {
    /// Reads `local_4096b` and `hidden_8mib`.
    pub(crate) fn of(name: &str) -> Self {
        let number = |prefix, unit| {
            let (number, _) = name.split_once(prefix)?.1.split_once(unit)?;
            number.parse::<u64>().ok()
        };
        Self {
            local: number("local_", "b").unwrap_or(0),
            hidden: number("hidden_", "mib").unwrap_or(0) << 20,
        }
    }

    /// `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`.
    pub(crate) fn local_bytes(self) -> i32 {
        i32::try_from(self.local).unwrap_or(i32::MAX)
    }

    /// Makes the current context hold the memory.
    pub(crate) fn hold(self) -> Outcome {
        const SYSTEM: u64 = 512;
        const STEP: u64 = 256;
        let thread = (self.local + SYSTEM).next_multiple_of(STEP);
        for (limit, wanted, bytes) in [
            (ContextLimit::Local, self.local, thread),
            (ContextLimit::Hidden, self.hidden, self.hidden),
        ] {
            if wanted > 0 {
                let context = current()?.1.name;
                ask(MachineRequest::ContextLimit {
                    context,
                    limit,
                    bytes,
                })?;
            }
        }
        Ok(())
    }
}
