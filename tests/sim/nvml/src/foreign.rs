//! Pointers that a C caller gave. NVML's contract is that such a pointer is null or points to what
//! the signature says; the contract is used in this file alone, so that the rest of the library is
//! safe code.

use std::ffi::{CStr, c_char, c_uint};

use crate::status::Status;

/// A pointer argument of an exported function. Only C callers make one, and each keeps NVML's
/// contract: null, or valid for reads and writes of what the function's documentation says.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Foreign<T>(*mut T);

impl<T> Clone for Foreign<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Foreign<T> {}

impl<T: Copy> Foreign<T> {
    /// What the caller wrote there; a null pointer is an invalid argument.
    pub(crate) fn get(self) -> Result<T, Status> {
        let place = self.place()?;
        // SAFETY: not null, and by NVML's contract readable as a `T`; alignment is not assumed.
        Ok(unsafe { place.read_unaligned() })
    }

    /// Writes the answer; a null pointer is an invalid argument.
    pub(crate) fn put(self, value: T) -> Result<(), Status> {
        let place = self.place()?;
        // SAFETY: not null, and by NVML's contract writable as a `T`; alignment is not assumed.
        unsafe { place.write_unaligned(value) };
        Ok(())
    }

    /// Writes `items` into an array of `*count` places and the number of items into `count`. The
    /// caller learns the number also when its array is too small.
    pub(crate) fn put_list(self, count: Foreign<c_uint>, items: &[T]) -> Result<(), Status> {
        let room = count.get()?;
        let needed = c_uint::try_from(items.len()).map_err(|_| Status::Unknown)?;
        count.put(needed)?;
        if room < needed {
            return Err(Status::InsufficientSize);
        }
        if items.is_empty() {
            return Ok(());
        }
        let array = self.place()?;
        for (position, item) in items.iter().enumerate() {
            // SAFETY: the caller said that the array has `room` places, and `position` is below it.
            let place = unsafe { array.add(position) };
            // SAFETY: as above; alignment is not assumed.
            unsafe { place.write_unaligned(*item) };
        }
        Ok(())
    }

    /// A pointer that stood in a struct of the caller's, under the same contract.
    pub(crate) fn nested(place: *mut T) -> Self {
        Self(place)
    }

    fn place(self) -> Result<*mut T, Status> {
        if self.0.is_null() {
            return Err(Status::InvalidArgument);
        }
        Ok(self.0)
    }

    /// Lets `change` have each of the `count` items of an array.
    pub(crate) fn update_each(self, count: usize, change: impl Fn(&mut T)) -> Result<(), Status> {
        let array = self.place()?;
        for position in 0..count {
            // SAFETY: the caller said that the array has `count` items.
            let item = Self(unsafe { array.add(position) });
            let mut value = item.get()?;
            change(&mut value);
            item.put(value)?;
        }
        Ok(())
    }

    /// A place of our own, where one function answers by means of another.
    pub(crate) fn to(value: &mut T) -> Self {
        Self(value)
    }

    #[cfg(test)]
    pub(crate) fn to_first(values: &mut [T]) -> Self {
        Self(values.as_mut_ptr())
    }

    #[cfg(test)]
    pub(crate) fn null() -> Self {
        Self(std::ptr::null_mut())
    }
}

impl Foreign<c_char> {
    /// The string that the caller passed.
    pub(crate) fn text(self) -> Result<String, Status> {
        let place = self.place()?;
        // SAFETY: not null, and by NVML's contract a string that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(place) };
        text.to_str()
            .map(str::to_owned)
            .map_err(|_| Status::InvalidArgument)
    }

    /// Writes `text` and its zero byte into a buffer of `length` bytes, or nothing if it is too small.
    pub(crate) fn put_text(self, length: c_uint, text: &str) -> Result<(), Status> {
        let place = self.place()?;
        let room = usize::try_from(length).map_err(|_| Status::InvalidArgument)?;
        if room <= text.len() {
            return Err(Status::InsufficientSize);
        }
        // SAFETY: the caller's buffer has `room` bytes, which is more than the text is long, and the
        // text is ours, so the two do not overlap.
        unsafe { place.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
        // SAFETY: the text is shorter than the buffer, so this byte is still inside it.
        let end = unsafe { place.add(text.len()) };
        // SAFETY: as above.
        unsafe { end.write(0) };
        Ok(())
    }
}

/// A character array inside a struct, filled with `text` and zeros.
pub(crate) fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut characters = [0; N];
    let last = N.saturating_sub(1);
    for (place, byte) in characters[..last].iter_mut().zip(text.bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
    characters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_does_not_fit_says_how_many_places_it_needs() {
        let mut count = 1;
        let mut array = [0_u64; 1];
        let put = Foreign::to_first(&mut array).put_list(Foreign::to(&mut count), &[7, 8]);
        assert_eq!(put, Err(Status::InsufficientSize));
        assert_eq!((count, array), (2, [0]));
    }

    #[test]
    fn an_empty_list_needs_no_array() {
        let mut count = 0;
        let put = Foreign::<u64>::null().put_list(Foreign::to(&mut count), &[]);
        assert_eq!(put, Ok(()));
    }

    #[test]
    fn a_text_needs_room_for_its_zero_byte() {
        let mut buffer = [1; 4];
        let place = Foreign::to_first(&mut buffer);
        assert_eq!(place.put_text(4, "four"), Err(Status::InsufficientSize));
        assert_eq!(place.put_text(4, "six"), Ok(()));
        assert_eq!(place.text().as_deref(), Ok("six"));
    }

    #[test]
    fn a_null_pointer_is_an_invalid_argument() {
        assert_eq!(Foreign::null().put(1_u32), Err(Status::InvalidArgument));
        assert_eq!(Foreign::<u32>::null().get(), Err(Status::InvalidArgument));
    }
}
