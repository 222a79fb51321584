//! Linking: code in parts becomes one image that can be loaded.

use std::ffi::CStr;
use std::ptr::null_mut;

use crate::code::ResultCode;
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, must};

/// `CU_JIT_INPUT_PTX`.
const PTX: u32 = 1;
/// A variable of 32 MiB, and a kernel.
const PARTS: [&CStr; 2] = [
    c".version 6.4\n.target sm_75\n.address_size 64\n\
    .visible .global .align 4 .b8 room[33554432];\n",
    c".version 6.4\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n",
];

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let (cuda, start) = (&session.cuda, session.usage()?);
    let mut link = 0;
    let code = cuda.link_create(0, null_mut(), null_mut(), Some(&mut link));
    must("cuLinkCreate", code)?;
    let add = |text: &CStr| {
        let (data, bytes) = (text.as_ptr(), text.to_bytes_with_nul().len());
        let name = c"part".as_ptr();
        cuda.link_add(link, PTX, data, bytes, name, 0, null_mut(), null_mut())
    };
    let code = add(c"this is no code");
    report.holds("what is no code is not added", !code.succeeded(), code);
    for part in PARTS {
        report.equals("a part is added", ResultCode::SUCCESS, add(part));
    }
    let (mut cubin, mut bytes) = (std::ptr::null(), 0);
    let code = cuda.link_complete(link, Some(&mut cubin), Some(&mut bytes));
    report.observed("parts are linked behind one that was none", code);
    if !code.succeeded() {
        must("cuLinkDestroy", cuda.link_destroy(link))?;
        return fresh(report, &session, start);
    }
    loaded(report, &session, (cubin, bytes), start)?;
    must("cuLinkDestroy", cuda.link_destroy(link))
}

/// Links again, without the invalid part.
fn fresh(report: &CaseReport, session: &DriverSession, start: i64) -> Result<(), CaseError> {
    let (cuda, mut link) = (&session.cuda, 0);
    let code = cuda.link_create(0, null_mut(), null_mut(), Some(&mut link));
    must("cuLinkCreate", code)?;
    for text in PARTS {
        let (data, bytes) = (text.as_ptr(), text.to_bytes_with_nul().len());
        let name = c"part".as_ptr();
        let code = cuda.link_add(link, PTX, data, bytes, name, 0, null_mut(), null_mut());
        must("cuLinkAddData", code)?;
    }
    let (mut cubin, mut bytes) = (std::ptr::null(), 0);
    let code = cuda.link_complete(link, Some(&mut cubin), Some(&mut bytes));
    must("cuLinkComplete", code)?;
    loaded(report, session, (cubin, bytes), start)?;
    must("cuLinkDestroy", cuda.link_destroy(link))
}

/// Loads the linked image, which has everything of its parts.
fn loaded(
    report: &CaseReport,
    session: &DriverSession,
    (cubin, bytes): (*const std::ffi::c_char, usize),
    start: i64,
) -> Result<(), CaseError> {
    let cuda = &session.cuda;
    report.holds("what is linked has a length", bytes > 64, bytes);
    let fact = "linking takes nothing of the card";
    report.equals(fact, start, session.usage()?);
    let (mut module, mut function) = (0, 0);
    let code = cuda.module_load(Some(&mut module), cubin);
    report.equals("it can be loaded", ResultCode::SUCCESS, code);
    must("cuModuleLoadData", code)?;
    let (mut address, mut size) = (0, 0);
    let name = c"room".as_ptr();
    let code = cuda.module_global(Some(&mut address), Some(&mut size), module, name);
    report.equals(
        "it has the variable",
        (ResultCode::SUCCESS, 32 * MIB),
        (code, size),
    );
    let code = cuda.module_function(Some(&mut function), module, c"nothing".as_ptr());
    report.equals("and the kernel", ResultCode::SUCCESS, code);
    let growth = session.usage()? - start;
    let holds = growth >= 32 * MIB as i64;
    report.holds("it takes what its parts take", holds, growth);
    must("cuModuleUnload", cuda.module_unload(module))
}
