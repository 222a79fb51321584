//! Words of memory that a stream writes or waits for, one by one or in batches, on a stream or in a graph node.
//!
//! A stream does its work before a call returns, so it cannot wait for another thread's write. The awaited value is
//! there already, or the wait fails as not supported. No device attribute promises more.

use std::sync::Arc;

use crate::capture::captured;
use crate::driver::tables;
use crate::edges::NodeInsertion;
use crate::error::{CudaError, INVALID_VALUE, NOT_SUPPORTED, Outcome};
use crate::export::exports;
use crate::graphs::{self, GraphNode};
use crate::mapping;
use crate::pointer::{In, Out};
use crate::stream::stream;

/// `CUstreamBatchMemOpParams`: the operation, an address, a value, flags, and two unused words.
pub(crate) type Operation = [u64; 6];

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct BatchMemOpParams {
    context: u64,
    count: u32,
    operations: u64,
    flags: u32,
}

/// `CUstreamBatchMemOpType`.
const WAIT_32: u32 = 1;
const WRITE_32: u32 = 2;
const FLUSH_REMOTE_WRITES: u32 = 3;
const WAIT_64: u32 = 4;
const WRITE_64: u32 = 5;
const BARRIER: u32 = 6;
/// `CU_STREAM_WAIT_VALUE_*`, without the flush flag.
const AT_LEAST: u32 = 0;
const EQUAL: u32 = 1;
const AND: u32 = 2;
const NOR: u32 = 3;
const CONDITION: u32 = 3;
/// The most operations of a batch.
const MOST: u32 = 256;

exports! {
    cuStreamWaitValue32(stream: u64, address: u64, value: u32, flags: u32) = wait_32 => "cuStreamWaitValue32" @ 8000 | cuStreamWaitValue32_ptsz @ 8000;
    cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: u32) = wait_32 => "cuStreamWaitValue32" @ 11070 | cuStreamWaitValue32_v2_ptsz @ 11070;
    cuStreamWaitValue64(stream: u64, address: u64, value: u64, flags: u32) = wait_64 => "cuStreamWaitValue64" @ 9000 | cuStreamWaitValue64_ptsz @ 9000;
    cuStreamWaitValue64_v2(stream: u64, address: u64, value: u64, flags: u32) = wait_64 => "cuStreamWaitValue64" @ 11070 | cuStreamWaitValue64_v2_ptsz @ 11070;
    cuStreamWriteValue32(stream: u64, address: u64, value: u32, flags: u32) = write_32 => "cuStreamWriteValue32" @ 8000 | cuStreamWriteValue32_ptsz @ 8000;
    cuStreamWriteValue32_v2(stream: u64, address: u64, value: u32, flags: u32) = write_32 => "cuStreamWriteValue32" @ 11070 | cuStreamWriteValue32_v2_ptsz @ 11070;
    cuStreamWriteValue64(stream: u64, address: u64, value: u64, flags: u32) = write_64 => "cuStreamWriteValue64" @ 9000 | cuStreamWriteValue64_ptsz @ 9000;
    cuStreamWriteValue64_v2(stream: u64, address: u64, value: u64, flags: u32) = write_64 => "cuStreamWriteValue64" @ 11070 | cuStreamWriteValue64_v2_ptsz @ 11070;
    cuStreamBatchMemOp(stream: u64, count: u32, operations: In<Operation>, flags: u32) = batch => "cuStreamBatchMemOp" @ 8000 | cuStreamBatchMemOp_ptsz @ 8000;
    cuStreamBatchMemOp_v2(stream: u64, count: u32, operations: In<Operation>, flags: u32) = batch => "cuStreamBatchMemOp" @ 11070 | cuStreamBatchMemOp_v2_ptsz @ 11070;
    cuGraphAddBatchMemOpNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, batch: In<BatchMemOpParams>) = add => "cuGraphAddBatchMemOpNode" @ 11070;
    cuGraphBatchMemOpNodeGetParams(node: u64, batch: Out<BatchMemOpParams>) = get => "cuGraphBatchMemOpNodeGetParams" @ 11070;
    cuGraphBatchMemOpNodeSetParams(node: u64, batch: In<BatchMemOpParams>) = set => "cuGraphBatchMemOpNodeSetParams" @ 11070;
    cuGraphExecBatchMemOpNodeSetParams(exec: u64, node: u64, batch: In<BatchMemOpParams>) = change => "cuGraphExecBatchMemOpNodeSetParams" @ 11070;
}

/// Performs the operations in order.
pub(crate) fn perform(operations: &[Operation]) -> Outcome {
    operations.iter().try_for_each(one)
}

fn one([kind, address, value, flags, ..]: &Operation) -> Outcome {
    match *kind as u32 {
        WRITE_32 => write(*address, &(*value as u32).to_le_bytes()),
        WRITE_64 => write(*address, &value.to_le_bytes()),
        WAIT_32 => wait(*address, *value as u32, *flags as u32),
        WAIT_64 => wait(*address, *value, *flags as u32),
        FLUSH_REMOTE_WRITES | BARRIER => Ok(()),
        _ => Err(INVALID_VALUE),
    }
}

