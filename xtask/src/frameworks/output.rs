//! The output of a program: one JSON object a line. `tests/frameworks/programs/checks.py` writes it.

use serde::Deserialize;
use serde_json::Value;

/// One line of output.
#[derive(Deserialize)]
#[serde(untagged)]
enum OutputLine {
    Check {
        check: String,
        holds: bool,
        seen: String,
    },
    Figure {
        figure: String,
        value: Value,
    },
    End {
        end: bool,
    },
}

/// The result of one check.
#[derive(Clone)]
pub(crate) struct ProgramCheck {
    pub(crate) name: String,
    pub(crate) holds: bool,
    pub(crate) seen: String,
}

/// The output of one program.
#[derive(Default)]
pub(crate) struct ProgramOutput {
    pub(crate) checks: Vec<ProgramCheck>,
    pub(crate) figures: Vec<(String, Value)>,
    /// Whether the program reached its end.
    pub(crate) is_complete: bool,
}

impl ProgramOutput {
    /// Parses a program's output. Lines that frameworks print are skipped.
    pub(crate) fn read(output: &str) -> Self {
        let mut said = Self::default();
        for line in output
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
        {
            match line {
                OutputLine::Check { check, holds, seen } => {
                    said.checks.push(ProgramCheck {
                        name: check,
                        holds,
                        seen,
                    });
                }
                OutputLine::Figure { figure, value } => said.figures.push((figure, value)),
                OutputLine::End { end } => said.is_complete = end,
            }
        }
        said
    }

    /// The first figure with this name. Later ones come from other allocators of the same program.
    pub(crate) fn figure(&self, name: &str) -> Option<&Value> {
        self.figures
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value)
    }

    /// A figure that is a number of bytes.
    pub(crate) fn bytes(&self, name: &str) -> Option<u64> {
        self.figure(name).and_then(Value::as_u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_frameworks_print_is_passed_over() {
        let output = "WARNING: no such card\n{\"check\":\"a\",\"holds\":false,\"seen\":\"b\"}\n{\"other\":1}\n[]\n\
                      {\"figure\":\"held\",\"value\":5}\n{\"figure\":\"held\",\"value\":6}\n";
        let said = ProgramOutput::read(output);
        assert!(!said.is_complete && !said.checks[0].holds);
        assert_eq!((said.checks.len(), said.bytes("held")), (1, Some(5)));
        assert!(ProgramOutput::read("{\"end\":true}").is_complete);
    }
}
