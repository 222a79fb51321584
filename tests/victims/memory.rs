//! The steps that allocate and free memory. A refused step reports whether the driver's outputs were left unchanged (1)
//! or written (0).

use crate::driver::{
    AccessDesc, AllocationLocation, AllocationProperties, NO_DEVICE, PoolProperties,
};
use crate::graphs;
use crate::objects::VictimObject;
use crate::script::{ScriptWords, StepOutcome, VictimProgram, result};
use crate::symbols;

/// The value of an output before the call.
pub(crate) const UNTOUCHED: u64 = 0x5a5a_5a5a_5a5a_5a5a;
/// The granularity of physical memory.
const GRANULE: usize = 2 << 20;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: i32 = 4;

impl VictimProgram {
    /// A step about memory. `None` for other verbs.
    pub(crate) fn memory_step(
        &mut self,
        verb: &str,
        words: &mut ScriptWords,
    ) -> Option<StepOutcome> {
        let done = match verb {
            "alloc" | "managed" | "async" => {
                let bytes = words.bytes();
                self.allocate(verb, bytes)
            }
            "unasked" => self.take_unasked(words.bytes()),
            "pitch" => self.pitch(words.bytes(), words.bytes()),
            "fill" => self.fill(words.bytes()),
            "take" => self.take(words.number()),
            "create" => self.create(words.bytes(), false),
            "hostcreate" => self.create(words.bytes(), true),
            "map" => self.map(words.number()),
            "retainhandle" => self.retain(words.number()),
            "pool" => self.pool(words.bytes() as u64),
            "poolalloc" => self.pool_allocate(words.number(), words.bytes()),
            "trim" => self.trim(words.number(), words.bytes()),
            "free" => self.free(words.number()),
            "freetwice" => self.free_twice(words.number()),
            "freeunknown" => self
                .driver()
                .map(|driver| StepOutcome::of(driver.cuMemFree_v2(0xdead_0000))),
            "allocnull" => self
                .driver()
                .map(|driver| StepOutcome::of(driver.cuMemAlloc_v2(None, GRANULE))),
            "touch" => self.touch(words.number()),
            "sync" => self
                .driver()
                .map(|driver| StepOutcome::of(driver.cuCtxSynchronize())),
            "threads" => self.threads(words.number(), words.bytes()),
            _ => return None,
        };
        Some(done.unwrap_or_else(StepOutcome::of))
    }

    /// Allocates without the hooks, as a driver does that loads code lazily.
    fn take_unasked(&mut self, bytes: usize) -> Result<StepOutcome, i32> {
        self.driver()?;
        let driver = symbols::driver("libcuda.so.1").ok_or(NO_DEVICE)?;
        let mut pointer = UNTOUCHED;
        Ok(StepOutcome::of(
            driver.cuMemAlloc_v2(Some(&mut pointer), bytes),
        ))
    }

    fn allocate(&mut self, verb: &str, bytes: usize) -> Result<StepOutcome, i32> {
        let driver = self.driver()?;
        let mut pointer = UNTOUCHED;
        let code = match verb {
            "alloc" => driver.cuMemAlloc_v2(Some(&mut pointer), bytes),
            "managed" => driver.cuMemAllocManaged(Some(&mut pointer), bytes, 1),
            _ => driver.cuMemAllocAsync(Some(&mut pointer), bytes, 0),
        };
        let object = if verb == "async" {
            VictimObject::Pooled(pointer)
        } else {
            VictimObject::Plain(pointer)
        };
        Ok(self.kept(code, pointer, object))
    }

    /// Keeps a new object, or reports whether the output was left unchanged.
    pub(crate) fn kept(&mut self, code: i32, output: u64, object: VictimObject) -> StepOutcome {
        match code {
            0 => StepOutcome::with(0, [self.objects.keep(object)]),
            _ => StepOutcome::with(code, [u64::from(output == UNTOUCHED)]),
        }
    }

