//! Calls of the driver by the programs of an account: see `apportion_abi::account`.

use super::AccountFiles;

impl AccountFiles {
    /// Whether programs publish that they call the driver.
    pub(crate) fn asks_about_calls(&self) -> bool {
        self.limits.calls().epoch() != 0
    }

    /// Whether a program has called the driver since the epoch began. Of a damaged account nobody knows, so it is said to
    /// be called: then its programs run.
    pub(crate) fn is_called(&self) -> bool {
        let epoch = self.limits.calls().epoch();
        !self.is_in_place() || self.usage.calls().has_called(epoch)
    }

    /// Begins the next epoch. Only while the share runs: until then its programs are called once for all.
    pub(crate) fn begin_epoch(&self) {
        if self.is_in_place() {
            self.limits.calls().begin_epoch();
        }
    }

    /// Whether a program may call the driver without that anybody sees it.
    pub(crate) fn may_be_called_unseen(&self) -> bool {
        self.usage.calls().may_be_unseen()
    }
}
