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

/// How many [`stub`]s there are. The driver has about 700 functions.
pub(crate) const STUBS: usize = 1024;

/// The address of a stub: a function that publishes the call as [`note`](crate::calls::note) does, and then jumps to the
/// function in its slot, with everything as its caller left it. So it stands in for a function of any signature.
pub(crate) fn stub(slot: usize) -> Option<usize> {
    unsafe extern "C" {
        #[link_name = "apportion_stubs"]
        safe static FIRST: u8;
    }
    let first = (&raw const FIRST).addr();
    (slot < STUBS).then(|| first.wrapping_add(slot.wrapping_mul(16)))
}

// Each stub is 16 bytes long. `r10` and `r11` are nobody's between a call and the function: the linker's own jumps use
// them, too. A call that must be published saves all registers that can hold arguments.
core::arch::global_asm!(
    ".pushsection .text.apportion_stubs, \"ax\", @progbits",
    ".globl apportion_stubs",
    ".hidden apportion_stubs",
    ".type apportion_stubs, @function",
    ".balign 16",
    "apportion_stubs:",
    ".set apportion_stub, 0",
    ".rept {count}",
    "endbr64",
    "movl $apportion_stub, %r11d",
    "jmp 7f",
    ".balign 16",
    ".set apportion_stub, apportion_stub + 1",
    ".endr",
    "7:",
    "movq {epoch}(%rip), %r10",
    "movq (%r10), %r10",
    "cmpq {seen}(%rip), %r10",
    "jne 8f",
    "6:",
    "leaq {slots}(%rip), %r10",
    "jmp *(%r10,%r11,8)",
    "8:",
    "pushq %rdi",
    "pushq %rsi",
    "pushq %rdx",
    "pushq %rcx",
    "pushq %r8",
    "pushq %r9",
    "pushq %rax",
    "pushq %r11",
    "subq $136, %rsp",
    "movups %xmm0, (%rsp)",
    "movups %xmm1, 16(%rsp)",
    "movups %xmm2, 32(%rsp)",
    "movups %xmm3, 48(%rsp)",
    "movups %xmm4, 64(%rsp)",
    "movups %xmm5, 80(%rsp)",
    "movups %xmm6, 96(%rsp)",
    "movups %xmm7, 112(%rsp)",
    "call {note}",
    "movups (%rsp), %xmm0",
    "movups 16(%rsp), %xmm1",
    "movups 32(%rsp), %xmm2",
    "movups 48(%rsp), %xmm3",
    "movups 64(%rsp), %xmm4",
    "movups 80(%rsp), %xmm5",
    "movups 96(%rsp), %xmm6",
    "movups 112(%rsp), %xmm7",
    "addq $136, %rsp",
    "popq %r11",
    "popq %rax",
    "popq %r9",
    "popq %r8",
    "popq %rcx",
    "popq %rdx",
    "popq %rsi",
    "popq %rdi",
    "jmp 6b",
    ".size apportion_stubs, . - apportion_stubs",
    ".popsection",
    count = const STUBS,
    epoch = sym crate::call_watch::EPOCH,
    seen = sym crate::calls::SEEN,
    slots = sym crate::calls::SLOTS,
    note = sym crate::calls::note,
    options(att_syntax),
);
