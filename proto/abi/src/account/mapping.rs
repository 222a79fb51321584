//! A file in memory: opened, checked, created and mapped. Only this module handles descriptors.

use core::ffi::CStr;
use core::fmt;
use core::ptr::NonNull;
use core::slice;

use super::burst::CardBurst;
use super::guard::MappingGuard;
use super::layout::{
    AccountHeader, AtomicU64, BURST_MAGIC, CardLimit, CardUse, LAYOUT_VERSION, LIMITS_MAGIC,
    MAX_CARDS, SLOTS, SlotCard, SlotHead,
};

/// Why an account file could not be opened or created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountOpenError {
    /// A system call failed: its name and `errno`.
    System(&'static str, i32),
    /// The file is not an account file of this kind, or its size differs from what its header says.
    NotAnAccount,
    /// The file has another layout version.
    Version(u32),
}

impl fmt::Display for AccountOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(call, errno @ libc::ENOSPC) => {
                write!(f, "{call} failed: the file system is full (errno {errno})")
            }
            Self::System(call, errno) => write!(f, "{call} failed (errno {errno})"),
            Self::NotAnAccount => f.write_str("not an account file"),
            Self::Version(version) => {
                write!(
                    f,
                    "account layout version {version}, this program reads {LAYOUT_VERSION}"
                )
            }
        }
    }
}

impl core::error::Error for AccountOpenError {}

/// A mapped file, unmapped when dropped.
#[derive(Debug)]
pub(super) struct FileMapping {
    pub(super) start: NonNull<u8>,
    size: usize,
    guard: Option<MappingGuard>,
}

// SAFETY: a mapping is plain memory of atomics; nothing in it belongs to one thread.
unsafe impl Send for FileMapping {}
// SAFETY: all access through a shared reference is atomic or to words written before the file had its name.
unsafe impl Sync for FileMapping {}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // The guard goes first: another mapping may get the range as soon as it is unmapped.
        drop(self.guard.take());
        // SAFETY: `start` and `size` are what `mmap` returned and was asked for; nobody else unmaps them.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.size) };
    }
}

fn errno(call: &'static str) -> AccountOpenError {
    // SAFETY: the C library always has an errno location for the calling thread.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the location is valid for the calling thread.
    AccountOpenError::System(call, unsafe { *location })
}

/// A file descriptor, closed when dropped.
struct FileDescriptor(i32);

impl Drop for FileDescriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor was opened by `FileDescriptor::open` and is closed only here.
        unsafe { libc::close(self.0) };
    }
}

impl FileDescriptor {
    fn open(path: &CStr, flags: i32, mode: libc::mode_t) -> Result<Self, AccountOpenError> {
        // SAFETY: `path` is a valid C string.
        let fd = unsafe {
            libc::open(
                path.as_ptr(),
                flags | libc::O_CLOEXEC,
                libc::c_uint::from(mode),
            )
        };
        if fd < 0 {
            Err(errno("open"))
        } else {
            Ok(Self(fd))
        }
    }

    fn size(&self) -> Result<usize, AccountOpenError> {
        let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the descriptor is open and the buffer is a `stat`.
        if unsafe { libc::fstat(self.0, stat.as_mut_ptr()) } != 0 {
            return Err(errno("fstat"));
        }
        // SAFETY: `fstat` succeeded and so has filled the buffer.
        let stat = unsafe { stat.assume_init() };
        usize::try_from(stat.st_size).map_err(|_| AccountOpenError::NotAnAccount)
    }

    /// Allocates the pages now. A hole would be filled by the first access, and on a full file system that is a bus
    /// error in the program.
    fn allocate(&self, size: usize) -> Result<(), AccountOpenError> {
        loop {
            // SAFETY: the descriptor is open for writing.
            match unsafe { libc::posix_fallocate(self.0, 0, size as libc::off_t) } {
                0 => return Ok(()),
                libc::EINTR => {}
                errno => return Err(AccountOpenError::System("posix_fallocate", errno)),
            }
        }
    }

    fn map(&self, size: usize, protection: i32) -> Result<FileMapping, AccountOpenError> {
        // SAFETY: a new shared mapping of an open descriptor at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                size,
                protection,
                libc::MAP_SHARED,
                self.0,
                0,
            )
        };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => {
                let guard = None;
                Ok(FileMapping { start, size, guard })
            }
            _ => Err(errno("mmap")),
        }
    }
}

impl FileMapping {
    pub(super) fn open<const IS_GUARDED: bool>(
        path: &CStr,
        magic: u64,
        flags: i32,
    ) -> Result<(Self, usize), AccountOpenError> {
        let fd = FileDescriptor::open(path, flags, 0)?;
        let size = fd.size()?;
        if size < size_of::<AccountHeader>() {
            return Err(AccountOpenError::NotAnAccount);
        }
        let protection = match flags & libc::O_ACCMODE {
            libc::O_RDWR => libc::PROT_READ | libc::PROT_WRITE,
            _ => libc::PROT_READ,
        };
        let mut mapping = fd.map(size, protection)?;
        if IS_GUARDED {
            mapping.guard()?;
        }
        let header = mapping.header();
        if header.magic != magic {
            return Err(AccountOpenError::NotAnAccount);
        }
        if header.version != LAYOUT_VERSION {
            return Err(AccountOpenError::Version(header.version));
        }
        let cards = usize::try_from(header.cards).unwrap_or(usize::MAX);
        let right = (1..=MAX_CARDS).contains(&cards) && header.size == size as u64;
        if right && size == size_for(magic, cards) {
            Ok((mapping, cards))
        } else {
            Err(AccountOpenError::NotAnAccount)
        }
    }

