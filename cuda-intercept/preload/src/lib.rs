//! The library that is preloaded into programs with a limit: the exported entry points of `apportion-intercept`, and
//! what a library without a runtime must bring along.
//!
//! It is loaded into every process of a container: shells, `true`, programs with another or an older C library. So it
//! names no other library and no symbol version, has no constructor, and allocates with the process's own `malloc`.
//! All logic is in `apportion-intercept`.
#![no_std]

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;
use core::ptr;

use apportion_intercept as _;

/// The process's own heap.
struct Heap;

// SAFETY: the C library's functions keep the contract of an allocator: what `malloc` and `posix_memalign` return is
// unique, aligned and valid until `free`.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let mut place = ptr::null_mut();
        let align = layout.align().max(size_of::<usize>());
        // SAFETY: the alignment is a power of two and a multiple of the size of a pointer.
        match unsafe { libc::posix_memalign(&raw mut place, align, layout.size()) } {
            0 => place.cast(),
            _ => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, place: *mut u8, _: Layout) {
        // SAFETY: it comes from `posix_memalign`.
        unsafe { libc::free(place.cast()) };
    }
}

#[global_allocator]
static HEAP: Heap = Heap;

/// Never reached: nothing in the hooks panics, and a test checks that the library has no trace of this function. The
/// compiler requires it.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        // SAFETY: pausing a thread has no preconditions.
        unsafe { libc::pause() };
    }
}

// C libraries before glibc 2.33 have these functions only as inline wrappers in their headers, so they are defined
// here; they are hidden, so only the hooks use them. The kernel's structure equals the C library's. A failure is a
// negative number, which is all that the callers check.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".globl stat",
    ".hidden stat",
    ".type stat, @function",
    "stat:",
    "mov eax, 4",
    "syscall",
    "ret",
    ".size stat, . - stat",
    ".globl fstat",
    ".hidden fstat",
    ".type fstat, @function",
    "fstat:",
    "mov eax, 5",
    "syscall",
    "ret",
    ".size fstat, . - fstat",
);

// The same on aarch64, whose kernel has no `stat`: it is `newfstatat` (79) with `AT_FDCWD` (-100).
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".globl stat",
    ".hidden stat",
    ".type stat, %function",
    "stat:",
    "mov x2, x1",
    "mov x1, x0",
    "mov x0, #-100",
    "mov x3, xzr",
    "mov x8, #79",
    "svc #0",
    "ret",
    ".size stat, . - stat",
    ".globl fstat",
    ".hidden fstat",
    ".type fstat, %function",
    "fstat:",
    "mov x8, #80",
    "svc #0",
    "ret",
    ".size fstat, . - fstat",
);
