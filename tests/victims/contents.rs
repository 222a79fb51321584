//! The steps about what is in memory: `mark` writes a pattern of this process into linear memory, and `check` compares.

use crate::objects::VictimObject;
use crate::script::{ScriptWords, StepOutcome, VictimProgram, result};

/// One place in each such piece is written and compared.
const STRIDE: usize = 2 << 20;
/// How many bytes of a place.
const WIDTH: usize = size_of::<u64>();

impl VictimProgram {
    /// A step about contents. `None` for other verbs.
    pub(crate) fn content_step(
        &mut self,
        verb: &str,
        words: &mut ScriptWords,
    ) -> Option<StepOutcome> {
        let done = match verb {
            "mark" => self.mark(words.number(), words.bytes()),
            "check" => self.check(words.number(), words.bytes()),
            _ => return None,
        };
        Some(done.unwrap_or_else(StepOutcome::of))
    }

    fn mark(&mut self, number: u64, bytes: usize) -> Result<StepOutcome, i32> {
        let VictimObject::Plain(address) = self.objects.get(number) else {
            return Err(-1);
        };
        let driver = self.driver()?;
        for at in (0..bytes).step_by(STRIDE) {
            result(driver.cuMemsetD8_v2(address + at as u64, pattern(at), WIDTH))?;
        }
        Ok(StepOutcome::of(0))
    }

    /// Returns the number of places that are not as they were marked.
    fn check(&mut self, number: u64, bytes: usize) -> Result<StepOutcome, i32> {
        let VictimObject::Plain(address) = self.objects.get(number) else {
            return Err(-1);
        };
        let driver = self.driver()?;
        let mut changed = 0;
        for at in (0..bytes).step_by(STRIDE) {
            let mut read = 0_u64;
            result(driver.cuMemcpyDtoH_v2(Some(&mut read), address + at as u64, WIDTH))?;
            changed += u64::from(read != u64::from_ne_bytes([pattern(at); WIDTH]));
        }
        Ok(StepOutcome::with(0, [changed]))
    }
}

/// The byte at a place, which differs between processes.
fn pattern(at: usize) -> u8 {
    let place = (at / STRIDE) as u64 + (u64::from(std::process::id()) << 20);
    place.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0]
}
