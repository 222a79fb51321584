//! What the machine answers to NVML.

use crate::machine::Machine;
use crate::{NvmlRefusal, NvmlReply, NvmlRequest, Pid};

impl Machine {
    pub(crate) fn answer_nvml(&mut self, _pid: Pid, _request: NvmlRequest) -> NvmlReply {
        NvmlReply::Refused(NvmlRefusal::NotSupported)
    }
}
