//! aarch64: arguments are in `x0` to `x7`, and the return address is in `x30`.
//!
//! Each entry point starts with a landing pad (`bti c`) and jumps by `x16`, from which a landing pad accepts a jump. So
//! it works in a process that has branch targets enforced. While the return address is on the stack it is signed
//! (`paciasp`, `autiasp`), as compilers do for system libraries. Machines without these extensions take all three
//! instructions for no-ops. The address that tells the caller is read before it is signed.

/// The machine's number in the header of an ELF file.
pub(crate) const ELF_MACHINE: u16 = libc::EM_AARCH64;
/// glibc's dynamic linker, as libraries name it.
pub(crate) const LOADER: &[u8] = b"ld-linux-aarch64.so.1";

/// The body of `dlsym` and `dlvsym`: calls `$way` with the three arguments and the caller's address, and then returns
/// its value or jumps to it, as the returned `DlsymOutcome` says. A `dlsym` has two arguments; its third is not used.
macro_rules! jump_to_dlsym {
    ($way:path) => {
        core::arch::naked_asm!(
            "hint #34", // bti c
            "mov x3, x30",
            "hint #25", // paciasp
            "stp x29, x30, [sp, #-48]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "str x2, [sp, #32]",
            "bl {way}",
            "mov x9, x0",
            "mov x16, x1",
            "ldp x0, x1, [sp, #16]",
            "ldr x2, [sp, #32]",
            "ldp x29, x30, [sp], #48",
            "hint #29", // autiasp
            "cbnz x9, 2f",
            "br x16",
            "2:",
            "mov x0, x16",
            "ret",
            way = sym $way,
        )
    };
}
pub(crate) use jump_to_dlsym;

/// The body of `dlopen`: lays the arguments out as a `DlopenRequest`, calls `$real` with it, and jumps to the address
/// that it returns, with the arguments as `$real` left them. Returns 0 if the address is 0.
macro_rules! jump_to_dlopen {
    ($real:path) => {
        core::arch::naked_asm!(
            "hint #34", // bti c
            "hint #25", // paciasp
            "stp x29, x30, [sp, #-48]!",
            "mov x29, sp",
            "str x1, [sp, #16]",
            "stp x0, xzr, [sp, #24]",
            "add x0, sp, #16",
            "bl {real}",
            "mov x16, x0",
            "ldr x1, [sp, #16]",
            "ldr x0, [sp, #24]",
            "ldp x29, x30, [sp], #48",
            "hint #29", // autiasp
            "cbz x16, 2f",
            "br x16",
            "2:",
            "mov x0, x16",
            "ret",
            real = sym $real,
        )
    };
}
pub(crate) use jump_to_dlopen;

/// The body of `dlmopen`, which has the namespace as its first argument: else like [`jump_to_dlopen`].
macro_rules! jump_to_dlmopen {
    ($real:path) => {
        core::arch::naked_asm!(
            "hint #34", // bti c
            "hint #25", // paciasp
            "stp x29, x30, [sp, #-48]!",
            "mov x29, sp",
            "str x2, [sp, #16]",
            "stp x1, x0, [sp, #24]",
            "add x0, sp, #16",
            "bl {real}",
            "mov x16, x0",
            "ldr x2, [sp, #16]",
            "ldp x1, x0, [sp, #24]",
            "ldp x29, x30, [sp], #48",
            "hint #29", // autiasp
            "cbz x16, 2f",
            "br x16",
            "2:",
            "mov x0, x16",
            "ret",
            real = sym $real,
        )
    };
}
pub(crate) use jump_to_dlmopen;

/// The body of an NVML entry point: jumps to `$called` with the return address as one more argument. Everything else
/// stays as the caller left it.
macro_rules! jump_to_called {
    ($called:path, $($arg:ident)*) => {
        core::arch::naked_asm!(
            "hint #34", // bti c
            concat!("mov ", $crate::arch::register_after!($($arg)*), ", x30"),
            "b {called}",
            called = sym $called,
        )
    };
}
pub(crate) use jump_to_called;

/// The register of the argument that follows the given ones.
macro_rules! register_after {
    ($a:ident $b:ident) => {
        "x2"
    };
    ($a:ident $b:ident $c:ident) => {
        "x3"
    };
    ($a:ident $b:ident $c:ident $d:ident) => {
        "x4"
    };
}
pub(crate) use register_after;

/// There are no stubs: the driver has no checkpoints on this machine, so no share sleeps.
pub(crate) const STUBS: usize = 0;

/// The address of a stub, of which there are none.
pub(crate) fn stub(_: usize) -> Option<usize> {
    None
}
