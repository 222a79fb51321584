//! Code on the card: memory that a program takes without an allocation call.

use std::ffi::CStr;

use crate::code::ResultCode;
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, must};

/// One kernel and a variable of 32 MiB, in PTX that every driver compiles.
const IMAGE: &CStr = c".version 6.4\n.target sm_75\n.address_size 64\n\
    .visible .global .align 4 .b8 room[33554432];\n.visible .entry nothing() { ret; }\n";

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let (cuda, start) = (&session.cuda, session.usage()?);
    let (mut module, mut function) = (0, 0);
    let code = cuda.module_load(Some(&mut module), IMAGE.as_ptr());
    must("cuModuleLoadData", code)?;
    report.observed(
        "loading 32 MiB of variables takes",
        session.usage()? - start,
    );
    let code = cuda.module_function(Some(&mut function), module, c"nothing".as_ptr());
    report.equals("its kernel is found", ResultCode::SUCCESS, code);
    report.observed("with its kernel it takes", session.usage()? - start);
    let code = cuda.module_function(None, module, c"nothing".as_ptr());
    report.equals("nowhere to write", ResultCode::INVALID_VALUE, code);
    report.observed(
        "a kernel that it has not",
        cuda.module_function(Some(&mut function), module, c"something".as_ptr())
            == ResultCode::NOT_FOUND,
    );
    must("cuModuleUnload", cuda.module_unload(module))?;
    report.observed("after unloading it takes", session.usage()? - start);
    Ok(())
}