    fn pitch(&mut self, width: usize, height: usize) -> Result<StepOutcome, i32> {
        let (mut pointer, mut pitch) = (UNTOUCHED, UNTOUCHED as usize);
        let driver = self.driver()?;
        let code =
            driver.cuMemAllocPitch_v2(Some(&mut pointer), Some(&mut pitch), width, height, 4);
        if code != 0 {
            let untouched = pointer == UNTOUCHED && pitch == UNTOUCHED as usize;
            return Ok(StepOutcome::with(code, [u64::from(untouched)]));
        }
        Ok(StepOutcome::with(
            0,
            [
                self.objects.keep(VictimObject::Plain(pointer)),
                pitch as u64,
            ],
        ))
    }

    /// Allocates pieces until one is refused. Returns the refusal, the bytes and the pieces.
    fn fill(&mut self, piece: usize) -> Result<StepOutcome, i32> {
        for pieces in 0u64.. {
            let mut pointer = UNTOUCHED;
            let code = self.driver()?.cuMemAlloc_v2(Some(&mut pointer), piece);
            if code != 0 {
                return Ok(StepOutcome::with(code, [pieces * piece as u64, pieces]));
            }
            self.objects.keep(VictimObject::Plain(pointer));
        }
        Err(-1)
    }

    /// Allocates a percentage of the reported free memory in one piece, as vLLM, JAX and TensorFlow do.
    fn take(&mut self, percent: u64) -> Result<StepOutcome, i32> {
        let (mut free, mut total) = (0, 0);
        result(
            self.driver()?
                .cuMemGetInfo_v2(Some(&mut free), Some(&mut total)),
        )?;
        let bytes = (free as u64 * percent / 100) as usize;
        let outcome = self.allocate("alloc", bytes)?;
        Ok(StepOutcome::with(outcome.code, [bytes as u64]))
    }

    fn create(&mut self, bytes: usize, in_host: bool) -> Result<StepOutcome, i32> {
        let device = self.device;
        let location = if in_host {
            AllocationLocation::host()
        } else {
            AllocationLocation::card(device)
        };
        let mut handle = UNTOUCHED;
        let properties = AllocationProperties::at(location);
        let code = self
            .driver()?
            .cuMemCreate(Some(&mut handle), bytes, &properties, 0);
        Ok(self.kept(code, handle, VictimObject::Handle(handle, bytes)))
    }

    fn map(&mut self, number: u64) -> Result<StepOutcome, i32> {
        let VictimObject::Handle(handle, bytes) = self.objects.get(number) else {
            return Err(-1);
        };
        let access = AccessDesc::read_write(AllocationLocation::card(self.device));
        let driver = self.driver()?;
        let mut address = UNTOUCHED;
        result(driver.cuMemAddressReserve(Some(&mut address), bytes, GRANULE, 0, 0))?;
        result(driver.cuMemMap(address, bytes, 0, handle, 0))?;
        result(driver.cuMemSetAccess(address, bytes, &access, 1))?;
        Ok(self.kept(0, address, VictimObject::Mapping(address, bytes)))
    }

    fn retain(&mut self, number: u64) -> Result<StepOutcome, i32> {
        let VictimObject::Mapping(address, bytes) = self.objects.get(number) else {
            return Err(-1);
        };
        let mut handle = UNTOUCHED;
        let code = self
            .driver()?
            .cuMemRetainAllocationHandle(Some(&mut handle), address);
        Ok(self.kept(code, handle, VictimObject::Handle(handle, bytes)))
    }

