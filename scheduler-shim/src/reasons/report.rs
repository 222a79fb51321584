//! All that was decided, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use apportion_policy::Decision;
use apportion_policy::cluster::Cards;
use serde::Serialize;

use super::books::{Books, Made};
use super::explain::{self, Explanation, QueueView};
use super::waiting::{self, Waiting};
use super::words::{self, line};
use crate::objects::remark::Remarks;
use crate::objects::snapshot::Snapshot;

/// What was decided.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) decisions: Vec<Decided>,
    pub(crate) waiting: Vec<Waiting>,
    queues: Vec<QueueView>,
    pub(crate) remarks: Remarks,
    /// How many objects of which kinds were left aside.
    pub(crate) ignored: BTreeMap<String, usize>,
    /// How many pods belong to other schedulers.
    pub(crate) other_schedulers_pods: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) explanation: Option<Explanation>,
}

/// What is done with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Deed {
    /// It is ended.
    Evict,
    /// It is started.
    Bind,
    /// A place is kept for it until others have left.
    Reserve,
}

/// One decision.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Decided {
    pub(crate) decision: Deed,
    pub(crate) pod: String,
    pub(crate) job: String,
    pub(crate) node: String,
    /// The cards that it shares; cards in no group are numbered on their node.
    pub(crate) cards: Vec<String>,
    pub(crate) asks: String,
    /// The action of KAI's name that decided it.
    pub(crate) action: &'static str,
}

/// Writes down what was decided.
pub(crate) fn report(snapshot: &Snapshot<'_>, books: &Books<'_>, remarks: Remarks) -> Report {
    Report {
        decisions: books
            .made
            .iter()
            .filter_map(|made| decided(books, made))
            .collect(),
        waiting: waiting::all(snapshot, books),
        queues: explain::all_queues(books),
        remarks,
        ignored: snapshot.inventory.ignored.clone(),
        other_schedulers_pods: snapshot.foreign,
        explanation: None,
    }
}

fn decided(books: &Books<'_>, made: &Made) -> Option<Decided> {
    let (deed, job, pod, place) = match &made.decision {
        Decision::Evict { job, task } => (Deed::Evict, job, task, None),
        Decision::Bind { job, task, place } => (Deed::Bind, job, task, Some(place)),
        Decision::Reserve { job, task, place } => (Deed::Reserve, job, task, Some(place)),
    };
    let (_, task) = books.task(pod)?;
    let node = match place {
        Some(place) => place.node.clone(),
        None => task.node.clone()?,
    };
    let cards = match (&task.cards, place) {
        (Cards::Shared { .. } | Cards::Whole(_), Some(place)) => place
            .cards
            .iter()
            .map(|card| books.card_name(&node, card))
            .collect(),
        (Cards::Shared { .. }, None) => task.on.clone(),
        (Cards::Whole(_), None) | (Cards::None | Cards::Partitions(_), _) => Vec::new(),
    };
    Some(Decided {
        decision: deed,
        pod: pod.clone(),
        job: job.clone(),
        node,
        cards,
        asks: words::cards(task),
        action: words::action(made.action),
    })
}

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cards = match self.cards.as_slice() {
            [] => self.asks.clone(),
            cards => format!("cards {}: {}", cards.join(" "), self.asks),
        };
        let (pod, node) = (&self.pod, &self.node);
        match self.decision {
            Deed::Evict => write!(f, "evict {pod} from {node} ({})", self.action),
            Deed::Bind => write!(f, "bind {pod} to {node} {cards}"),
            Deed::Reserve => write!(f, "reserve {node} for {pod} {cards} ({})", self.action),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(explanation) = &self.explanation {
            return explanation.fmt(f);
        }
        for decided in &self.decisions {
            line(f, format_args!("{decided}"))?;
        }
        for waiting in &self.waiting {
            line(
                f,
                format_args!("{} waits because {}", waiting.pod, waiting.message),
            )?;
        }
        if self.decisions.is_empty() && self.waiting.is_empty() {
            line(f, format_args!("nothing to decide"))?;
        }
        Ok(())
    }
}
