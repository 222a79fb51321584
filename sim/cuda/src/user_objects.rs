//! User objects: resources of the program that live as long as they have references. Callers hold references, and so do
//! graphs, their clones and their executable graphs.

use std::collections::HashMap;

use crate::driver::tables;
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::pointer::Out;
use crate::stream::HostFunction;

/// The user objects of a process by handle.
pub(crate) type UserObjects = HashMap<u64, UserObject>;

/// A resource, its destructor, and the number of references.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UserObject {
    thing: u64,
    end: HostFunction,
    references: u32,
}

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which must be given.
const NO_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: u32 = 1;

exports! {
    cuUserObjectCreate(out: Out<u64>, thing: u64, end: HostFunction, references: u32, flags: u32) = create => "cuUserObjectCreate" @ 11030;
    cuUserObjectRetain(object: u64, count: u32) = retain => "cuUserObjectRetain" @ 11030;
    cuUserObjectRelease(object: u64, count: u32) = release => "cuUserObjectRelease" @ 11030;
    cuGraphRetainUserObject(graph: u64, object: u64, count: u32, flags: u32) = graph_retain => "cuGraphRetainUserObject" @ 11030;
    cuGraphReleaseUserObject(graph: u64, object: u64, count: u32) = graph_release => "cuGraphReleaseUserObject" @ 11030;
}

fn check(count: u32) -> Outcome {
    if (1..=i32::MAX.unsigned_abs()).contains(&count) {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

fn create(out: Out<u64>, thing: u64, end: HostFunction, references: u32, flags: u32) -> Outcome {
    out.check()?;
    check(references)?;
    if end.is_none() || flags != NO_SYNC {
        return Err(INVALID_VALUE);
    }
    let mut tables = tables();
    let handle = tables.fresh();
    let object = UserObject {
        thing,
        end,
        references,
    };
    tables.user_objects.insert(handle, object);
    out.put(handle)
}

fn retain(handle: u64, count: u32) -> Outcome {
    check(count)?;
    let mut tables = tables();
    let object = tables.user_objects.get_mut(&handle).ok_or(INVALID_VALUE)?;
    object.references = object.references.saturating_add(count);
    Ok(())
}

/// Drops references. With the last one, calls the destructor before it returns.
fn release(handle: u64, count: u32) -> Outcome {
    check(count)?;
    let over = {
        let mut tables = tables();
        let object = tables.user_objects.get_mut(&handle).ok_or(INVALID_VALUE)?;
        object.references = object.references.checked_sub(count).ok_or(INVALID_VALUE)?;
        match object.references {
            0 => tables.user_objects.remove(&handle),
            _ => None,
        }
    };
    if let Some(UserObject {
        thing,
        end: Some(end),
        ..
    }) = over
    {
        // SAFETY: the program gave this function to be called with this pointer when no reference is left.
        unsafe { end(thing) };
    }
    Ok(())
}

/// Makes new references for a graph, or moves the caller's to it.
fn graph_retain(graph: u64, object: u64, count: u32, flags: u32) -> Outcome {
    check(count)?;
    if flags & !MOVE != 0 || !tables().user_objects.contains_key(&object) {
        return Err(INVALID_VALUE);
    }
    *tables()
        .graphs
        .objects_mut(graph)?
        .entry(object)
        .or_default() += count;
    match flags & MOVE {
        0 => retain(object, count),
        _ => Ok(()),
    }
}

fn graph_release(graph: u64, object: u64, count: u32) -> Outcome {
    check(count)?;
    {
        let mut tables = tables();
        let objects = tables.graphs.objects_mut(graph)?;
        let owned = objects.get_mut(&object).ok_or(INVALID_VALUE)?;
        *owned = owned.checked_sub(count).ok_or(INVALID_VALUE)?;
        if *owned == 0 {
            objects.remove(&object);
        }
    }
    release(object, count)
}

/// New references to all objects that a graph has references to.
pub(crate) fn retained_for(graph: u64) -> Result<HashMap<u64, u32>, CudaError> {
    let objects = tables().graphs.objects_mut(graph)?.clone();
    for (object, count) in &objects {
        retain(*object, *count)?;
    }
    Ok(objects)
}

/// The same, for a clone of the graph.
pub(crate) fn retain_for_copy(graph: u64, copy: u64) -> Outcome {
    let objects = retained_for(graph)?;
    *tables().graphs.objects_mut(copy)? = objects;
    Ok(())
}

/// Drops the references of an owner that is gone.
pub(crate) fn release_all(objects: HashMap<u64, u32>) -> Outcome {
    objects
        .into_iter()
        .try_for_each(|(object, count)| release(object, count))
}