    /// A pool with this release threshold.
    fn pool(&mut self, mut threshold: u64) -> Result<StepOutcome, i32> {
        let properties = PoolProperties::at(AllocationLocation::card(self.device));
        let driver = self.driver()?;
        let mut pool = UNTOUCHED as usize;
        let code = driver.cuMemPoolCreate(Some(&mut pool), &properties);
        if code == 0 {
            result(driver.cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, Some(&mut threshold)))?;
        }
        Ok(self.kept(code, pool as u64, VictimObject::Pool(pool)))
    }

    fn pool_allocate(&mut self, number: u64, bytes: usize) -> Result<StepOutcome, i32> {
        let VictimObject::Pool(pool) = self.objects.get(number) else {
            return Err(-1);
        };
        let mut pointer = UNTOUCHED;
        let code = self
            .driver()?
            .cuMemAllocFromPoolAsync(Some(&mut pointer), bytes, pool, 0);
        Ok(self.kept(code, pointer, VictimObject::Pooled(pointer)))
    }

    fn trim(&mut self, number: u64, keep: usize) -> Result<StepOutcome, i32> {
        let VictimObject::Pool(pool) = self.objects.get(number) else {
            return Err(-1);
        };
        Ok(StepOutcome::of(self.driver()?.cuMemPoolTrimTo(pool, keep)))
    }

    fn free(&mut self, number: u64) -> Result<StepOutcome, i32> {
        let object = self.objects.get(number);
        let driver = self.driver()?;
        let code = match object {
            VictimObject::Plain(pointer) => driver.cuMemFree_v2(pointer),
            VictimObject::Pooled(pointer) => driver.cuMemFreeAsync(pointer, 0),
            VictimObject::Handle(handle, _) => driver.cuMemRelease(handle),
            VictimObject::Mapping(address, bytes) => {
                result(driver.cuMemUnmap(address, bytes))?;
                driver.cuMemAddressFree(address, bytes)
            }
            VictimObject::Pool(pool) => driver.cuMemPoolDestroy(pool),
            VictimObject::Module(module) => driver.cuModuleUnload(module),
            VictimObject::Graph(exec, graph, address) => {
                graphs::destroy(driver, exec, graph, address)
            }
            VictimObject::Green(context) => driver.cuGreenCtxDestroy(context),
            VictimObject::Library(library) => driver.cuLibraryUnload(library),
            VictimObject::Array(array) => driver.cuArrayDestroy(array),
            VictimObject::Mipmaps(array) => driver.cuMipmappedArrayDestroy(array),
            VictimObject::Opened(address) => driver.cuIpcCloseMemHandle(address),
            VictimObject::Gone => return Err(-1),
        };
        self.objects.forget(number);
        Ok(StepOutcome::of(code))
    }

    /// Frees linear memory twice. Returns both results.
    fn free_twice(&mut self, number: u64) -> Result<StepOutcome, i32> {
        let VictimObject::Plain(pointer) = self.objects.get(number) else {
            return Err(-1);
        };
        let driver = self.driver()?;
        let first = driver.cuMemFree_v2(pointer);
        let second = driver.cuMemFree_v2(pointer);
        self.objects.forget(number);
        Ok(StepOutcome::with(first, [u64::from(second.unsigned_abs())]))
    }

    /// Writes to the start of memory and reads it back.
    fn touch(&mut self, number: u64) -> Result<StepOutcome, i32> {
        let address = match self.objects.get(number) {
            VictimObject::Plain(address)
            | VictimObject::Pooled(address)
            | VictimObject::Opened(address)
            | VictimObject::Mapping(address, _) => address,
            VictimObject::Handle(..)
            | VictimObject::Pool(_)
            | VictimObject::Module(_)
            | VictimObject::Library(_)
            | VictimObject::Green(_)
            | VictimObject::Graph(..)
            | VictimObject::Array(_)
            | VictimObject::Mipmaps(_)
            | VictimObject::Gone => return Err(-1),
        };
        let driver = self.driver()?;
        let mut read = 0;
        result(driver.cuMemsetD8_v2(address, 0xab, size_of::<u64>()))?;
        let code = driver.cuMemcpyDtoH_v2(Some(&mut read), address, size_of::<u64>());
        Ok(StepOutcome::with(
            code,
            [u64::from(read == 0xabab_abab_abab_abab)],
        ))
    }

    /// Threads that allocate at the same time. Returns how many succeeded.
    fn threads(&mut self, count: u64, bytes: usize) -> Result<StepOutcome, i32> {
        let driver = self.driver()?;
        let mut context = 0;
        result(driver.cuDevicePrimaryCtxRetain(Some(&mut context), 0))?;
        let given = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|_| {
                    scope.spawn(|| {
                        let mut pointer = UNTOUCHED;
                        result(driver.cuCtxSetCurrent(context))?;
                        result(driver.cuMemAlloc_v2(Some(&mut pointer), bytes))
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join())
                .filter(|end| matches!(end, Ok(Ok(()))))
                .count()
        });
        Ok(StepOutcome::with(0, [given as u64]))
    }
}
