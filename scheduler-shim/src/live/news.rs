//! What is said about pods that wait: the true reason with its numbers, when it changes, and not too often.

use std::time::Duration;

use super::event::{Effect, News};
use super::model::Model;
use crate::reasons::books::{self, Books};
use crate::reasons::waiting;

/// How long the numbers of a reason may change unsaid.
const QUIET: Duration = Duration::from_secs(30);

impl Model {
    /// Says why pods wait, as far as it was not said.
    /// `seen` is shown the books and how many wait.
    pub(crate) fn tell_who_waits(
        &mut self,
        now: Duration,
        seen: impl FnOnce(&Books<'_>, usize),
    ) -> Vec<Effect> {
        let waiting = {
            let snapshot = self.cluster(now);
            let books = books::decide(now, &snapshot.cluster);
            let waiting = waiting::all(&snapshot, &books);
            seen(&books, waiting.len());
            waiting
        };
        let mut effects = Vec::new();
        for one in waiting {
            let Some(pod) = self.pod(&one.pod) else {
                continue;
            };
            if self.back_off.holds(&pod.uid, now) || self.starts.get(&pod.uid).is_some() {
                continue;
            }
            let known = self.told.get(&pod.uid);
            let is_said = known.is_some_and(|(said, at)| *said == one.message || now < *at + QUIET);
            if is_said || one.reason == waiting::Reason::Gated {
                continue;
            }
            self.told
                .insert(pod.uid.clone(), (one.message.clone(), now));
            effects.push(Effect::Tell {
                pod,
                news: News::Unschedulable,
                message: one.message,
            });
        }
        effects
    }
}
