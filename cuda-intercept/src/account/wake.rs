//! The FIFO through which a program wakes the agent.

use core::ffi::CStr;

use apportion_abi::account::LimitsMap;
use apportion_abi::paths;

use super::liveness::DescriptorGuard;
use super::path::PathBuffer;

/// The path of the FIFO, if the agent asks about calls.
pub(super) fn fifo(folder: &[u8], limits: &LimitsMap) -> Option<PathBuffer> {
    let mut path = PathBuffer::default();
    (limits.calls().epoch() != 0).then_some(())?;
    path.join(folder, paths::WAKE_FIFO)?;
    Some(path)
}

/// Wakes the agent. The FIFO is opened for both directions: then opening waits for nobody, and writing raises no signal
/// when no agent has it open. If it is full, the agent has been woken already.
pub(super) fn wake_agent(path: &CStr) {
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_NOFOLLOW;
    if let Some(fifo) = DescriptorGuard::open_with(path, flags) {
        fifo.write_byte();
    }
}

/// Whether an agent has the FIFO open. Without a reader, the kernel refuses to open it for writing alone.
pub(super) fn is_listened_to(path: &CStr) -> bool {
    let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOFOLLOW;
    DescriptorGuard::open_with(path, flags).is_some()
}
