//! The list of devices that a plugin keeps sending to the kubelet, and the same after each change.

use apportion_proto::deviceplugin::{Device, ListAndWatchResponse};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// What a plugin answers to `ListAndWatch`.
pub(super) type Lists = ReceiverStream<Result<ListAndWatchResponse, Status>>;

/// Sends the devices of what is offered until the kubelet or the agent is gone.
pub(super) fn lists<T: Send + Sync + 'static>(
    mut offers: watch::Receiver<T>,
    devices: fn(&T) -> Vec<Device>,
) -> Lists {
    let (replies, unread) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let devices = devices(&offers.borrow_and_update());
            let list = ListAndWatchResponse { devices };
            if replies.send(Ok(list)).await.is_err() {
                return;
            }
            tokio::select! {
                () = replies.closed() => return,
                changed = offers.changed() => if changed.is_err() { return },
            }
        }
    });
    ReceiverStream::new(unread)
}

/// The kubelet's words for whether a device can be had.
pub(super) fn health(is_offered: bool) -> String {
    let word = if is_offered { "Healthy" } else { "Unhealthy" };
    word.to_owned()
}
