//! The steps that query cards and create contexts on them.

use crate::driver::{Driver, NOT_FOUND};
use crate::nvml;
use crate::objects::VictimObject;
use crate::script::{ScriptWords, StepOutcome, VictimProgram, result};

/// The value of an output before the call.
const UNTOUCHED: usize = 0x5a5a;

impl VictimProgram {
    /// A step about cards and contexts. `None` for other verbs.
    pub(crate) fn card_step(&mut self, verb: &str, words: &mut ScriptWords) -> Option<StepOutcome> {
        let done = match verb {
            "init" => self
                .bare_driver()
                .map(|driver| StepOutcome::of(driver.cuInit(0))),
            "start" => self.start().map(|()| StepOutcome::of(0)),
            "on" => {
                self.device = i32::try_from(words.number()).unwrap_or(-1);
                self.start().map(|()| StepOutcome::of(0))
            }
            "count" => self.count(),
            "uuid" => self.uuid(),
            "info" => self.info(),
            "infonull" => self
                .driver()
                .map(|driver| StepOutcome::of(driver.cuMemGetInfo_v2(None, None))),
            "total" => self.total(),
            "nvml" => nvml::memory(self.uuid_text().ok(), self.device),
            "nvml2" => nvml::memory_v2(self.uuid_text().ok(), self.device),
            "context" => self.context(),
            "uncontext" => self.uncontext(),
            "green" => self.green(),
            "release" => self.card(|driver, device| driver.cuDevicePrimaryCtxRelease_v2(device)),
            "reset" => self.card(|driver, device| driver.cuDevicePrimaryCtxReset_v2(device)),
            "errorname" => Ok(StepOutcome::of(match Driver::error_name(2) {
                Some(name) if name == "CUDA_ERROR_OUT_OF_MEMORY" => 0,
                Some(_) | None => NOT_FOUND,
            })),
            _ => return None,
        };
        Some(done.unwrap_or_else(StepOutcome::of))
    }

    fn card(&mut self, ask: impl FnOnce(&Driver, i32) -> i32) -> Result<StepOutcome, i32> {
        let device = self.device;
        let driver = self.bare_driver()?;
        result(driver.cuInit(0))?;
        Ok(StepOutcome::of(ask(driver, device)))
    }

    fn count(&mut self) -> Result<StepOutcome, i32> {
        let mut count = 0;
        let done = self.card(|driver, _| driver.cuDeviceGetCount(Some(&mut count)))?;
        Ok(StepOutcome::with(
            done.code,
            [u64::from(count.unsigned_abs())],
        ))
    }

    /// The UUID of the card as two numbers.
    fn uuid(&mut self) -> Result<StepOutcome, i32> {
        let bytes = self.uuid_bytes()?;
        let number = u128::from_be_bytes(bytes);
        Ok(StepOutcome::with(0, [(number >> 64) as u64, number as u64]))
    }

    fn uuid_bytes(&mut self) -> Result<[u8; 16], i32> {
        let mut bytes = [0; 16];
        let done =
            self.card(|driver, device| driver.cuDeviceGetUuid_v2(Some(&mut bytes), device))?;
        result(done.code).map(|()| bytes)
    }

    fn uuid_text(&mut self) -> Result<String, i32> {
        let hex = format!("{:032x}", u128::from_be_bytes(self.uuid_bytes()?));
        let parts = [
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..],
        ];
        Ok(format!("GPU-{}", parts.join("-")))
    }

    /// Free and total bytes of `cuMemGetInfo`.
    fn info(&mut self) -> Result<StepOutcome, i32> {
        let (mut free, mut total) = (UNTOUCHED, UNTOUCHED);
        let code = self
            .driver()?
            .cuMemGetInfo_v2(Some(&mut free), Some(&mut total));
        Ok(StepOutcome::with(code, [free as u64, total as u64]))
    }

    fn total(&mut self) -> Result<StepOutcome, i32> {
        let mut bytes = UNTOUCHED;
        let done =
            self.card(|driver, device| driver.cuDeviceTotalMem_v2(Some(&mut bytes), device))?;
        Ok(StepOutcome::with(done.code, [bytes as u64]))
    }

    fn context(&mut self) -> Result<StepOutcome, i32> {
        let mut context = UNTOUCHED;
        let done =
            self.card(|driver, device| driver.cuCtxCreate_v2(Some(&mut context), 0, device))?;
        if done.code == 0 {
            self.contexts.push(context);
            return Ok(StepOutcome::with(0, [self.contexts.len() as u64]));
        }
        Ok(StepOutcome::with(
            done.code,
            [u64::from(context == UNTOUCHED)],
        ))
    }

    /// Creates a green context with all multiprocessors of the card.
    fn green(&mut self) -> Result<StepOutcome, i32> {
        const MULTIPROCESSORS: u32 = 1;
        let (mut context, mut description) = (UNTOUCHED, 0);
        let mut all = [0; 18];
        self.card(|driver, device| {
            driver.cuDeviceGetDevResource(device, &mut all, MULTIPROCESSORS)
        })?;
        self.card(|driver, _| {
            driver.cuDevResourceGenerateDesc(Some(&mut description), &mut all, 1)
        })?;
        let done = self.card(|driver, device| {
            driver.cuGreenCtxCreate(Some(&mut context), description, device, 1)
        })?;
        let object = VictimObject::Green(context);
        Ok(match done.code {
            0 => StepOutcome::with(0, [self.objects.keep(object)]),
            code => StepOutcome::with(code, [u64::from(context == UNTOUCHED)]),
        })
    }

    /// Destroys the context that was created last.
    fn uncontext(&mut self) -> Result<StepOutcome, i32> {
        let context = self.contexts.pop().unwrap_or_default();
        self.card(|driver, _| driver.cuCtxDestroy_v2(context))
    }
}
