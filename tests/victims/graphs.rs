//! The steps that allocate in graphs: a graph with one allocation is created, directly or by stream capture, and
//! launched.

use crate::driver::{AllocationLocation, AllocationNode, Driver};
use crate::memory::UNTOUCHED;
use crate::objects::VictimObject;
use crate::script::{ScriptWords, StepOutcome, VictimProgram, result};

impl VictimProgram {
    /// A step about graphs. `None` for other verbs.
    pub(crate) fn graph_step(
        &mut self,
        verb: &str,
        words: &mut ScriptWords,
    ) -> Option<StepOutcome> {
        let done = match verb {
            "graph" | "upload" | "capture" | "uploaded" | "graphauto" | "captureauto" => {
                self.graph(verb, words.bytes())
            }
            "relaunch" => self.relaunch(words.number(), 0),
            "relaunchaside" => self.relaunch_aside(words.number()),
            "freekept" => self.free_kept(words.number()),
            _ => return None,
        };
        Some(done.unwrap_or_else(StepOutcome::of))
    }

    /// `graph`, `graphauto` and `captureauto` keep their allocation, and the two `auto` ones free it at the next
    /// launch. The others free it inside the graph. `upload` only uploads the graph, and `uploaded` uploads it when it
    /// is instantiated. A graph that was refused is destroyed.
    fn graph(&mut self, verb: &str, bytes: usize) -> Result<StepOutcome, i32> {
        let device = self.device;
        let driver = self.driver()?;
        let is_automatic = verb.ends_with("auto");
        let keeps = is_automatic || verb == "graph";
        let (graph, address) = match verb {
            "capture" | "captureauto" => captured(driver, bytes, keeps)?,
            _ => made(driver, device, bytes, !keeps)?,
        };
        let mut exec = 0;
        let with_upload = Some(&mut [2, 0, 0, 0]);
        let made = match verb {
            "uploaded" => driver.cuGraphInstantiateWithParams(Some(&mut exec), graph, with_upload),
            _ => {
                let flags = u64::from(is_automatic);
                driver.cuGraphInstantiateWithFlags(Some(&mut exec), graph, flags)
            }
        };
        let code = match verb {
            "uploaded" => made,
            "upload" => driver.cuGraphUpload(exec, 0),
            _ => driver.cuGraphLaunch(exec, 0),
        };
        if code != 0 {
            if exec != 0 && verb != "uploaded" {
                result(driver.cuGraphExecDestroy(exec))?;
            }
            result(driver.cuGraphDestroy(graph))?;
            return Ok(StepOutcome::with(code, [1]));
        }
        let kept = if keeps { address } else { 0 };
        Ok(self.kept(0, exec as u64, VictimObject::Graph(exec, graph, kept)))
    }

    /// Launches a graph again, in a new stream.
    fn relaunch_aside(&mut self, number: u64) -> Result<StepOutcome, i32> {
        let mut stream = 0;
        result(self.driver()?.cuStreamCreate(Some(&mut stream), 1))?;
        self.relaunch(number, stream)
    }

    /// Frees the allocation that a graph left, and keeps the graph.
    fn free_kept(&mut self, number: u64) -> Result<StepOutcome, i32> {
        let VictimObject::Graph(_, _, address) = self.objects.get(number) else {
            return Err(-1);
        };
        Ok(StepOutcome::of(self.driver()?.cuMemFree_v2(address)))
    }

    fn relaunch(&mut self, number: u64, stream: usize) -> Result<StepOutcome, i32> {
        let VictimObject::Graph(exec, ..) = self.objects.get(number) else {
            return Err(-1);
        };
        let code = self.driver()?.cuGraphLaunch(exec, stream);
        Ok(match code {
            0 => StepOutcome::of(0),
            _ => StepOutcome::with(code, [1]),
        })
    }
}

/// Frees a graph's allocation, and the graph.
pub(crate) fn destroy(driver: &Driver, exec: usize, graph: usize, address: u64) -> i32 {
    let freed = match address {
        0 => Ok(()),
        address => result(driver.cuMemFree_v2(address)),
    };
    let ended = freed
        .and_then(|()| result(driver.cuGraphExecDestroy(exec)))
        .and_then(|()| result(driver.cuGraphDestroy(graph)));
    ended.err().unwrap_or(0)
}

fn made(driver: &Driver, device: i32, bytes: usize, frees: bool) -> Result<(usize, u64), i32> {
    let (mut graph, mut node) = (0, 0);
    let mut allocation = AllocationNode::of(AllocationLocation::card(device), bytes);
    result(driver.cuGraphCreate(Some(&mut graph), 0))?;
    result(driver.cuGraphAddMemAllocNode(Some(&mut node), graph, 0, 0, Some(&mut allocation)))?;
    if frees {
        let after = node;
        let mut node = 0;
        let after = Some(&after);
        result(driver.cuGraphAddMemFreeNode(Some(&mut node), graph, after, 1, allocation.address))?;
    }
    Ok((graph, allocation.address))
}

fn captured(driver: &Driver, bytes: usize, keeps: bool) -> Result<(usize, u64), i32> {
    let (mut stream, mut graph, mut address) = (0, 0, UNTOUCHED);
    result(driver.cuStreamCreate(Some(&mut stream), 1))?;
    result(driver.cuStreamBeginCapture_v2(stream, 0))?;
    let asked = result(driver.cuMemAllocAsync(Some(&mut address), bytes, stream));
    let asked = asked.and_then(|()| {
        if keeps {
            Ok(())
        } else {
            result(driver.cuMemFreeAsync(address, stream))
        }
    });
    let ended = result(driver.cuStreamEndCapture(stream, Some(&mut graph)));
    result(driver.cuStreamDestroy_v2(stream))?;
    asked.and(ended).map(|()| (graph, address))
}
