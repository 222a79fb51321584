//! How a row of [`crate::exports`] becomes an exported C function. There are four kinds of rows, because most NVML
//! functions return one value of one device.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use crate::session;
use crate::status::{NvmlStatus, SUCCESS};

/// Runs the body of an exported function. A panic must not cross into C.
pub(crate) fn answer(
    call: &'static str,
    body: impl FnOnce() -> Result<(), NvmlStatus>,
) -> nvmlReturn_t {
    session::begin(call);
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(status)) => status.into(),
        Err(_) => NvmlStatus::Unknown.into(),
    }
}

/// `name(arguments) = path`: the function at `path` takes the same arguments.
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) = $path:path;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> nvmlReturn_t {
            $crate::rows::answer(stringify!($name), || $path($($argument),*))
        }
    )*};
}

/// `name: type = path`: the function at `path` returns the value for the device's card. It is written through the
/// second argument.
macro_rules! values {
    ($($name:ident: $type:ty = $path:path;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: DeviceHandle, value: ForeignPointer<$type>) -> nvmlReturn_t {
            $crate::rows::answer(stringify!($name), || {
                let card = device.card()?;
                value.put($path(&card)?)
            })
        }
    )*};
}

/// `name = path`: the function at `path` returns a text for the device's card. It is written into a buffer.
macro_rules! texts {
    ($($name:ident = $path:path;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: DeviceHandle, text: ForeignPointer<c_char>, length: c_uint) -> nvmlReturn_t {
            $crate::rows::answer(stringify!($name), || {
                let card = device.card()?;
                text.put_text(length, &$path(&card)?)
            })
        }
    )*};
}

/// Functions that exist and that no simulated card supports. Their further arguments do not matter: in the C calling
/// convention a callee need not declare arguments that it does not read.
macro_rules! unsupported {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: DeviceHandle) -> nvmlReturn_t {
            $crate::rows::answer(stringify!($name), || device.card().and(Err(NvmlStatus::NotSupported)))
        }
    )*};
}

pub(crate) use {calls, texts, unsupported, values};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_unknown_error() {
        let code = answer("", || std::panic::resume_unwind(Box::new(())));
        assert_eq!(code, nvmlReturn_t::from(NvmlStatus::Unknown));
    }
}
