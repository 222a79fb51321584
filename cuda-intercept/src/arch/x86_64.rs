//! x86-64: arguments are in `rdi`, `rsi`, `rdx`, `rcx`, `r8`, and the return address is on the stack.

/// The machine's number in the header of an ELF file.
pub(crate) const ELF_MACHINE: u16 = libc::EM_X86_64;
/// glibc's dynamic linker, as libraries name it.
pub(crate) const LOADER: &[u8] = b"ld-linux-x86-64.so.2";

/// The body of `dlsym` and `dlvsym`: calls `$way` with the three arguments and the caller's address, and then returns
/// its value or jumps to it, as the returned `DlsymOutcome` says. A `dlsym` has two arguments; its third is not used.
macro_rules! jump_to_dlsym {
    ($way:path) => {
        core::arch::naked_asm!(
            "endbr64",
            "push rdi",
            "push rsi",
            "push rdx",
            "mov rcx, [rsp + 24]",
            "call {way}",
            "mov r11, rdx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "test rax, rax",
            "jnz 2f",
            "jmp r11",
            "2:",
            "mov rax, r11",
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
            "endbr64",
            "push 0",
            "push rdi",
            "push rsi",
            "mov rdi, rsp",
            "call {real}",
            "pop rsi",
            "pop rdi",
            "pop rdx",
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2:",
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
            "endbr64",
            "push rdi",
            "push rsi",
            "push rdx",
            "mov rdi, rsp",
            "call {real}",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2:",
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
            "endbr64",
            concat!("mov ", $crate::arch::register_after!($($arg)*), ", [rsp]"),
            "jmp {called}",
            called = sym $called,
        )
    };
}
pub(crate) use jump_to_called;

/// The register of the argument that follows the given ones.
macro_rules! register_after {
    ($a:ident $b:ident) => {
        "rdx"
    };
    ($a:ident $b:ident $c:ident) => {
        "rcx"
    };
    ($a:ident $b:ident $c:ident $d:ident) => {
        "r8"
    };
}
pub(crate) use register_after;
