//! Pointers from C callers. By NVML's contract such a pointer is null or points to what the signature says. Only this
//! file relies on the contract, so the rest of the library is safe code.

use std::ffi::{CStr, c_char, c_uint};

use crate::status::NvmlStatus;

/// A pointer argument of an exported function. Only C callers create one, and they keep NVML's contract: null, or valid
/// for reads and writes of what the function's documentation says.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct ForeignPointer<T>(*mut T);

impl<T> Clone for ForeignPointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ForeignPointer<T> {}

impl<T: Copy> ForeignPointer<T> {
    /// The caller's value. A null pointer is an invalid argument.
    pub(crate) fn get(self) -> Result<T, NvmlStatus> {
        let place = self.place()?;
        // SAFETY: not null, and by NVML's contract readable as a `T`; alignment is not assumed.
        Ok(unsafe { place.read_unaligned() })
    }

    /// Writes the result. A null pointer is an invalid argument.
    pub(crate) fn put(self, value: T) -> Result<(), NvmlStatus> {
        let place = self.place()?;
        // SAFETY: not null, and by NVML's contract writable as a `T`; alignment is not assumed.
        unsafe { place.write_unaligned(value) };
        Ok(())
    }

    /// Writes `items` into an array of `*count` elements and the number of items into `count`. The number is also
    /// written if the array is too small.
    pub(crate) fn put_list(
        self,
        count: ForeignPointer<c_uint>,
        items: &[T],
    ) -> Result<(), NvmlStatus> {
        let capacity = count.get()?;
        let needed = c_uint::try_from(items.len()).map_err(|_| NvmlStatus::Unknown)?;
        count.put(needed)?;
        if capacity < needed {
            return Err(NvmlStatus::InsufficientSize);
        }
        if items.is_empty() {
            return Ok(());
        }
        let array = self.place()?;
        for (position, item) in items.iter().enumerate() {
            // SAFETY: the caller said that the array has `capacity` places, and `position` is below it.
            let place = unsafe { array.add(position) };
            // SAFETY: as above; alignment is not assumed.
            unsafe { place.write_unaligned(*item) };
        }
        Ok(())
    }

    /// A pointer inside a struct of the caller, under the same contract.
    pub(crate) fn nested(place: *mut T) -> Self {
        Self(place)
    }

    fn place(self) -> Result<*mut T, NvmlStatus> {
        if self.0.is_null() {
            return Err(NvmlStatus::InvalidArgument);
        }
        Ok(self.0)
    }

    /// Calls `change` for each of the `count` items of an array.
    pub(crate) fn update_each(
        self,
        count: usize,
        change: impl Fn(&mut T),
    ) -> Result<(), NvmlStatus> {
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

    /// A pointer to a variable of our own, for calling one function from another.
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

impl ForeignPointer<c_char> {
    /// The string that the caller passed.
    pub(crate) fn text(self) -> Result<String, NvmlStatus> {
        let place = self.place()?;
        // SAFETY: not null, and by NVML's contract a string that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(place) };
        text.to_str()
            .map(str::to_owned)
            .map_err(|_| NvmlStatus::InvalidArgument)
    }

    /// Writes `text` and its zero byte into a buffer of `length` bytes, or nothing if it is too small.
    pub(crate) fn put_text(self, length: c_uint, text: &str) -> Result<(), NvmlStatus> {
        let place = self.place()?;
        let capacity = usize::try_from(length).map_err(|_| NvmlStatus::InvalidArgument)?;
        if capacity <= text.len() {
            return Err(NvmlStatus::InsufficientSize);
        }
        // SAFETY: the caller's buffer has `capacity` bytes, more than the text's length, and the text is ours, so the
        // two do not overlap.
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
        let put =
            ForeignPointer::to_first(&mut array).put_list(ForeignPointer::to(&mut count), &[7, 8]);
        assert_eq!(put, Err(NvmlStatus::InsufficientSize));
        assert_eq!((count, array), (2, [0]));
    }

    #[test]
    fn an_empty_list_needs_no_array() {
        let mut count = 0;
        let put = ForeignPointer::<u64>::null().put_list(ForeignPointer::to(&mut count), &[]);
        assert_eq!(put, Ok(()));
    }

    #[test]
    fn a_text_needs_room_for_its_zero_byte() {
        let mut buffer = [1; 4];
        let place = ForeignPointer::to_first(&mut buffer);
        assert_eq!(place.put_text(4, "four"), Err(NvmlStatus::InsufficientSize));
        assert_eq!(place.put_text(4, "six"), Ok(()));
        assert_eq!(place.text().as_deref(), Ok("six"));
    }

    #[test]
    fn a_null_pointer_is_an_invalid_argument() {
        assert_eq!(
            ForeignPointer::null().put(1_u32),
            Err(NvmlStatus::InvalidArgument)
        );
        assert_eq!(
            ForeignPointer::<u32>::null().get(),
            Err(NvmlStatus::InvalidArgument)
        );
    }
}
