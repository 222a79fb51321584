//! A program on the first card: both libraries, the primary context, and NVML's numbers for it.

use std::ffi::{CString, c_void};
use std::process;

use crate::code::ResultCode;
use crate::layout::{CardMemory, CardMemoryV2, DEVICE, Location, RunningProcess};
use crate::library::{Cuda, Nvml};
use crate::record::{CaseError, CaseReport};

pub(crate) const MIB: usize = 1 << 20;
/// A value that no output has by chance.
pub(crate) const UNTOUCHED: u64 = 0x5afe_5afe_5afe_5afe;

/// Both libraries, initialised, without a context.
#[derive(Debug)]
pub(crate) struct DriverSession {
    pub(crate) cuda: Cuda,
    pub(crate) nvml: Nvml,
    pub(crate) device: i32,
    card: usize,
}

/// Makes a call that must succeed for the case to continue.
pub(crate) fn must(what: &'static str, code: ResultCode) -> Result<(), CaseError> {
    if code.succeeded() {
        Ok(())
    } else {
        Err(CaseError::Call(what, code))
    }
}

/// Initialises the driver for a case that needs no card. Reports if there is none.
pub(crate) fn start_without_card(report: &CaseReport, cuda: &Cuda) -> Result<(), CaseError> {
    let code = cuda.init(0);
    report.observed("cuInit", code);
    match code {
        ResultCode::NO_DEVICE => Ok(()),
        code => must("cuInit", code),
    }
}

/// A UUID as text, in NVML's form.
pub(crate) fn uuid_text(uuid: [u8; 16]) -> CString {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &hex[range]);
    CString::new(format!("GPU-{}", groups.join("-"))).expect("hexadecimal digits have no NUL")
}

impl DriverSession {
    /// Initialises both libraries and finds the first card in each.
    pub(crate) fn open() -> Result<Self, CaseError> {
        let (cuda, nvml) = (Cuda::open()?, Nvml::open()?);
        must("cuInit", cuda.init(0))?;
        must("nvmlInit_v2", nvml.init())?;
        let mut device = -1;
        must("cuDeviceGet", cuda.device(Some(&mut device), 0))?;
        let (mut uuid, mut card) = ([0; 16], 0);
        must("cuDeviceGetUuid", cuda.device_uuid(Some(&mut uuid), device))?;
        let text = uuid_text(uuid);
        must(
            "nvmlDeviceGetHandleByUUID",
            nvml.by_uuid(text.as_ptr(), Some(&mut card)),
        )?;
        Ok(Self {
            cuda,
            nvml,
            device,
            card,
        })
    }

    /// Like [`DriverSession::open`], and makes the card's primary context current.
    pub(crate) fn start() -> Result<Self, CaseError> {
        let session = Self::open()?;
        session.retain()?;
        Ok(session)
    }

    /// Retains the primary context and makes it current.
    pub(crate) fn retain(&self) -> Result<usize, CaseError> {
        let mut context = 0;
        let retained = self.cuda.primary_retain(Some(&mut context), self.device);
        must("cuDevicePrimaryCtxRetain", retained)?;
        must("cuCtxSetCurrent", self.cuda.context_set(context))?;
        Ok(context)
    }

    /// The first card as a memory location.
    pub(crate) fn location(&self) -> Location {
        Location {
            kind: DEVICE,
            id: self.device,
        }
    }

    /// Allocates linear memory.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<u64, CaseError> {
        let mut address = 0;
        must("cuMemAlloc_v2", self.cuda.alloc(Some(&mut address), bytes))?;
        Ok(address)
    }

    /// Free and total memory according to CUDA.
    pub(crate) fn memory_info(&self) -> Result<(usize, usize), CaseError> {
        let (mut free, mut total) = (0, 0);
        let code = self.cuda.memory_info(Some(&mut free), Some(&mut total));
        must("cuMemGetInfo_v2", code)?;
        Ok((free, total))
    }

    /// The card's memory according to NVML.
    pub(crate) fn card_memory(&self) -> Result<(CardMemory, CardMemoryV2), CaseError> {
        let (mut first, mut second) = (CardMemory::default(), CardMemoryV2::default());
        must(
            "nvmlDeviceGetMemoryInfo",
            self.nvml.memory(self.card, Some(&mut first)),
        )?;
        must(
            "nvmlDeviceGetMemoryInfo_v2",
            self.nvml.memory_v2(self.card, Some(&mut second)),
        )?;
        Ok((first, second))
    }

    /// The processes that NVML lists for the card.
    pub(crate) fn running(&self) -> Result<Vec<RunningProcess>, CaseError> {
        let mut list = vec![RunningProcess::default(); 256];
        let mut count = list.len() as u32;
        let code = self
            .nvml
            .running(self.card, Some(&mut count), list.as_mut_ptr());
        must("nvmlDeviceGetComputeRunningProcesses_v3", code)?;
        list.truncate(count as usize);
        Ok(list)
    }

    /// Whether NVML lists this process. Inside a container it may not.
    pub(crate) fn is_visible(&self) -> Result<bool, CaseError> {
        Ok(self.running()?.iter().any(|one| one.pid == process::id()))
    }

    /// The memory that NVML counts for this process, or for the whole card if it does not list the process.
    pub(crate) fn usage(&self) -> Result<i64, CaseError> {
        let named = self.is_visible()?;
        self.usage_if(named)
    }

    /// Like [`DriverSession::usage`], for a process that NVML lists only while it has a context. Without one it uses
    /// nothing.
    pub(crate) fn usage_if(&self, named: bool) -> Result<i64, CaseError> {
        let own = self
            .running()?
            .into_iter()
            .find(|one| one.pid == process::id());
        let used = match own {
            Some(own) => own.used,
            None if named => 0,
            None => self.card_memory()?.0.used,
        };
        Ok(i64::try_from(used).unwrap_or(i64::MAX))
    }

    /// By how much `step` changes the memory that NVML counts.
    pub(crate) fn growth(
        &self,
        step: impl FnOnce() -> Result<(), CaseError>,
    ) -> Result<i64, CaseError> {
        let before = self.usage()?;
        step()?;
        Ok(self.usage()? - before)
    }

    /// Writes and reads back every byte of `bytes` at `address`.
    pub(crate) fn keeps_data(&self, report: &CaseReport, fact: &str, address: u64, bytes: usize) {
        let sent: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect();
        let mut back = vec![0_u8; bytes];
        let codes = [
            self.cuda
                .copy_in(address, sent.as_ptr().cast::<c_void>(), bytes),
            self.cuda
                .copy_out(back.as_mut_ptr().cast::<c_void>(), address, bytes),
        ];
        report.holds(
            fact,
            codes == [ResultCode::SUCCESS; 2] && back == sent,
            codes,
        );
    }
}
