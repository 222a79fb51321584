//! The steps by which memory is kept without handles and addresses: tiles of sparse arrays, and multicast objects.

use crate::driver::{Array3dDescriptor, WholeArrayMap};
use crate::memory::UNTOUCHED;
use crate::objects::VictimObject;
use crate::script::{ScriptWords, StepOutcome, VictimProgram};

impl VictimProgram {
    /// A step about these objects. `None` for other verbs.
    pub(crate) fn hold_step(&mut self, verb: &str, words: &mut ScriptWords) -> Option<StepOutcome> {
        let done = match verb {
            "sparse" => self.sparse(words.bytes()),
            "tile" => self.tile(words.number(), Some(words.number())),
            "untile" => self.tile(words.number(), None),
            "multicast" => self.multicast(words.bytes()),
            "bind" => self.bind(words.number(), words.number()),
            "unbind" => self.unbind(words.number()),
            _ => return None,
        };
        Some(done.unwrap_or_else(StepOutcome::of))
    }

    fn sparse(&mut self, bytes: usize) -> Result<StepOutcome, i32> {
        let mut array = UNTOUCHED as usize;
        let driver = self.driver()?;
        let code = driver.cuArray3DCreate_v2(Some(&mut array), &Array3dDescriptor::sparse(bytes));
        Ok(self.kept(code, array as u64, VictimObject::Array(array)))
    }

    /// Maps physical memory to a whole array, or unmaps it.
    fn tile(&mut self, array: u64, memory: Option<u64>) -> Result<StepOutcome, i32> {
        let VictimObject::Array(array) = self.objects.get(array) else {
            return Err(-1);
        };
        let handle = match memory.map(|number| self.objects.get(number)) {
            Some(VictimObject::Handle(handle, _)) => Some(handle),
            Some(_) => return Err(-1),
            None => None,
        };
        let tile = WholeArrayMap::of(array, handle);
        Ok(StepOutcome::of(
            self.driver()?.cuMemMapArrayAsync(&tile, 1, 0),
        ))
    }

    /// Creates a multicast object for memory of one card.
    fn multicast(&mut self, bytes: usize) -> Result<StepOutcome, i32> {
        let mut object = UNTOUCHED;
        let device = self.device;
        let driver = self.driver()?;
        let mut code = driver.cuMulticastCreate(Some(&mut object), &[1, bytes as u64, 0, 0]);
        if code == 0 {
            code = driver.cuMulticastAddDevice(object, device);
        }
        Ok(self.kept(code, object, VictimObject::Handle(object, bytes)))
    }

    /// Binds memory, by its handle or by an address where it is mapped.
    fn bind(&mut self, object: u64, memory: u64) -> Result<StepOutcome, i32> {
        let VictimObject::Handle(object, _) = self.objects.get(object) else {
            return Err(-1);
        };
        let memory = self.objects.get(memory);
        let driver = self.driver()?;
        Ok(StepOutcome::of(match memory {
            VictimObject::Handle(handle, bytes) => {
                driver.cuMulticastBindMem(object, 0, handle, 0, bytes, 0)
            }
            VictimObject::Mapping(address, bytes) => {
                driver.cuMulticastBindAddr(object, 0, address, bytes, 0)
            }
            _ => return Err(-1),
        }))
    }

    /// Unbinds the whole size of an object.
    fn unbind(&mut self, object: u64) -> Result<StepOutcome, i32> {
        let VictimObject::Handle(object, bytes) = self.objects.get(object) else {
            return Err(-1);
        };
        let device = self.device;
        let code = self.driver()?.cuMulticastUnbind(object, device, 0, bytes);
        Ok(StepOutcome::of(code))
    }
}
