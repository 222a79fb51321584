//! What a null stream means: for most programs, the device's default stream. Programs compiled with per-thread default
//! streams call functions whose names end in `_ptsz` or `_ptds`. There it means the thread's default stream.

use std::ffi::c_void;

/// A stream as programs pass it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct RuntimeStream(pub(crate) *mut c_void);

impl RuntimeStream {
    /// The null stream, which means the default stream.
    pub(crate) const NONE: Self = Self(std::ptr::null_mut());
    /// `cudaStreamPerThread`.
    pub(crate) const PER_THREAD: Self = Self(std::ptr::without_provenance_mut(2));
}

/// How a function with per-thread default streams interprets an argument.
pub(crate) trait PerThreadDefault {
    /// The argument. A null stream is replaced by the thread's stream.
    fn on_thread(self) -> Self;
}

impl PerThreadDefault for RuntimeStream {
    fn on_thread(self) -> Self {
        if self == Self::NONE {
            Self::PER_THREAD
        } else {
            self
        }
    }
}

macro_rules! same_on_thread {
    ($($type:ty),*) => { $(impl PerThreadDefault for $type {
        fn on_thread(self) -> Self { self }
    })* };
}
same_on_thread!(i32, u32, u64, usize);

impl<T> PerThreadDefault for *mut T {
    fn on_thread(self) -> Self {
        self
    }
}

impl<T> PerThreadDefault for *const T {
    fn on_thread(self) -> Self {
        self
    }
}
