//! Our own `dlsym` and `dlvsym`, so that lookups of the driver's functions find the hooks.
//!
//! Both are naked functions. For every name that is not the driver's, they jump to the real function with the stack
//! unchanged, so that it sees its real caller. With an ordinary call in between, `dlsym(RTLD_NEXT, ..)` in another
//! library would search from here and find that library again and again.
//!
//! For a name in the table, the real function is asked for the pointer that the caller would have got. If that is the
//! driver's own function, the caller gets the hook. Any other pointer is returned unchanged. A library between the
//! program and the driver finds the driver in the same ways, so a hook in place of *its* function would recurse
//! without end.
//!
//! Lookups of `dlsym`, `dlopen` and their variants are answered too. A caller that asks the C library for them, in this or
//! in another namespace, gets ours.

use core::ffi::{CStr, c_char, c_void};
use core::ops::ControlFlow;

use crate::arch::jump_to_dlsym;
use crate::table::{DriverLibrary, HookedFunction, ROWS};
use crate::{calls, driver, elf, process, table};

mod loader;
mod open;

use loader::InterposedFunction;
use open::{DLMOPEN, DLOPEN};
pub use open::{dlmopen, dlopen};

static DLSYM: InterposedFunction = InterposedFunction::new(c"dlsym", Some(c"__libc_dlsym"), || {
    dlsym as *const () as usize
});
static DLVSYM: InterposedFunction =
    InterposedFunction::new(c"dlvsym", Some(c"__libc_dlvsym"), || {
        dlvsym as *const () as usize
    });

/// The function of the loader with this name, if this library replaces it.
fn interposed(name: &CStr) -> Option<&'static InterposedFunction> {
    // Most lookups are of other names.
    if !matches!(name.to_bytes(), [b'd', b'l', ..] | [b'_', b'_', ..]) {
        return None;
    }
    let mut all = [&DLSYM, &DLVSYM, &DLOPEN, &DLMOPEN].into_iter();
    all.find(|function| function.is_named(name))
}

/// The outcome of a call: the caller gets `value` as the result, or the call continues at `value`.
#[repr(C)]
struct DlsymOutcome {
    is_answer: u64,
    value: usize,
}

const fn answer(value: usize) -> DlsymOutcome {
    DlsymOutcome {
        is_answer: 1,
        value,
    }
}

/// Stands in for the C library's `dlsym`.
///
/// # Safety
/// As for `dlsym`.
#[unsafe(naked)]
#[cfg_attr(feature = "exported", unsafe(no_mangle))]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    jump_to_dlsym!(dlsym_way)
}

/// Stands in for the C library's `dlvsym`.
///
/// # Safety
/// As for `dlvsym`.
#[unsafe(naked)]
#[cfg_attr(feature = "exported", unsafe(no_mangle))]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    jump_to_dlsym!(dlvsym_way)
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

unsafe extern "C" fn dlsym_way(
    handle: *mut c_void,
    name: *const c_char,
    _: *const c_char,
    caller: usize,
) -> DlsymOutcome {
    let Some(real) = DLSYM.real() else {
        return answer(0);
    };
    // SAFETY: the address is that of the next library's `dlsym`.
    let ask = unsafe { core::mem::transmute::<usize, Dlsym>(real) };
    // SAFETY: the arguments are the caller's own.
    let ask = |handle| unsafe { ask(handle, name) } as usize;
    // SAFETY: the caller passes a string, or null, as to `dlsym`.
    unsafe { way(name, real, handle, caller, ask) }
}

