//! The part of the NVIDIA toolkit's CDI spec that a grant copies.
//!
//! `nvidia-ctk cdi generate`, its refresh service and the GPU Operator write such a spec. It has what every
//! container with a card needs (libraries, control devices, hooks), and what each card adds. A grant cannot refer to
//! its devices, because the grant's own device is named before the card is known. So their edits are copied
//! unchanged into the grant's spec, and ours are added after them.
//!
//! # What is not guessed
//! A card is found by its UUID, or by its device file if the spec numbers its devices. A spec that has the kind but
//! not the card, or that has edits a grant cannot copy, is an error with the file's name. Otherwise a container
//! would start with half of what its driver needs and fail later.

use serde::Deserialize;

use crate::cdi::PassthroughEdits;
use crate::grant::GrantedCard;

/// The CDI kinds of the cards, the usual one first. The management kind is not among them: one of its devices has
/// all cards.
const KINDS: [&str; 3] = [
    "nvidia.com/gpu",
    "k8s.device-plugin.nvidia.com/gpu",
    "runtime.nvidia.com/gpu",
];

/// A CDI spec of NVIDIA cards.
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

/// Why a spec cannot be used.
#[expect(missing_docs, reason = "the message of each error names its fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvidiaSpecError {
    /// It cannot be parsed, or has edits that a grant cannot copy.
    #[error("{path} is not a CDI spec that a grant can use: {problem}")]
    Malformed { path: String, problem: String },
    /// It does not describe this card.
    #[error(
        "{path} describes {devices} devices, and none of them is GPU {card}; was the file written before the GPU was added?"
    )]
    NoCard {
        path: String,
        /// The number of devices that it describes.
        devices: usize,
        card: String,
    },
}

impl NvidiaCdiSpec {
    /// Parses a CDI spec; `None` if its kind is not that of cards.
    ///
    /// # Errors
    /// If it describes cards, but a grant cannot copy its edits.
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

    /// The path of the spec.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The preference among kinds; lower is better.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.kind
    }

    /// The edits for a container with these cards.
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
        paths
            .filter(|path| {
                let number = path.strip_prefix("/dev/nvidia").unwrap_or_default();
                !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
