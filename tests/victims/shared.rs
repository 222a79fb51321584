//! The steps for memory that processes share. A child inherits a descriptor, and `fetch` takes one from another
//! process, as PyTorch does.

use crate::driver::{AllocationLocation, AllocationProperties, IpcHandle};
use crate::memory::UNTOUCHED;
use crate::objects::VictimObject;
use crate::script::{ScriptWords, StepOutcome, VictimProgram};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: u32 = 1;

impl VictimProgram {
    /// A step about shared memory. `None` for other verbs.
    pub(crate) fn shared_step(
        &mut self,
        verb: &str,
        words: &mut ScriptWords,
    ) -> Option<StepOutcome> {
        let done = match verb {
            "shareable" => self.create_shareable(words.bytes()),
            "export" => self.export(words.number()),
            "buffer" => self.buffer(words.number(), words.bytes()),
            "import" => self.import(words.number()),
            "handle" => self.handle(words.number()),
            "open" => self.open([(); 8].map(|()| words.number())),
            "fetch" => Ok(fetch(words.number(), words.number())),
            "close" => Ok(close(words.number())),
            _ => return None,
        };
        Some(done.unwrap_or_else(StepOutcome::of))
    }

    fn create_shareable(&mut self, bytes: usize) -> Result<StepOutcome, i32> {
        let properties = AllocationProperties::shareable(AllocationLocation::card(self.device));
        let mut handle = UNTOUCHED;
        let code = self
            .driver()?
            .cuMemCreate(Some(&mut handle), bytes, &properties, 0);
        Ok(self.kept(code, handle, VictimObject::Handle(handle, bytes)))
    }

    /// Exports a descriptor, which children inherit.
    fn export(&mut self, number: u64) -> Result<StepOutcome, i32> {
        let VictimObject::Handle(handle, _) = self.objects.get(number) else {
            return Err(-1);
        };
        let mut descriptor = -1;
        let code = self.driver()?.cuMemExportToShareableHandle(
            Some(&mut descriptor),
            handle,
            DESCRIPTOR,
            0,
        );
        // SAFETY: the call touches no memory, and a descriptor that is not open is an error.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) };
        Ok(StepOutcome::with(
            code,
            [u64::from(descriptor.unsigned_abs())],
        ))
    }

    /// Exports a DMA buffer for the first bytes of memory.
    fn buffer(&mut self, number: u64, bytes: usize) -> Result<StepOutcome, i32> {
        let (VictimObject::Plain(address) | VictimObject::Mapping(address, _)) =
            self.objects.get(number)
        else {
            return Err(-1);
        };
        let mut descriptor = -1;
        let driver = self.driver()?;
        let code =
            driver.cuMemGetHandleForAddressRange(Some(&mut descriptor), address, bytes, 1, 0);
        Ok(StepOutcome::with(
            code,
            [u64::from(descriptor.unsigned_abs())],
        ))
    }

    fn import(&mut self, descriptor: u64) -> Result<StepOutcome, i32> {
        let mut handle = UNTOUCHED;
        let descriptor = usize::try_from(descriptor).map_err(|_| -1)?;
        let code = self.driver()?.cuMemImportFromShareableHandle(
            Some(&mut handle),
            descriptor,
            DESCRIPTOR,
        );
        Ok(self.kept(code, handle, VictimObject::Handle(handle, 0)))
    }
}

impl VictimProgram {
    /// Exports the IPC handle of linear memory.
    fn handle(&mut self, number: u64) -> Result<StepOutcome, i32> {
        let VictimObject::Plain(address) = self.objects.get(number) else {
            return Err(-1);
        };
        let mut handle = [0; 8];
        let driver = self.driver()?;
        let code = driver.cuIpcGetMemHandle(Some(&mut handle), address);
        Ok(StepOutcome::with(code, handle))
    }

    fn open(&mut self, handle: [u64; 8]) -> Result<StepOutcome, i32> {
        let mut address = UNTOUCHED;
        let driver = self.driver()?;
        let code = driver.cuIpcOpenMemHandle_v2(Some(&mut address), IpcHandle(handle), 1);
        Ok(self.kept(code, address, VictimObject::Opened(address)))
    }
}

/// Copies another process's descriptor.
fn fetch(pid: u64, descriptor: u64) -> StepOutcome {
    // SAFETY: the call takes two numbers.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: the call takes three numbers.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, descriptor, 0) };
    close(process.unsigned_abs());
    match u64::try_from(copy) {
        Ok(copy) => StepOutcome::with(0, [copy]),
        Err(_) => StepOutcome::of(-1),
    }
}

fn close(descriptor: u64) -> StepOutcome {
    let descriptor = i32::try_from(descriptor).unwrap_or(-1);
    // SAFETY: the script names a descriptor that it has got and does not use any more.
    StepOutcome::of(unsafe { libc::close(descriptor) })
}
