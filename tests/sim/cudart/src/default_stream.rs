//! Which stream is meant by no stream: that of the device for most programs, that of the thread for functions
//! whose names end in `_ptsz` or `_ptds`, which programs call that were compiled with per-thread default streams.

use std::ffi::c_void;

/// A stream as programs pass it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct RuntimeStream(pub(crate) *mut c_void);

impl RuntimeStream {
    /// No stream, which is the default one.
    pub(crate) const NONE: Self = Self(std::ptr::null_mut());
    /// `cudaStreamPerThread`.
    pub(crate) const PER_THREAD: Self = Self(std::ptr::without_provenance_mut(2));
}

/// What an argument means in a function of per-thread default streams.
pub(crate) trait PerThreadDefault {
    /// The argument with the thread's stream in the place of no stream.
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
