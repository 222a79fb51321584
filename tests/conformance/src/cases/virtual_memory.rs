//! Virtual memory management: physical memory lives as long as a handle or a mapping refers to it.

use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::code::ResultCode;
use crate::layout::{FILE_DESCRIPTOR, HOST_NUMA, HandleProperties, Location, ReadWriteAccess};
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, must};

/// A session, and a size that is a multiple of the driver's granularity.
struct VmmSession {
    session: DriverSession,
    properties: HandleProperties,
    bytes: usize,
}

impl VmmSession {
    fn enter(shareable: i32) -> Result<Self, CaseError> {
        let session = DriverSession::start()?;
        let properties = HandleProperties::new(session.location(), shareable);
        let mut granule = 0;
        let code = session
            .cuda
            .granularity(Some(&mut granule), Some(&properties), 0);
        must("cuMemGetAllocationGranularity", code)?;
        let bytes = granule * 16;
        Ok(Self {
            session,
            properties,
            bytes,
        })
    }

    fn create(&self) -> Result<u64, CaseError> {
        let mut handle = 0;
        let code = self.session.cuda.handle_create(
            Some(&mut handle),
            self.bytes,
            Some(&self.properties),
            0,
        );
        must("cuMemCreate", code)?;
        Ok(handle)
    }

    fn reserve(&self) -> Result<u64, CaseError> {
        let mut address = 0;
        let code = self
            .session
            .cuda
            .reserve(Some(&mut address), self.bytes, 0, 0, 0);
        must("cuMemAddressReserve", code)?;
        Ok(address)
    }

    fn map(&self, address: u64, handle: u64) -> Result<(), CaseError> {
        let cuda = &self.session.cuda;
        must("cuMemMap", cuda.map(address, self.bytes, 0, handle, 0))?;
        let access = ReadWriteAccess::of(self.session.location());
        must(
            "cuMemSetAccess",
            cuda.set_access(address, self.bytes, Some(&access), 1),
        )
    }

    fn release(&self, handle: u64) -> Result<(), CaseError> {
        must("cuMemRelease", self.session.cuda.handle_release(handle))
    }
}

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let room = VmmSession::enter(0)?;
    sizes(report, &room)?;
    lifetimes(report, &room)?;
    host_memory(report, &room)
}

fn sizes(report: &CaseReport, room: &VmmSession) -> Result<(), CaseError> {
    let (cuda, granule) = (&room.session.cuda, room.bytes / 16);
    report.holds(
        "the granularity is a power of two",
        granule.is_power_of_two(),
        granule,
    );
    report.observed("the granularity", granule);
    let mut handle = 0;
    for (fact, bytes) in [
        ("a handle of no bytes", 0),
        ("a handle of half a granule", granule / 2),
        ("a handle of a granule and a byte", granule + 1),
    ] {
        let code = cuda.handle_create(Some(&mut handle), bytes, Some(&room.properties), 0);
        report.equals(fact, ResultCode::INVALID_VALUE, code);
    }
    let (_, total) = room.session.memory_info()?;
    let too_much = (total / granule + 64) * granule;
    let code = cuda.handle_create(Some(&mut handle), too_much, Some(&room.properties), 0);
    report.equals(
        "a handle of more than the card has",
        ResultCode::OUT_OF_MEMORY,
        code,
    );
    let code = cuda.handle_create(Some(&mut handle), room.bytes, Some(&room.properties), 1);
    report.equals("a flag", ResultCode::INVALID_VALUE, code);
    Ok(())
}

