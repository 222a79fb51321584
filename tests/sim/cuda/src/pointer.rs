//! What the caller's pointers may be used for.
//!
//! The C API promises that an out-parameter points to room for its type and an in-parameter to a
//! value, or is null. These types carry that promise from the exported function, whose caller makes
//! it by calling, to the handler that relies on it; they are built nowhere else.

use std::ffi::{CStr, c_char};

use crate::error::{CudaError, INVALID_VALUE};

/// A pointer through which a result is given.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// A pointer to one or more values.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

/// A pointer to a C string.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl<T: Copy> Out<T> {
    /// A pointer to a variable of our own.
    pub(crate) fn to(place: &mut T) -> Self {
        Self(place)
    }

    /// No pointer, for a result that the caller's version of a function does not give.
    pub(crate) fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    /// A part of what a pointer of the program points to.
    pub(crate) fn at(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// The same pointer, where the type depends on another argument.
    pub(crate) fn cast<U: Copy>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Fails on null, for handlers that must not do their work in vain.
    pub(crate) fn check(self) -> Result<(), CudaError> {
        if self.0.is_null() {
            Err(INVALID_VALUE)
        } else {
            Ok(())
        }
    }

    /// Where it points.
    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// What the caller has put there before.
    pub(crate) fn read(self) -> Result<T, CudaError> {
        In(self.0.cast_const()).get()
    }

    /// Gives a result that the caller must want.
    pub(crate) fn put(self, value: T) -> Result<(), CudaError> {
        self.put_at(0, value)
    }

    /// Gives one element of a result that is an array.
    pub(crate) fn put_at(self, index: usize, value: T) -> Result<(), CudaError> {
        self.check()?;
        // SAFETY: the caller of the exported function promises room for `index + 1` values.
        let place = unsafe { self.0.add(index) };
        // SAFETY: as above; the value is `Copy`, so nothing is dropped, and C may not have aligned it.
        unsafe { place.write_unaligned(value) };
        Ok(())
    }

    /// Gives a result that the caller may not want.
    pub(crate) fn offer(self, value: T) {
        if !self.0.is_null() {
            let _ = self.put(value);
        }
    }
}

impl<T: Copy> In<T> {
    /// A pointer to a value of our own.
    pub(crate) fn to(value: &T) -> Self {
        Self(value)
    }

    /// No pointer, for an argument that the caller's version of a function does not have.
    pub(crate) fn null() -> Self {
        Self(std::ptr::null())
    }

    /// The same pointer, where the type depends on another argument.
    pub(crate) fn cast<U: Copy>(self) -> In<U> {
        In(self.0.cast())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Where it points.
    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// A pointer that the program has put into a structure.
    pub(crate) fn from_address(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance(address as usize))
    }

    /// The C string that is there.
    pub(crate) fn text(&self) -> Result<&CStr, CudaError> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises text that ends with a zero byte.
        Ok(unsafe { CStr::from_ptr(self.0.cast()) })
    }

    /// The value.
    pub(crate) fn get(self) -> Result<T, CudaError> {
        self.at(0)
    }

    /// One element of an array.
    pub(crate) fn at(self, index: usize) -> Result<T, CudaError> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises `index + 1` values.
        let place = unsafe { self.0.add(index) };
        // SAFETY: as above; every `T` used here is a plain number or a struct of those.
        Ok(unsafe { place.read_unaligned() })
    }
}

impl Text {
    /// The string, if it is one and UTF-8.
    pub(crate) fn get(&self) -> Result<&str, CudaError> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises a C string that lives for the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| INVALID_VALUE)
    }
}
