//! Turns a notice into a log line and an event of the watch stream. One row for each kind has the log level and the
//! message.

use apportion_ledger::{LedgerNotice, NoticeKind};
use apportion_proto::v1;
use tracing::{debug, info, warn};

use crate::api::wire;

/// The log level of a notice.
enum NoticeLevel {
    Debug,
    Info,
    Warn,
}

const fn row(kind: NoticeKind) -> (NoticeLevel, &'static str) {
    use NoticeLevel::{Debug, Info, Warn};
    match kind {
        NoticeKind::Allocated => (Info, "Allocation reserved"),
        NoticeKind::Committed => (Info, "Allocation committed"),
        NoticeKind::Resized => (Info, "Allocation resized"),
        NoticeKind::Suspended => (Info, "Allocation suspended"),
        NoticeKind::Resumed => (Info, "Allocation resumed"),
        NoticeKind::Idle => (Info, "Allocation suspended, it is idle"),
        NoticeKind::Called => (Info, "Allocation resumed, it was called"),
        NoticeKind::StaysAwake => (Warn, "Share is not suspended when idle"),
        NoticeKind::Draining => (Debug, "Allocation draining"),
        NoticeKind::Released => (Info, "Allocation released"),
        NoticeKind::Expired => (Warn, "Reservation expired"),
        NoticeKind::Bypassed => (
            Warn,
            "Process bypasses accounting, and its allocation exceeds its limit",
        ),
        NoticeKind::Overlimit => (Warn, "Allocation exceeds its limit"),
        NoticeKind::Ungranted => (Warn, "Process uses a GPU that it was not granted"),
        NoticeKind::Killed => (Warn, "Process killed"),
        NoticeKind::Evicted => (Warn, "Evicting pod for a GPU limit violation"),
        NoticeKind::Damaged => (
            Warn,
            "Account missing or damaged, limit checked by NVML only",
        ),
        NoticeKind::CardFound => (Info, "GPU found"),
        NoticeKind::CardUnhealthy => (Warn, "GPU unhealthy"),
        NoticeKind::CardLost => (Warn, "GPU lost"),
        NoticeKind::CardHealthy => (Info, "GPU healthy again"),
    }
}

/// Logs a notice and returns it as an event.
pub(crate) fn event_of(notice: &LedgerNotice, at_ms: u64) -> v1::Event {
    let (loudness, message) = row(notice.kind);
    let (id, name) = notice.allocation.clone().unzip();
    let (id, name) = (id.map(|id| id.0), name);
    let card = notice.card.map(|card| card.to_string());
    let pid = notice.process.map(|process| process.pid);
    let detail = Some(notice.detail.as_str()).filter(|detail| !detail.is_empty());
    match loudness {
        NoticeLevel::Debug => debug!(id, name, card, pid, detail, "{message}"),
        NoticeLevel::Info => info!(id, name, card, pid, detail, "{message}"),
        NoticeLevel::Warn => warn!(id, name, card, pid, detail, "{message}"),
    }
    v1::Event {
        at_ms,
        kind: wire::event_kind(notice.kind).into(),
        allocation: id.unwrap_or_default(),
        name: name.unwrap_or_default(),
        card: card.unwrap_or_default(),
        pid: pid.unwrap_or_default(),
        message: detail.map_or_else(
            || message.to_owned(),
            |detail| format!("{message}: {detail}"),
        ),
    }
}
