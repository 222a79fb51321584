//! Nodes that record an event or wait for one.
//!
//! Stream work is done when its call returns, so a wait ends at once. Recording notes the time of the launch.

use crate::edges::NodeInsertion;
use crate::error::{INVALID_VALUE, Outcome};
use crate::event;
use crate::executables;
use crate::export::exports;
use crate::graphs::{self, GraphNode};
use crate::pointer::{In, Out};

exports! {
    cuGraphAddEventRecordNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, event: u64) = add_record => "cuGraphAddEventRecordNode" @ 11010;
    cuGraphAddEventWaitNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, event: u64) = add_wait => "cuGraphAddEventWaitNode" @ 11010;
    cuGraphEventRecordNodeGetEvent(node: u64, event: Out<u64>) = get_recorded => "cuGraphEventRecordNodeGetEvent" @ 11010;
    cuGraphEventRecordNodeSetEvent(node: u64, event: u64) = set_recorded => "cuGraphEventRecordNodeSetEvent" @ 11010;
    cuGraphEventWaitNodeGetEvent(node: u64, event: Out<u64>) = get_awaited => "cuGraphEventWaitNodeGetEvent" @ 11010;
    cuGraphEventWaitNodeSetEvent(node: u64, event: u64) = set_awaited => "cuGraphEventWaitNodeSetEvent" @ 11010;
    cuGraphExecEventRecordNodeSetEvent(exec: u64, node: u64, event: u64) = change_recorded => "cuGraphExecEventRecordNodeSetEvent" @ 11010;
    cuGraphExecEventWaitNodeSetEvent(exec: u64, node: u64, event: u64) = change_awaited => "cuGraphExecEventWaitNodeSetEvent" @ 11010;
}

fn add(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    (event, node): (u64, GraphNode),
) -> Outcome {
    out.check()?;
    event::check(event)?;
    out.put(graphs::add(
        NodeInsertion::after(graph, after, count)?,
        node,
    )?)
}

fn add_record(out: Out<u64>, graph: u64, after: In<u64>, count: usize, event: u64) -> Outcome {
    add(out, graph, after, count, (event, GraphNode::Record(event)))
}

fn add_wait(out: Out<u64>, graph: u64, after: In<u64>, count: usize, event: u64) -> Outcome {
    add(out, graph, after, count, (event, GraphNode::Wait(event)))
}

fn get_recorded(node: u64, event: Out<u64>) -> Outcome {
    match graphs::node(node)? {
        GraphNode::Record(known) => event.put(known),
        _ => Err(INVALID_VALUE),
    }
}

fn get_awaited(node: u64, event: Out<u64>) -> Outcome {
    match graphs::node(node)? {
        GraphNode::Wait(known) => event.put(known),
        _ => Err(INVALID_VALUE),
    }
}

fn set_recorded(node: u64, event: u64) -> Outcome {
    event::check(event)?;
    graphs::set(node, GraphNode::Record(event))
}

fn set_awaited(node: u64, event: u64) -> Outcome {
    event::check(event)?;
    graphs::set(node, GraphNode::Wait(event))
}

fn change_recorded(exec: u64, node: u64, event: u64) -> Outcome {
    event::check(event)?;
    executables::change(exec, node, GraphNode::Record(event))
}

fn change_awaited(exec: u64, node: u64, event: u64) -> Outcome {
    event::check(event)?;
    executables::change(exec, node, GraphNode::Wait(event))
}
