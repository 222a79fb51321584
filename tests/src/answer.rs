//! What a victim says of one step.

use std::str::FromStr;

/// A line `VERB CODE [NUMBER…]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VictimAnswer {
    /// The step.
    pub verb: String,
    /// The driver's result; 2 is out of memory.
    pub code: i32,
    /// What came with it.
    pub numbers: Vec<u64>,
}

impl VictimAnswer {
    /// The first number that came with success.
    ///
    /// # Panics
    /// If the step failed or came without numbers.
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

    /// Asserts that memory was refused and the outputs left alone.
    ///
    /// # Panics
    /// If the step did anything else.
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
