//! The configuration of a simulated machine: its driver and its cards.

use serde::{Deserialize, Serialize};

use crate::rules::FaultRule;

const MIB: u64 = 1 << 20;

/// A machine to simulate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MachineConfig {
    /// The driver generation.
    pub driver: DriverGeneration,
    /// The cards in PCI order.
    pub cards: Vec<CardConfig>,
    /// Faults and latencies from the start.
    pub rules: Vec<FaultRule>,
    /// How fast a checkpoint copies between a card and the host, in MiB per second.
    pub checkpoint_mib_per_second: u32,
}

/// A driver generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriverGeneration {
    /// Like R580: CUDA 13.0, no memory limits of its own.
    #[serde(rename = "580")]
    R580,
    /// Like R615: CUDA 13.4, limits by control group.
    #[serde(rename = "615")]
    R615,
}

/// One card. Every field has a plausible default, so a file names only the fields that it needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CardConfig {
    /// The product name.
    pub model: String,
    /// `GPU-` and a UUID; empty for one made from the card's position.
    pub uuid: String,
    /// Physical memory in bytes.
    pub memory: u64,
    /// The part of the memory that the driver reserves.
    pub reserved: u64,
    /// The PCI bus; zero for one made from the card's position.
    pub pci_bus: u32,
    /// The compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// How many multiprocessors there are.
    pub multiprocessors: u32,
    /// What the first context of a process takes.
    pub context_bytes: u64,
    /// What each further context of the same process takes.
    pub further_context_bytes: u64,
    /// The positions of the cards that its NVLinks lead to, one entry per link. Empty for a card without NVLink.
    pub links: Vec<u32>,
    /// Whether NVML reports the card's memory at the start. It does not for a card without memory of its own, which
    /// uses the machine's.
    pub memory_info: bool,
    /// Whether NVML reports each process's memory at the start.
    pub process_memory: bool,
}

/// Why a configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There are too few or too many cards.
    #[error("a machine has 1 to 64 GPUs, not {0}")]
    Cards(usize),
    /// The card's memory is smaller than its reserve.
    #[error("GPU {0}: its memory of {1} bytes must exceed the reserve of {2} bytes")]
    Memory(usize, u64, u64),
    /// The UUID is not in the form that drivers print.
    #[error("GPU {0}: `{1}` is not a UUID like GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")]
    Uuid(usize, String),
    /// A link that leads nowhere, or to the card itself.
    #[error("GPU {0}: a link leads to GPU {1}, which is itself or does not exist")]
    Link(usize, u32),
    /// A checkpoint would never end.
    #[error("checkpoint_mib_per_second must be at least 1")]
    CheckpointSpeed,
    /// Two cards have the same UUID.
    #[error("GPU {0}: another GPU has the UUID `{1}`")]
    Twice(usize, String),
}

impl Default for MachineConfig {
    fn default() -> Self {
        Self {
            driver: DriverGeneration::R580,
            cards: vec![CardConfig::default()],
            rules: Vec::new(),
            checkpoint_mib_per_second: 16384,
        }
    }
}

impl Default for CardConfig {
    fn default() -> Self {
        Self {
            model: "NVIDIA Simulated H100".to_owned(),
            uuid: String::new(),
            memory: 16384 * MIB,
            reserved: 256 * MIB,
            pci_bus: 0,
            compute_capability: (9, 0),
            multiprocessors: 132,
            context_bytes: 384 * MIB,
            further_context_bytes: 128 * MIB,
            links: Vec::new(),
            memory_info: true,
            process_memory: true,
        }
    }
}

impl MachineConfig {
    /// `cards` equal cards with `memory` bytes each.
    #[must_use]
    pub fn uniform(cards: usize, memory: u64, driver: DriverGeneration) -> Self {
        let card = CardConfig {
            memory,
            ..CardConfig::default()
        };
        Self {
            driver,
            cards: vec![card; cards],
            rules: Vec::new(),
            checkpoint_mib_per_second: 16384,
        }
    }