fn write(address: u64, bytes: &[u8]) -> Outcome {
    if !tables().covers(address, bytes.len() as u64) {
        return Err(INVALID_VALUE);
    }
    mapping::fill(address, bytes, 1);
    Ok(())
}

/// A word that can be compared, also by the sign of a wrapping difference.
trait MemoryWord: Copy {
    fn is_met(self, wanted: Self, condition: u32) -> bool;
}

macro_rules! word {
    ($word:ty) => {
        impl MemoryWord for $word {
            fn is_met(self, wanted: Self, condition: u32) -> bool {
                match condition {
                    AT_LEAST => self.wrapping_sub(wanted).cast_signed() >= 0,
                    EQUAL => self == wanted,
                    AND => self & wanted != 0,
                    NOR => !(self | wanted) != 0,
                    _ => false,
                }
            }
        }
    };
}

word!(u32);
word!(u64);

fn wait<T: MemoryWord>(address: u64, wanted: T, flags: u32) -> Outcome {
    if !tables().covers(address, size_of::<T>() as u64) {
        return Err(INVALID_VALUE);
    }
    let there = In::<T>::from_address(address).get()?;
    if there.is_met(wanted, flags & CONDITION) {
        Ok(())
    } else {
        Err(NOT_SUPPORTED)
    }
}

/// Performs the operations, or makes a node of them while the stream is captured.
fn on_stream(on: u64, operations: &[Operation]) -> Outcome {
    stream(on)?;
    match captured(on)? {
        Some(to) => graphs::add(to, GraphNode::Operations(operations.into())).map(drop),
        None => perform(operations),
    }
}

fn single(on: u64, kind: u32, address: u64, value: u64, flags: u32) -> Outcome {
    let operation = [u64::from(kind), address, value, u64::from(flags), 0, 0];
    on_stream(on, &[operation])
}

fn wait_32(on: u64, address: u64, value: u32, flags: u32) -> Outcome {
    single(on, WAIT_32, address, u64::from(value), flags)
}

fn wait_64(on: u64, address: u64, value: u64, flags: u32) -> Outcome {
    single(on, WAIT_64, address, value, flags)
}

fn write_32(on: u64, address: u64, value: u32, flags: u32) -> Outcome {
    single(on, WRITE_32, address, u64::from(value), flags)
}

fn write_64(on: u64, address: u64, value: u64, flags: u32) -> Outcome {
    single(on, WRITE_64, address, value, flags)
}

fn all(operations: In<Operation>, count: u32, flags: u32) -> Result<Arc<[Operation]>, CudaError> {
    if flags != 0 || count > MOST {
        return Err(INVALID_VALUE);
    }
    (0..count as usize).map(|at| operations.at(at)).collect()
}

fn batch(on: u64, count: u32, operations: In<Operation>, flags: u32) -> Outcome {
    on_stream(on, &all(operations, count, flags)?)
}

impl BatchMemOpParams {
    /// The node for these parameters.
    pub(crate) fn node(self) -> Result<GraphNode, CudaError> {
        let operations = In::from_address(self.operations);
        all(operations, self.count, self.flags).map(GraphNode::Operations)
    }

    /// The parameters of a node. They point to its operations, which stay in place until the node is changed.
    pub(crate) fn of(operations: &[Operation]) -> Self {
        Self {
            context: 0,
            count: u32::try_from(operations.len()).unwrap_or(u32::MAX),
            operations: operations.as_ptr().expose_provenance() as u64,
            flags: 0,
        }
    }
}

fn add(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    batch: In<BatchMemOpParams>,
) -> Outcome {
    out.check()?;
    let to = NodeInsertion::after(graph, after, count)?;
    out.put(graphs::add(to, batch.get()?.node()?)?)
}

fn get(node: u64, batch: Out<BatchMemOpParams>) -> Outcome {
    match graphs::node(node)? {
        GraphNode::Operations(operations) => batch.put(BatchMemOpParams::of(&operations)),
        _ => Err(INVALID_VALUE),
    }
}

fn set(node: u64, batch: In<BatchMemOpParams>) -> Outcome {
    graphs::set(node, batch.get()?.node()?)
}

fn change(exec: u64, node: u64, batch: In<BatchMemOpParams>) -> Outcome {
    crate::executables::change(exec, node, batch.get()?.node()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_over_when_its_condition_is_met() {
        for (there, wanted, condition, is_met) in [
            (5_u32, 5, AT_LEAST, true),
            (4, 5, AT_LEAST, false),
            // A counter that has wrapped around.
            (1, u32::MAX, AT_LEAST, true),
            (5, 5, EQUAL, true),
            (6, 5, EQUAL, false),
            (6, 2, AND, true),
            (6, 1, AND, false),
            (0, 0, NOR, true),
            (u32::MAX, 0, NOR, false),
        ] {
            assert_eq!(there.is_met(wanted, condition), is_met, "{there} {wanted}");
        }
    }
}