    fn guard(&mut self) -> Result<(), AccountOpenError> {
        let guard = MappingGuard::new(self.start.as_ptr(), self.size);
        self.guard = Some(guard.ok_or(AccountOpenError::System("guard", libc::ENOMEM))?);
        Ok(())
    }

    pub(super) const fn size(&self) -> usize {
        self.size
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.guard.as_ref().is_some_and(MappingGuard::is_damaged)
    }

    /// Maps a new file of the right size for writing; the caller fills it and calls `publish`.
    pub(super) fn create(
        path: &CStr,
        magic: u64,
        cards: usize,
        mode: libc::mode_t,
    ) -> Result<Self, AccountOpenError> {
        if cards == 0 || cards > MAX_CARDS {
            return Err(AccountOpenError::NotAnAccount);
        }
        let fd = FileDescriptor::open(
            path,
            libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW,
            mode,
        )?;
        // SAFETY: the descriptor is open. The mode is set again because of the umask.
        if unsafe { libc::fchmod(fd.0, mode) } != 0 {
            return Err(errno("fchmod"));
        }
        let size = size_for(magic, cards);
        // SAFETY: the descriptor is open for writing.
        if unsafe { libc::ftruncate(fd.0, size as libc::off_t) } != 0 {
            return Err(errno("ftruncate"));
        }
        fd.allocate(size)?;
        let mut mapping = fd.map(size, libc::PROT_READ | libc::PROT_WRITE)?;
        mapping.guard()?;
        let header = AccountHeader {
            magic: 0,
            version: LAYOUT_VERSION,
            cards: cards as u32,
            size: size as u64,
            suspended: AtomicU64::new(0),
            unused: [0; 2],
            epoch: AtomicU64::new(0),
            has_burst: 0,
        };
        // SAFETY: the mapping is writable, larger than a header and page-aligned; nobody else has it.
        unsafe { mapping.start.cast::<AccountHeader>().write(header) };
        Ok(mapping)
    }

    /// Says in the header of a new `limits` file whether the account has a `burst` file.
    pub(super) fn set_has_burst(&self, has_burst: bool) {
        let header = self.start.cast::<AccountHeader>().as_ptr();
        // SAFETY: the mapping is at least a header long and aligned as one.
        let word = unsafe { &raw mut (*header).has_burst };
        // SAFETY: the mapping is writable, and nobody else has it before it is published.
        unsafe { word.write(u64::from(has_burst)) };
    }

    /// Makes the file valid. Until now its magic was zero, so no reader accepted it.
    pub(super) fn publish(&self, magic: u64) {
        // SAFETY: the magic is the first word of the mapping and aligned as one.
        let word = unsafe { AtomicU64::from_ptr(self.start.as_ptr().cast()) };
        word.store(magic, core::sync::atomic::Ordering::Release);
    }

    pub(super) fn header(&self) -> &AccountHeader {
        // SAFETY: every mapping is at least a header long and page-aligned; its words are plain
        // integers that are written before the magic makes the file valid, and one atomic.
        unsafe { self.start.cast::<AccountHeader>().as_ref() }
    }

    /// `count` values of `T` at `offset`. Every caller passes a `T` made of atomics and integers.
    pub(super) fn slice<T>(&self, offset: usize, count: usize) -> &[T] {
        let end = offset.saturating_add(count.saturating_mul(size_of::<T>()));
        if end > self.size {
            return &[];
        }
        // SAFETY: `offset` is inside the mapping by the check above.
        let first = unsafe { self.start.add(offset) };
        // SAFETY: `count` values lie inside the mapping, offsets are multiples of 64 and so aligned, and
        // any bytes are valid values of the layout's types.
        unsafe { slice::from_raw_parts(first.cast::<T>().as_ptr(), count) }
    }
}

const fn size_for(magic: u64, cards: usize) -> usize {
    let header = size_of::<AccountHeader>();
    match magic {
        LIMITS_MAGIC => header + cards * size_of::<CardLimit>(),
        BURST_MAGIC => header + cards * size_of::<CardBurst>(),
        _ => slots_at(cards) + SLOTS * (size_of::<SlotHead>() + cards * size_of::<SlotCard>()),
    }
}

/// Header, then a line with `slots_used` and two words of `calls`, then the cards, then the slots.
pub(super) const fn slots_at(cards: usize) -> usize {
    2 * size_of::<AccountHeader>() + cards * size_of::<CardUse>()
}
