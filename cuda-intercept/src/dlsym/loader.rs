//! The loader's functions that this library replaces, and the answers to lookups of them.
//!
//! A caller that asks the C library for its `dlsym` or `dlopen`, in this namespace or in another, gets ours. A function
//! that another library has put in front of the C library's is returned as it is: each of several wrappers must find
//! the one behind it, or they would call each other in a circle.
//!
//! C libraries before glibc 2.34 export a second, private name of each for themselves. A lookup of that name gets
//! ours too; a program that is linked with it does not.

use core::ffi::{CStr, c_void};
use core::ops::ControlFlow;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::{elf, process};

/// A function of the loader that this library replaces.
pub(super) struct InterposedFunction {
    name: &'static CStr,
    /// The private name under which C libraries before glibc 2.34 export it.
    private_name: Option<&'static CStr>,
    entry: fn() -> usize,
    /// The function that our replacement calls; 0 until it was looked up.
    /// Written by: the first lookup, always with the same value. Read by: every call. Release/Acquire.
    real: AtomicUsize,
}

impl InterposedFunction {
    pub(super) const fn new(
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

    /// Whether this is one of its names.
    pub(super) fn is_named(&self, name: &CStr) -> bool {
        name == self.name || Some(name) == self.private_name
    }

    fn ours(&self) -> usize {
        (self.entry)()
    }

    /// The definition that a call would reach without this library.
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

    /// The answer to a lookup of this function itself; `None` if the real lookup function should answer.
    pub(super) fn resolve(
        &self,
        name: &CStr,
        handle: *mut c_void,
        ask: impl Fn(*mut c_void) -> usize,
    ) -> Option<usize> {
        if self.real().is_none() {
            // There is none, as without this library. The real lookup leaves the message that the caller expects.
            return Some(ask(libc::RTLD_NEXT));
        }
        let is_next_ours = handle == libc::RTLD_NEXT && self.is_only_ours_and_theirs();
        if is_next_ours || Some(name) == self.private_name {
            let found = ask(handle);
            return Some(if found == 0 { 0 } else { self.ours() });
        }
        match handle {
            // Ours comes first anyway. And each of several wrappers must find the one behind it.
            libc::RTLD_NEXT | libc::RTLD_DEFAULT => None,
            handle => Some(self.ours_for(ask(handle))),
        }
    }

    /// The answer where a handle leads to `found`: ours in place of a C library's function, but never in place of
    /// another wrapper's.
    fn ours_for(&self, found: usize) -> usize {
        if found != 0 && (self.real() == Some(found) || is_theirs(found)) {
            self.ours()
        } else {
            found
        }
    }

    /// Whether no other library in the process defines this function.
    fn is_only_ours_and_theirs(&self) -> bool {
        let theirs = self.real();
        let other = elf::for_each(|object| match object.symbol(self.name) {
            Some(found) if Some(found) != theirs && !object.is_ours() => ControlFlow::Break(()),
            Some(_) | None => ControlFlow::Continue(()),
        });
        theirs.is_some() && other.is_none()
    }
}

/// Whether a function is another C library's, in a process that may be limited. A function outside all visible objects
/// is in another namespace, and so in another C library.
fn is_theirs(function: usize) -> bool {
    let is_here = elf::for_each(|object| {
        if object.span().contains(&function) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    is_here.is_none() && process::may_be_limited()
}
