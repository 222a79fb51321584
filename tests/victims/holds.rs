//! The steps by which memory is held otherwise than by handles and addresses: tiles of sparse arrays, and
//! multicast objects.

use crate::driver::{ArrayMap, ArrayShape};
use crate::memory::UNTOUCHED;
use crate::objects::Object;
use crate::script::{Outcome, Victim, Words};

impl Victim {
    /// A step that concerns such holders; `None` for other verbs.
    pub(crate) fn hold_step(&mut self, verb: &str, words: &mut Words) -> Option<Outcome> {
        let done = match verb {
            "sparse" => self.sparse(words.bytes()),
            "tile" => self.tile(words.number(), Some(words.number())),
            "untile" => self.tile(words.number(), None),
            "multicast" => self.multicast(words.bytes()),
            "bind" => self.bind(words.number(), words.number()),
            "unbind" => self.unbind(words.number()),
            _ => return None,
        };
        Some(done.unwrap_or_else(Outcome::of))
    }

    fn sparse(&mut self, bytes: usize) -> Result<Outcome, i32> {
        let mut array = UNTOUCHED as usize;
        let driver = self.driver()?;
        let code = driver.cuArray3DCreate_v2(Some(&mut array), &ArrayShape::sparse(bytes));
        Ok(self.kept(code, array as u64, Object::Array(array)))
    }

    /// Maps physical memory into all of an array, or unmaps what is there.
    fn tile(&mut self, array: u64, memory: Option<u64>) -> Result<Outcome, i32> {
        let Object::Array(array) = self.objects.get(array) else {
            return Err(-1);
        };
        let handle = match memory.map(|number| self.objects.get(number)) {
            Some(Object::Handle(handle, _)) => Some(handle),
            Some(_) => return Err(-1),
            None => None,
        };
        let tile = ArrayMap::of(array, handle);
        Ok(Outcome::of(self.driver()?.cuMemMapArrayAsync(&tile, 1, 0)))
    }

    /// An object for memory of one card.
    fn multicast(&mut self, bytes: usize) -> Result<Outcome, i32> {
        let mut object = UNTOUCHED;
        let device = self.device;
        let driver = self.driver()?;
        let mut code = driver.cuMulticastCreate(Some(&mut object), &[1, bytes as u64, 0, 0]);
        if code == 0 {
            code = driver.cuMulticastAddDevice(object, device);
        }
        Ok(self.kept(code, object, Object::Handle(object, bytes)))
    }

    /// Binds memory by its handle or by an address that it is mapped at.
    fn bind(&mut self, object: u64, memory: u64) -> Result<Outcome, i32> {
        let Object::Handle(object, _) = self.objects.get(object) else {
            return Err(-1);
        };
        let memory = self.objects.get(memory);
        let driver = self.driver()?;
        Ok(Outcome::of(match memory {
            Object::Handle(handle, bytes) => {
                driver.cuMulticastBindMem(object, 0, handle, 0, bytes, 0)
            }
            Object::Mapping(address, bytes) => {
                driver.cuMulticastBindAddr(object, 0, address, bytes, 0)
            }
            _ => return Err(-1),
        }))
    }

    /// Unbinds as much as an object has room for.
    fn unbind(&mut self, object: u64) -> Result<Outcome, i32> {
        let Object::Handle(object, bytes) = self.objects.get(object) else {
            return Err(-1);
        };
        let device = self.device;
        let code = self.driver()?.cuMulticastUnbind(object, device, 0, bytes);
        Ok(Outcome::of(code))
    }
}
