//! Charges of a share that is suspended wait until it is resumed.
//!
//! The driver lets the CUDA calls of a suspended process wait, but knows only the processes that used CUDA when the share
//! was suspended. One that starts later could take memory that others have by now. And a hook charges before its driver
//! call: a refusal there would end a program that would only have waited in the driver. So both wait here.
//!
//! The charge comes first and then the question, so that no charge is overlooked: either the process sees the
//! suspension and takes its charge back, or the agent sees the charge.

use super::MappedAccount;
use crate::spin_lock;

/// The pause between two looks, in nanoseconds.
const PAUSE: libc::c_long = 20_000_000;

impl MappedAccount {
    /// Whether the share is suspended. Ask after a charge.
    pub(crate) fn is_suspended(&self) -> bool {
        self.limits.is_suspended()
    }

    /// Waits until the agent resumes the share.
    pub(crate) fn wait_until_resumed(&self) {
        while self.is_suspended() {
            spin_lock::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use apportion_abi::account::{LimitsMap, NewCard, ShareSuspension, UsageMap};
    use apportion_abi::{Bytes, CardUuid, paths};

    use super::*;

    #[test]
    fn a_wait_ends_with_the_suspension_and_not_before() {
        let folder = tempfile::tempdir().expect("room");
        let at = |file| {
            let path = folder.path().join(file);
            CString::new(path.as_os_str().as_bytes()).expect("paths hold no zero")
        };
        let card = NewCard {
            uuid: CardUuid([7; 16]),
            total: Bytes(16 << 20),
            limit: Bytes(8 << 20),
            context_reserve: Bytes(0),
        };
        let _usage = UsageMap::create(&at(paths::USAGE_FILE), 1).expect("it is new");
        let agent = LimitsMap::create(&at(paths::LIMITS_FILE), &[card]).expect("it is new");
        let account =
            MappedAccount::open(folder.path().as_os_str().as_bytes()).expect("it is good");
        assert!(!account.is_suspended());
        account.wait_until_resumed();
        agent.set_suspended(ShareSuspension::Asleep);
        let is_resumed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                account.wait_until_resumed();
                assert!(is_resumed.load(Ordering::SeqCst), "it went on too early");
            });
            std::thread::sleep(std::time::Duration::from_millis(60));
            is_resumed.store(true, Ordering::SeqCst);
            agent.set_suspended(ShareSuspension::Running);
        });
    }
}
