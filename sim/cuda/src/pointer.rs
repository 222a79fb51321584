//! What the library may do with pointers from the caller.
//!
//! The C API promises that an out-parameter is null or points to room for its type, and that an in-parameter is null or
//! points to a value. The caller makes this promise by calling the exported function. These types carry it to the
//! handler that relies on it, and are built nowhere else.

use std::ffi::{CStr, c_char};

use crate::error::{CudaError, INVALID_VALUE};

/// A pointer for a result.
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

    /// No pointer, for a result that the caller's version of a function does not have.
    pub(crate) fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    /// A pointer into memory that a pointer of the program reaches.
    pub(crate) fn at(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// The same pointer, where the type depends on another argument.
    pub(crate) fn cast<U: Copy>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Fails on null, so that a handler can stop before it does its work.
    pub(crate) fn check(self) -> Result<(), CudaError> {
        if self.0.is_null() {
            Err(INVALID_VALUE)
        } else {
            Ok(())
        }
    }

    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// The value that the caller has stored there.
    pub(crate) fn read(self) -> Result<T, CudaError> {
        In(self.0.cast_const()).get()
    }

    /// Writes a result. Fails on null.
    pub(crate) fn put(self, value: T) -> Result<(), CudaError> {
        self.put_at(0, value)
    }

    /// Writes one element of an array. Fails on null.
    pub(crate) fn put_at(self, index: usize, value: T) -> Result<(), CudaError> {
        self.check()?;
        // SAFETY: the caller of the exported function promises room for `index + 1` values.
        let place = unsafe { self.0.add(index) };
        // SAFETY: as above; the value is `Copy`, so nothing is dropped, and C may not have aligned the place.
        unsafe { place.write_unaligned(value) };
        Ok(())
    }

    /// Writes a result unless the pointer is null.
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

    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// A pointer that the program has put into a structure.
    pub(crate) fn from_address(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance(address as usize))
    }

    /// The C string at the address.
    pub(crate) fn text(&self) -> Result<&CStr, CudaError> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises text that ends with a zero byte.
        Ok(unsafe { CStr::from_ptr(self.0.cast()) })
    }

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
    /// The string, if it is not null and is UTF-8.
    pub(crate) fn get(&self) -> Result<&str, CudaError> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises a C string that lives for the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| INVALID_VALUE)
    }
}
