//! A victim's script: words from the command line or, for the word `-`, lines from standard input. Each step prints one
//! line, `VERB CODE [NUMBER…]`, with the driver's own result code. A line of input is answered completely when a single
//! dot follows. So a test can stop a program at any point.

use std::io::BufRead;

use crate::driver::{Driver, NO_DEVICE};
use crate::objects::VictimObjects;

/// The result of a step: the driver's code and its numbers.
pub(crate) struct StepOutcome {
    pub(crate) code: i32,
    pub(crate) numbers: Vec<u64>,
}

impl StepOutcome {
    pub(crate) fn of(code: i32) -> Self {
        Self {
            code,
            numbers: Vec::new(),
        }
    }

    pub(crate) fn with(code: i32, numbers: impl Into<Vec<u64>>) -> Self {
        Self {
            code,
            numbers: numbers.into(),
        }
    }
}

/// The remaining words of a line.
pub(crate) struct ScriptWords(std::vec::IntoIter<String>);

impl ScriptWords {
    /// The words of one line.
    pub(crate) fn of(line: &str) -> Self {
        Self(
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
                .into_iter(),
        )
    }

    pub(crate) fn next(&mut self) -> Option<String> {
        self.0.next()
    }

    /// All remaining words. A final `hold` is kept for the process that calls this.
    pub(crate) fn rest(&mut self) -> Vec<String> {
        let mut rest: Vec<String> = self.0.by_ref().collect();
        if rest.pop_if(|word| word == "hold").is_some() {
            self.0 = vec!["hold".to_owned()].into_iter();
        }
        rest
    }

    pub(crate) fn number(&mut self) -> u64 {
        let word = self
            .next()
            .unwrap_or_else(|| misused("a number is missing"));
        word.parse()
            .unwrap_or_else(|_| misused(&format!("{word} is not a number")))
    }

    /// Bytes, with K, M or G for binary units.
    pub(crate) fn bytes(&mut self) -> usize {
        let word = self.next().unwrap_or_else(|| misused("a size is missing"));
        let (digits, shift) = match word.as_bytes().last() {
            Some(b'K') => (&word[..word.len() - 1], 10),
            Some(b'M') => (&word[..word.len() - 1], 20),
            Some(b'G') => (&word[..word.len() - 1], 30),
            Some(_) | None => (word.as_str(), 0),
        };
        let number: usize = digits
            .parse()
            .unwrap_or_else(|_| misused(&format!("{word} is not a size")));
        number << shift
    }
}

/// A program on one card.
pub(crate) struct VictimProgram {
    driver: Option<Driver>,
    started: bool,
    pub(crate) device: i32,
    pub(crate) contexts: Vec<usize>,
    pub(crate) objects: VictimObjects,
    pub(crate) children: Vec<i32>,
    /// Files that only use up descriptors.
    pub(crate) descriptors: Vec<i32>,
}

/// Runs the script of this process.
pub(crate) fn run(driver: Option<Driver>) {
    let mut victim = VictimProgram {
        driver,
        started: false,
        device: 0,
        contexts: Vec::new(),
        objects: VictimObjects::default(),
        children: Vec::new(),
        descriptors: Vec::new(),
    };
    let script: Vec<String> = std::env::args().skip(1).collect();
    if script != ["-"] {
        victim.perform(script);
        return;
    }
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        victim.perform(line.split_whitespace().map(str::to_owned).collect());
        println!(".");
    }
}

impl VictimProgram {
    /// Performs the steps of one line.
    pub(crate) fn perform(&mut self, script: Vec<String>) {
        let mut words = ScriptWords(script.into_iter());
        while let Some(verb) = words.next() {
            let outcome = self.step(&verb, &mut words);
            let numbers: String = outcome
                .numbers
                .iter()
                .map(|number| format!(" {number}"))
                .collect();
            println!("{verb} {}{numbers}", outcome.code);
        }
    }

    fn step(&mut self, verb: &str, words: &mut ScriptWords) -> StepOutcome {
        let outcome = self
            .life_step(verb, words)
            .or_else(|| self.card_step(verb, words))
            .or_else(|| self.code_step(verb, words))
            .or_else(|| self.launch_step(verb, words))
            .or_else(|| self.graph_step(verb, words))
            .or_else(|| self.shared_step(verb, words))
            .or_else(|| self.array_step(verb, words))
            .or_else(|| self.hold_step(verb, words))
            .or_else(|| self.denial_step(verb, words))
            .or_else(|| self.content_step(verb, words))
            .or_else(|| self.memory_step(verb, words));
        outcome.unwrap_or_else(|| misused(&format!("{verb} is not a step")))
    }

    /// The driver with a current context on this program's card, or the error code.
    pub(crate) fn driver(&mut self) -> Result<&Driver, i32> {
        if !self.started {
            self.start()?;
            self.started = true;
        }
        self.driver.as_ref().ok_or(NO_DEVICE)
    }

    /// The driver, initialised or not.
    pub(crate) fn bare_driver(&self) -> Result<&Driver, i32> {
        self.driver.as_ref().ok_or(NO_DEVICE)
    }

    /// Retains the card's primary context and makes it current.
    pub(crate) fn start(&mut self) -> Result<(), i32> {
        let driver = self.driver.as_ref().ok_or(NO_DEVICE)?;
        let mut context = 0;
        result(driver.cuInit(0))?;
        result(driver.cuDevicePrimaryCtxRetain(Some(&mut context), self.device))?;
        result(driver.cuCtxSetCurrent(context))?;
        self.started = true;
        Ok(())
    }
}

/// A result code as a result.
pub(crate) fn result(code: i32) -> Result<(), i32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// Ends a program whose script is wrong.
pub(crate) fn misused(what: &str) -> ! {
    eprintln!("victim: {what}");
    std::process::exit(64)
}
