//! The NVIDIA toolkit's own CDI description of a node's cards, as far as a grant takes it over.
//!
//! `nvidia-ctk cdi generate`, its refresh service and the GPU Operator write one: what every container with
//! a card needs (libraries, control devices, hooks) and what each card needs beside it. A grant cannot
//! name those devices, because its own is named before anybody knows the card; so what they say is copied
//! into the grant's file as it is, and ours comes after it.
//!
//! # What is not guessed
//! A card is found by its UUID, or by its device file where devices have numbers only. A description that
//! knows the kind and not the card, or says something that a grant's file would not carry on, is an
//! error with its file's name: a container with half of what its driver needs would fail in a worse place.

use serde::Deserialize;

use crate::cdi::PassthroughEdits;
use crate::grant::GrantedCard;

/// The kinds of the cards themselves, the usual one first. What is for the node's management has all cards in
/// one device and is none of these.
const KINDS: [&str; 3] = [
    "nvidia.com/gpu",
    "k8s.device-plugin.nvidia.com/gpu",
    "runtime.nvidia.com/gpu",
];

/// One description.
#[derive(Clone, Debug, PartialEq)]
pub struct NvidiaCdiSpec {
    path: String,
    kind: usize,
    file: CdiSpecFile,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct CdiSpecFile {
    #[serde(default)]
    container_edits: PassthroughEdits,
    devices: Vec<CdiSpecDevice>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct CdiSpecDevice {
    name: String,
    #[serde(default)]
    container_edits: PassthroughEdits,
}

/// Why a description is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvidiaSpecError {
    /// It cannot be read, or says more than a grant could carry on.
    #[error("{path} is not a CDI spec that a grant can use: {problem}")]
    Malformed {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// It knows other cards.
    #[error(
        "{path} describes {devices} devices, and none of them is GPU {card}; was the file written before the GPU was added?"
    )]
    NoCard {
        /// The file.
        path: String,
        /// How many it describes.
        devices: usize,
        /// The card.
        card: String,
    },
}

impl NvidiaCdiSpec {
    /// Takes a CDI file for one of cards; nothing if it describes something else.
    ///
    /// # Errors
    /// If it describes cards in a way that cannot be taken over.
    pub fn new(path: &str, content: serde_json::Value) -> Result<Option<Self>, NvidiaSpecError> {
        let named = content["kind"].as_str().unwrap_or_default();
        let Some(kind) = KINDS.iter().position(|kind| *kind == named) else {
            return Ok(None);
        };
        let file =
            serde_json::from_value(content).map_err(|problem| NvidiaSpecError::Malformed {
                path: path.to_owned(),
                problem: problem.to_string(),
            })?;
        let path = path.to_owned();
        Ok(Some(Self { path, kind, file }))
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Which of two is the usual one: the lower.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.kind
    }

    /// What a container with these cards needs.
    ///
    /// # Errors
    /// If one of the cards is not described.
    pub fn of(&self, cards: &[GrantedCard]) -> Result<PassthroughEdits, NvidiaSpecError> {
        let mut all = self.file.container_edits.clone();
        for card in cards {
            let device = self.device(card).ok_or_else(|| NvidiaSpecError::NoCard {
                path: self.path.clone(),
                devices: self.file.devices.len(),
                card: card.uuid.clone(),
            })?;
            all.add(&device.container_edits);
        }
        Ok(all)
    }

    fn device(&self, card: &GrantedCard) -> Option<&CdiSpecDevice> {
        let mut devices = self.file.devices.iter();
        let by_name = devices.find(|device| device.name == card.uuid);
        by_name.or_else(|| {
            let node = format!("/dev/nvidia{}", card.minor?);
            let mut devices = self.file.devices.iter();
            devices.find(|device| device.cards() == [node.as_str()])
        })
    }
}

impl CdiSpecDevice {
    /// The device files of cards: `/dev/nvidia0` and not `/dev/nvidiactl`.
    fn cards(&self) -> Vec<&str> {
        let nodes = self.container_edits.device_nodes.iter();
        let paths = nodes.filter_map(|node| node["path"].as_str());
        let is_card = |path: &&str| {
            let number = path.strip_prefix("/dev/nvidia").unwrap_or_default();
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        };
        paths.filter(is_card).collect()
    }
}

#[cfg(test)]
mod tests;