fn lifetimes(report: &CaseReport, room: &VmmSession) -> Result<(), CaseError> {
    let (session, bytes) = (&room.session, room.bytes as i64);
    let mut address = 0;
    let grown = session.growth(|| {
        address = room.reserve()?;
        Ok(())
    })?;
    report.observed("a reservation takes", grown);

    let start = session.usage()?;
    let handle = room.create()?;
    let created = session.usage()? - start;
    report.holds("a handle takes its size", created >= bytes, created);
    let grown = session.growth(|| room.map(address, handle))?;
    report.observed("a mapping takes", grown);
    session.keeps_data(report, "mapped memory keeps data", address, room.bytes);

    room.release(handle)?;
    let released = session.usage()? - start;
    report.holds("a mapping outlives its handle", released >= bytes, released);
    let code = session.cuda.unmap(address, room.bytes / 2);
    report.equals("a part cannot be unmapped", ResultCode::INVALID_VALUE, code);

    let mut again = 0;
    let inside = (address + room.bytes as u64 / 2) as *mut c_void;
    let code = session.cuda.handle_retain(Some(&mut again), inside);
    report.equals(
        "an address gives its handle back",
        ResultCode::SUCCESS,
        code,
    );
    report.equals("it is the same handle", true, again == handle);
    let code = session.cuda.unmap(address, room.bytes);
    report.equals("the whole can be unmapped", ResultCode::SUCCESS, code);
    let unmapped = session.usage()? - start;
    report.holds("a handle outlives its mapping", unmapped >= bytes, unmapped);
    room.release(again)?;
    let gone = session.usage()? - start;
    report.holds("the last reference frees the memory", gone < bytes, gone);
    report.observed("still taken after the last reference", gone);

    let code = session
        .cuda
        .handle_retain(Some(&mut again), address as *mut c_void);
    report.equals(
        "no handle where nothing is mapped",
        ResultCode::INVALID_VALUE,
        code,
    );
    let code = session.cuda.unmap(address, room.bytes);
    report.equals("nothing to unmap", ResultCode::INVALID_VALUE, code);
    must(
        "cuMemAddressFree",
        session.cuda.unreserve(address, room.bytes),
    )
}

fn host_memory(report: &CaseReport, room: &VmmSession) -> Result<(), CaseError> {
    let host = Location {
        kind: HOST_NUMA,
        id: 0,
    };
    let properties = HandleProperties::new(host, 0);
    let (session, mut handle) = (&room.session, 0);
    let before = session.usage()?;
    let code = session
        .cuda
        .handle_create(Some(&mut handle), room.bytes, Some(&properties), 0);
    report.observed("a handle of host memory", code);
    if code.succeeded() {
        let grown = session.usage()? - before;
        let fact = "host memory is not taken from the card";
        report.holds(fact, grown < room.bytes as i64, grown);
        room.release(handle)?;
    }
    Ok(())
}

pub(super) fn sharing(report: &CaseReport) -> Result<(), CaseError> {
    let room = VmmSession::enter(FILE_DESCRIPTOR)?;
    let session = &room.session;
    let start = session.usage()?;
    let handle = room.create()?;
    let mut descriptor = -1;
    let code = session
        .cuda
        .handle_export(Some(&mut descriptor), handle, FILE_DESCRIPTOR, 0);
    must("cuMemExportToShareableHandle", code)?;
    // SAFETY: the driver has opened the descriptor for this program, which owns it from here.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let mut imported = 0;
    let as_pointer = descriptor as usize as *mut c_void;
    let code = session
        .cuda
        .handle_import(Some(&mut imported), as_pointer, FILE_DESCRIPTOR);
    must("cuMemImportFromShareableHandle", code)?;
    let shared = session.usage()? - start;
    let twice = 2 * room.bytes as i64;
    report.holds("an import takes nothing more", shared < twice, shared);

    room.release(handle)?;
    drop(owned);
    let exported = session.usage()? - start;
    report.holds(
        "an import keeps the memory",
        exported >= room.bytes as i64,
        exported,
    );
    let address = room.reserve()?;
    room.map(address, imported)?;
    session.keeps_data(
        report,
        "an imported handle can be mapped",
        address,
        room.bytes,
    );
    room.release(imported)?;
    must("cuMemUnmap", session.cuda.unmap(address, room.bytes))?;
    let gone = session.usage()? - start;
    report.holds(
        "the last reference frees the memory",
        gone < room.bytes as i64,
        gone,
    );
    must(
        "cuMemAddressFree",
        session.cuda.unreserve(address, room.bytes),
    )?;

    let private = HandleProperties::new(session.location(), 0);
    let mut handle = 0;
    let code = session
        .cuda
        .handle_create(Some(&mut handle), room.bytes, Some(&private), 0);
    must("cuMemCreate", code)?;
    let code = session
        .cuda
        .handle_export(Some(&mut descriptor), handle, FILE_DESCRIPTOR, 0);
    report.holds(
        "a handle that was not made for it is not exported",
        !code.succeeded(),
        code,
    );
    room.release(handle)
}
