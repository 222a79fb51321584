//! The devices that a task's claims have.

use std::sync::Arc;

use crate::cluster::DeviceGrant;

/// The devices of a task's claims, by the number of the claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClaimDevices(pub(crate) Vec<(usize, DeviceGrant)>);

impl PartialEq for ClaimDevices {
    fn eq(&self, other: &Self) -> bool {
        let mut pairs = self.0.iter().zip(&other.0);
        self.0.len() == other.0.len()
            && pairs.all(|((one, left), (two, right))| {
                one == two && (Arc::ptr_eq(left, right) || left.is_like(&**right))
            })
    }
}
