//! The entry points: one function for each row of the table, with the driver's name and signature.
//!
//! The preloaded library exports them (feature `exported`). Each finds the driver's own function and calls the hook
//! that the row names.

use crate::process;
use crate::table::{COUNT, HookedFunction, for_each_hook};

impl HookedFunction {
    /// The address of the hook.
    #[must_use]
    pub fn hook(&self) -> usize {
        ADDRESSES
            .get(self.index as usize)
            .map_or(0, |address| address())
    }

    /// The hook, or `real` if the hook does nothing without a limit and this process has none.
    pub(crate) fn hook_or(&self, real: usize) -> usize {
        if self.is_for_limits && !process::may_be_limited() {
            real
        } else {
            self.hook()
        }
    }
}

/// The driver's function of a row. Without a driver, the hook returns the library's "not initialized" status.
macro_rules! real_of {
    ($library:ident $symbol:ident($($type:ty),*)) => {{
        let Some(real) = calls::callee(HookIndex::$symbol as usize, DriverLibrary::$library) else {
            return DriverLibrary::$library.absent();
        };
        // SAFETY: the address is that of the driver's function of this name and version, and the row gives
        // its signature.
        unsafe { core::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> Status>(real) }
    }};
}

/// An entry point with the driver's name and signature. NVML calls its own functions by name, and the linker binds
/// these calls to the hooks. So the NVML entry points pass on the address of their caller.
macro_rules! entry_point {
    (Cuda $symbol:ident($($arg:ident: $type:ty),*) => $family:ident::$hook:ident, $what:literal) => {
        #[doc = concat!("See the table: ", $what, ".")]
        ///
        /// # Safety
        /// As for the driver's function of this name.
        #[cfg_attr(feature = "exported", unsafe(no_mangle))]
        pub unsafe extern "C" fn $symbol($($arg: $type),*) -> Status {
            let real = real_of!(Cuda $symbol($($type),*));
            // SAFETY: the caller keeps the driver's contract, which is the hook's.
            unsafe { hooks::$family::$hook(real, $($arg),*) }
        }
    };
    (Nvml $symbol:ident($($arg:ident: $type:ty),*) => $family:ident::$hook:ident, $what:literal) => {
        #[doc = concat!("See the table: ", $what, ".")]
        ///
        /// # Safety
        /// As for the driver's function of this name.
        #[unsafe(naked)]
        #[cfg_attr(feature = "exported", unsafe(no_mangle))]
        pub unsafe extern "C" fn $symbol($($arg: $type),*) -> Status {
            crate::arch::jump_to_called!(super::called::$symbol, $($arg)*)
        }
    };
}

/// What an NVML entry point continues with. Calls from NVML itself get the driver's own answer.
macro_rules! called {
    (Cuda $symbol:ident($($arg:ident: $type:ty),*) => $family:ident::$hook:ident) => {};
    (Nvml $symbol:ident($($arg:ident: $type:ty),*) => $family:ident::$hook:ident) => {
        pub(super) unsafe extern "C" fn $symbol($($arg: $type,)* caller: usize) -> Status {
            let real = real_of!(Nvml $symbol($($type),*));
            if driver::is_within(DriverLibrary::Nvml, caller) {
                // SAFETY: the caller keeps the driver's contract.
                return unsafe { real($($arg),*) };
            }
            // SAFETY: the caller keeps the driver's contract, which is the hook's.
            unsafe { hooks::$family::$hook(real, $($arg),*) }
        }
    };
}

macro_rules! entry_points {
    ($($library:ident $symbol:ident($($arg:ident: $type:ty),*) = $name:literal @ $version:literal => $family:ident::$hook:ident, $what:literal;)*) => {
        /// The address of each entry point, in the order of the table.
        static ADDRESSES: [fn() -> usize; COUNT] = [$(|| entry::$symbol as *const () as usize),*];

        /// The hooks as the program calls them, with the driver's names and signatures.
        #[cfg_attr(
            not(feature = "exported"),
            expect(non_snake_case, reason = "the driver's own names")
        )]
        pub mod entry {
            use core::ffi::c_char;

            use crate::foreign::*;
            use crate::table::{DriverLibrary, HookIndex};
            use crate::{calls, hooks};

            $(entry_point! { $library $symbol($($arg: $type),*) => $family::$hook, $what })*
        }

        /// What the NVML entry points continue with. The last argument is the address of the caller.
        #[expect(non_snake_case, reason = "the driver's own names")]
        mod called {
            use crate::foreign::*;
            use crate::table::{DriverLibrary, HookIndex};
            use crate::{calls, driver, hooks};

            $(called! { $library $symbol($($arg: $type),*) => $family::$hook })*
        }
    };
}

for_each_hook! { entry_points }
