//! The steps that make arrays, and rows that are padded.

use crate::driver::ArrayShape;
use crate::memory::UNTOUCHED;
use crate::objects::Object;
use crate::script::{Outcome, Victim, Words};

impl Victim {
    /// A step that makes an array; `None` for other verbs.
    pub(crate) fn array_step(&mut self, verb: &str, words: &mut Words) -> Option<Outcome> {
        let done = match verb {
            "array" | "mipmaps" => self.array(verb, words.bytes()),
            "rows" => self.rows(words.bytes()),
            _ => return None,
        };
        Some(done.unwrap_or_else(Outcome::of))
    }

    /// An array of so many bytes, or one whose first of two levels has so many.
    fn array(&mut self, verb: &str, bytes: usize) -> Result<Outcome, i32> {
        let shape = ArrayShape::of(bytes);
        let driver = self.driver()?;
        let mut array = UNTOUCHED as usize;
        let (code, object): (_, fn(usize) -> Object) = match verb {
            "array" => (
                driver.cuArray3DCreate_v2(Some(&mut array), &shape),
                Object::Array,
            ),
            _ => (
                driver.cuMipmappedArrayCreate(Some(&mut array), &shape, 2),
                Object::Mipmaps,
            ),
        };
        Ok(self.kept(code, array as u64, object(array)))
    }

    fn rows(&mut self, bytes: usize) -> Result<Outcome, i32> {
        const ROW: usize = 64 << 10;
        let (mut address, mut pitch) = (UNTOUCHED, 0);
        let driver = self.driver()?;
        let (address_place, pitch_place) = (Some(&mut address), Some(&mut pitch));
        let code = driver.cuMemAllocPitch_v2(address_place, pitch_place, ROW, bytes / ROW, 4);
        Ok(self.kept(code, address, Object::Plain(address)))
    }
}
