//! What the plugins offer the kubelet, as the agent's loop publishes it.

use std::sync::Arc;

use tokio::sync::watch;

use super::slot_plugin::Offers;
use super::whole_card_plugin::WholeCardOffers;
use crate::claims::device_offers::DeviceOffers;

/// The offers of all ways to the cards.
#[derive(Debug)]
pub(crate) struct OfferReceivers {
    pub(crate) slots: Offers,
    /// Whole cards, if they are served.
    pub(crate) whole: Option<watch::Receiver<Arc<WholeCardOffers>>>,
    /// Devices for resource claims, if they are served.
    pub(crate) claims: Option<watch::Receiver<Arc<DeviceOffers>>>,
}
