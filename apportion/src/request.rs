//! Parses the requests of `run` and `resize`. All mistakes are reported together.

use std::time::Duration;

use apportion_abi::units::{parse_memory, parse_time};
use apportion_abi::{BurstWeight, Bytes, CardUuid, GpuRequest, RequestError, Share, whole_units};
use apportion_exit::CommandFailure;

use crate::options::{ResizeOptions, RunOptions};

/// The maximum length of an allocation's name: that of a Kubernetes object.
const NAME_LENGTH: usize = 253;

/// The request of `run`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunRequest {
    /// The share and the number of cards.
    pub(crate) request: GpuRequest,
    /// The limit on each card, if it is another than the share.
    pub(crate) limit: Option<Bytes>,
    /// What it is worth beside others that burst.
    pub(crate) weight: BurstWeight,
    /// The only cards that may be used; empty for any.
    pub(crate) cards: Vec<CardUuid>,
    /// The name for the allocation.
    pub(crate) name: Option<String>,
    /// After how long without a CUDA call it is put to sleep, if ever.
    pub(crate) suspend_when_idle: Option<Duration>,
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
        let limit = limit(run, request.as_ref(), &mut mistakes);
        let weight = weight(run, &mut mistakes);
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
        let suspend_when_idle = idle_time(run.suspend_when_idle.as_deref(), &mut mistakes);
        match request {
            Some(request) if mistakes.is_empty() => Ok(Self {
                request,
                limit,
                weight,
                cards,
                name: run.name.clone(),
                suspend_when_idle,
            }),
            _ => Err(CommandFailure::usage(mistakes.join("; "))),
        }
    }
}

/// Parses the limit, and compares it with the share where both are in bytes. A limit without a share of a card would
/// guarantee the whole card.
fn limit(
    run: &RunOptions,
    request: Option<&GpuRequest>,
    mistakes: &mut Vec<String>,
) -> Option<Bytes> {
    let text = run.gpu_memory_limit.as_deref();
    if text.is_none() && run.gpu_memory_info.is_some() {
        mistakes.push("--gpu-memory-info needs --gpu-memory-limit".to_owned());
    }
    let limit = read_limit(text?, mistakes)?;
    let share = request?.share;
    mistakes.extend(below(limit, share));
    match share {
        Share::Memory(_) | Share::Fraction(_) => {}
        Share::Whole => mistakes.push(
            "--gpu-memory-limit needs --gpu-memory or --gpu-fraction, which is what is guaranteed"
                .to_owned(),
        ),
    }
    Some(limit)
}

/// Parses the time after which an idle program is put to sleep.
fn idle_time(text: Option<&str>, mistakes: &mut Vec<String>) -> Option<Duration> {
    const LONGEST: Duration = Duration::from_secs(86_400);
    let text = text?;
    let time = parse_time(text).filter(|time| !time.is_zero() && *time <= LONGEST);
    if time.is_none() {
        mistakes.push(format!(
            "--suspend-when-idle {text:?} must be a time of at most 24h, such as 30s, 10m or 1h"
        ));
    }
    time
}

/// Parses the weight. Without a limit there is nothing that it could say.
fn weight(run: &RunOptions, mistakes: &mut Vec<String>) -> BurstWeight {
    let Some(text) = run.burst_weight.as_deref() else {
        return BurstWeight::default();
    };
    if run.gpu_memory_limit.is_none() {
        mistakes.push("--burst-weight needs --gpu-memory-limit".to_owned());
    }
    text.parse().unwrap_or_else(|error| {
        mistakes.push(format!("--burst-weight {text:?}: {error}"));
        BurstWeight::default()
    })
}

fn read_limit(text: &str, mistakes: &mut Vec<String>) -> Option<Bytes> {
    let limit = parse_memory(text).map(whole_units);
    let limit = limit.filter(|limit| *limit > Bytes::ZERO);
    if limit.is_none() {
        mistakes.push(format!(
            "--gpu-memory-limit {text:?} must be at least 2 MiB, in MiB or with a unit (2000, 2000Mi, 8Gi)"
        ));
    }
    limit
}

/// The mistake of a limit below a share in bytes. What a fraction is in bytes the agent knows.
fn below(limit: Bytes, share: Share) -> Option<String> {
    match share {
        Share::Memory(asked) if limit < whole_units(asked) => Some(format!(
            "--gpu-memory-limit of {limit} is below --gpu-memory of {asked}; a limit is at least the request"
        )),
        Share::Memory(_) | Share::Fraction(_) | Share::Whole => None,
    }
}

