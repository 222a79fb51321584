//! A victim's answer to one step.

use std::str::FromStr;

/// A line `VERB CODE [NUMBER…]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VictimAnswer {
    /// The step.
    pub verb: String,
    /// The driver's result code. 2 is out of memory.
    pub code: i32,
    /// The result's numbers.
    pub numbers: Vec<u64>,
}

impl VictimAnswer {
    /// The first number of a successful step.
    ///
    /// # Panics
    /// If the step failed or returned no numbers.
    #[track_caller]
    #[must_use]
    pub fn value(&self) -> u64 {
        assert_eq!(self.code, 0, "{self:?}");
        *self.numbers.first().expect("a step with a number")
    }

    /// Asserts success.
    ///
    /// # Panics
    /// If the step failed.
    #[track_caller]
    pub fn ok(&self) {
        assert_eq!(self.code, 0, "{self:?}");
    }

    /// Asserts that memory was refused and that the outputs were not written.
    ///
    /// # Panics
    /// Otherwise.
    #[track_caller]
    pub fn refused(&self) {
        assert_eq!(
            (self.code, self.numbers.as_slice()),
            (2, [1].as_slice()),
            "{self:?}"
        );
    }
}

impl FromStr for VictimAnswer {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split(' ');
        let verb = words.next().unwrap_or_default().to_owned();
        let code = words.next().and_then(|word| word.parse().ok());
        let numbers: Result<Vec<u64>, _> = words.map(str::parse).collect();
        match (code, numbers) {
            (Some(code), Ok(numbers)) => Ok(Self {
                verb,
                code,
                numbers,
            }),
            _ => Err(format!("no answer: {line:?}")),
        }
    }
}
