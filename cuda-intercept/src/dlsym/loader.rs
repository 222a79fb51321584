//! The loader's functions that this library stands in for, and what a look-up of one of them finds.
//!
//! Who asks the C library for its `dlsym` or `dlopen`, in this namespace or in another, gets ours, which
//! does what was asked. What other libraries have put in front of the C library is handed out as it is:
//! each of several wrappers must find the one behind it, or they would call each other in a circle.
//!
//! C libraries before glibc 2.34 export a second name of each for themselves. Who looks that up gets ours,
//! too; a program that is linked with it does not.

use core::ffi::{CStr, c_void};
use core::ops::ControlFlow;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};

use super::{dlmopen, dlopen, dlsym, dlvsym};
use crate::{elf, process};

/// A function of the loader's that this library stands in for.
pub(super) struct InterposedFunction {
    name: &'static CStr,
    /// The name by which C libraries before glibc 2.34 export it for themselves.
    private_name: Option<&'static CStr>,
    entry: fn() -> usize,
    /// The function that a call of ours goes on to; 0 until it was looked for.
    /// Written by: whoever asks first, always the same. Read by: every call. Release/Acquire.
    real: AtomicUsize,
}

impl InterposedFunction {
    const fn new(
        name: &'static CStr,
        private_name: Option<&'static CStr>,
        entry: fn() -> usize,
    ) -> Self {
        let real = AtomicUsize::new(0);
        Self {
            name,
            private_name,
            entry,
            real,
        }
    }

    pub(super) fn of(name: &CStr) -> Option<&'static Self> {
        if !matches!(name.to_bytes(), [b'd', b'l', ..] | [b'_', b'_', ..]) {
            return None;
        }
        let mut doors = [&DLSYM, &DLVSYM, &DLOPEN, &DLMOPEN].into_iter();
        doors.find(|door| name == door.name || Some(name) == door.private_name)
    }

    fn ours(&self) -> usize {
        (self.entry)()
    }

    /// The definition that a call would reach if this library were not there.
    pub(super) fn real(&self) -> Option<usize> {
        let found = self.real.load(Acquire);
        if found != 0 {
            return Some(found);
        }
        let mut passed = false;
        let found = elf::for_each(|object| {
            if !passed {
                passed = object.is_ours();
                return ControlFlow::Continue(());
            }
            match object.symbol(self.name) {
                Some(found) => ControlFlow::Break(found),
                None => ControlFlow::Continue(()),
            }
        })?;
        self.real.store(found, Release);
        Some(found)
    }

    /// What a look-up of the door itself is answered with; `None` where the real one answers.
    pub(super) fn look_up(
        &self,
        name: &CStr,
        handle: *mut c_void,
        ask: impl Fn(*mut c_void) -> usize,
    ) -> Option<usize> {
        if self.real().is_none() {
            // There is none, as without this library; asking leaves the message that the caller expects.
            return Some(ask(libc::RTLD_NEXT));
        }
        let is_next_ours = handle == libc::RTLD_NEXT && self.is_only_ours_and_theirs();
        if is_next_ours || Some(name) == self.private_name {
            let found = ask(handle);
            return Some(if found == 0 { 0 } else { self.ours() });
        }
        match handle {
            // Ours is the first of all, and of several wrappers each must find the one behind it.
            libc::RTLD_NEXT | libc::RTLD_DEFAULT => None,
            handle => Some(self.ours_for(ask(handle))),
        }
    }

    /// What is handed out where a handle leads to `found`: ours in place of a C library's, but never in
    /// place of what a library in between has put there.
    fn ours_for(&self, found: usize) -> usize {
        let is_theirs = || {
            // What the walk does not show is in another namespace, and so with another C library.
            let is_here = elf::for_each(|object| match object.span().contains(&found) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            });
            is_here.is_none() && process::may_be_limited()
        };
        match found != 0 && (self.real() == Some(found) || is_theirs()) {
            true => self.ours(),
            false => found,
        }
    }

    /// Whether no library in the process has put one of its own there.
    fn is_only_ours_and_theirs(&self) -> bool {
        let theirs = self.real();
        let other = elf::for_each(|object| match object.symbol(self.name) {
            Some(found) if Some(found) != theirs && !object.is_ours() => ControlFlow::Break(()),
            Some(_) | None => ControlFlow::Continue(()),
        });
        theirs.is_some() && other.is_none()
    }
}

pub(super) static DLSYM: InterposedFunction =
    InterposedFunction::new(c"dlsym", Some(c"__libc_dlsym"), || {
        dlsym as *const () as usize
    });
pub(super) static DLVSYM: InterposedFunction =
    InterposedFunction::new(c"dlvsym", Some(c"__libc_dlvsym"), || {
        dlvsym as *const () as usize
    });
pub(super) static DLOPEN: InterposedFunction =
    InterposedFunction::new(c"dlopen", Some(c"__libc_dlopen_mode"), || {
        dlopen as *const () as usize
    });
pub(super) static DLMOPEN: InterposedFunction =
    InterposedFunction::new(c"dlmopen", None, || dlmopen as *const () as usize);
