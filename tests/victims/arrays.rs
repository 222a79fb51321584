//! The steps that create arrays and mipmapped arrays.

use crate::driver::Array3dDescriptor;
use crate::memory::UNTOUCHED;
use crate::objects::VictimObject;
use crate::script::{ScriptWords, StepOutcome, VictimProgram};

impl VictimProgram {
    /// A step that creates an array. `None` for other verbs.
    pub(crate) fn array_step(
        &mut self,
        verb: &str,
        words: &mut ScriptWords,
    ) -> Option<StepOutcome> {
        let done = match verb {
            "array" | "mipmaps" => self.array(verb, words.bytes()),
            "rows" => self.rows(words.bytes()),
            _ => return None,
        };
        Some(done.unwrap_or_else(StepOutcome::of))
    }

    /// An array of `bytes` bytes, or one of two levels of which the first has `bytes` bytes.
    fn array(&mut self, verb: &str, bytes: usize) -> Result<StepOutcome, i32> {
        let shape = Array3dDescriptor::of(bytes);
        let driver = self.driver()?;
        let mut array = UNTOUCHED as usize;
        let (code, object): (_, fn(usize) -> VictimObject) = match verb {
            "array" => (
                driver.cuArray3DCreate_v2(Some(&mut array), &shape),
                VictimObject::Array,
            ),
            _ => (
                driver.cuMipmappedArrayCreate(Some(&mut array), &shape, 2),
                VictimObject::Mipmaps,
            ),
        };
        Ok(self.kept(code, array as u64, object(array)))
    }

    fn rows(&mut self, bytes: usize) -> Result<StepOutcome, i32> {
        const ROW: usize = 64 << 10;
        let (mut address, mut pitch) = (UNTOUCHED, 0);
        let driver = self.driver()?;
        let (address_place, pitch_place) = (Some(&mut address), Some(&mut pitch));
        let code = driver.cuMemAllocPitch_v2(address_place, pitch_place, ROW, bytes / ROW, 4);
        Ok(self.kept(code, address, VictimObject::Plain(address)))
    }
}