unsafe extern "C" fn dlvsym_way(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> DlsymOutcome {
    let Some(real) = DLVSYM.real() else {
        return answer(0);
    };
    // SAFETY: the address is that of the next library's `dlvsym`.
    let ask = unsafe { core::mem::transmute::<usize, Dlvsym>(real) };
    // SAFETY: the arguments are the caller's own.
    let ask = |handle| unsafe { ask(handle, name, version) } as usize;
    // SAFETY: the caller passes a string, or null, as to `dlvsym`.
    unsafe { way(name, real, handle, caller, ask) }
}

/// # Safety
/// `name` must be null or a string.
unsafe fn way(
    name: *const c_char,
    real: usize,
    handle: *mut c_void,
    caller: usize,
    ask: impl Fn(*mut c_void) -> usize,
) -> DlsymOutcome {
    let forward = DlsymOutcome {
        is_answer: 0,
        value: real,
    };
    if name.is_null() {
        return forward;
    }
    // SAFETY: it is not null, so it is a string.
    let name = unsafe { CStr::from_ptr(name) };
    if let Some(function) = interposed(name) {
        return function.resolve(name, handle, ask).map_or(forward, answer);
    }
    let Some(library) = library_of(name) else {
        return forward;
    };
    let Some((place, row)) = row_of(name) else {
        return match handle {
            libc::RTLD_NEXT | libc::RTLD_DEFAULT if !calls::is_watched() => forward,
            // Where the real function would search from the caller, or from its library, this may find nothing.
            libc::RTLD_NEXT => next_after(caller, name).map_or(forward, seen),
            libc::RTLD_DEFAULT => match ask(handle) {
                0 => forward,
                found => seen(found),
            },
            handle => seen(in_the_one_driver(library, name, ask(handle), caller)),
        };
    };
    let substitute =
        |found| substitute(place, row, in_the_one_driver(library, name, found, caller));
    if handle == libc::RTLD_NEXT {
        return match next_after(caller, row.symbol).or_else(|| driver::real(place, row.library)) {
            Some(found) => answer(substitute(found)),
            None => {
                // There is no such function. The real `dlsym` leaves the message that the caller expects.
                ask(handle);
                answer(0)
            }
        };
    }
    let mut found = ask(handle);
    if elf::is_ours(found) {
        // The search found our hook. Without this library it would have continued behind us.
        found = ask(libc::RTLD_NEXT);
        if found == 0 && handle == libc::RTLD_DEFAULT {
            // For a library opened with `RTLD_LOCAL`, it would also have searched that library's dependencies.
            found = linked_with(caller, place, row).unwrap_or(0);
        }
    }
    answer(substitute(found))
}

/// The answer for a function without a hook.
fn seen(found: usize) -> DlsymOutcome {
    answer(calls::seen(found))
}

/// The hook, if `found` is the driver's function of that row; else `found`.
fn substitute(place: usize, row: &HookedFunction, found: usize) -> usize {
    if found != 0 && driver::real(place, row.library) == Some(found) {
        row.hook_or(found)
    } else {
        found
    }
}

/// The hooked driver's function, if `found` lies in another copy of the driver. Each copy has its own state, so a
/// limited process uses one driver. A driver that wraps another, as under WSL, still reaches the one that it wraps.
fn in_the_one_driver(library: DriverLibrary, name: &CStr, found: usize, caller: usize) -> usize {
    if found == 0 || driver::is_in(library, found) {
        return found;
    }
    let is_in_a_copy = |address| {
        let named = elf::for_each(|object| {
            if object.span().contains(&address) {
                ControlFlow::Break(object.is_named(library.soname()))
            } else {
                ControlFlow::Continue(())
            }
        });
        named == Some(true)
    };
    if is_in_a_copy(found) && !is_in_a_copy(caller) && process::may_be_limited() {
        driver::function(library, name).unwrap_or(found)
    } else {
        found
    }
}

/// The library that a name belongs to.
fn library_of(name: &CStr) -> Option<DriverLibrary> {
    let (library, rest) = match name.to_bytes() {
        [b'c', b'u', rest @ ..] => (DriverLibrary::Cuda, rest),
        [b'n', b'v', b'm', b'l', rest @ ..] => (DriverLibrary::Nvml, rest),
        _ => return None,
    };
    let is_a_function_s = rest.first().is_some_and(u8::is_ascii_uppercase);
    is_a_function_s.then_some(library)
}

/// The row of a name and its index, if the name is hooked.
fn row_of(name: &CStr) -> Option<(usize, &'static HookedFunction)> {
    let place = table::find(name)?;
    ROWS.get(place).map(|row| (place, row))
}

/// What `RTLD_NEXT` means to a caller at this address: the first definition in an object that was loaded after the
/// caller's. This library's own definition is skipped.
fn next_after(caller: usize, symbol: &CStr) -> Option<usize> {
    let mut passed = false;
    elf::for_each(|object| {
        if !passed {
            passed = object.span().contains(&caller);
            return ControlFlow::Continue(());
        }
        match object.symbol(symbol) {
            Some(found) if !object.is_ours() => ControlFlow::Break(found),
            Some(_) | None => ControlFlow::Continue(()),
        }
    })
}

/// What a library finds beyond the global scope: the driver, if it is loaded. The program itself searches only the
/// global scope.
fn linked_with(caller: usize, place: usize, row: &HookedFunction) -> Option<usize> {
    let is_library = elf::for_each(|object| {
        if object.span().contains(&caller) {
            ControlFlow::Break(object.is_library())
        } else {
            ControlFlow::Continue(())
        }
    });
    let found = is_library?.then(|| driver::real(place, row.library))??;
    driver::forget_message();
    Some(found)
}
