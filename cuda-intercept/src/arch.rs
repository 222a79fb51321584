//! What differs between the machines that this library runs on: instructions, and the names of its files.
//!
//! An entry point that must not be seen by the function behind it is a naked function. It asks a function of ours where
//! to go, restores its caller's registers and jumps. These instructions are macros of the machine's module. Everything
//! else of the library is the same for all machines.

#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    target_endian = "little"
)))]
compile_error!("the interception library needs Linux on a little-endian machine of 64 bits");
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "the interception library needs x86-64 or aarch64: its jumps are written in their instructions"
);

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{
    ELF_MACHINE, LOADER, STUBS, jump_to_called, jump_to_dlmopen, jump_to_dlopen, jump_to_dlsym,
    register_after, stub,
};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{
    ELF_MACHINE, LOADER, STUBS, jump_to_called, jump_to_dlmopen, jump_to_dlopen, jump_to_dlsym,
    register_after, stub,
};