    /// Fills in what depends on a card's position and checks the whole.
    ///
    /// # Errors
    /// The first setting that is impossible.
    pub fn validate(mut self) -> Result<Self, ConfigError> {
        if self.cards.is_empty() || self.cards.len() > 64 {
            return Err(ConfigError::Cards(self.cards.len()));
        }
        if self.checkpoint_mib_per_second == 0 {
            return Err(ConfigError::CheckpointSpeed);
        }
        let count = self.cards.len();
        for (position, card) in self.cards.iter_mut().enumerate() {
            card.complete(position)?;
            if let Some(to) = card
                .links
                .iter()
                .find(|to| **to as usize >= count || **to as usize == position)
            {
                return Err(ConfigError::Link(position, *to));
            }
        }
        for (position, card) in self.cards.iter().enumerate() {
            if self.cards[..position]
                .iter()
                .any(|other| other.uuid == card.uuid)
            {
                return Err(ConfigError::Twice(position, card.uuid.clone()));
            }
        }
        Ok(self)
    }
}

impl CardConfig {
    fn complete(&mut self, position: usize) -> Result<(), ConfigError> {
        if self.memory <= self.reserved {
            return Err(ConfigError::Memory(position, self.memory, self.reserved));
        }
        if self.uuid.is_empty() {
            self.uuid = made_uuid(position as u64);
        }
        if self.pci_bus == 0 {
            self.pci_bus = 0x10 + 8 * position as u32;
        }
        if self.uuid_bytes().is_none() {
            return Err(ConfigError::Uuid(position, self.uuid.clone()));
        }
        Ok(())
    }

    /// The UUID as the 16 bytes that `cuDeviceGetUuid` gives.
    #[must_use]
    pub fn uuid_bytes(&self) -> Option<[u8; 16]> {
        let text = self.uuid.strip_prefix("GPU-")?;
        let dashes = text.bytes().enumerate().filter(|(_, byte)| *byte == b'-');
        if text.len() != 36 || !dashes.map(|(at, _)| at).eq([8, 13, 18, 23]) {
            return None;
        }
        let number = u128::from_str_radix(&text.replace('-', ""), 16).ok()?;
        Some(number.to_be_bytes())
    }
}

impl DriverGeneration {
    /// The CUDA version that the driver speaks, as `cuDriverGetVersion` gives it.
    #[must_use]
    pub fn cuda_version(self) -> i32 {
        match self {
            Self::R580 => 13000,
            Self::R615 => 13040,
        }
    }

    /// The driver's own version.
    #[must_use]
    pub fn version(self) -> &'static str {
        match self {
            Self::R580 => "580.105.08",
            Self::R615 => "615.42.01",
        }
    }
}

/// A UUID that is the same at every start. It differs from its neighbours in the first digits, so that short prefixes
/// are unambiguous.
fn made_uuid(position: u64) -> String {
    let mut state = position.wrapping_add(1);
    let mut word = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 27)
    };
    let (high, low) = (word(), word());
    format!(
        "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_only_what_matters_to_it() {
        let text = r#"{"driver": "615", "cards": [{"memory": 1073741824}, {"model": "Small"}]}"#;
        let config: MachineConfig =
            serde_json::from_str(text).expect("the text is a configuration");
        let config = config.validate().expect("the machine can be");
        assert_eq!(config.cards[0].memory, 1 << 30);
        assert_ne!(config.cards[0].uuid[..8], config.cards[1].uuid[..8]);
    }

    #[test]
    fn refuses_machines_that_cannot_be() {
        let none = MachineConfig {
            cards: Vec::new(),
            ..MachineConfig::default()
        };
        assert_eq!(none.validate(), Err(ConfigError::Cards(0)));
        let twin = CardConfig {
            uuid: made_uuid(7),
            ..CardConfig::default()
        };
        let twins = MachineConfig {
            cards: vec![twin.clone(), twin],
            ..MachineConfig::default()
        };
        assert!(matches!(twins.validate(), Err(ConfigError::Twice(1, _))));
        let odd = CardConfig {
            uuid: "GPU-1".to_owned(),
            ..CardConfig::default()
        };
        let odd = MachineConfig {
            cards: vec![odd],
            ..MachineConfig::default()
        };
        assert!(matches!(odd.validate(), Err(ConfigError::Uuid(0, _))));
    }
}
