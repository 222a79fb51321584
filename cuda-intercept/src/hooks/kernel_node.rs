//! Updates of executable graphs: the local memory of their new kernels is charged before the update.

use crate::foreign::{KernelNode, NodeParameters, OUT_OF_MEMORY, Opaque, Status};

use super::graph::{self, CHILD, KERNEL};
use super::local_memory;

type UpdateV1 = unsafe extern "C" fn(Opaque, Opaque, *mut Opaque, *mut u32) -> Status;
type Update = unsafe extern "C" fn(Opaque, Opaque, Opaque) -> Status;
type SetKernel = unsafe extern "C" fn(Opaque, Opaque, *const KernelNode) -> Status;
type SetNode = unsafe extern "C" fn(Opaque, Opaque, *const NodeParameters) -> Status;
type SetChild = unsafe extern "C" fn(Opaque, Opaque, Opaque) -> Status;

fn after(fits: bool, ask: impl Fn() -> Status) -> Status {
    if fits { ask() } else { OUT_OF_MEMORY }
}

pub(crate) unsafe fn update_v1(
    real: UpdateV1,
    exec: Opaque,
    new: Opaque,
    node: *mut Opaque,
    result: *mut u32,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    after(graph::fits(new, 0), || unsafe {
        real(exec, new, node, result)
    })
}

pub(crate) unsafe fn update(real: Update, exec: Opaque, new: Opaque, result: Opaque) -> Status {
    // SAFETY: the arguments are the caller's own.
    after(graph::fits(new, 0), || unsafe { real(exec, new, result) })
}

pub(crate) unsafe fn set_child(real: SetChild, exec: Opaque, node: Opaque, new: Opaque) -> Status {
    // SAFETY: the arguments are the caller's own.
    after(graph::fits(new, 0), || unsafe { real(exec, node, new) })
}

pub(crate) unsafe fn set(
    real: SetKernel,
    exec: Opaque,
    node: Opaque,
    kernel: *const KernelNode,
) -> Status {
    // SAFETY: the caller passes null or a kernel, as to the driver.
    let fits = unsafe { kernel.as_ref() }.is_none_or(local_memory::fits);
    // SAFETY: the arguments are the caller's own.
    after(fits, || unsafe { real(exec, node, kernel) })
}

/// The first version of the structure ends before the fields that name a kernel without a context.
pub(crate) unsafe fn set_v1(
    real: SetKernel,
    exec: Opaque,
    node: Opaque,
    kernel: *const KernelNode,
) -> Status {
    // SAFETY: the caller passes null or a kernel, whose function comes first.
    let function = unsafe { kernel.cast::<Opaque>().as_ref() };
    let fits = function.is_none_or(|function| local_memory::fits_function(*function, None));
    // SAFETY: the arguments are the caller's own.
    after(fits, || unsafe { real(exec, node, kernel) })
}

pub(crate) unsafe fn set_node(
    real: SetNode,
    exec: Opaque,
    node: Opaque,
    parameters: *const NodeParameters,
) -> Status {
    // SAFETY: the caller passes null or parameters, as to the driver.
    let fits = unsafe { parameters.as_ref() }.is_none_or(|parameters| match parameters.kind {
        // SAFETY: in a node of this kind, the parameters continue with a kernel.
        KERNEL => unsafe {
            local_memory::fits(&*(&raw const parameters.rest).cast::<KernelNode>())
        },
        CHILD => graph::fits(parameters.child(), 0),
        _ => true,
    });
    // SAFETY: the arguments are the caller's own.
    after(fits, || unsafe { real(exec, node, parameters) })
}
