//! Parses the requests of `run` and `resize`. All mistakes are reported together.

use apportion_abi::{CardUuid, GpuRequest, RequestError};
use apportion_exit::CommandFailure;

use crate::options::RunOptions;

/// The maximum length of an allocation's name: that of a Kubernetes object.
const NAME_LENGTH: usize = 253;

/// The request of `run`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunRequest {
    /// The share and the number of cards.
    pub(crate) request: GpuRequest,
    /// The only cards that may be used; empty for any.
    pub(crate) cards: Vec<CardUuid>,
    /// The name for the allocation.
    pub(crate) name: Option<String>,
}

impl RunRequest {
    /// Reads the options of `run`.
    pub(crate) fn read(run: &RunOptions) -> Result<Self, CommandFailure> {
        let mut mistakes = Vec::new();
        let memory = run.gpu_memory.as_deref();
        let request = read(
            memory,
            run.gpu_fraction.as_deref(),
            run.gpus.as_deref(),
            &mut mistakes,
        );
        let mut cards = Vec::new();
        for text in &run.cards {
            match text.parse() {
                Ok(uuid) if !cards.contains(&uuid) => cards.push(uuid),
                Ok(_) => {}
                Err(error) => mistakes.push(format!("--gpu {text:?}: {error}")),
            }
        }
        if let Some(name) = run.name.as_deref().filter(|name| !is_name(name)) {
            mistakes.push(format!(
                "--name {name:?} must be 1 to {NAME_LENGTH} letters, digits, '.', '_', '-' or '/'"
            ));
        }
        match request {
            Some(request) if mistakes.is_empty() => Ok(Self {
                request,
                cards,
                name: run.name.clone(),
            }),
            _ => Err(CommandFailure::usage(mistakes.join("; "))),
        }
    }
}

/// Parses the new size of an allocation.
pub(crate) fn new_size(
    memory: Option<&str>,
    fraction: Option<&str>,
) -> Result<GpuRequest, CommandFailure> {
    let mut mistakes = Vec::new();
    read(memory, fraction, None, &mut mistakes)
        .ok_or_else(|| CommandFailure::usage(mistakes.join("; ")))
}

/// Parses each value by itself, so that every mistake is found, and then all together.
fn read(
    memory: Option<&str>,
    fraction: Option<&str>,
    devices: Option<&str>,
    mistakes: &mut Vec<String>,
) -> Option<GpuRequest> {
    let before = mistakes.len();
    for (memory, fraction, devices) in [
        (memory, None, None),
        (None, fraction, None),
        (None, None, devices),
    ] {
        mistakes.extend(mistake(GpuRequest::parse(memory, fraction, devices)));
    }
    let whole = GpuRequest::parse(memory, fraction, devices);
    if mistakes.len() == before {
        mistakes.extend(mistake(whole.clone()));
    }
    whole.ok()
}

fn mistake(read: Result<GpuRequest, RequestError>) -> Option<String> {
    read.err().map(|error| error.to_string())
}

fn is_name(text: &str) -> bool {
    (1..=NAME_LENGTH).contains(&text.len())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{ApportionCommand, ApportionOptions};
    use clap::Parser;

    fn ask(line: &str) -> Result<RunRequest, String> {
        let words = ["apportion", "run"]
            .into_iter()
            .chain(line.split_whitespace())
            .chain(["true"]);
        let ApportionCommand::Run(run) = ApportionOptions::try_parse_from(words).unwrap().command
        else {
            panic!("not run")
        };
        RunRequest::read(&run).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_share_is_read_as_in_an_annotation() {
        let expected = GpuRequest::parse(Some("2000"), None, Some("2")).unwrap();
        assert_eq!(
            ask("--gpu-memory 2000Mi --gpus 2").unwrap().request,
            expected
        );
        assert_eq!(
            ask("").unwrap().request,
            GpuRequest::parse(None, None, None).unwrap()
        );
    }

    #[test]
    fn each_mistake_of_a_line_is_named() {
        let error =
            ask("--gpu-memory 2000Ti --gpu-fraction NaN --gpus 0 --gpu x --name a*b").unwrap_err();
        for part in ["\"2000Ti\"", "\"NaN\"", "\"0\"", "\"x\"", "\"a*b\""] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert_eq!(error.lines().count(), 1);
    }

    #[test]
    fn refuses_fractions_that_are_no_share_and_two_sizes_at_once() {
        for line in [
            "--gpu-fraction 0",
            "--gpu-fraction 1.5",
            "--gpu-fraction -1",
        ] {
            assert!(
                ask(line).unwrap_err().contains("above 0 and below 1"),
                "{line}"
            );
        }
        assert!(
            ask("--gpu-fraction 0.5 --gpu-memory 5")
                .unwrap_err()
                .contains("both")
        );
    }
}
