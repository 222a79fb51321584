//! `apportion.dev/suspend-when-idle`: after how long without a CUDA call a pod's programs are suspended.
//!
//! What is no time is refused here, in one line. What a node can do is not known here: its agent may have a longer minimum,
//! or a driver that suspends nothing. There the pod runs all the same, and its agent says so in an event.

use std::time::Duration;

use apportion_kubernetes::{not_a_duration, parse_duration};

use crate::containers::is_shared;
use crate::names;
use crate::pod::Pod;
use crate::refusal::PodRefusal;

/// The shortest time that agents accept unless their `--suspend-when-idle-min` says otherwise.
const SHORTEST: Duration = Duration::from_secs(10);

/// After how long without a CUDA call the programs of a pod are suspended; `None` for never.
///
/// # Errors
/// It is no such time, or the pod has no share.
pub fn idle_time(pod: &Pod) -> Result<Option<Duration>, PodRefusal> {
    let Some(text) = pod.annotation(names::IDLE) else {
        return Ok(None);
    };
    match parse_duration(text) {
        None => Err(PodRefusal::IdleTime(not_a_duration(text))),
        Some(Duration::ZERO) => Err(PodRefusal::IdleTime(format!(
            "{text:?} is no time; a pod without the annotation is never suspended when it is idle"
        ))),
        Some(_) if !is_shared(pod) => Err(PodRefusal::IdleWithoutShare),
        Some(time) => Ok(Some(time)),
    }
}

/// A warning about a time that most nodes replace by a longer one.
pub(crate) fn warning(pod: &Pod) -> Option<String> {
    let time = idle_time(pod).ok()??;
    (time < SHORTEST).then(|| {
        format!(
            "{} {time:?} is shorter than what agents accept unless their --suspend-when-idle-min is lower: they suspend \
             the pod after {SHORTEST:?}",
            names::IDLE
        )
    })
}
