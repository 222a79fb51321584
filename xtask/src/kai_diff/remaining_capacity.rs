//! The free capacity of a node while the pods of a random cluster are placed, and what a pod takes of it.

use serde_json::{Value, json};

use super::generate::GPU_MEMORY;

/// The free capacity of a node.
#[derive(Clone)]
pub(crate) struct RemainingCapacity {
    pub(crate) name: String,
    cpu_millis: f64,
    memory: f64,
    pub(crate) idle: usize,
    /// The used part of each shared GPU, in thousandths.
    shared: Vec<usize>,
}

/// What each pod of a job requests.
#[derive(Clone, Copy)]
pub(crate) enum GeneratedRequest {
    Whole(usize),
    /// This many thousandths of each of this many GPUs.
    Fraction(usize, usize),
    /// This many MiB of each of this many GPUs.
    Memory(usize, usize),
}

impl GeneratedRequest {
    /// The JSON of a scenario.
    pub(crate) fn json(self) -> Value {
        match self {
            Self::Whole(gpus) => json!({"kind": "whole", "gpus": gpus}),
            Self::Fraction(part, devices) => json!({
                "kind": "fraction", "gpus": 0, "portion": part as f64 / 1000.0, "num_devices": devices,
            }),
            Self::Memory(mib, devices) => json!({
                "kind": "memory", "gpus": 0, "gpu_memory_mib": mib, "num_devices": devices,
            }),
        }
    }
}

impl RemainingCapacity {
    /// The whole capacity of a node.
    pub(crate) fn of(node: &Value) -> Self {
        Self {
            name: node["name"].as_str().unwrap_or_default().to_owned(),
            cpu_millis: node["cpu_millis"].as_f64().unwrap_or(20_000_000.0),
            memory: node["mem_bytes"].as_f64().unwrap_or(20e9),
            idle: node["gpus_allocatable"].as_u64().unwrap_or(0) as usize,
            shared: Vec::new(),
        }
    }

    /// Takes what a pod requests. Returns the names of the GPUs that it shares; `None` if it does not fit.
    pub(crate) fn take(
        &mut self,
        ask: GeneratedRequest,
        cpu: f64,
        memory: f64,
    ) -> Option<Vec<String>> {
        let has_rest = self.cpu_millis >= cpu && self.memory >= memory;
        let groups = match ask {
            _ if !has_rest => return None,
            GeneratedRequest::Whole(gpus) if gpus <= self.idle => {
                self.idle -= gpus;
                Vec::new()
            }
            GeneratedRequest::Whole(_) => return None,
            GeneratedRequest::Fraction(part, devices) => self.share(part, devices)?,
            GeneratedRequest::Memory(mib, devices) => {
                self.share(mib * 1000 / GPU_MEMORY, devices)?
            }
        };
        self.cpu_millis -= cpu;
        self.memory -= memory;
        Some(groups)
    }

    fn share(&mut self, part: usize, devices: usize) -> Option<Vec<String>> {
        let found = self
            .shared
            .iter()
            .filter(|used| **used + part <= 1000)
            .count();
        if part > 1000 || found + self.idle < devices {
            return None;
        }
        let new = devices.saturating_sub(found);
        self.idle -= new;
        self.shared.extend(vec![0; new]);
        let numbered = self.shared.iter_mut().enumerate();
        let chosen = numbered.filter(|(_, used)| **used + part <= 1000);
        let name = &self.name;
        let taken = chosen.take(devices).map(|(number, used)| {
            *used += part;
            format!("{name}-g{number}")
        });
        Some(taken.collect())
    }
}