/// The new size of an allocation. What is `None` stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewSize {
    /// The share of each card.
    pub(crate) share: Option<Share>,
    /// The limit on each card.
    pub(crate) limit: Option<Bytes>,
}

impl NewSize {
    /// Reads the options of `resize`.
    pub(crate) fn read(resize: &ResizeOptions) -> Result<Self, CommandFailure> {
        let mut mistakes = Vec::new();
        let limit = resize.gpu_memory_limit.as_deref();
        let limit = limit.and_then(|text| read_limit(text, &mut mistakes));
        let (memory, fraction) = (resize.gpu_memory.as_deref(), resize.gpu_fraction.as_deref());
        let share = memory.or(fraction).and_then(|_| {
            let request = read(memory, fraction, None, &mut mistakes)?;
            mistakes.extend(limit.and_then(|limit| below(limit, request.share)));
            Some(request.share)
        });
        match mistakes.as_slice() {
            [] => Ok(Self { share, limit }),
            _ => Err(CommandFailure::usage(mistakes.join("; "))),
        }
    }
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
    fn a_limit_is_at_least_the_request_and_needs_one() {
        let limit = ask("--gpu-memory 4Gi --gpu-memory-limit 12Gi")
            .unwrap()
            .limit;
        assert_eq!(limit, Some(Bytes(12 << 30)));
        assert_eq!(ask("--gpu-memory 4Gi").unwrap().limit, None);
        assert!(ask("--gpu-fraction 0.2 --gpu-memory-limit 12Gi").is_ok());
        for (line, part) in [
            (
                "--gpu-memory 4Gi --gpu-memory-limit 3Gi",
                "3072 MiB is below --gpu-memory of 4096 MiB",
            ),
            ("--gpu-memory 4Gi --gpu-memory-limit 4Ti", "\"4Ti\""),
            ("--gpu-memory 4Gi --gpu-memory-limit 0", "at least 2 MiB"),
            ("--gpu-memory-limit 4Gi", "needs --gpu-memory or"),
            ("--gpu-memory-info reachable", "needs --gpu-memory-limit"),
            (
                "--gpu-memory 4Gi --burst-weight 2",
                "--burst-weight needs --gpu-memory-limit",
            ),
        ] {
            let error = ask(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    fn resize(line: &str) -> Result<NewSize, String> {
        let words = ["apportion", "resize", "train"];
        let words = words.into_iter().chain(line.split_whitespace());
        let parsed = ApportionOptions::try_parse_from(words).map_err(|error| error.to_string())?;
        let ApportionCommand::Resize(resize) = parsed.command else {
            panic!("not resize")
        };
        NewSize::read(&resize).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_resize_names_what_changes_and_leaves_the_rest() {
        let gib = |gib: u64| Bytes(gib << 30);
        let (share, limit) = (Share::Memory(gib(4)), gib(12));
        for (line, share, limit) in [
            ("--gpu-memory 4Gi", Some(share), None),
            ("--gpu-memory-limit 12Gi", None, Some(limit)),
            (
                "--gpu-memory 4Gi --gpu-memory-limit 12Gi",
                Some(share),
                Some(limit),
            ),
            (
                "--gpu-memory 4Gi --gpu-memory-limit 4Gi",
                Some(share),
                Some(gib(4)),
            ),
        ] {
            assert_eq!(resize(line), Ok(NewSize { share, limit }), "{line}");
        }
        for (line, part) in [
            ("", "--gpu-memory-limit <MIB>"),
            ("--gpu-memory 4Gi --gpu-fraction 0.5", "cannot be used with"),
            (
                "--gpu-memory 4Gi --gpu-memory-limit 3Gi",
                "is below --gpu-memory of 4096 MiB",
            ),
            ("--gpu-memory-limit 1", "at least 2 MiB"),
        ] {
            let error = resize(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
        let error = resize("--gpu-memory x --gpu-memory-limit y").unwrap_err();
        assert!(
            error.contains("\"x\"") && error.contains("\"y\""),
            "{error}"
        );
    }

    #[test]
    fn a_weight_is_above_zero_and_not_absurd() {
        let weight = |text: &str| {
            let line = "--gpu-memory 4Gi --gpu-memory-limit 12Gi --burst-weight";
            ask(&format!("{line} {text}")).map(|asked| asked.weight.thousandths())
        };
        assert_eq!(weight("2"), Ok(2000));
        assert_eq!(weight("0.25"), Ok(250));
        for text in ["0", "-1", "1e9", "1000001", "much"] {
            let error = weight(text).unwrap_err();
            let expected =
                format!("--burst-weight {text:?}: a weight is a number from 0.001 to 1000000");
            assert!(error.contains(&expected), "{error}");
        }
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
